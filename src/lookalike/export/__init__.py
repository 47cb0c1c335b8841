"""Export: a trained model as a file for other programs, or as a folder for other people."""

from lookalike.export.facts import facts
from lookalike.export.folder import model_card, write_folder
from lookalike.export.graph import Graph, trace
from lookalike.export.int8 import quantise_weights
from lookalike.export.onnx_file import write_onnx
from lookalike.export.torch_file import write_torch
from lookalike.models.hub import fetch

__all__ = [
    "Graph",
    "facts",
    "fetch",
    "model_card",
    "quantise_weights",
    "trace",
    "write_folder",
    "write_onnx",
    "write_torch",
]
