"""A model on disk: settings in ``model.json``, weights in ``model.safetensors``. Nothing is unpickled.

Both files are written in a temporary folder and then moved. A folder never holds the settings of one model with the
weights of another: if the settings change, the old ones are deleted before the new weights come.
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from lookalike._util.files import flush
from lookalike.models.embedder import FORMAT, Embedder
from lookalike.models.weight_files import load_into, read_weights

SETTINGS = "model.json"
WEIGHTS = "model.safetensors"


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
    state = {name: value.detach().cpu().contiguous() for name, value in embedder.state_dict().items()}
    text = json.dumps(embedder.settings(), indent=2) + "\n"
    with TemporaryDirectory(dir=folder, prefix=".model-") as temporary:
        try:
            save_file(state, Path(temporary) / WEIGHTS)
        except SafetensorError as error:  # also for a full disk
            raise OSError(f"{folder / WEIGHTS} could not be written: {error}") from error
        (Path(temporary) / SETTINGS).write_text(text, encoding="utf-8")
        shutil.copymode(Path(temporary) / SETTINGS, Path(temporary) / WEIGHTS)  # safetensors makes files private
        for name in (WEIGHTS, SETTINGS):
            flush(Path(temporary) / name)
        if not _same_text(folder / SETTINGS, text):
            (folder / SETTINGS).unlink(missing_ok=True)
        for name in (WEIGHTS, SETTINGS):
            (Path(temporary) / name).replace(folder / name)
    flush(folder)


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
    for name in (SETTINGS, WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} holds no model: there is no {name}")
    embedder = _build(folder / SETTINGS)
    load_into(embedder, read_weights(folder / WEIGHTS), what=f"the settings in {folder / SETTINGS}")
    if device is not None:
        embedder.to(device)
    return embedder.eval()


def _build(path: Path) -> Embedder:
    try:
        settings: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged or not the settings of a model: {error}") from error
    if not isinstance(settings, dict) or "format" not in settings or "backbone" not in settings:
        raise ValueError(f"{path} holds no settings of a model")
    if settings["format"] != FORMAT:
        raise ValueError(f"{path} has the format {settings['format']!r}, this version reads {FORMAT}: update lookalike")
    try:
        return Embedder.from_settings(settings)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds settings that cannot be used: {error}") from error


def _same_text(path: Path, text: str) -> bool:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8") == text
    return False
