"""A model on disk: settings in ``model.json``, weights in ``model.safetensors``. Nothing is unpickled.

Both files are written in a temporary folder and flushed. If only the weights differ, one rename replaces them.
Otherwise the temporary folder is renamed to ``.model-next``, which is the moment of change: a file in it comes before
the one beside it, and both are then moved out. A folder therefore has a complete model at every moment, the old or the
new one, also after a crash.
"""

import json
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from lookalike._util.files import flush
from lookalike._util.untrusted import LARGEST_JSON, parse_json, read_text
from lookalike.models.embedder import FORMAT, Embedder
from lookalike.models.weight_files import (
    ShapesOnly,
    check_fit,
    check_weights,
    first_line,
    load_into,
    read_shapes,
    read_weights,
    save_weights,
)

LARGEST_SETTING = 2**16  # of a size, a number of prototypes or of iterations
SETTINGS = "model.json"
WEIGHTS = "model.safetensors"
NEXT = ".model-next"
LEFTOVER = re.compile(r"\.model-[a-z0-9_]{8}")  # a name of TemporaryDirectory, never NEXT
LEFTOVER_SECONDS = 600  # younger ones may belong to a running process
ATTEMPTS = 20  # to read a model that another process replaces


def save_model(embedder: Embedder, folder: str | Path) -> None:
    """Write a model, completely or not at all.

    Args:
        embedder: The model.
        folder: Created if it does not exist.

    Raises:
        OSError: If it cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(embedder.settings(), indent=2) + "\n"
    _move_out(folder)  # what a crash has left
    _remove_leftovers(folder)
    with TemporaryDirectory(dir=folder, prefix=".model-") as temporary:
        complete = Path(temporary) / "model"
        complete.mkdir()
        try:
            save_weights(embedder.state_dict(), complete / WEIGHTS, beside=text)
        except SafetensorError as error:  # also for a full disk
            raise OSError(f"{folder / WEIGHTS} could not be written: {error}") from error
        (complete / SETTINGS).write_text(text, encoding="utf-8")
        shutil.copymode(complete / SETTINGS, complete / WEIGHTS)  # safetensors makes files private
        for path in (complete / WEIGHTS, complete / SETTINGS, complete):
            flush(path)
        if _same_text(folder / SETTINGS, text):
            (complete / WEIGHTS).replace(folder / WEIGHTS)
        else:
            complete.rename(folder / NEXT)
            flush(folder)
            _move_out(folder)
    flush(folder)


def model_file(folder: Path, name: str) -> Path:
    """Return the current file ``name`` (``SETTINGS`` or ``WEIGHTS``) of the model in ``folder``; it need not exist."""
    if (folder / NEXT / name).is_file():
        return folder / NEXT / name
    return folder / name


class StoredModel(NamedTuple):
    """The files of a model.

    Attributes:
        text: Of ``model.json``.
        weights: By name.
        has_checksum: False for models of earlier versions.
    """

    text: str
    weights: dict[str, Tensor]
    has_checksum: bool


def read_model(folder: Path) -> StoredModel:
    """Read the settings and the weights, of one model also while another process replaces it.

    What the settings ask for is compared with the header of the weights before these are read.

    Raises:
        ValueError: If there is no model in the folder, or a file cannot be read or is damaged.
    """
    for name in (SETTINGS, WEIGHTS):
        if not (folder / NEXT).is_dir() and not (folder / name).is_file():
            raise ValueError(f"{folder} holds no model: there is no {name}")
    for _ in range(ATTEMPTS):
        before = _identity(folder)
        try:
            text = _read_text(model_file(folder, SETTINGS))
            path = model_file(folder, WEIGHTS)
            _check_settings(folder / SETTINGS, text, read_shapes(path))
            weights = read_weights(path)
            stored = StoredModel(text, weights, check_weights(path, weights, beside=text))
        except FileNotFoundError:  # moved out in between
            continue
        except (OSError, ValueError):
            if _identity(folder) == before:
                raise
            continue  # the files of two models
        if stored.has_checksum or _identity(folder) == before:  # the checksum is of both files
            return stored
    raise ValueError(f"{folder} holds no complete model, or another process keeps replacing it")


def _identity(folder: Path) -> list[tuple[int, int] | None]:
    """What changes whenever a file of the model is replaced or moved; None for a missing file."""
    identity: list[tuple[int, int] | None] = []
    for path in (folder / NEXT / SETTINGS, folder / NEXT / WEIGHTS, folder / SETTINGS, folder / WEIGHTS):
        try:
            status = path.stat()
        except OSError:
            identity.append(None)
        else:
            identity.append((status.st_ino, status.st_mtime_ns))
    return identity


def _remove_leftovers(folder: Path) -> None:
    """Remove unfinished models of killed processes."""
    for leftover in folder.glob(".model-*"):
        with suppress(OSError):
            if LEFTOVER.fullmatch(leftover.name) and time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)


def _move_out(folder: Path) -> None:
    """Move the files out of ``.model-next``. The weights come first: the settings there belong to them."""
    if not (folder / NEXT).is_dir():
        return
    for name in (WEIGHTS, SETTINGS):
        if (folder / NEXT / name).exists():
            (folder / NEXT / name).replace(folder / name)
    flush(folder)
    (folder / NEXT).rmdir()


def load_model(folder: str | Path, device: torch.device | str | None = None) -> Embedder:
    """Read a model that ``save_model`` wrote.

    Args:
        folder: Has ``model.json`` and ``model.safetensors``.
        device: Where to put the model; None: the CPU.

    Returns:
        The model in eval mode.

    Raises:
        ValueError: If there is no model in the folder, or its files are damaged or do not fit.
    """
    folder = Path(folder)
    text, weights, _ = read_model(folder)
    embedder = Embedder.from_settings(parse_json(text))
    load_into(embedder, weights, what=f"the settings in {folder / SETTINGS}")
    if device is not None:
        embedder.to(device)
    return embedder.eval()


def _read_text(path: Path) -> str:
    try:
        return read_text(path, LARGEST_JSON)
    except ValueError as error:
        raise ValueError(f"{path} is damaged or not the settings of a model: {error}") from error


def _check_settings(path: Path, text: str, shapes: Mapping[str, Tensor]) -> None:
    """Check that a model of these settings has weights of these shapes; needs no memory."""
    try:
        settings: Any = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path} is damaged or not the settings of a model: {error}") from error
    if not isinstance(settings, dict) or "format" not in settings or "backbone" not in settings:
        raise ValueError(f"{path} holds no settings of a model")
    if settings["format"] != FORMAT:
        raise ValueError(f"{path} has the format {settings['format']!r}, this version reads {FORMAT}: update lookalike")
    largest = _largest_integer(settings)
    if largest > LARGEST_SETTING:
        raise ValueError(f"{path} holds settings that cannot be used: {largest:,} is larger than {LARGEST_SETTING:,}")
    try:
        with ShapesOnly():
            embedder = Embedder.from_settings(settings)
        check_fit(embedder, shapes, what=f"the settings in {path}")
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} holds settings that cannot be used: {first_line(error)}") from error


def _largest_integer(value: Any) -> int:
    if isinstance(value, dict):
        value = [entry for name, entry in value.items() if name != "seed"]
    if isinstance(value, list):
        return max(map(_largest_integer, value), default=0)
    return abs(value) if isinstance(value, int) else 0


def _same_text(path: Path, text: str) -> bool:
    with suppress(OSError, ValueError):
        return _read_text(path) == text
    return False
