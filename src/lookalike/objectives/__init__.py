"""Objectives: embeddings (B, D) and labels (B,) -> one loss."""

from collections.abc import Iterable
from inspect import signature
from typing import Any

from lookalike._util.suggestions import did_you_mean
from lookalike.objectives.base import Hints, Loss, Objective
from lookalike.objectives.between_proxies import BetweenProxies, BetweenSamples
from lookalike.objectives.centres import SPREADS, CentreCrowding, CentreObjective, CentreSpread
from lookalike.objectives.composed import Composed
from lookalike.objectives.contrastive import Contrastive, ContrastiveDistance
from lookalike.objectives.gather import Gathered
from lookalike.objectives.libc import LIBC, MessagePassing
from lookalike.objectives.library import Circle, LiftedStructure, Triplet
from lookalike.objectives.lifted import LiftedStructureSong
from lookalike.objectives.margin import Margin
from lookalike.objectives.marked_pairs import KeptSimilarities, Labelled, MarkedPairs
from lookalike.objectives.memory import CrossBatchMemory, with_memory
from lookalike.objectives.multi_similarity import MultiSimilarity
from lookalike.objectives.n_pair import NPair
from lookalike.objectives.pairs import PairObjective
from lookalike.objectives.presets import preset_hints, preset_settings
from lookalike.objectives.proxies import ProxyAnchor, ProxyNCA, ProxyNCAPlusPlus, ProxyObjective
from lookalike.objectives.soft_triple import SoftTriple
from lookalike.objectives.zero_shot import ZeroShot

__all__ = [
    "LIBC",
    "SPREADS",
    "BetweenProxies",
    "BetweenSamples",
    "CentreCrowding",
    "CentreSpread",
    "Composed",
    "CrossBatchMemory",
    "Gathered",
    "Hints",
    "KeptSimilarities",
    "Labelled",
    "Loss",
    "MarkedPairs",
    "MessagePassing",
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
    "libc": LIBC,
    "lifted-structure": LiftedStructure,
    "lifted-structure-song": LiftedStructureSong,
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
    """List the names that ``create`` accepts, without the aliases c1, c2 (both contrastive) and ms."""
    return sorted(_OBJECTIVES)


def create(
    name: str, classes: int | None = None, dim: int | None = None, *, preset: str | None = None, **settings: Any
) -> Objective:
    """Create an objective by name.

    Args:
        name: One of ``names()`` or an alias: c1, c2, ms.
        classes: Number of training classes. Pair losses ignore it.
        dim: Size D of the embeddings. Pair losses ignore it.
        preset: "cub", "cars", "inshop" or "sop" for the settings published for that dataset; "paper" for the defaults.
        **settings: Keyword arguments of the objective's class. They override the preset.

    Returns:
        A module that maps embeddings (B, D) and labels (B,) to a ``Loss``.

    Raises:
        ValueError: If the name, the preset or a setting does not exist, or a value is out of range or missing.

    Examples:
        >>> create("c2", preset="cars", negative_margin=0.6)
        ContrastiveDistance(positive_margin=0.2652, negative_margin=0.6, normalise=True)
        >>> create("proxy-anchor", classes=100, dim=128)
        ProxyAnchor(classes=100, dim=128, margin=0.1, sharpness=32.0)
    """
    name, objective_class = _find(name)
    _check_settings(name, settings, _parameters(objective_class))
    settings = {**preset_settings(name, preset), **settings}
    if not objective_class.hints.needs_classes:
        return objective_class(**settings)
    if classes is None or dim is None:
        raise ValueError(f"{name} learns vectors for the classes: classes and dim must be given, got {classes}, {dim}")
    return objective_class(classes=classes, dim=dim, **settings)


def create_centres(preset: str | None = None, **settings: Any) -> CentreObjective:
    """Create a regulariser that keeps class centres apart.

    Args:
        preset: A key of SPREADS for ``CentreSpread`` with those settings, "r1" for ``CentreCrowding``, or None for
            ``CentreSpread`` with its defaults.
        **settings: Keyword arguments of the class. They override the preset.

    Raises:
        ValueError: If the preset or a setting does not exist, or a value is out of range.

    Examples:
        >>> create_centres("mhe-1", classes=10, dim=8, sample=4).settings["form"]
        'energy-sum'
        >>> type(create_centres("r1", classes=10, dim=8)).__name__
        'CentreCrowding'
    """
    presets = [*SPREADS, _CROWDING]
    if preset is not None and preset not in presets:
        raise ValueError(f"no regulariser of centres is called {preset!r}{_choices(preset, presets)}")
    objective_class: type[CentreObjective] = CentreSpread
    if preset == _CROWDING:
        objective_class = CentreCrowding
    allowed = [*_parameters(objective_class), *_parameters(CentreObjective)]
    _check_settings(preset or "centres", settings, allowed, "classes", "dim", "proxies_of")
    return objective_class(**{**SPREADS.get(preset or "", {}), **settings})


def training_hints(name: str, preset: str | None = None) -> Hints:
    """Return how the papers train with an objective.

    Args:
        name: One of ``names()`` or an alias.
        preset: "cub", "cars", "inshop", "sop", "paper" or None.

    Examples:
        >>> training_hints("proxy-anchor", "sop")
        Hints(per_class=1, rate_multiplier=100.0, warm_up=1, sharpness=0.5, needs_classes=True, learning_rate=5e-06)
    """
    name, objective_class = _find(name)
    return preset_hints(name, objective_class.hints, preset)


def full_name(name: str) -> str:
    """Replace an alias by the name of the objective.

    Examples:
        >>> full_name("c2"), full_name("margin")
        ('contrastive-distance', 'margin')
    """
    return _find(name)[0]


def takes(name: str, setting: str) -> bool:
    """Tell whether an objective has a setting.

    Args:
        name: One of ``names()`` or an alias.
        setting: Name of the setting.
    """
    return setting in signature(_find(name)[1]).parameters


def _find(name: str) -> tuple[str, type[Objective]]:
    full = _ALIASES.get(name, name)
    if full not in _OBJECTIVES:
        raise ValueError(f"no objective is called {name!r}{_choices(name, [*names(), *_ALIASES])}")
    return full, _OBJECTIVES[full]


def _parameters(objective_class: type[Objective]) -> list[str]:
    """The settings of a class, without the arguments that are not settings."""
    hidden = {"classes", "dim", "proxies_of", "settings", "where"}
    return [name for name in signature(objective_class).parameters if name not in hidden]


def _check_settings(name: str, settings: Iterable[str], allowed: list[str], *also: str) -> None:
    for setting in settings:
        if setting not in allowed and setting not in also:
            raise ValueError(f"{name} has no setting {setting!r}{_choices(setting, allowed)}")


def _choices(wrong: str, allowed: list[str]) -> str:
    return f"{did_you_mean(wrong, allowed)}; there are: {', '.join(allowed)}"
