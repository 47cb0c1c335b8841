"""Names of the engines: which one a setting means. Importing this does not load torch."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from lookalike._util.suggestions import did_you_mean

EngineName = Literal["auto", "torch", "openvino", "onnxruntime"]
ENGINE_HELP = "what computes local features; auto: openvino on a CPU if it is installed, else torch"
ENVIRONMENT = "LOOKALIKE_ENGINE"  # what "auto" means
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "C:/Windows/System32/nvcuda.dll")
PACKAGES = {
    "openvino": ["openvino"],
    "onnxruntime": ["onnxruntime", "onnx", "onnxscript"],
    "int8": ["openvino", "nncf"],
}


def resolve_engine(name: str, device: object) -> EngineName:
    """Return the engine that a setting means.

    Args:
        name: The setting. "auto" means what the environment variable LOOKALIKE_ENGINE says, else OpenVINO on a CPU if
            it is installed, else torch.
        device: Device of the network, a ``torch.device`` or its name.

    Raises:
        ValueError: If there is no such engine, it is not installed, or it cannot be used on the device.
    """
    on_cpu = str(device).partition(":")[0] == "cpu"
    if name == "auto":
        name = os.environ.get(ENVIRONMENT) or "auto"
    if name == "auto":
        return "openvino" if on_cpu and not missing_packages("openvino") else "torch"
    for known in get_args(EngineName):
        if name == known:
            break
    else:
        raise ValueError(f"unknown engine {name!r}{did_you_mean(name, get_args(EngineName))}")
    missing = missing_packages(known)
    if missing:
        raise ValueError(f"the engine {known} is not installed: pip install {' '.join(missing)}")
    if known != "torch" and not on_cpu:
        raise ValueError(f"the engine {known} is for the CPU, got device {device}: use the engine torch")
    engine: EngineName = known
    return engine


def require_int8(engine: str, device: object) -> None:
    """Check that int8 can be computed.

    Args:
        engine: The setting, as for ``resolve_engine``.
        device: Device of the model.

    Raises:
        ValueError: If a package is missing, or engine or device cannot compute int8.
    """
    missing = missing_packages("int8")
    if missing:
        raise ValueError(f"int8 is not installed: pip install {' '.join(missing)}")
    name = resolve_engine(engine, device)
    if name != "openvino":
        raise ValueError(f"int8 needs the engine openvino on a CPU, got {name} on {device}")


def missing_packages(name: str) -> list[str]:
    """Return the packages of an engine, or of int8, that are not installed."""
    return [package for package in PACKAGES.get(name, []) if find_spec(package) is None]


def may_have_gpu() -> bool:
    """Return whether torch might find a GPU: whether a driver is installed."""
    return any(Path(driver).exists() for driver in GPU_DRIVERS)
