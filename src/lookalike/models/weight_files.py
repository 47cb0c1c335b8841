"""Weights from files: safetensors, or what torch reads without unpickling objects; checked before they are loaded."""

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_map_only

from lookalike._util.checksums import DamagedFile
from lookalike._util.hashing import digest

CHECKSUM = "blake2b"  # in the header of a .safetensors file
WITHOUT_CHECKSUM = {"format", "settings", "recipe", "metrics"}  # all that headers of earlier versions have


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
        if path.is_dir():
            raise ValueError(f"{path} is a folder without weights: a model of TensorFlow.js has a model.json there")
        raise ValueError(f"weights must be 'auto', 'none', 'timm' or a file, and there is no file {path}")
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise ValueError(f"{path} cannot be read as weights: {first_line(error)}") from error
    except UnpicklingError as error:
        raise ValueError(  # torch's message advises to run the code in the file
            f"{path} cannot be read as weights: expected .safetensors, a state dict of torch that holds tensors only, "
            "Keras' .h5 or .npz, or the model.json of TensorFlow.js"
        ) from error
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


class Fit(NamedTuple):
    """How weights fit a module: names by what is wrong with them, and how many are right."""

    missing: list[str]
    unknown: list[str]
    reshaped: list[str]
    matching: int

    @property
    def is_complete(self) -> bool:
        """Whether the weights can be loaded."""
        return not (self.missing or self.unknown or self.reshaped)

    @property
    def share(self) -> float:
        """Matching tensors among all that the module or the weights have."""
        return self.matching / (self.matching + len(self.missing) + len(self.unknown) + len(self.reshaped) or 1)

    def describe(self) -> str:
        """The problems as text, each with its first example."""
        problems = []
        kinds = (("missing", self.missing), ("unknown", self.unknown), ("of another shape", self.reshaped))
        for kind, names in kinds:
            if names:
                problems.append(f"{len(names)} {kind} (first: {names[0]})")
        return ", ".join(problems)


def compare(module: nn.Module, state: Mapping[str, Tensor], ignore: tuple[str, ...] = ()) -> Fit:
    """Compare names and shapes of weights with a module, which may be on the meta device; see ``load_into``."""
    expected = module.state_dict()
    ignored = tuple(f"{prefix}." for prefix in ignore)
    unknown, reshaped, matching = [], [], 0
    for name, value in state.items():
        if name not in expected:
            if not name.startswith(ignored):
                unknown.append(name)
        elif value.shape != expected[name].shape:
            reshaped.append(f"{name} {tuple(value.shape)} instead of {tuple(expected[name].shape)}")
        else:
            matching += 1
    # Counts of batches do not affect the result; older files lack them.
    missing = [name for name in expected if name not in state and not name.endswith("num_batches_tracked")]
    return Fit(missing, unknown, reshaped, matching)


def check_fit(module: nn.Module, state: Mapping[str, Tensor], what: str, ignore: tuple[str, ...] = ()) -> None:
    """Check that names and shapes of weights fit into a module, which may be on the meta device; see ``load_into``."""
    fit = compare(module, state, ignore)
    if not fit.is_complete:
        raise ValueError(f"the weights do not fit {what}: {fit.describe()}")


class ShapesOnly(DeviceContext):
    """Within this context modules are built without memory for their weights.

    Small tables of numbers keep their values, because networks compute their layout from them.
    """

    def __init__(self) -> None:
        super().__init__(torch.device("meta"))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.linspace, torch.arange, torch.tensor):
            return func(*args, **(kwargs or {}))
        try:
            return super().__torch_function__(func, types, args, kwargs)
        except RuntimeError as error:
            if "is not on the expected device" not in str(error):
                raise
        args, kwargs = tree_map_only(Tensor, lambda value: value.to("meta"), (args, kwargs))
        return super().__torch_function__(func, types, args, kwargs)


def read_shapes(path: Path) -> dict[str, Tensor]:
    """Read the header of a .safetensors file.

    Returns:
        Tensors by name, on the meta device: shapes without values.

    Raises:
        ValueError: If it cannot be read.
    """
    try:
        with safe_open(path, "pt") as file:
            return {name: torch.empty(file.get_slice(name).get_shape(), device="meta") for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as weights: {first_line(error)}") from error


def save_weights(state: Mapping[str, Tensor], path: Path, **texts: str) -> None:
    """Write tensors as .safetensors, with a checksum of them and of texts that belong to them.

    Args:
        state: The tensors by name.
        path: The file.
        texts: Stored in the header; one with the name "beside" is not stored, but in another file.
    """
    contiguous = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    save_file(contiguous, path, metadata=checked_metadata(contiguous, texts))


def checked_metadata(state: Mapping[str, Tensor], texts: Mapping[str, str]) -> dict[str, str]:
    """Metadata with the checksum that ``check_weights`` compares; see ``save_weights``."""
    metadata = {name: text for name, text in texts.items() if name != "beside"}
    return {**metadata, CHECKSUM: _checksum(state, texts)}


def check_weights(path: Path, state: Mapping[str, Tensor], beside: str = "") -> bool:
    """Check tensors that were read from a file of ``save_weights``.

    Args:
        path: The .safetensors file.
        state: All of its tensors.
        beside: The text of that name, if the writer gave one.

    Returns:
        False if the file has no checksum, as those of earlier versions.

    Raises:
        DamagedFile: If the checksum differs.
    """
    with safe_open(path, "pt") as file:
        texts = dict(file.metadata() or {})
    if texts.keys() <= WITHOUT_CHECKSUM:
        return False
    expected = texts.pop(CHECKSUM, None)
    if beside:
        texts["beside"] = beside
    if expected != _checksum(state, texts):
        raise DamagedFile(f"{path} is damaged: its checksum differs. Restore a copy, or train again")
    return True


def _checksum(state: Mapping[str, Tensor], texts: Mapping[str, str]) -> str:
    return digest(*(f"{name}={text}" for name, text in sorted(texts.items())), state_key(state))


def weights_key(module: nn.Module) -> str:
    """The hash of all weights and buffers of a module, with their names, types and shapes."""
    return state_key(module.state_dict())


def state_key(state: Mapping[str, Tensor]) -> str:
    """The hash of tensors, with their names, types and shapes."""
    lines = []
    for name, value in sorted(state.items()):
        content = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        lines.append(f"{name} {digest(str(value.dtype), str(tuple(value.shape)), content)}")
    return digest(*lines)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
