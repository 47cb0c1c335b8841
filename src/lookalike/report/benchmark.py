"""All that is to be said about the folder of a benchmark, before it becomes a table, a page or JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any

from lookalike._util.suggestions import did_you_mean
from lookalike.experiments.joined import MOST, Joined, JoinError, check_joinable, joined
from lookalike.experiments.published import Published
from lookalike.experiments.results import Findings, Result, read
from lookalike.experiments.rows import Row, Section, Summary, sections
from lookalike.experiments.significance import Comparison, compare
from lookalike.report.published_numbers import beside

if TYPE_CHECKING:
    from lookalike.experiments.description import Protocol

USUAL = ("MAP@R", "P@1")
COUNTS = ("queries", "left_out")


@dataclass(frozen=True)
class Cost:
    """What a row needs; middle values over its models, the most of memory."""

    pooling_parameters: int | None = None
    head_parameters: int | None = None
    milliseconds_per_step: float | None = None
    megabytes: float | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, results: tuple[Result, ...]) -> Cost:
        if not results:
            return cls()
        times = [each.seconds_per_step for each in results if each.seconds_per_step is not None]
        memory = [each.megabytes for each in results if each.megabytes is not None]
        return cls(
            results[0].pooling_parameters,
            results[0].head_parameters,
            1000 * median(times) if times else None,
            max(memory, default=None),
            median(each.seconds for each in results),
        )


@dataclass(frozen=True)
class Entry:
    """A row with everything that stands beside it."""

    row: Row
    figures: dict[str, Summary]  # by metric
    joined: Joined | None
    not_joined: str | None  # why
    baseline: Row
    against: Comparison | None  # None: it is the baseline
    published: dict[str, tuple[Published, ...]]  # by metric
    published_joined: dict[str, tuple[Published, ...]]
    best_step: tuple[float, float | None] | None  # mean, std over models
    cost: Cost

    @property
    def relative(self) -> tuple[float, float | None] | None:
        """The change against the baseline in % of it, over the pairs, and its std."""
        if self.against is None or self.against.difference is None or not self.against.level:
            return None
        spread = self.against.spread
        scale = 100 / self.against.level
        return scale * self.against.difference, None if spread is None else scale * spread


@dataclass(frozen=True)
class Part:
    """A section with its entries."""

    section: Section
    entries: tuple[Entry, ...]
    version: str  # which of several versions of the same this is; "" if there is one

    @property
    def title(self) -> str:
        return f"{self.section.data}, protocol {self.section.protocol}{self.version}"


@dataclass(frozen=True)
class Report:
    folder: Path
    metrics: tuple[str, ...]  # the first one decides
    found: Findings
    parts: tuple[Part, ...]


@cache
def _protocol(name: str) -> Protocol | None:
    """One that comes with the package; a file of somebody's may have changed since, or be gone."""
    from lookalike.experiments.protocol import load_protocol, names

    return load_protocol(name) if name in names() else None


def planned_models(protocols: Iterable[str]) -> dict[str, int]:
    """How many folds are trained, as far as it is known."""
    known = {name: _protocol(name) for name in set(protocols)}
    return {name: protocol.split.models for name, protocol in known.items() if protocol is not None}


def reads_best(name: str) -> bool:
    """Whether this protocol reports the best repeat, as published numbers of it do."""
    protocol = _protocol(name)
    return protocol is not None and protocol.report == "best"


