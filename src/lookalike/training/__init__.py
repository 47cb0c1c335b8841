"""One model, one run: settings, the loop, the feature cache, the run folder."""

from importlib import import_module
from typing import Any

__all__ = ["RunFailed", "Settings", "Stopped", "fit", "train"]

_ON_FIRST_USE = {
    "RunFailed": "lookalike._util.signals",
    "Settings": "lookalike.training.settings",
    "Stopped": "lookalike._util.signals",
    "fit": "lookalike.training.loop",
    "train": "lookalike.training.run",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module 'lookalike.training' has no attribute {name!r}")
    return getattr(import_module(_ON_FIRST_USE[name]), name)
