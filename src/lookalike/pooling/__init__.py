"""Poolings: a bag of local features (B, N, D) -> one vector (B, D)."""

from inspect import signature
from typing import Any

from lookalike._util.suggestions import did_you_mean
from lookalike.pooling.attention import AttentionPool, DelfPool, SimPool
from lookalike.pooling.attention_blocks import CbamPool, GsopPool, SolarPool
from lookalike.pooling.base import Pooled, Pooling
from lookalike.pooling.bilinear import BilinearPool, CompactBilinearPool
from lookalike.pooling.feature_weights import CrossDimensionalPool, GeneralizedMaxPool, SmkPool
from lookalike.pooling.gsp import GeneralizedSumPool
from lookalike.pooling.per_channel import (
    AveragePlusMaxPool,
    AveragePool,
    GeneralizedMeanPool,
    LogSumExpPool,
    MaxPool,
    WeldonPool,
)
from lookalike.pooling.per_prototype import NetVladPool, OptimalTransportPool
from lookalike.pooling.top_k import transport_top_k
from lookalike.pooling.transport import Transport, partial_transport
from lookalike.pooling.with_gsp import GemWithGsp, MaxWithGsp, WeightedMaxWithGsp

__all__ = [
    "AttentionPool",
    "AveragePlusMaxPool",
    "AveragePool",
    "BilinearPool",
    "CbamPool",
    "CompactBilinearPool",
    "CrossDimensionalPool",
    "DelfPool",
    "GemWithGsp",
    "GeneralizedMaxPool",
    "GeneralizedMeanPool",
    "GeneralizedSumPool",
    "GsopPool",
    "LogSumExpPool",
    "MaxPool",
    "MaxWithGsp",
    "NetVladPool",
    "OptimalTransportPool",
    "Pooled",
    "Pooling",
    "SimPool",
    "SmkPool",
    "SolarPool",
    "Transport",
    "WeightedMaxWithGsp",
    "WeldonPool",
    "create",
    "find",
    "names",
    "partial_transport",
    "transport_top_k",
]

_POOLINGS: dict[str, type[Pooling]] = {
    "attention": AttentionPool,
    "average": AveragePool,
    "average+max": AveragePlusMaxPool,
    "bilinear": BilinearPool,
    "cbam": CbamPool,
    "compact-bilinear": CompactBilinearPool,
    "crow": CrossDimensionalPool,
    "delf": DelfPool,
    "gem": GeneralizedMeanPool,
    "gem+gsp": GemWithGsp,
    "gemax": GeneralizedMaxPool,
    "gsop": GsopPool,
    "gsp": GeneralizedSumPool,
    "lse": LogSumExpPool,
    "max": MaxPool,
    "max+gsp": MaxWithGsp,
    "netvlad": NetVladPool,
    "otp": OptimalTransportPool,
    "simpool": SimPool,
    "smk": SmkPool,
    "solar": SolarPool,
    "weighted-max+gsp": WeightedMaxWithGsp,
    "weldon": WeldonPool,
}


def names() -> list[str]:
    """List the names that ``create`` accepts, in alphabetical order."""
    return sorted(_POOLINGS)


def create(name: str, dim: int, **settings: Any) -> Pooling:
    """Create a pooling by name.

    Args:
        name: One of ``names()``.
        dim: Size D of the local features.
        **settings: Keyword arguments of the pooling's class.

    Returns:
        A module that pools maps (B, D, H, W) or tokens (B, N, D) into vectors (B, out_dim).

    Raises:
        ValueError: If the name or a setting does not exist, or a value is out of range.

    Examples:
        >>> create("gsp", dim=128, keep=0.2)
        GeneralizedSumPool(dim=128, num_prototypes=64, keep=0.2, sharpness=5)
    """
    pooling_class = find(name)
    allowed = [setting for setting in signature(pooling_class).parameters if setting != "dim"]
    for setting in settings:
        if setting not in allowed:
            hint = did_you_mean(setting, allowed)
            raise ValueError(f"{name} has no setting {setting!r}{hint}; it has: {', '.join(allowed) or 'none'}")
    return pooling_class(dim=dim, **settings)


def find(name: str) -> type[Pooling]:
    """Return the class of a pooling.

    Args:
        name: One of ``names()``.

    Raises:
        ValueError: If there is no such pooling.
    """
    if name not in _POOLINGS:
        raise ValueError(f"no pooling is called {name!r}{did_you_mean(name, names())}; there are: {', '.join(names())}")
    return _POOLINGS[name]
