"""The search space, as it is typed: ``pooling_settings.num_prototypes=[16, 32]; lr=log(1e-5, 1e-3)``.

A list is a choice among its values; ``uniform(a, b)``, ``log(a, b)`` and ``int(a, b)`` are ranges with both ends.
Names are those of ``lookalike train``; a dot leads into the settings of the pooling, the loss and so on.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite
from typing import Any, TypeGuard

import numpy as np

from lookalike._util.suggestions import did_you_mean
from lookalike.experiments.choices import parse_settings, split_top_level
from lookalike.experiments.layers import NESTED
from lookalike.training.settings import FREE_ON_RESUME, names

RANGES = ("uniform", "log", "int")
HOW = "write a list as [16, 32, 64], or uniform(a, b), log(a, b) or int(a, b)"
# Trials that differ in these settings could not be compared.
FIXED = (FREE_ON_RESUME - {"steps", "patience"}) | {
    "data",
    "seed",
    "monitor",
    "validation",
    "validation_order",
    "log_every",
    "precision",
}
Value = bool | int | float | str | None


@dataclass(frozen=True)
class Axis:
    """One setting and where it is searched.

    Attributes:
        name: of the setting.
        kind: "list" or one of RANGES.
        values: all of a list, or both ends of a range.
    """

    name: str
    kind: str
    values: tuple[Value, ...]

    def __str__(self) -> str:
        inside = ", ".join("null" if value is None else str(value) for value in self.values)
        return f"[{inside}]" if self.kind == "list" else f"{self.kind}({inside})"

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return all(map(is_number, self.values))


Space = dict[str, Axis]


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value is an int or a float, but no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def parse_space(search: str | Mapping[str, Any]) -> Space:
    """Read a search space.

    Raises:
        ValueError: it cannot be read, or names a setting that is not searched.

    Examples:
        >>> space = parse_space("pooling_settings.keep=[0.3, 0.7]; lr=log(1e-5, 1e-3)")
        >>> {name: str(axis) for name, axis in space.items()}
        {'pooling_settings.keep': '[0.3, 0.7]', 'lr': 'log(1e-05, 0.001)'}
    """
    space: Space = {}
    for name, value in _split_search(search):
        if name in space:
            raise ValueError(f"the search names {name} twice")
        _check_name(name)
        space[name] = _parse_axis(name, value)
    if not space:
        raise ValueError(f"the search is empty: name at least one setting, as lr=log(1e-5, 1e-3); {HOW}")
    return space


def space_of(points: Sequence[dict[str, Any]]) -> Space:
    """The space of a list of points: all values that each setting has.

    Raises:
        ValueError: there are no points, or they do not all have the same settings.
    """
    if not points:
        raise ValueError("the runs are empty: name at least one")
    values: dict[str, list[Any]] = {name: [] for name in points[0]}
    for point in points:
        if set(point) != set(points[0]):
            raise ValueError(f"every run must set the same names: {', '.join(points[0])}; got {', '.join(point)}")
        for name, value in point.items():
            if value not in values[name]:
                values[name].append(value)
    return parse_space(values)


def grid(space: Space, seed: int) -> list[dict[str, Any]]:
    """All points of a grid, in a random order, so that the first ones are spread out.

    Raises:
        ValueError: the space has a range.
    """
    for name, axis in space.items():
        if axis.kind != "list":
            raise ValueError(f"a grid needs lists of values, {name} is searched in {axis}")
    points = []
    for values in product(*(axis.values for axis in space.values())):
        points.append(dict(zip(space, values, strict=True)))
    return [points[i] for i in np.random.default_rng(seed).permutation(len(points))]


def as_overrides(params: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted names into nested settings.

    Examples:
        >>> as_overrides({"lr": 0.1, "pooling_settings.keep": 0.3, "pooling_settings.sharpness": 5})
        {'lr': 0.1, 'pooling_settings': {'keep': 0.3, 'sharpness': 5}}
    """
    overrides: dict[str, Any] = {}
    for name, value in params.items():
        outer, dot, inner = name.partition(".")
        if dot:
            overrides.setdefault(outer, {})[inner] = value
        else:
            overrides[outer] = value
    return overrides


