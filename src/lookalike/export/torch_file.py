"""A model as a file of ``torch.export`` (.pt2): a graph that torch loads without this library.

    model = torch.export.load("birds.pt2").module()
    vectors, = model(numbers)

The archive holds the ``facts`` as ``lookalike.json``. It is loaded and compared before it takes its place.
"""

import json
import warnings
from pathlib import Path

import torch

from lookalike._util.files import replacing
from lookalike.export.facts import facts
from lookalike.export.graph import TOLERANCE, Graph, example, largest_difference, trace
from lookalike.models import Embedder

FACTS = "lookalike.json"


def write_torch(embedder: Embedder, path: Path, *, details: bool = False, int8: bool = False) -> float:
    """Write the model, whole or not at all; arguments and result as for ``write_onnx``."""
    graph = Graph(embedder, details)
    traced = trace(graph)
    for node in traced.graph.nodes:
        node.meta.pop("stack_trace", None)  # where in whose files each step was written
    text = json.dumps(facts(embedder, graph.outputs, int8=int8))
    with replacing(path) as unfinished:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of weights that are views of one another, which it gets right
            torch.export.save(traced, unfinished, extra_files={FACTS: text})
        pictures = example(embedder, 3)
        with torch.inference_mode():
            got = torch.export.load(unfinished).module()(pictures)
            difference = largest_difference(graph(pictures), list(got))
        if not difference <= TOLERANCE:
            raise ValueError(
                f"{path} was not written: its results differ from the model's by {difference:.1e}, "
                f"more than {TOLERANCE:g}"
            )
    return difference
