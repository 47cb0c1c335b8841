"""lookalike: learn what looks alike. An embedding that ignores the background, measured honestly, to search with.

Public names load on first use: ``import lookalike`` by itself takes no time, and the command can answer Ctrl-C while
torch loads.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lookalike import geometry, pooling
    from lookalike.pooling import GeneralizedSumPool, partial_transport

__all__ = ["GeneralizedSumPool", "geometry", "load", "partial_transport", "pooling", "retrieval_metrics", "verify"]
__version__ = "0.1.0"

_ON_FIRST_USE = {
    "GeneralizedSumPool": "lookalike.pooling",
    "load": "lookalike.inference.model",
    "partial_transport": "lookalike.pooling",
    "retrieval_metrics": "lookalike.retrieval.metrics",
    "verify": "lookalike.training.verify",
}
_PACKAGES = {
    "data",
    "experiments",
    "geometry",
    "index",
    "inference",
    "models",
    "objectives",
    "pooling",
    "retrieval",
    "skewed_means",
    "training",
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"lookalike.{name}")
    if name in _ON_FIRST_USE:
        return getattr(import_module(_ON_FIRST_USE[name]), name)
    raise AttributeError(f"module 'lookalike' has no attribute {name!r}")