def describe_space(space: Space) -> dict[str, str]:
    """The axes as they would be typed, by name."""
    return {name: str(axis) for name, axis in space.items()}


def short_names(names: Mapping[str, Any]) -> dict[str, str]:
    """Names without the part before the dot, unless two would become the same."""
    last_parts = [name.rpartition(".")[2] for name in names]
    short = {}
    for name, last_part in zip(names, last_parts, strict=True):
        short[name] = last_part if last_parts.count(last_part) == 1 else name
    return short


def describe_params(params: Mapping[str, Any]) -> str:
    """Settings as one text, with short names."""
    short = short_names(params)
    return ", ".join(f"{short[name]}={format_value(value)}" for name, value in params.items())


def format_value(value: Any) -> str:
    """A value as it would be typed, with at most four digits."""
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _split_search(search: str | Mapping[str, Any]) -> list[tuple[str, Any]]:
    if not isinstance(search, str):
        return [(str(name), value) for name, value in search.items()]
    pairs = []
    for piece in split_top_level(search, ";"):
        name, equals, value = piece.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise ValueError(f"the search must be given as name=values; name=values, got {piece!r}; {HOW}")
        pairs.append((name.strip(), value.strip()))
    return pairs


def _check_name(name: str) -> None:
    outer, dot, inner = name.partition(".")
    if outer not in names():
        raise ValueError(f"there is no setting {outer!r} to search{did_you_mean(outer, names())}")
    if outer in NESTED and not inner:
        raise ValueError(f"{outer} are settings of settings: name one of them, as {outer}.NAME")
    if dot and outer not in NESTED:
        raise ValueError(f"{outer} has no settings of its own, got {name}")
    if outer in FIXED:
        raise ValueError(f"{outer} is not searched: trials that differ in it cannot be compared, or are the same")


def _parse_axis(name: str, value: Any) -> Axis:
    if isinstance(value, str):
        range_match = re.fullmatch(r"(\w+)\s*\((.*)\)", value)
        if range_match:
            return _parse_range(name, range_match[1], range_match[2])
        if not (value.startswith("[") and value.endswith("]")):
            raise ValueError(f"the values of {name} cannot be read: {value!r}; {HOW}")
        value = _parse_values(name, value[1:-1])
    if not isinstance(value, list):
        raise ValueError(f"the values of {name} must be a list or a range, got {value!r}; {HOW}")
    if not value:
        raise ValueError(f"the list of {name} is empty; {HOW}")
    for item in value:
        if not isinstance(item, (bool, int, float, str, type(None))):
            raise ValueError(f"the values of {name} must be numbers, words, true, false or null, got {item!r}")
    if len(set(map(repr, value))) < len(value):
        raise ValueError(f"the list of {name} has a value twice: {value}")
    return Axis(name, "list", tuple(value))


def _parse_range(name: str, kind: str, inside: str) -> Axis:
    if kind not in RANGES:
        raise ValueError(f"there is no range {kind!r} for {name}{did_you_mean(kind, RANGES)}; {HOW}")
    ends = _parse_values(name, inside)
    if len(ends) != 2 or not all(is_number(end) and isfinite(end) for end in ends):
        raise ValueError(f"{kind} of {name} needs two numbers, got {kind}({inside})")
    low, high = ends
    if low >= high:
        raise ValueError(f"{kind} of {name} is empty: {low} must be below {high}")
    if kind == "log" and low <= 0:
        raise ValueError(f"log of {name} must begin above 0, got {low}")
    if kind == "int":
        if low != int(low) or high != int(high):
            raise ValueError(f"int of {name} needs whole numbers, got {kind}({inside})")
        return Axis(name, kind, (int(low), int(high)))
    return Axis(name, kind, (float(low), float(high)))


def _parse_values(name: str, text: str) -> list[Any]:
    return [parse_settings([f"{name}={piece}"])[name] for piece in split_top_level(text, ",")]
