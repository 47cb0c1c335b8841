"""Engines: programs that compute the local features of a frozen backbone.

    torch         the network itself; the only one on a GPU
    openvino      at least twice as fast on a CPU; perf/embed.py measures it
    onnxruntime   the same

A converted network is stored in the cache folder under the hash of its weights. Whenever it is loaded, its features of
a random picture are compared with the network's. If conversion or comparison fails, torch computes instead and one
warning says why.

OpenVINO and ONNX Runtime compute each picture alone on one thread, several pictures at a time. So the features of a
picture depend neither on its batch nor on the number of threads.
"""

import logging
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lookalike._util.files import cache_folder
from lookalike._util.hashing import digest
from lookalike._util.suggestions import did_you_mean
from lookalike.inference.engine_name import EngineName
from lookalike.inference.preprocess import to_inputs
from lookalike.models.backbone import Backbone
from lookalike.models.input_spec import InputSpec
from lookalike.models.weight_files import first_line, weights_key

ENVIRONMENT = "LOOKALIKE_ENGINE"  # what "auto" means
PACKAGES = {"openvino": ["openvino"], "onnxruntime": ["onnxruntime", "onnx", "onnxscript"]}
TOLERANCE = 1e-4  # largest difference of features, relative to the largest feature
VERSION = 1  # raise this when conversion changes

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """Computes local features.

    Attributes:
        name: "torch", "openvino" or "onnxruntime".
    """

    name: str

    def maps(self, inputs: Tensor) -> Tensor:
        """Compute the local features (B, H', W', C) of inputs (B, 3, size, size)."""
        ...


def create_engine(backbone: nn.Module, spec: InputSpec, name: EngineName = "auto") -> Engine:
    """Create the engine for a backbone in eval mode, whose weights must not change afterwards.

    Args:
        backbone: The network.
        spec: Its input.
        name: "auto" takes OpenVINO for a backbone on a CPU if it is installed, torch otherwise. The environment
            variable LOOKALIKE_ENGINE changes what "auto" takes.

    Returns:
        The engine; torch if the backbone cannot be converted.

    Raises:
        ValueError: If there is no such engine, it is not installed, or it cannot be used on the backbone's device.
    """
    name = resolve_engine(name, next(backbone.parameters()).device)
    if name == "torch" or not isinstance(backbone, Backbone):
        return TorchEngine(backbone)
    try:
        return _converted(backbone, spec, _CONVERTED[name])
    except Exception as error:  # converters fail in many ways
        logger.warning("%s does not run %s, torch computes instead: %s", name, backbone.name, first_line(error))
        return TorchEngine(backbone)


def resolve_engine(name: str, device: torch.device) -> EngineName:
    """Return the engine that ``name`` means on a device; errors as ``create_engine``."""
    on_cpu = device.type == "cpu"
    if name == "auto":
        name = os.environ.get(ENVIRONMENT) or "auto"
    if name == "auto":
        return "openvino" if on_cpu and not _missing("openvino") else "torch"
    for known in get_args(EngineName):
        if name == known:
            break
    else:
        raise ValueError(f"unknown engine {name!r}{did_you_mean(name, get_args(EngineName))}")
    missing = _missing(known)
    if missing:
        raise ValueError(f"the engine {known} is not installed: pip install {' '.join(missing)}")
    if known != "torch" and not on_cpu:
        raise ValueError(f"the engine {known} is for the CPU, got device {device}: use the engine torch")
    return known


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

    def __init__(self, backbone: nn.Module) -> None:
        self.backbone = backbone

    @torch.inference_mode()
    def maps(self, inputs: Tensor) -> Tensor:
        """Compute the local features (B, H', W', C) of inputs (B, 3, size, size)."""
        if isinstance(self.backbone, Backbone):
            return forward_each(self.backbone.maps, inputs)
        features: Tensor = forward_each(self.backbone, inputs)
        return features[:, None]


