"""Engines: programs that compute the local features of a frozen backbone.

    torch         the network itself; the only one on a GPU
    openvino      at least twice as fast on a CPU; perf/embed.py measures it
    onnxruntime   the same

``inference.conversion`` converts a network, ``inference.runtime`` runs it. Whenever a converted network is loaded, its
features of a random picture are compared with the network's. If conversion or comparison fails, torch computes instead
and one warning says why.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from lookalike._util.checksums import hash_content
from lookalike.inference.conversion import check_difference, convert_once
from lookalike.inference.engine_name import EngineName, resolve_engine
from lookalike.inference.preprocess import to_inputs
from lookalike.inference.runtime import NETWORKS, Network
from lookalike.models.backbone import Backbone
from lookalike.models.input_spec import InputSpec
from lookalike.models.stages import FrozenStages
from lookalike.models.weight_files import first_line

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """Computes local features.

    Attributes:
        name: "torch", "openvino" or "onnxruntime".
        precision: "fp32" or "int8".
    """

    name: str
    precision: str

    def maps(self, inputs: Tensor) -> Tensor:
        """Compute the local features (B, H', W', C) of inputs (B, 3, size, size)."""
        ...


def create_engine(backbone: nn.Module, spec: InputSpec, name: EngineName = "auto") -> Engine:
    """Create the engine for a backbone in eval mode, whose weights must not change afterwards.

    Args:
        backbone: The network, or its frozen stages.
        spec: Its input.
        name: "auto" takes OpenVINO for a backbone on a CPU if it is installed, torch otherwise. The environment
            variable LOOKALIKE_ENGINE changes what "auto" takes.

    Returns:
        The engine; torch if the backbone cannot be converted.

    Raises:
        ValueError: If there is no such engine, it is not installed, or it cannot be used on the backbone's device.
    """
    name = resolve_engine(name, next(backbone.parameters()).device)
    if name == "torch" or not isinstance(backbone, (Backbone, FrozenStages)):
        return TorchEngine(backbone)
    try:
        return _converted(backbone, spec, name)
    except Exception as error:  # converters fail in many ways
        logger.warning("%s does not run %s, torch computes instead: %s", name, backbone.name, first_line(error))
        return TorchEngine(backbone)


def forward_each(forward: Callable[[Tensor], Any], inputs: Tensor) -> Any:
    """Run ``forward`` so that the result of a picture does not depend on its batch: one by one on a CPU.

    Args:
        forward: Gives one tensor (B, ...) for inputs (B, ...), or a tuple of them.
        inputs: (B, ...). On other devices than a CPU they go through ``forward`` as one batch.

    Returns:
        What ``forward`` would give for the batch, up to the last bits.
    """
    if inputs.device.type != "cpu":
        return forward(inputs)
    return joined([forward(inputs[i : i + 1].clone()) for i in range(len(inputs))])  # clone: aligned in memory


def head_each(head: Callable[[Tensor], Any], features: Tensor) -> Any:
    """``forward_each`` for a head, on one thread of a CPU.

    The operations on a single picture are too small to share: threads would mostly wait for each other, and where other
    programs use the cores they wait for longer than they compute.

    Args:
        head: Gives one tensor (B, ...) for local features (B, N, C), or a tuple of them.
        features: Local features (B, N, C).
    """
    threads = torch.get_num_threads()
    if features.device.type != "cpu" or threads == 1:
        return forward_each(head, features)
    torch.set_num_threads(1)
    try:
        return forward_each(head, features)
    finally:
        torch.set_num_threads(threads)


def joined(results: list[Any]) -> Any:
    """Join the results of several batches: tensors, or tuples of tensors."""
    if isinstance(results[0], Tensor):
        return torch.cat(results)
    return tuple(map(torch.cat, zip(*results, strict=True)))


class TorchEngine:
    """The network itself.

    Args:
        backbone: The network. One that is not a ``Backbone`` gives features (B, N, C), a grid of one row.
    """

    name = "torch"
    precision = "fp32"

    def __init__(self, backbone: nn.Module) -> None:
        self.backbone = backbone

    @torch.inference_mode()
    def maps(self, inputs: Tensor) -> Tensor:
        """Compute the local features (B, H', W', C) of inputs (B, 3, size, size)."""
        if isinstance(self.backbone, (Backbone, FrozenStages)):
            return forward_each(self.backbone.maps, inputs)
        features: Tensor = forward_each(self.backbone, inputs)
        return features[:, None]


class ConvertedEngine:
    """A converted network.

    Args:
        name: "openvino" or "onnxruntime".
        path: The file that ``convert`` wrote.
        precision: "fp32" or, for a file of ``inference.quantised``, "int8".
    """

    def __init__(self, name: str, path: Path, precision: str = "fp32") -> None:
        self.name = name
        self.path = path
        self.precision = precision
        self.network: Network = NETWORKS[name](path)

    @property
    def key(self) -> str:
        """Digest of the weights in the file."""
        suffix = ".bin" if self.name == "openvino" else self.path.suffix
        return hash_content(self.path.with_suffix(suffix))

    def maps(self, inputs: Tensor) -> Tensor:
        """Compute the local features (B, H', W', C) of inputs (B, 3, size, size)."""
        return torch.from_numpy(self.network.run(inputs.numpy())[0])


class _Maps(nn.Module):
    """A backbone whose forward pass gives the grid of features."""

    def __init__(self, backbone: Backbone | FrozenStages) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        return self.backbone.maps(images)


def _converted(backbone: Backbone | FrozenStages, spec: InputSpec, name: str) -> Engine:
    """The engine from its file in the cache, which is written first if it is missing or damaged."""
    pixels = np.random.default_rng(0).integers(0, 256, (1, spec.size, spec.size, 3), np.uint8)
    example = to_inputs(pixels, spec).contiguous()
    expected = TorchEngine(backbone).maps(example)

    def load(path: Path) -> Engine:
        engine = ConvertedEngine(name, path)
        check_difference(engine.maps(example), expected, "features")
        return engine

    return convert_once(_Maps(backbone), example, name, f"{backbone.name} {spec.size}", load)
