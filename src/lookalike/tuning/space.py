"""What is searched, as it is typed: ``pooling_settings.num_prototypes=[16, 32]; lr=log(1e-5, 1e-3)``.

A list is a choice among its values; ``uniform(a, b)``, ``log(a, b)`` and ``int(a, b)`` are ranges, the ends included.
Names are those of ``lookalike train``; a dot leads into the settings of the pooling, the loss and so on.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import isfinite
from typing import Any

import numpy as np

from lookalike._util.suggestions import did_you_mean
from lookalike.experiments.choices import parse_settings, split_top_level
from lookalike.experiments.plan import NESTED
from lookalike.training.settings import FREE_ON_RESUME, names

RANGES = ("uniform", "log", "int")
HOW = "write a list as [16, 32, 64], or uniform(a, b), log(a, b) or int(a, b)"
# What says where, how, by which seed and by which figure a trial is judged, so that trials would not compare.
FIXED = (FREE_ON_RESUME - {"steps", "patience"}) | {
    *("data", "seed", "monitor", "validation", "validation_order", "log_every", "precision"),
}
Value = bool | int | float | str | None


@dataclass(frozen=True)
class Axis:
    """One setting and where it is searched; ``values`` are all of a list, or the two ends of a range."""

    name: str
    kind: str  # "list" or one of RANGES
    values: tuple[Value, ...]

    def __str__(self) -> str:
        inside = ", ".join("null" if value is None else str(value) for value in self.values)
        return f"[{inside}]" if self.kind == "list" else f"{self.kind}({inside})"

    @property
    def is_numeric(self) -> bool:
        return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in self.values)


Space = dict[str, Axis]


def parse_space(asked: str | Mapping[str, Any]) -> Space:
    """From what is typed, or from a mapping of names to lists and ranges.

    >>> space = parse_space("pooling_settings.keep=[0.3, 0.7]; lr=log(1e-5, 1e-3)")
    >>> {name: str(axis) for name, axis in space.items()}
    {'pooling_settings.keep': '[0.3, 0.7]', 'lr': 'log(1e-05, 0.001)'}
    """
    space: Space = {}
    for name, value in _pairs(asked):
        if name in space:
            raise ValueError(f"the search names {name} twice")
        _check_name(name)
        space[name] = _axis(name, value)
    if not space:
        raise ValueError(f"the search is empty: name at least one setting, as lr=log(1e-5, 1e-3); {HOW}")
    return space


def space_of(points: list[dict[str, Any]]) -> Space:
    """The space that a list of points lies in: the values that each setting has in it."""
    if not points:
        raise ValueError("the runs are empty: name at least one")
    if wrong := next((point for point in points if set(point) != set(points[0])), None):
        raise ValueError(f"every run must set the same, {', '.join(points[0])}, got {', '.join(wrong)}")
    return parse_space({name: list(dict.fromkeys(point[name] for point in points)) for name in points[0]})


def grid(space: Space, seed: int) -> list[dict[str, Any]]:
    """Every combination, in an order by ``seed``, so that the first of them are spread out."""
    if ranges := [name for name, axis in space.items() if axis.kind != "list"]:
        raise ValueError(f"a grid needs lists of values, {ranges[0]} is searched in {space[ranges[0]]}")
    found = [dict(zip(space, values, strict=True)) for values in product(*(axis.values for axis in space.values()))]
    return [found[i] for i in np.random.default_rng(seed).permutation(len(found))]


def as_overrides(point: Mapping[str, Any]) -> dict[str, Any]:
    """
    >>> as_overrides({"lr": 0.1, "pooling_settings.keep": 0.3, "pooling_settings.sharpness": 5})
    {'lr': 0.1, 'pooling_settings': {'keep': 0.3, 'sharpness': 5}}
    """
    overrides: dict[str, Any] = {}
    for name, value in point.items():
        outer, dot, inner = name.partition(".")
        if dot:
            overrides.setdefault(outer, {})[inner] = value
        else:
            overrides[outer] = value
    return overrides


def searched(space: Space) -> dict[str, str]:
    """As it would be typed, by name."""
    return {name: str(axis) for name, axis in space.items()}


def short_names(space: Mapping[str, Any]) -> dict[str, str]:
    """The names without what stands before the dot, where that leaves them apart."""
    last = {name: name.rpartition(".")[2] for name in space}
    return {name: short if list(last.values()).count(short) == 1 else name for name, short in last.items()}


def describe_params(point: Mapping[str, Any]) -> str:
    short = short_names(point)
    return ", ".join(f"{short[name]}={format_value(value)}" for name, value in point.items())


def format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "null" if value is None else str(value)


def _pairs(asked: str | Mapping[str, Any]) -> list[tuple[str, Any]]:
    if not isinstance(asked, str):
        return [(str(name), value) for name, value in asked.items()]
    pairs = []
    for piece in split_top_level(asked, ";"):
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


def _axis(name: str, value: Any) -> Axis:
    if isinstance(value, str):
        if match := re.fullmatch(r"(\w+)\s*\((.*)\)", value):
            return _range(name, match[1], match[2])
        if not (value.startswith("[") and value.endswith("]")):
            raise ValueError(f"the values of {name} cannot be read: {value!r}; {HOW}")
        inside = split_top_level(value[1:-1], ",")
        value = [parse_settings([f"{name}={one}"])[name] for one in inside]
    if not isinstance(value, list):
        raise ValueError(f"the values of {name} must be a list or a range, got {value!r}; {HOW}")
    if not value:
        raise ValueError(f"the list of {name} is empty; {HOW}")
    for one in value:
        if not isinstance(one, (bool, int, float, str, type(None))):
            raise ValueError(f"the values of {name} must be numbers, words, true, false or null, got {one!r}")
    if len(set(map(repr, value))) < len(value):
        raise ValueError(f"the list of {name} has a value twice: {value}")
    return Axis(name, "list", tuple(value))


def _range(name: str, kind: str, inside: str) -> Axis:
    if kind not in RANGES:
        raise ValueError(f"there is no range {kind!r} for {name}{did_you_mean(kind, RANGES)}; {HOW}")
    ends = [parse_settings([f"{name}={one}"])[name] for one in split_top_level(inside, ",")]
    numbers = [end for end in ends if isinstance(end, (int, float)) and not isinstance(end, bool) and isfinite(end)]
    if len(numbers) != 2 or len(ends) != 2:
        raise ValueError(f"{kind} of {name} needs two numbers, got {kind}({inside})")
    low, high = numbers
    if low >= high:
        raise ValueError(f"{kind} of {name} is empty: {low} must be below {high}")
    if kind == "log" and low <= 0:
        raise ValueError(f"log of {name} must begin above 0, got {low}")
    if kind == "int":
        if low != int(low) or high != int(high):
            raise ValueError(f"int of {name} needs whole numbers, got {kind}({inside})")
        return Axis(name, kind, (int(low), int(high)))
    return Axis(name, kind, (float(low), float(high)))
