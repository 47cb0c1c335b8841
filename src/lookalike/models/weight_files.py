"""Weights from files: safetensors, or what torch reads without unpickling objects; checked before they are loaded."""

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in a file; one that lies under "state_dict" or "model" is found, "module." is taken off."""
    if not path.is_file():
        raise ValueError(f"weights must be 'auto', 'none', 'timm' or a file, and there is no file {path}")
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise ValueError(f"{path} cannot be read as weights: {_first_line(error)}") from error
    except UnpicklingError as error:
        raise ValueError(f"{path} holds more than tensors, or is no file of weights: {_first_line(error)}") from error
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"{path} must hold a state dict, got {type(content).__name__}")
    state = {str(name).removeprefix("module."): value for name, value in content.items() if isinstance(value, Tensor)}
    if not state:
        raise ValueError(f"{path} must hold a state dict of tensors, got none")
    return state


def load_into(module: nn.Module, state: Mapping[str, Tensor], what: str, ignore: tuple[str, ...] = ()) -> None:
    """Load all of ``state`` into the module, or raise one error that says what does not fit.

    Names under one of the prefixes ``ignore`` may be there or not.
    """
    own = module.state_dict()
    ignored = tuple(f"{prefix}." for prefix in ignore)
    state = {name: value for name, value in state.items() if name in own or not name.startswith(ignored)}
    # Counts of batches are bookkeeping; older files lack them.
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    foreign = [name for name in state if name not in own]
    shapes = [
        f"{name} {tuple(state[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    problems = [
        f"{len(found)} {kind} (first: {found[0]})"
        for kind, found in (("missing", missing), ("unknown", foreign), ("of another shape", shapes))
        if found
    ]
    if problems:
        raise ValueError(f"the weights do not fit {what}: {', '.join(problems)}")
    module.load_state_dict(dict(state), strict=False)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
