"""A model as a file of ``torch.export`` (.pt2): a graph that torch loads without this library.

    model = torch.export.load("birds.pt2").module()
    vectors, = model(numbers)

The archive holds the ``facts`` as ``lookalike.json``. The file is loaded and compared with the model before it is moved
to its path.
"""

import json
import warnings
from pathlib import Path

import torch

from lookalike._util.files import replacing
from lookalike.export.facts import facts
from lookalike.export.graph import Graph, check_results, trace
from lookalike.models import Embedder

FACTS = "lookalike.json"


def write_torch(embedder: Embedder, path: Path, *, details: bool = False, int8: bool = False) -> float:
    """Write a model, completely or not at all; ``details`` and ``int8`` as for ``write_onnx``.

    Returns:
        The largest difference between the results of the file and of the model.

    Raises:
        ValueError: If the model cannot be exported, or the results differ.
    """
    graph = Graph(embedder, details)
    traced = trace(graph)
    for node in traced.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of source files
    text = json.dumps(facts(embedder, graph.outputs, int8=int8))
    with replacing(path) as unfinished:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # weights that share memory; they are saved correctly
            torch.export.save(traced, unfinished, extra_files={FACTS: text})
        return check_results(path, graph, torch.export.load(unfinished).module())
