"""Which models can compare texts with pictures, told from their settings alone, without torch."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

PREFIX = "open_clip:"
EXAMPLE = f"{PREFIX}ViT-B-32"
INSTALL = "open_clip is not installed: pip install 'lookalike[text]'"


def is_two_towers(name: str) -> bool:
    """Whether a backbone's name is that of a model of open_clip."""
    return name.startswith(PREFIX)


def text_refusal(settings: Mapping[str, Any]) -> str | None:
    """Say why a model cannot compare texts with pictures; None if it can.

    Args:
        settings: The settings of the model, as in ``model.json``.
    """
    name = str(settings["backbone"])
    if not is_two_towers(name):
        return f"the backbone {name} has no text tower: an index made with {EXAMPLE} and its weights has one"
    plain = (settings["dim"], settings["pooling"]["name"], settings["normalise"]) == (None, "average", "l2")
    if not plain:
        return "its head was fitted on pictures alone: texts and pictures are no longer in one space"
    if find_spec("open_clip") is None:
        return INSTALL
    return None
