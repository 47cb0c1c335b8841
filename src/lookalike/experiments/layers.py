"""Layers: settings of a run that depend on the data set, the kind of loss, the variant or the backbone.

A layer holds settings by the names of ``Settings``. A value may be written out along an axis, ``{cub: 100, sop: 1000}``
or ``{S: 1, L: {cub: 8, sop: 4}}``. If the axis has no entry for a run, the layer does not change the setting.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_origin, get_type_hints

from lookalike._util.suggestions import did_you_mean
from lookalike.experiments.choices import read_number
from lookalike.objectives.presets import DATA_SETS
from lookalike.training.settings import Settings, names

KINDS = ("pair", "proxy")
VARIANTS: tuple[Literal["S", "L"], ...] = ("S", "L")
INTERVALS = "warm_up_intervals"  # evaluation intervals in which the backbone waits: the papers' "epochs"
# Settings that no layer may have, with the key of the protocol that decides them.
DECIDED = {
    "backbone": "backbones",
    "dim": "sizes",
    "validation": "split",
    "validation_order": "split",
    "seed": "repeats",
    "warm_up": INTERVALS,
    "data": "",
    "out": "",
    "resume": "",
    "loss": "",
    "pooling": "",
}
# Settings that are dictionaries, such as loss_settings.
NESTED = frozenset(name for name, kind in get_type_hints(Settings).items() if get_origin(kind) is dict)

Layer = dict[str, Any]


class _Missing:
    """The value of a setting for which a layer has no entry."""


MISSING = _Missing()


@dataclass(frozen=True)
class Context:
    """What layers depend on.

    Attributes:
        data_set: one of the four, or the one whose settings are used.
        kind: of the loss.
        backbones: of the protocol; another backbone has the settings of the first.
    """

    data_set: str
    kind: str
    variant: str
    backbone: str
    backbones: tuple[str, ...]

    def key_in(self, values: Mapping[str, Any]) -> str | None:
        """The key of this run in values that are written out along an axis; None if they have no such key."""
        keys = set(values)
        backbone = self.backbone if self.backbone in self.backbones else self.backbones[0]
        key = backbone
        for axis, axis_key in ((DATA_SETS, self.data_set), (KINDS, self.kind), (VARIANTS, self.variant)):
            if keys.issubset(axis):
                key = axis_key
                break
        return key if key in keys else None


def resolve(layer: Layer, context: Context) -> dict[str, Any]:
    """The settings of a layer for one run, without those that have no entry for it."""
    settings: dict[str, Any] = {}
    for name, value in layer.items():
        if name in NESTED:
            settings[name] = resolve_values(value, context)
        else:
            settings.update(resolve_values({name: value}, context))
    return settings


def resolve_values(values: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Choose the entries of this run, and leave out values that have none."""
    resolved = {}
    for name, value in values.items():
        chosen = _choose(value, context)
        if chosen is not MISSING:
            resolved[name] = chosen
    return resolved


def merge(below: Layer, above: Layer) -> Layer:
    """Merge two layers; ``above`` wins, and nested settings such as loss_settings are merged, too."""
    merged = {**below, **above}
    for name in NESTED & set(below) & set(above):
        merged[name] = {**below[name], **above[name]}
    return merged


def without_nulls(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Drop nulls within nested settings: they restore the default of the class over the value of a base."""
    cleaned = dict(settings)
    for name in NESTED & set(settings):
        cleaned[name] = {key: value for key, value in settings[name].items() if value is not None}
    return cleaned


def check_layer(where: str, layer: Any, backbones: Collection[str], *, complete: bool) -> None:
    """Check the names and axes of a layer.

    Args:
        where: its position in the file, for messages.
        layer: as YAML gives it.
        backbones: of the protocol.
        complete: a written-out value must have an entry for every run, because no layer lies below.

    Raises:
        ValueError: a name does not exist, or an entry is missing.
        TypeError: it does not hold settings by name.
    """
    if not isinstance(layer, dict):
        raise TypeError(f"{where} must hold settings by name, got {layer!r}")
    allowed = [name for name in (*names(), INTERVALS) if name not in DECIDED]
    for name, value in layer.items():
        path = f"{where}.{name}"
        if name in DECIDED:
            hint = f"{DECIDED[name]!r} of the protocol sets it" if DECIDED[name] else "it is a setting of the command"
            raise ValueError(f"{path} cannot be set here: {hint}")
        if name not in allowed:
            raise ValueError(f"{path} is no setting of a run{did_you_mean(str(name), allowed)}")
        if name not in NESTED:
            _check_value(path, value, backbones, complete)
            continue
        if not isinstance(value, dict):
            raise TypeError(f"{path} must hold settings by name, got {value!r}")
        for inner_name, inner_value in value.items():
            _check_value(f"{path}.{inner_name}", inner_value, backbones, complete)


def _check_value(path: str, value: Any, backbones: Collection[str], complete: bool) -> None:
    if not isinstance(value, dict):
        return
    axes = (DATA_SETS, KINDS, VARIANTS, tuple(backbones))
    axis = max(axes, key=lambda axis: len(set(axis) & set(value)))
    if not set(value) & set(axis):
        options = "; ".join(", ".join(axis) for axis in axes)
        raise ValueError(f"{path} must be a value, or values by one of: {options}; got {value!r}")
    for key in value:
        if key not in axis:
            hint = did_you_mean(str(key), axis) or f"; expected {', '.join(axis)}"
            raise ValueError(f"{path} is written out by {', '.join(axis)}, got {key!r}{hint}")
    missing = [key for key in axis if key not in value]
    if complete and missing:
        raise ValueError(f"{path} is written out by {', '.join(axis)} and lacks {', '.join(missing)}")
    for key, inner_value in value.items():
        _check_value(f"{path}.{key}", inner_value, backbones, complete)


def _choose(value: Any, context: Context) -> Any:
    """The value for this run, or MISSING."""
    while isinstance(value, dict):
        key = context.key_in(value)
        if key is None:
            return MISSING
        value = value[key]
    if isinstance(value, list):
        return tuple(value)
    return read_number(value)
