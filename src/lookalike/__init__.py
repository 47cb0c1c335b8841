"""lookalike: learn what looks alike. An embedding that ignores the background, measured honestly, to search with.

``import lookalike`` loads torch and the pooling; the other public names load on first use.
"""

from importlib import import_module
from typing import Any

from lookalike import geometry, pooling
from lookalike.pooling import GeneralizedSumPool, partial_transport

__all__ = ["GeneralizedSumPool", "geometry", "load", "partial_transport", "pooling", "retrieval_metrics"]
__version__ = "0.1.0"

_ON_FIRST_USE = {"load": "lookalike.trained", "retrieval_metrics": "lookalike.retrieval.metrics"}
_ROOMS = {"data", "models", "objectives", "retrieval", "training"}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"lookalike.{name}")
    if name in _ON_FIRST_USE:
        return getattr(import_module(_ON_FIRST_USE[name]), name)
    raise AttributeError(f"module 'lookalike' has no attribute {name!r}")
