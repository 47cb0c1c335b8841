"""Poolings: a bag of local features (B, N, D) -> one vector (B, D)."""

from difflib import get_close_matches
from inspect import signature
from typing import Any

from lookalike.pooling.attention import AttentionPool
from lookalike.pooling.average import AveragePool, MaxPool
from lookalike.pooling.base import Pooled, Pooling
from lookalike.pooling.bilinear import BilinearPool
from lookalike.pooling.cbam import CbamPool
from lookalike.pooling.compact_bilinear import CompactBilinearPool
from lookalike.pooling.crow import CrossDimensionalPool
from lookalike.pooling.delf import DelfPool
from lookalike.pooling.extremes import WeldonPool
from lookalike.pooling.generalized_max import GeneralizedMaxPool
from lookalike.pooling.gsop import GsopPool
from lookalike.pooling.gsp import GeneralizedSumPool
from lookalike.pooling.netvlad import NetVladPool
from lookalike.pooling.ot_aggregation import OptimalTransportPool
from lookalike.pooling.power import GeneralizedMeanPool, LogSumExpPool
from lookalike.pooling.simpool import SimPool
from lookalike.pooling.smk import SmkPool
from lookalike.pooling.solar import SolarPool
from lookalike.pooling.sum_of_two import AveragePlusMaxPool
from lookalike.pooling.top_k import transport_top_k
from lookalike.pooling.transport import Transport, partial_transport
from lookalike.pooling.with_gsp import GemWithGsp, MaxWithGsp

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
    "weldon": WeldonPool,
}


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
        near = get_close_matches(str(name).lower(), names(), 1, 0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no pooling is called {name!r}; {hint}there are: {', '.join(names())}")
    return _POOLINGS[name]