def assemble(
    folder: Path,
    metric: str = USUAL[0],
    baseline: str | None = None,
    *,
    join: bool = True,
    bar: Callable[[int], Any] | None = None,
) -> Report:
    """Read the folder and work everything out. ``bar(n)`` opens a context that counts n joined models."""
    found = read(folder)
    if not found.results and not found.failed:
        raise ValueError(_nothing_there(folder, found))
    parts = sections(found, planned_models(each.protocol for each in found.results))
    metrics = tuple(dict.fromkeys((metric, *USUAL)))
    _check_metric(metric, found.results)
    titles = list(dict.fromkeys(name for part in parts for row in part.rows for name in (row.about.title, row.title)))
    if baseline is not None and baseline not in titles:
        hint = did_you_mean(baseline, titles) or f"; there are: {', '.join(titles)}"
        raise ValueError(f"no row is called {baseline!r}{hint}")
    measured = _join(folder, [row for part in parts for row in part.rows], bar) if join else {}
    names = [(part.protocol, part.data) for part in parts]
    return Report(
        folder,
        metrics,
        found,
        tuple(
            Part(
                part,
                tuple(
                    _entry(part, row, metrics, baseline, measured.get(id(row), "not asked for")) for row in part.rows
                ),
                _version(part, parts) if names.count((part.protocol, part.data)) > 1 else "",
            )
            for part in parts
        ),
    )


def _nothing_there(folder: Path, found: Findings) -> str:
    if found.unreadable:
        return f"{folder} has no results that can be read: {found.unreadable[0][0].name}: {found.unreadable[0][1]}"
    if found.unfinished:
        count = len(found.unfinished)
        begun = "1 model was begun, and is not" if count == 1 else f"{count} models were begun, and none is"
        return f"{folder} has no results yet: {begun} done"
    return f"{folder} has no results: it must be the folder that lookalike benchmark --out left them in"


def _check_metric(metric: str, results: list[Result]) -> None:
    known = [name for name in (results[0].test if results else USUAL) if name not in COUNTS]
    for each in results:
        if metric not in each.test or metric in COUNTS:
            raise ValueError(f"metric must be one of {', '.join(known)}, got {metric!r}{did_you_mean(metric, known)}")


def _join(folder: Path, rows: list[Row], bar: Callable[[int], Any] | None) -> dict[int, Joined | str]:
    """By row; why not, where it cannot be."""
    outcome: dict[int, Joined | str] = {}
    able = []
    for row in rows:
        try:
            check_joinable(row)
            able.append(row)
        except JoinError as reason:
            outcome[id(row)] = str(reason)

    def work(tick: Callable[[int], None]) -> None:
        for row in able:
            try:
                outcome[id(row)] = joined(row, folder, tick)
            except JoinError as reason:
                outcome[id(row)] = str(reason)

    if bar is None or not able:
        work(lambda _: None)
    else:
        with bar(sum(len(row.combinations(MOST)) for row in able)) as tick:
            work(tick)
    return outcome


def _version(part: Section, parts: list[Section]) -> str:
    same = [each for each in parts if (each.protocol, each.data) == (part.protocol, part.data)]
    words = [f", code {part.code[:8]}"] if len({each.code for each in same}) > 1 else []
    words += [f", test pictures {part.tested[:8]}"] if len({each.tested for each in same}) > 1 else []
    return "".join(words)


def _entry(part: Section, row: Row, metrics: tuple[str, ...], baseline: str | None, joint: Joined | str) -> Entry:
    figures = {metric: summary for metric in metrics if (summary := row.summary(metric)) is not None}
    other = part.baseline_of(row, baseline)
    steps = [each.best_step for each in row.results if each.best_step is not None]
    dim = row.results[0].dim if row.results else 0
    known = isinstance(joint, Joined)
    return Entry(
        row=row,
        figures=figures,
        joined=joint if isinstance(joint, Joined) else None,
        not_joined=None if known else str(joint),
        baseline=other,
        against=None if other is row else compare(row, other, metrics[0]),
        published={metric: beside(row, metric, dim) for metric in metrics},
        published_joined={metric: beside(row, metric, joint.dim) for metric in metrics}
        if isinstance(joint, Joined)
        else {},
        best_step=(mean(steps), stdev(steps) if len(steps) > 1 else None) if steps else None,
        cost=Cost.of(row.results),
    )
