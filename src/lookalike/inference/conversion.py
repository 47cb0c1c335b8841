"""Conversion of networks for OpenVINO and ONNX Runtime.

A converted network is stored in the cache folder under the hash of its weights.
"""

import logging
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch
from torch import Tensor, nn

from lookalike._util.files import cache_folder
from lookalike._util.hashing import digest
from lookalike.inference.runtime import SUFFIXES
from lookalike.models.weight_files import first_line, weights_key

TOLERANCE = 1e-4  # largest difference of results, relative to the largest result
VERSION = 3  # raise this when conversion changes

T = TypeVar("T")
logger = logging.getLogger(__name__)


def convert_once(
    network: nn.Module,
    example: Tensor,
    engine: str,
    name: str,
    load: Callable[[Path], T],
    *,
    title: str | None = None,
    any_count: bool = False,
) -> T:
    """Load a converted network from the cache; convert it first if its file is missing or damaged.

    Args:
        network: The network in eval mode, on the CPU.
        example: Its input, for a batch of one.
        engine: "openvino" or "onnxruntime".
        name: Tells networks with equal weights apart.
        load: Loads and checks a file.
        title: Of the network, for people; None: its name.
        any_count: Whether the second dimension of the input may vary.

    Returns:
        The result of ``load``.
    """
    key = digest(
        str(VERSION), engine, name, weights_key(network), str(tuple(example.shape)), str(any_count), version(engine)
    )
    path = cache_folder() / "engines" / key / f"network{SUFFIXES[engine]}"
    if path.exists():
        try:
            return load(path)
        except Exception as error:  # readers fail in many ways
            logger.warning("%s is damaged and is written again: %s", path, first_line(error))
    logger.warning("converting %s for %s, once: this takes some seconds", title or name, engine)  # shown by default
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        add_files(path, lambda unfinished: convert(network, example, engine, unfinished, any_count))
    return load(path)


def add_files(path: Path, write: Callable[[Path], None]) -> None:
    """Add a file and those beside it to the cache, whole or not at all.

    Args:
        path: The file; it appears last.
        write: Writes it under another name of its own folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent.parent) as folder:
        write(Path(folder) / path.name)
        for file in sorted(Path(folder).iterdir(), reverse=True):
            if file != Path(folder) / path.name:
                file.replace(path.with_name(file.name))
        (Path(folder) / path.name).replace(path)


def convert(network: nn.Module, example: Tensor, engine: str, path: Path, any_count: bool = False) -> None:
    """Write a network as a file for an engine; OpenVINO has the weights in a file of their own beside it."""
    shapes = ({1: torch.export.Dim("count", min=2)},) if any_count else None
    if engine == "onnxruntime":
        program = torch.onnx.export(network, (example,), dynamo=True, verbose=False, dynamic_shapes=shapes)
        assert program is not None
        program.save(path, external_data=False)
        return
    import openvino

    if any_count:
        converted = openvino.convert_model(torch.export.export(network, (example,), dynamic_shapes=shapes))
        openvino.save_model(converted, path, compress_to_fp16=False)
        return
    from torch.fx.experimental.const_fold import split_const_subgraphs

    # Some operators on constants have no counterpart, e.g. resampling of position embeddings: compute them now.
    folded = split_const_subgraphs(torch.export.export(network, (example,)).module())
    folded.run_folding()
    converted = openvino.convert_model(torch.export.export(folded, (example,)))
    openvino.save_model(converted, path, compress_to_fp16=False)


def check_difference(results: Tensor, expected: Tensor, name: str) -> None:
    """Compare the results of a converted network with those of the network.

    Raises:
        ValueError: If they differ by more than ``TOLERANCE``.
    """
    if results.shape != expected.shape:
        raise ValueError(f"its {name} have the shape {tuple(results.shape)}, not {tuple(expected.shape)}")
    difference = ((results - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()
    if not difference <= TOLERANCE:  # also for NaN
        raise ValueError(f"its {name} differ from the network's by {difference:.1e} of the largest")
