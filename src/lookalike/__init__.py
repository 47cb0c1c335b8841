"""lookalike: learn what looks alike. An embedding that ignores the background, measured honestly, to search with.

``import lookalike`` loads torch and the pooling; the other public names load on first use.
"""

from importlib import import_module
from typing import Any

from lookalike import geometry, pooling
from lookalike.pooling import GeneralizedSumPool, partial_transport

__all__ = ["GeneralizedSumPool", "geometry", "partial_transport", "pooling", "retrieval_metrics"]
__version__ = "0.1.0"

_ON_FIRST_USE = {"retrieval_metrics": "lookalike.retrieval.metrics"}


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module 'lookalike' has no attribute {name!r}")
    return getattr(import_module(_ON_FIRST_USE[name]), name)
