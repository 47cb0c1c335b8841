"""An axis of the study of effects: what is varied, as a file that one can read, and the benchmark rows that it makes.

    series:
      - {name: C2 + GSP, loss: c2, pooling: gsp, vary: {pooling_settings.keep: [0.1, 0.5, 1.0]}}

Names are those of ``lookalike train``, with a dot into the settings of the pooling. Every combination of the values of
a series is a point, and every point is a row of ``lookalike benchmark``: a model for each fold and repeat.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml

from lookalike._util.suggestions import did_you_mean
from lookalike.data.pictures import Pictures
from lookalike.experiments.cells import Cell
from lookalike.experiments.choices import Choice
from lookalike.experiments.plan import Plan, make_plan, parse_methods
from lookalike.experiments.protocol import Protocol
from lookalike.training.settings import Settings
from lookalike.tuning.plans import load_plan
from lookalike.tuning.space import as_overrides, describe_params
from lookalike_studies.effects.iterated import NAME

FOLDER = Path(__file__).parent / "axes"
INNER = "pooling_settings"
Which = Literal["all", "some", "ends"]


@dataclass(frozen=True)
class Series:
    """Points that differ in what ``vary`` names only; ``some`` are the values of a quick look."""

    name: str
    loss: str
    pooling: str
    methods: str = "none"
    vary: dict[str, list[Any]] = field(default_factory=dict)
    some: dict[str, list[Any]] = field(default_factory=dict)
    set: dict[str, Any] = field(default_factory=dict)
    plan: str = ""  # of lookalike tune, in place of vary

    def points(self, which: Which) -> list["Point"]:
        named = load_plan(self.plan) if self.plan else None
        if named is not None and named.runs:
            runs = named.runs
        else:
            vary = dict(named.search) if named is not None and isinstance(named.search, dict) else self.vary
            if which == "some":
                vary = self.some or vary
            elif which == "ends":
                vary = {name: [values[0], values[-1]] for name, values in vary.items()}
            runs = [dict(zip(vary, values, strict=True)) for values in product(*vary.values())]
        fixed = {} if named is None else {f"{INNER}.{name}": each for name, each in named.set.get(INNER, {}).items()}
        return [Point(self.name, run, {**fixed, **self.set}) for run in runs if _is_possible(run)]


@dataclass(frozen=True)
class Point:
    series: str
    values: dict[str, Any]  # where it lies on the axis
    fixed: dict[str, Any] = field(default_factory=dict)  # what else its series sets

    def __str__(self) -> str:
        return f"{self.series}, {describe_params(self.values)}" if self.values else self.series


@dataclass(frozen=True)
class Axis:
    name: str
    title: str
    source: str
    protocol: str  # the papers'
    draw: Literal["line", "heat", "bars", "effects", "alternating", "iterations"]
    series: tuple[Series, ...]
    measure: Literal["test", "held_out"] = "test"
    metric: str = "MAP@R"
    lines_by: str = ""  # a varied setting of which each value has a line of its own
    drawn: dict[str, Any] = field(default_factory=dict)  # what the drawn pictures need here
    quick: dict[str, Any] = field(default_factory=dict)  # what a run of few steps needs

    def points(self, which: Which) -> list[Point]:
        return [point for series in self.series for point in series.points(which)]

    def named(self, name: str) -> Series:
        return next(series for series in self.series if series.name == name)

    @property
    def varied(self) -> list[str]:
        """The settings of the axis, in the order of the file."""
        return list(dict.fromkeys(name for point in self.points("all") for name in point.values))


@dataclass
class Rows:
    """The benchmark rows of points: their models, and what cannot be and why."""

    cells: dict[int, list[Cell]]  # by the number of the point
    impossible: list[tuple[str, str]]
    plan: Plan | None = None  # any of them, for its pictures

    def planned(self, axis: Axis) -> Plan:
        if self.plan is None or not any(self.cells.values()):
            raise ValueError(f"nothing is left of the axis {axis.name}: {self.impossible[0][1]}")
        return self.plan


def axes() -> list[str]:
    """All there are."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_axis(name: str) -> Axis:
    """
    >>> load_axis("keep").varied
    ['pooling_settings.keep']
    """
    if name not in axes():
        raise ValueError(f"there is no axis {name!r}{did_you_mean(name, axes())}; there are: {', '.join(axes())}")
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    for what, known in ((content, fields(Axis)), *((each, fields(Series)) for each in content["series"])):
        if unknown := set(what) - {entry.name for entry in known}:
            raise ValueError(f"effects/{name}.yaml has unknown keys: {', '.join(sorted(unknown))}")
    return Axis(**{**content, "name": name, "series": tuple(Series(**each) for each in content["series"])})


def rows_of(
    axis: Axis,
    points: Sequence[Point],
    protocol: Protocol,
    sources: dict[str, Pictures],
    settings: Mapping[str, Any],
    of_pooling: Mapping[str, Mapping[str, Any]],
) -> Rows:
    """The cells of every point.

    settings: of ``lookalike train``, for all points, below what a point sets.
    of_pooling: settings of poolings by name, also for all points.
    """
    rows = Rows({}, [])
    for number, point in enumerate(points):
        series = axis.named(point.series)
        asked = as_overrides({**point.fixed, **point.values})
        is_iterated = series.pooling == NAME
        pooling = "gsp" if is_iterated else series.pooling  # which a protocol knows how to set
        inside = {**_usual(pooling, of_pooling), **asked.pop(INNER, {})}
        rounds = {name: inside.pop(name) for name in ("iterations", "gradient") if is_iterated and name in inside}
        plan = make_plan(
            protocol,
            sources,
            [Choice(series.loss)],
            [Choice(pooling, inside)],
            parse_methods(series.methods),
            overrides={**settings, **asked},
        )
        rows.impossible += [(str(point), reason) for _, reason in plan.impossible]
        cells = plan.cells
        if is_iterated:
            choice = Choice(NAME, {**inside, **rounds})
            cells = [
                replace(cell, pooling=choice, settings=_with_pooling(cell.settings, rounds, NAME)) for cell in cells
            ]
        if series.pooling == "average" and "zero-shot" in series.methods:  # that is GSP which keeps all
            usual = {**_usual("gsp", of_pooling), "keep": 1.0}
            cells = [replace(cell, settings=_with_pooling(cell.settings, usual)) for cell in cells]
        rows.cells[number], rows.plan = cells, rows.plan or plan
    return rows


def _usual(pooling: str, of_pooling: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in pooling.split("+"):
        found |= of_pooling.get(part, {})
    return found


def _with_pooling(settings: Settings, more: Mapping[str, Any], name: str | None = None) -> Settings:
    inside = {**settings.pooling_settings, **more}
    return replace(settings, pooling=name or settings.pooling, pooling_settings=inside)


def _is_possible(run: Mapping[str, Any]) -> bool:
    """Proxies are chosen from the pool."""
    return "ccp_pool" not in run or run["ccp_pool"] >= run.get("ccp_proxies", 1)
