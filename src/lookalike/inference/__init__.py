"""Inference: the one path from a picture to its vector.

``preprocess`` makes numbers of pictures, ``model`` makes vectors and explanations of numbers, ``heatmap`` spreads the
weights of an explanation over the pixels. Training, index, server, benchmark and export all go through here.

Names load on first use, so that importing the package does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lookalike.inference.engine import Engine, create_engine, forward_each
    from lookalike.inference.engine_name import EngineName
    from lookalike.inference.heatmap import Box, Explained, crop_box, spread
    from lookalike.inference.label_free import whitened
    from lookalike.inference.match import Match, MatchRegion, draw_match
    from lookalike.inference.model import TrainedModel, embed_batches, load, untrained
    from lookalike.inference.preprocess import Preprocess, crop_loader, to_inputs
    from lookalike.models.input_spec import InputSpec

__all__ = [
    "Box",
    "Engine",
    "EngineName",
    "Explained",
    "InputSpec",
    "Match",
    "MatchRegion",
    "Preprocess",
    "TrainedModel",
    "create_engine",
    "crop_box",
    "crop_loader",
    "draw_match",
    "embed_batches",
    "forward_each",
    "load",
    "spread",
    "to_inputs",
    "untrained",
    "whitened",
]

_MODULES = {
    "lookalike.inference.engine": ["Engine", "create_engine", "forward_each"],
    "lookalike.inference.engine_name": ["EngineName"],
    "lookalike.inference.heatmap": ["Box", "Explained", "crop_box", "spread"],
    "lookalike.inference.match": ["Match", "MatchRegion", "draw_match"],
    "lookalike.inference.model": ["TrainedModel", "embed_batches", "load", "untrained"],
    "lookalike.inference.preprocess": ["Preprocess", "crop_loader", "to_inputs"],
    "lookalike.inference.label_free": ["whitened"],
    "lookalike.models.input_spec": ["InputSpec"],
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'lookalike.inference' has no attribute {name!r}")