class OpenVinoEngine:
    """A network converted for OpenVINO.

    Args:
        path: The file that ``convert`` wrote.
    """

    name = "openvino"
    file = "network.xml"

    def __init__(self, path: Path) -> None:
        import openvino

        threads = torch.get_num_threads()
        core = openvino.Core()
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",  # some processors would take bf16
            "NUM_STREAMS": threads,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,  # several processes may share the machine
        }
        compiled = core.compile_model(core.read_model(path), "CPU", settings)
        self._queue = openvino.AsyncInferQueue(compiled, threads)
        self._lock = Lock()

    @staticmethod
    def convert(network: nn.Module, example: Tensor, path: Path) -> None:
        """Write a network, with the weights in a file of their own beside it."""
        import openvino
        from torch.fx.experimental.const_fold import split_const_subgraphs

        # Some operators on constants have no counterpart, e.g. resampling of position embeddings: compute them now.
        folded = split_const_subgraphs(torch.export.export(network, (example,)).module())
        folded.run_folding()
        converted = openvino.convert_model(torch.export.export(folded, (example,)))
        openvino.save_model(converted, path, compress_to_fp16=False)

    def maps(self, inputs: Tensor) -> Tensor:
        """Compute the local features (B, H', W', C) of inputs (B, 3, size, size)."""
        pictures = inputs.numpy()
        features: list[Any] = [None] * len(pictures)

        def store(request: Any, position: int) -> None:
            features[position] = request.get_output_tensor().data.copy()

        with self._lock:
            self._queue.set_callback(store)
            for position in range(len(pictures)):
                self._queue.start_async(pictures[position : position + 1], position)
            self._queue.wait_all()
        return torch.from_numpy(np.concatenate(features))


class OnnxRuntimeEngine:
    """A network converted for ONNX Runtime.

    Args:
        path: The file that ``convert`` wrote.
    """

    name = "onnxruntime"
    file = "network.onnx"

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self._threads = ThreadPoolExecutor(torch.get_num_threads())

    @staticmethod
    def convert(network: nn.Module, example: Tensor, path: Path) -> None:
        """Write a network as one file."""
        program = torch.onnx.export(network, (example,), dynamo=True, verbose=False)
        assert program is not None
        program.save(path, external_data=False)

    def maps(self, inputs: Tensor) -> Tensor:
        """Compute the local features (B, H', W', C) of inputs (B, 3, size, size)."""
        features = list(self._threads.map(self._run, np.split(inputs.contiguous().numpy(), len(inputs))))
        return torch.from_numpy(np.concatenate(features))

    def _run(self, picture: NDArray[np.float32]) -> NDArray[np.float32]:
        features: NDArray[np.float32] = self._session.run(None, {self._input: picture})[0]
        return features


_CONVERTED: dict[str, Any] = {"openvino": OpenVinoEngine, "onnxruntime": OnnxRuntimeEngine}


class _Maps(nn.Module):
    """A backbone whose forward pass gives the grid of features."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        return self.backbone.maps(images)


def _missing(name: str) -> list[str]:
    return [package for package in PACKAGES.get(name, []) if find_spec(package) is None]


def _converted(backbone: Backbone, spec: InputSpec, kind: Any) -> Engine:
    """The engine from its file in the cache, which is written first if it is missing or damaged."""
    pixels = np.random.default_rng(0).integers(0, 256, (1, spec.size, spec.size, 3), np.uint8)
    example = to_inputs(pixels, spec).contiguous()
    expected = TorchEngine(backbone).maps(example)
    weights = weights_key(backbone)
    key = digest(str(VERSION), kind.name, backbone.name, weights, str(spec.size), _version(kind.name))
    path = cache_folder() / "engines" / key / kind.file
    if path.exists():
        try:
            return _checked(kind(path), example, expected)
        except Exception as error:  # readers fail in many ways
            logger.warning("%s is damaged and is written again: %s", path, first_line(error))
    _write(_Maps(backbone), example, kind, path)
    return _checked(kind(path), example, expected)


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def _write(network: nn.Module, example: Tensor, kind: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent.parent) as folder, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        kind.convert(network, example, Path(folder) / path.name)
        for file in sorted(Path(folder).iterdir(), reverse=True):
            file.replace(path.with_name(file.name))


def _checked(engine: Engine, example: Tensor, expected: Tensor) -> Engine:
    features = engine.maps(example)
    if features.shape != expected.shape:
        raise ValueError(f"its features have the shape {tuple(features.shape)}, not {tuple(expected.shape)}")
    difference = ((features - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()
    if not difference <= TOLERANCE:  # also for NaN
        raise ValueError(f"its features differ from the network's by {difference:.1e} of the largest")
    return engine
