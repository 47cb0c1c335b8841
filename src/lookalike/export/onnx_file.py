"""A model as an ONNX file, including the pooling, for onnxruntime and other programs.

The metadata of the file hold the ``facts`` under "lookalike", as JSON. If onnxruntime is installed, the file is run and
compared with the model before it is moved to its path.
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
from lookalike.export.graph import Graph, any_batch, check_results, pooling_name, trace
from lookalike.models import Embedder
from lookalike.models.weight_files import first_line

METADATA = "lookalike"
MAX_FOLDED = 256  # numbers computed ahead; more may be int8 weights, which must stay small
PACKAGES = 'exporting ONNX needs the packages onnx and onnxscript: pip install "lookalike[export]"'
REFUSED = {"gemax": "it solves systems of linear equations, for which ONNX has no operator; use --format torch"}


def check_onnx(embedder: Embedder) -> None:
    """Check that a model can be exported.

    Raises:
        ValueError: If its pooling cannot be exported, or onnx or onnxscript is not installed.
    """
    name = pooling_name(embedder)
    if name in REFUSED:
        raise ValueError(f"the pooling {name} cannot be exported to ONNX: {REFUSED[name]}")
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError:
        raise ValueError(PACKAGES) from None


def write_onnx(embedder: Embedder, path: Path, *, details: bool = False, int8: bool = False) -> float | None:
    """Write a model, completely or not at all.

    Args:
        embedder: The model.
        path: The file.
        details: Also export the weights (B, rows, columns) and attributes of the pooling.
        int8: ``quantise_weights`` was applied; the facts say so.

    Returns:
        The largest difference between the results of onnxruntime and of the model; None without onnxruntime.

    Raises:
        ValueError: If the model cannot be exported, or the results differ.
    """
    check_onnx(embedder)
    graph = Graph(embedder, details)
    program = _convert(graph)
    program.model.metadata_props[METADATA] = json.dumps(facts(embedder, graph.outputs, int8=int8))
    with replacing(path) as unfinished:
        program.save(unfinished, external_data=False)
        return _check(path, graph, unfinished)


def _convert(graph: Graph) -> Any:
    from onnxscript import optimizer

    traced = trace(graph)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                traced, (), output_names=graph.outputs, dynamic_shapes=any_batch(), optimize=False, verbose=False
            )
    except Exception as error:  # converters raise many kinds of errors
        name = f"{graph.embedder.backbone.name} with {pooling_name(graph.embedder)}"
        cause = error.__cause__ or error
        raise ValueError(f"{name} cannot be exported to ONNX: {first_line(cause)}") from error
    assert program is not None
    # Without its rewriting rules: they take 1e-8 for zero, and the pooling needs it under a root.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the logarithm of masked features, which is not used
        optimizer.inline(program.model)
        optimizer.fold_constants(program.model, input_size_limit=MAX_FOLDED)
        optimizer.remove_unused_nodes(program.model)
    for node in program.model.graph:
        node.metadata_props.clear()  # paths of source files
    return program


def _check(path: Path, graph: Graph, unfinished: Path) -> float | None:
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(unfinished.read_bytes(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return check_results(path, graph, lambda pictures: session.run(graph.outputs, {name: pictures.numpy()}))
