"""Weights from files: safetensors, or what torch reads without unpickling objects; checked before they are loaded."""

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._device import DeviceContext

from lookalike._util.hashing import digest


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict.

    Args:
        path: A .safetensors file, or one of ``torch.save`` that holds tensors only. The state dict may lie under
            "state_dict" or "model"; the prefix "module." of distributed training is removed.

    Returns:
        The tensors by name, on the CPU.

    Raises:
        ValueError: If there is no such file, or no state dict in it.
    """
    if not path.is_file():
        raise ValueError(f"weights must be 'auto', 'none', 'timm' or a file, and there is no file {path}")
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise ValueError(f"{path} cannot be read as weights: {first_line(error)}") from error
    except UnpicklingError as error:
        raise ValueError(f"{path} holds more than tensors, or is not a file of weights: {first_line(error)}") from error
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"{path} must hold a state dict, got {type(content).__name__}")
    state = {}
    for name, value in content.items():
        if isinstance(value, Tensor):
            state[str(name).removeprefix("module.")] = value
    if not state:
        raise ValueError(f"{path} must hold a state dict of tensors, got none")
    return state


def load_into(module: nn.Module, state: Mapping[str, Tensor], what: str, ignore: tuple[str, ...] = ()) -> None:
    """Load a state dict into a module.

    Args:
        module: Gets the weights.
        state: The weights by name. All of the module's must be there, except for counts of batches.
        what: Name of the module in the error.
        ignore: Prefixes of names that ``state`` may have in addition.

    Raises:
        ValueError: If names or shapes do not fit; the module is unchanged.
    """
    check_fit(module, state, what, ignore)
    ignored = tuple(f"{prefix}." for prefix in ignore)
    fitting = {name: value for name, value in state.items() if not name.startswith(ignored)}
    module.load_state_dict(fitting, strict=False)


def check_fit(module: nn.Module, state: Mapping[str, Tensor], what: str, ignore: tuple[str, ...] = ()) -> None:
    """Check that names and shapes of weights fit into a module, which may be on the meta device; see ``load_into``."""
    expected = module.state_dict()
    ignored = tuple(f"{prefix}." for prefix in ignore)
    unknown, reshaped = [], []
    for name, value in state.items():
        if name not in expected:
            if not name.startswith(ignored):
                unknown.append(name)
        elif value.shape != expected[name].shape:
            reshaped.append(f"{name} {tuple(value.shape)} instead of {tuple(expected[name].shape)}")
    # Counts of batches do not affect the result; older files lack them.
    missing = [name for name in expected if name not in state and not name.endswith("num_batches_tracked")]
    problems = []
    for kind, names in (("missing", missing), ("unknown", unknown), ("of another shape", reshaped)):
        if names:
            problems.append(f"{len(names)} {kind} (first: {names[0]})")
    if problems:
        raise ValueError(f"the weights do not fit {what}: {', '.join(problems)}")


class ShapesOnly(DeviceContext):
    """Within this context modules are built without memory for their weights.

    Small tables of numbers keep their values, because networks compute their layout from them.
    """

    def __init__(self) -> None:
        super().__init__(torch.device("meta"))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.linspace, torch.arange, torch.tensor):
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def weights_key(module: nn.Module) -> str:
    """The hash of all weights and buffers of a module, with their names, types and shapes."""
    lines = []
    for name, value in sorted(module.state_dict().items()):
        content = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        lines.append(f"{name} {digest(str(value.dtype), str(tuple(value.shape)), content)}")
    return digest(*lines)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
