"""Poolings: a bag of local features (B, N, D) -> one vector (B, D)."""

from inspect import signature
from typing import Any

from lookalike.pooling.average import AveragePool, MaxPool
from lookalike.pooling.base import Pooled, Pooling
from lookalike.pooling.gsp import GeneralizedSumPool
from lookalike.pooling.transport import Transport, partial_transport

__all__ = [
    "AveragePool",
    "GeneralizedSumPool",
    "MaxPool",
    "Pooled",
    "Pooling",
    "Transport",
    "create",
    "find",
    "names",
    "partial_transport",
]

_POOLINGS: dict[str, type[Pooling]] = {"average": AveragePool, "gsp": GeneralizedSumPool, "max": MaxPool}


def names() -> list[str]:
    """The poolings that ``create`` knows."""
    return sorted(_POOLINGS)


def create(name: str, dim: int, **settings: Any) -> Pooling:
    """The pooling of that name for local features of size ``dim``; settings as its class takes them.

    >>> create("gsp", dim=128, keep=0.2)
    GeneralizedSumPool(dim=128, num_prototypes=64, keep=0.2, sharpness=5)
    """
    kind = find(name)
    known = [setting for setting in signature(kind).parameters if setting != "dim"]
    for setting in settings:
        if setting not in known:
            raise ValueError(f"{name} has no setting {setting!r}; it has: {', '.join(known) or 'none'}")
    return kind(dim=dim, **settings)


def find(name: str) -> type[Pooling]:
    """The class of the pooling of that name."""
    if name not in _POOLINGS:
        raise ValueError(f"no pooling is called {name!r}; there are: {', '.join(names())}")
    return _POOLINGS[name]
