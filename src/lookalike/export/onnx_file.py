"""A model as an ONNX file, pooling included, for onnxruntime and whatever else reads ONNX.

The file's metadata hold the ``facts`` under "lookalike", as JSON. Before the file takes its place it is run by
onnxruntime, where that is installed, and compared with the model.
"""

import contextlib
import io
import json
import warnings
from pathlib import Path
from typing import Any

import torch

from lookalike._util.files import replacing
from lookalike.export.facts import facts
from lookalike.export.graph import (
    TOLERANCE,
    Graph,
    any_batch,
    example,
    first_line,
    largest_difference,
    pooling_name,
    trace,
)
from lookalike.models import Embedder

METADATA = "lookalike"
FOLDED = 256  # numbers, at most, that are computed ahead: above that may be int8 weights, which are to stay small
PACKAGES = 'exporting ONNX needs the packages onnx and onnxscript: pip install "lookalike[export]"'
REFUSED = {"gemax": "it solves systems of linear equations, for which ONNX has no operator; --format torch can"}


def check_onnx(embedder: Embedder) -> None:
    """One clear error where no ONNX file can be made of the model."""
    name = pooling_name(embedder)
    if name in REFUSED:
        raise ValueError(f"the pooling {name} cannot be exported to ONNX: {REFUSED[name]}")
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError:
        raise ValueError(PACKAGES) from None


def write_onnx(embedder: Embedder, path: Path, *, details: bool = False, int8: bool = False) -> float | None:
    """Write the model, whole or not at all.

    details: the weights (B, rows, columns) and attributes of the pooling come out too.  int8: say in the facts that
        ``quantise_weights`` has been here.
    Returns the largest difference between onnxruntime's results and the model's own; None without onnxruntime.
    """
    check_onnx(embedder)
    graph = Graph(embedder, details)
    program = _converted(graph)
    program.model.metadata_props[METADATA] = json.dumps(facts(embedder, graph.outputs, int8=int8))
    with replacing(path) as unfinished:
        program.save(unfinished, external_data=False)
        difference = _difference(graph, unfinished)
        if difference is not None and not difference <= TOLERANCE:
            raise ValueError(
                f"{path} was not written: onnxruntime's results differ from the model's by {difference:.1e}, "
                f"more than {TOLERANCE:g}"
            )
    return difference


def _converted(graph: Graph) -> Any:
    from onnxscript import optimizer

    traced = trace(graph)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                traced, (), output_names=graph.outputs, dynamic_shapes=any_batch(), optimize=False, verbose=False
            )
    except Exception as error:  # whatever the converter lacks
        name = f"{graph.embedder.backbone.name} with {pooling_name(graph.embedder)}"
        cause = error.__cause__ or error
        raise ValueError(f"{name} cannot be exported to ONNX: {first_line(cause)}") from error
    assert program is not None
    # Not its rewriting rules: they take 1e-8 for zero, and roots of zero would lose the floor under them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a logarithm of masked places, whose result nobody takes
        optimizer.inline(program.model)
        optimizer.fold_constants(program.model, input_size_limit=FOLDED)
        optimizer.remove_unused_nodes(program.model)
    for node in program.model.graph:
        node.metadata_props.clear()  # where in whose files each step was written
    return program


def _difference(graph: Graph, path: Path) -> float | None:
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: what it could not simplify is its own affair
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    pictures = example(graph.embedder, 3)
    with torch.inference_mode():
        expected = graph(pictures)
    return largest_difference(expected, session.run(graph.outputs, {session.get_inputs()[0].name: pictures.numpy()}))
