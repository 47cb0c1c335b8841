"""Settings of a run that depend on what is run: by data set, kind of loss, variant or backbone.

A layer holds settings by the names of ``Settings``. A value may be written out along an axis, ``{cub: 100, sop: 1000}``
or ``{S: 1, L: {cub: 8, sop: 4}}``; where the axis has no entry for a run, the layer leaves the setting alone.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_origin, get_type_hints

from lookalike._util.suggestions import did_you_mean
from lookalike.objectives.presets import DATA_SETS
from lookalike.training.settings import Settings, names

KINDS = ("pair", "proxy")
VARIANTS: tuple[Literal["S", "L"], ...] = ("S", "L")
INTERVALS = "warm_up_intervals"  # evaluation intervals in which the backbone waits: the papers' "epochs"
# What a protocol decides by keys of its own, or whoever starts a run.
DECIDED = {
    "backbone": "backbones",
    "dim": "sizes",
    "validation": "split",
    "validation_order": "split",
    "seed": "repeats",
    "warm_up": INTERVALS,
    **dict.fromkeys(("data", "out", "resume", "loss", "pooling"), ""),
}
NESTED = frozenset(name for name, kind in get_type_hints(Settings).items() if get_origin(kind) is dict)

Layer = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """What a run is, as far as layers look at it."""

    data_set: str  # one of the four, or the one that stands for another
    kind: str  # of the loss
    variant: str
    backbone: str
    backbones: tuple[str, ...]  # of the protocol; another one takes the values of the first

    def entry(self, value: Mapping[str, Any]) -> str | None:
        """The key of a written-out value for this run; None where it has none."""
        keys = set(value)
        for axis, own in ((DATA_SETS, self.data_set), (KINDS, self.kind), (VARIANTS, self.variant)):
            if keys <= set(axis):
                return own if own in keys else None
        own = self.backbone if self.backbone in self.backbones else self.backbones[0]
        return own if own in keys else None


def resolve(layer: Layer, context: Context) -> dict[str, Any]:
    """The settings of a layer for one run. Those within ``loss_settings`` and the like that are null are left out."""
    found: dict[str, Any] = {}
    for name, value in layer.items():
        if name in NESTED:
            inner = {key: one for key, each in value.items() for one in _chosen(each, context)}
            found[name] = inner
        else:
            found.update((name, one) for one in _chosen(value, context))
    return found


def merge(below: Layer, above: Layer) -> Layer:
    """The settings of both, ``above`` where both have one; loss_settings and the like are merged, too."""
    merged = {**below, **above}
    for name in NESTED & set(below) & set(above):
        merged[name] = {**below[name], **above[name]}
    return merged


def without_nulls(found: Mapping[str, Any]) -> dict[str, Any]:
    """A null within ``loss_settings`` and the like takes back what a base said: the class's own default holds."""
    kept = dict(found)
    for name in NESTED & set(found):
        kept[name] = {key: value for key, value in found[name].items() if value is not None}
    return kept


def check_layer(where: str, layer: Any, backbones: Collection[str], *, complete: bool) -> None:
    """complete: a value that is written out must have an entry for every run, since no layer lies below."""
    if not isinstance(layer, dict):
        raise TypeError(f"{where} must hold settings by name, got {layer!r}")
    known = [name for name in (*names(), INTERVALS) if name not in DECIDED]
    for name, value in layer.items():
        place = f"{where}.{name}"
        if name in DECIDED:
            hint = f"the protocol's {DECIDED[name]!r} says it" if DECIDED[name] else "it is not a protocol's to say"
            raise ValueError(f"{place} cannot be set here: {hint}")
        if name not in known:
            raise ValueError(f"{place} is no setting of a run{did_you_mean(str(name), known)}")
        if name not in NESTED:
            _check_value(place, value, backbones, complete)
        elif not isinstance(value, dict):
            raise TypeError(f"{place} must hold settings by name, got {value!r}")
        else:
            for inner, each in value.items():
                _check_value(f"{place}.{inner}", each, backbones, complete)


def _check_value(place: str, value: Any, backbones: Collection[str], complete: bool) -> None:
    if not isinstance(value, dict):
        return
    axes = (DATA_SETS, KINDS, VARIANTS, tuple(backbones))
    axis = max(axes, key=lambda axis: len(set(axis) & set(value)))
    if not value or not set(value) & set(axis):
        every = "; ".join(", ".join(axis) for axis in axes)
        raise ValueError(f"{place} must be a value, or values by one of: {every}; got {value!r}")
    for key in value:
        if key not in axis:
            hint = did_you_mean(str(key), axis) or f"; expected {', '.join(axis)}"
            raise ValueError(f"{place} is written out by {', '.join(axis)}, got {key!r}{hint}")
    if complete and (lacking := [key for key in axis if key not in value]):
        raise ValueError(f"{place} is written out by {', '.join(axis)} and lacks {', '.join(lacking)}")
    for key, each in value.items():
        _check_value(f"{place}.{key}", each, backbones, complete)


def _chosen(value: Any, context: Context) -> list[Any]:
    """[the value for this run], or nothing."""
    while isinstance(value, dict):
        key = context.entry(value)
        if key is None:
            return []
        value = value[key]
    if isinstance(value, str):
        try:
            return [float(value)]  # YAML takes 1e-5 for a word
        except ValueError:
            pass
    return [tuple(value) if isinstance(value, list) else value]
