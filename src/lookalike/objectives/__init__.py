"""Objectives: embeddings (B, D) and labels (B,) -> one loss."""

from collections.abc import Iterable
from difflib import get_close_matches
from inspect import signature
from typing import Any

from lookalike.objectives.base import Hints, Loss, Objective
from lookalike.objectives.between_proxies import BetweenProxies, BetweenSamples
from lookalike.objectives.centres import SPREADS, CentreCrowding, CentreObjective, CentreSpread
from lookalike.objectives.composed import Composed
from lookalike.objectives.contrastive import Contrastive, ContrastiveDistance
from lookalike.objectives.gather import Gathered
from lookalike.objectives.library import Circle, LiftedStructure, Triplet
from lookalike.objectives.margin import Margin
from lookalike.objectives.memory import CrossBatchMemory, with_memory
from lookalike.objectives.multi_similarity import MultiSimilarity
from lookalike.objectives.n_pair import NPair
from lookalike.objectives.pairs import PairObjective
from lookalike.objectives.presets import preset_hints, preset_settings
from lookalike.objectives.proxies import ProxyAnchor, ProxyNCA, ProxyNCAPlusPlus, ProxyObjective
from lookalike.objectives.soft_triple import SoftTriple
from lookalike.objectives.zero_shot import ZeroShot

__all__ = [
    "SPREADS",
    "BetweenProxies",
    "BetweenSamples",
    "CentreCrowding",
    "CentreSpread",
    "Composed",
    "CrossBatchMemory",
    "Gathered",
    "Hints",
    "Loss",
    "Objective",
    "PairObjective",
    "ProxyObjective",
    "ZeroShot",
    "create",
    "create_centres",
    "full_name",
    "names",
    "takes",
    "training_hints",
    "with_memory",
]

_OBJECTIVES: dict[str, type[Objective]] = {
    "circle": Circle,
    "contrastive": Contrastive,
    "contrastive-distance": ContrastiveDistance,
    "lifted-structure": LiftedStructure,
    "margin": Margin,
    "multi-similarity": MultiSimilarity,
    "n-pair": NPair,
    "proxy-anchor": ProxyAnchor,
    "proxy-nca": ProxyNCA,
    "proxy-nca++": ProxyNCAPlusPlus,
    "soft-triple": SoftTriple,
    "triplet": Triplet,
}
_CROWDING = "r1"
_ALIASES = {"c1": "contrastive", "c2": "contrastive-distance", "ms": "multi-similarity"}


def names() -> list[str]:
    """The objectives that ``create`` knows; it also knows c1, c2 and ms, short for the two contrastive ones and
    multi-similarity."""
    return sorted(_OBJECTIVES)


def create(
    name: str, classes: int | None = None, dim: int | None = None, *, preset: str | None = None, **settings: Any
) -> Objective:
    """The objective of that name for ``classes`` training classes and embeddings of size ``dim``.

    preset: "cub", "cars", "inshop" or "sop" for the settings published for that data set. ``settings``, as the
    objective's class takes them, go before it. Pair losses do not ask for classes and dim.

    >>> create("c2", preset="cars", negative_margin=0.6)
    ContrastiveDistance(positive_margin=0.2652, negative_margin=0.6, normalise=True)
    >>> create("proxy-anchor", classes=100, dim=128)
    ProxyAnchor(classes=100, dim=128, margin=0.1, sharpness=32.0)
    """
    name, kind = _find(name)
    _check_settings(name, settings, [kind])
    settings = {**preset_settings(name, preset), **settings}
    if not kind.hints.needs_classes:
        return kind(**settings)
    if classes is None or dim is None:
        raise ValueError(f"{name} learns vectors for the classes: classes and dim must be given, got {classes}, {dim}")
    return kind(classes=classes, dim=dim, **settings)


def create_centres(preset: str | None = None, **settings: Any) -> CentreObjective:
    """A regulariser of class centres: ``CentreSpread``, by itself or with the settings that SPREADS has by that name,
    or ``CentreCrowding``, whose name is r1. ``settings``, as the class takes them, go before the preset.

    >>> create_centres("mhe-1", classes=10, dim=8, sample=4).settings["form"]
    'energy-sum'
    >>> type(create_centres("r1", classes=10, dim=8)).__name__
    'CentreCrowding'
    """
    known = [*SPREADS, _CROWDING]
    if preset is not None and preset not in known:
        raise ValueError(f"no regulariser of centres is called {preset!r}; {_suggest(preset, known)}")
    kind: type[CentreObjective] = CentreCrowding if preset == _CROWDING else CentreSpread
    _check_settings(preset or "centres", settings, [kind, CentreObjective], "classes", "dim", "proxies_of")
    return kind(**{**SPREADS.get(preset or "", {}), **settings})


def training_hints(name: str, preset: str | None = None) -> Hints:
    """How the papers train with the objective of that name.

    >>> training_hints("proxy-anchor", "sop")
    Hints(per_class=1, rate_multiplier=100.0, warm_up=1, sharpness=0.5, needs_classes=True, learning_rate=5e-06)
    """
    name, kind = _find(name)
    return preset_hints(name, kind.hints, preset)


def full_name(name: str) -> str:
    """
    >>> full_name("c2"), full_name("margin")
    ('contrastive-distance', 'margin')
    """
    return _find(name)[0]


def takes(name: str, setting: str) -> bool:
    """Whether the objective of that name has the setting."""
    return setting in signature(_find(name)[1]).parameters


def _find(name: str) -> tuple[str, type[Objective]]:
    full = _ALIASES.get(name, name)
    if full not in _OBJECTIVES:
        raise ValueError(f"no objective is called {name!r}; {_suggest(name, [*names(), *_ALIASES])}")
    return full, _OBJECTIVES[full]


def _check_settings(name: str, given: Iterable[str], kinds: Iterable[type[Objective]], *also: str) -> None:
    hidden = {"classes", "dim", "proxies_of", "settings", "where"}
    known = [setting for kind in kinds for setting in signature(kind).parameters if setting not in hidden]
    for setting in given:
        if setting not in known and setting not in also:
            raise ValueError(f"{name} has no setting {setting!r}; {_suggest(setting, known)}")


def _suggest(wrong: str, known: list[str]) -> str:
    near = get_close_matches(str(wrong).lower().replace("_", "-"), known, 1, 0.5)
    near = near or get_close_matches(str(wrong).lower(), known, 1, 0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}there are: {', '.join(known)}"
