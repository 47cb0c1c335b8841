"""An axis of the study of effects: a file with what is varied and what is claimed, and the benchmark rows it makes.

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
from lookalike.tuning.plans import load_plan
from lookalike.tuning.space import as_overrides, describe_params
from lookalike_studies.effects.iterated import NAME

FOLDER = Path(__file__).parent / "axes"
INNER = "pooling_settings"
Which = Literal["all", "some", "ends"]


@dataclass(frozen=True)
class Series:
    """Points that differ only in the settings of ``vary``; loss, pooling and methods as in ``lookalike benchmark``."""

    name: str
    loss: str
    pooling: str
    methods: str = "none"
    vary: dict[str, list[Any]] = field(default_factory=dict)
    some: dict[str, list[Any]] = field(default_factory=dict)  # fewer values, for a quick look
    set: dict[str, Any] = field(default_factory=dict)  # settings of all points
    plan: str = ""  # of lookalike tune, in place of vary

    def points(self, which: Which) -> list["Point"]:
        """List all points, some, or those at the ends of each setting."""
        vary, fixed = self.vary, dict(self.set)
        runs: list[dict[str, Any]] = []
        if self.plan:
            plan = load_plan(self.plan)
            runs = plan.runs
            if isinstance(plan.search, dict):
                vary = dict(plan.search)
            fixed = {f"{INNER}.{name}": value for name, value in plan.set.get(INNER, {}).items()} | fixed
        if which == "some":
            vary = self.some or vary
        elif which == "ends":
            vary = {name: [values[0], values[-1]] for name, values in vary.items()}
        if not runs:
            runs = [dict(zip(vary, values, strict=True)) for values in product(*vary.values())]
        return [Point(self.name, run, fixed) for run in runs if _is_possible(run)]


@dataclass(frozen=True)
class Point:
    """A point of an axis."""

    series: str
    values: dict[str, Any]  # of the varied settings
    fixed: dict[str, Any] = field(default_factory=dict)  # other settings of its series

    def __str__(self) -> str:
        if not self.values:
            return self.series
        return f"{self.series}, {describe_params(self.values)}"


@dataclass(frozen=True)
class Axis:
    """The content of a file in ``axes``."""

    name: str
    title: str
    source: str
    protocol: str  # of the papers
    draw: Literal["line", "heat", "bars", "effects", "alternating", "iterations"]
    series: tuple[Series, ...]
    claims: list[dict[str, Any]]  # see ``claims``
    measure: Literal["test", "held_out"] = "test"
    metric: str = "MAP@R"
    lines_by: str = ""  # a varied setting; each of its values has a line of its own
    drawn: dict[str, Any] = field(default_factory=dict)  # settings for drawn pictures
    quick: dict[str, Any] = field(default_factory=dict)  # settings for runs of few steps

    def points(self, which: Which) -> list[Point]:
        """List the points of all series."""
        points = []
        for series in self.series:
            points += series.points(which)
        return points

    def named(self, name: str) -> Series:
        """Get a series by its name."""
        return {series.name: series for series in self.series}[name]

    @property
    def varied(self) -> list[str]:
        """Names of the varied settings, in the order of the file."""
        names: dict[str, None] = {}
        for point in self.points("all"):
            names |= dict.fromkeys(point.values)
        return list(names)


@dataclass
class Rows:
    """The benchmark rows of an axis."""

    cells: dict[int, list[Cell]]  # by the number of the point
    impossible: list[tuple[str, str]]  # points that cannot be trained, and why
    plan: Plan | None = None  # of one of the points, for its protocol and pictures

    def planned(self, axis: Axis) -> Plan:
        """Get the plan; an error if no point of the axis can be trained."""
        if self.plan is None or not any(self.cells.values()):
            raise ValueError(f"no point of the axis {axis.name} can be trained: {self.impossible[0][1]}")
        return self.plan


def axes() -> list[str]:
    """List the names of all axes."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_axis(name: str) -> Axis:
    """Read the file of an axis.

    >>> load_axis("keep").varied
    ['pooling_settings.keep']
    """
    if name not in axes():
        raise ValueError(f"there is no axis {name!r}{did_you_mean(name, axes())}; there are: {', '.join(axes())}")
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    _check_keys(name, content, Axis)
    for series in content["series"]:
        _check_keys(name, series, Series)
    content["series"] = tuple(Series(**series) for series in content["series"])
    return Axis(name=name, **content)


def _check_keys(name: str, content: Mapping[str, Any], kind: type[Any]) -> None:
    unknown = set(content) - {entry.name for entry in fields(kind)}
    if unknown:
        raise ValueError(f"effects/axes/{name}.yaml has unknown keys: {', '.join(sorted(unknown))}")


def rows_of(
    axis: Axis,
    points: Sequence[Point],
    protocol: Protocol,
    sources: dict[str, Pictures],
    settings: Mapping[str, Any],
    of_pooling: Mapping[str, Mapping[str, Any]],
) -> Rows:
    """Plan the models of every point.

    ``settings`` of ``lookalike train`` hold for all points, ``of_pooling`` for all points with a pooling of that name;
    those of a point override both.
    """
    rows = Rows({}, [])
    for number, point in enumerate(points):
        series = axis.named(point.series)
        overrides = as_overrides({**point.fixed, **point.values})
        pooling = series.pooling
        if pooling == NAME:
            pooling = "gsp"  # protocols have settings for it
        inside = {**_usual(pooling, of_pooling), **overrides.pop(INNER, {})}
        rounds = {}
        for name in ("iterations", "gradient"):
            if series.pooling == NAME and name in inside:
                rounds[name] = inside.pop(name)
        plan = make_plan(
            protocol,
            sources,
            [Choice(series.loss)],
            [Choice(pooling, inside)],
            parse_methods(series.methods),
            overrides={**settings, **overrides},
        )
        rows.impossible += [(str(point), reason) for _, reason in plan.impossible]
        cells = plan.cells
        if series.pooling == NAME:
            cells = [_with_pooling(cell, rounds, Choice(NAME, {**inside, **rounds})) for cell in cells]
        elif series.pooling == "average" and "zero-shot" in series.methods:  # this is GSP that keeps everything
            cells = [_with_pooling(cell, {**_usual("gsp", of_pooling), "keep": 1.0}) for cell in cells]
        rows.cells[number], rows.plan = cells, rows.plan or plan
    return rows


def _usual(pooling: str, of_pooling: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in pooling.split("+"):
        settings |= of_pooling.get(name, {})
    return settings


def _with_pooling(cell: Cell, more: Mapping[str, Any], choice: Choice | None = None) -> Cell:
    """Add settings of the pooling; ``choice`` also replaces the pooling itself."""
    settings = replace(cell.settings, pooling_settings={**cell.settings.pooling_settings, **more})
    if choice is None:
        return replace(cell, settings=settings)
    return replace(cell, pooling=choice, settings=replace(settings, pooling=choice.name))


def _is_possible(run: Mapping[str, Any]) -> bool:
    """Whether the pool has enough pictures for the proxies."""
    return "ccp_pool" not in run or run["ccp_pool"] >= run.get("ccp_proxies", 1)
