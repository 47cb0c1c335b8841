"""Converted networks: run the files that ``inference.conversion`` writes, without torch.

Each picture is computed alone on one thread, several pictures at a time. So the results of a picture depend neither on
its batch nor on the number of threads.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class Network(Protocol):
    """A converted network."""

    def run(self, inputs: Array) -> list[Array]:
        """Compute the results (B, ...) of inputs (B, ...)."""
        ...


class OpenVinoNetwork:
    """A network in the format of OpenVINO.

    Args:
        path: The file ``x.xml``; the weights are in ``x.bin`` beside it.
        threads: Pictures computed at the same time; None: ``thread_count()``.
    """

    def __init__(self, path: Path, threads: int | None = None) -> None:
        import openvino

        threads = threads or thread_count()
        core = openvino.Core()
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",  # some processors would take bf16
            "NUM_STREAMS": threads,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,  # several processes may share the machine
        }
        compiled = core.compile_model(core.read_model(path), "CPU", settings)
        self._outputs = len(compiled.outputs)
        self._queue = openvino.AsyncInferQueue(compiled, threads)
        self._lock = Lock()

    def run(self, inputs: Array) -> list[Array]:
        """Compute the results (B, ...) of inputs (B, ...)."""
        results: list[Any] = [None] * len(inputs)

        def store(request: Any, position: int) -> None:
            results[position] = [request.get_output_tensor(i).data.copy() for i in range(self._outputs)]

        with self._lock:
            self._queue.set_callback(store)
            for position in range(len(inputs)):
                self._queue.start_async(inputs[position : position + 1], position)
            self._queue.wait_all()
        return _joined(results)


class OnnxRuntimeNetwork:
    """A network in the format ONNX.

    Args:
        path: The file ``x.onnx``.
        threads: Pictures computed at the same time; None: ``thread_count()``.
    """

    def __init__(self, path: Path, threads: int | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self._threads = ThreadPoolExecutor(threads or thread_count())

    def run(self, inputs: Array) -> list[Array]:
        """Compute the results (B, ...) of inputs (B, ...)."""
        pictures = np.split(np.ascontiguousarray(inputs), len(inputs))
        return _joined(list(self._threads.map(self._run_one, pictures)))

    def _run_one(self, picture: Array) -> list[Array]:
        results: list[Array] = self._session.run(None, {self._input: picture})
        return results


NETWORKS: dict[str, Any] = {"openvino": OpenVinoNetwork, "onnxruntime": OnnxRuntimeNetwork}
SUFFIXES = {"openvino": ".xml", "onnxruntime": ".onnx"}


def thread_count() -> int:
    """Return torch's number of threads if torch is loaded, else OMP_NUM_THREADS or the number of usable cores."""
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads) > 0:
        return int(threads)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _joined(results: list[list[Array]]) -> list[Array]:
    return [np.concatenate(arrays) for arrays in zip(*results, strict=True)]
