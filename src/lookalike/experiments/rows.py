"""Rows and sections of the benchmark tables: a section for each protocol and data set, a row for each method.

A row has k folds with some repeats each. A combination takes one repeat of every fold (3 repeats of 4 folds: 81), and
its metric is the mean over its k models. Over all N combinations, with m_f and v_f the mean and the variance (of the
population) of the repeats of fold f:

    mean = 1/k sum_f m_f        std = sqrt( N / (N - 1) * 1/k^2 sum_f v_f )

which equals listing them all (ddof = 1). With a single fold these are the mean and the std of its repeats.
Results of another RESULTS_VERSION or of other test pictures form a section of their own and are never averaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod, sqrt
from statistics import mean, median, pvariance, stdev
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lookalike.experiments.results import CellResult, Run, differing_settings

if TYPE_CHECKING:
    from lookalike.experiments.joined import Joined
    from lookalike.experiments.published import Published
    from lookalike.experiments.significance import Comparison


class Summary(NamedTuple):
    """A metric over combinations; ``std`` is None if there is only one."""

    mean: float
    std: float | None
    best: float
    combinations: int


class Cost(NamedTuple):
    """What a method costs: medians over its models, and the maximum of their memory."""

    pooling_parameters: int | None = None
    head_parameters: int | None = None
    milliseconds_per_step: float | None = None
    megabytes: float | None = None
    seconds: float | None = None


@dataclass(eq=False)
class Row:
    """One method of a section.

    Attributes:
        cell: any of its cells; says which loss, pooling and methods the row has.
        results: the latest finished cell of every (fold, repeat).
        missing: (fold, repeat) that other rows of the section have.
        failed: how many of the missing ones failed.
        older: finished cells that were computed again later.
        differing: settings in which its models differ.
        variant: distinguishes rows of the same title by their settings.
        baseline: the row it is compared with; the row itself if it is the baseline.
        comparison: against the baseline; None for the baseline.
        joined: metrics of the concatenated models, or None; then ``not_joined`` says why.
        published: published numbers by metric, and those for the concatenated models.
    """

    cell: CellResult
    results: tuple[CellResult, ...]
    missing: tuple[Run, ...]
    failed: int
    older: tuple[CellResult, ...]
    differing: tuple[str, ...]
    variant: str = ""
    # Filled by ``lookalike.report.benchmark.build_report``.
    baseline: Row | None = None
    comparison: Comparison | None = None
    joined: Joined | None = None
    not_joined: str = "not asked for"
    published: dict[str, tuple[Published, ...]] = field(default_factory=dict)
    published_joined: dict[str, tuple[Published, ...]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The method, with its variant if there are several."""
        if self.variant:
            return f"{self.cell.title} [{self.variant}]"
        return self.cell.title

    @property
    def is_complete(self) -> bool:
        """Whether every planned model is done."""
        return bool(self.results) and not self.missing

    @property
    def never_improved(self) -> bool:
        """Whether no model was ever better than at step 0."""
        return bool(self.results) and all(result.best_step == 0 for result in self.results)

    @property
    def dim(self) -> int | None:
        """Size of one model's embedding; None if no model is done."""
        if not self.results:
            return None
        return self.results[0].dim

    @property
    def folds(self) -> dict[int, list[CellResult]]:
        """The repeats of every fold that has any, in order."""
        folds: dict[int, list[CellResult]] = {}
        for result in sorted(self.results, key=lambda result: result.fold):
            folds.setdefault(result.fold, []).append(result)
        return folds

    def combinations(self, most: int | None = None) -> list[tuple[CellResult, ...]]:
        """One repeat of every fold, in all ways.

        Args:
            most: if there are more combinations, take this many that are evenly spread.
        """
        folds = list(self.folds.values())
        sizes = [len(repeats) for repeats in folds]
        if not sizes:
            return []
        count = prod(sizes)
        numbers = np.arange(count)
        if most is not None and count > most:
            numbers = np.linspace(0, count - 1, most).astype(np.int64)
        combinations = []
        for repeat_numbers in zip(*np.unravel_index(numbers, sizes), strict=True):
            models = [repeats[number] for repeats, number in zip(folds, repeat_numbers, strict=True)]
            combinations.append(tuple(models))
        return combinations

    def best_repeat(self) -> CellResult | None:
        """The repeat with the best monitored metric, as conventional evaluation reports; None if there are folds."""
        candidates = [result for result in self.results if result.held_out]
        if len(self.folds) != 1 or not candidates:
            return None

        def monitored(result: CellResult) -> float:
            metrics = result.held_out or {}
            return metrics.get(result.settings.get("monitor", "MAP@R"), 0.0)

        return max(candidates, key=monitored)

    def summary(self, metric: str) -> Summary | None:
        """Mean, std and best of a metric over all combinations; None if no model is done."""
        folds = []
        for repeats in self.folds.values():
            folds.append([result.test[metric] for result in repeats])
        if not folds:
            return None
        count = prod(map(len, folds))
        std = None
        if count > 1:
            variance = sum(map(pvariance, folds)) / len(folds) ** 2
            std = sqrt(variance * count / (count - 1))
        return Summary(mean(map(mean, folds)), std, mean(map(max, folds)), count)

    def best_step(self) -> tuple[float | None, float | None]:
        """Mean and std of the best step over its models, as far as known."""
        steps = [result.best_step for result in self.results if result.best_step is not None]
        if not steps:
            return None, None
        return mean(steps), stdev(steps) if len(steps) > 1 else None

    def relative_change(self) -> tuple[float, float | None] | None:
        """Change against the baseline in percent of it, over the pairs, and its std; None if there is none."""
        comparison = self.comparison
        if comparison is None or comparison.difference is None or not comparison.level:
            return None
        scale = 100 / comparison.level
        if comparison.spread is None:
            return scale * comparison.difference, None
        return scale * comparison.difference, scale * comparison.spread

    def cost(self) -> Cost:
        """Parameters, time and memory of its models."""
        if not self.results:
            return Cost()
        times = [result.seconds_per_step for result in self.results if result.seconds_per_step is not None]
        memory = [result.megabytes for result in self.results if result.megabytes is not None]
        return Cost(
            pooling_parameters=self.results[0].pooling_parameters,
            head_parameters=self.results[0].head_parameters,
            milliseconds_per_step=1000 * median(times) if times else None,
            megabytes=max(memory, default=None),
            seconds=median(result.seconds for result in self.results),
        )


@dataclass
class Section:
    """The rows that may be compared with each other: one protocol, data set, version and set of test pictures."""

    protocol: str
    data: str
    version: str
    tested: str
    title: str
    rows: list[Row]
    failed: list[CellResult]
    unfinished: list[CellResult]

    @property
    def results(self) -> list[CellResult]:
        """The finished cells of all rows."""
        return [result for row in self.rows for result in row.results]

    def find_row(self, title: str) -> Row | None:
        """The first row with this title, with or without its variant."""
        for row in self.rows:
            if title in (row.title, row.cell.title):
                return row
        return None

    def baseline_of(self, row: Row, title: str | None = None) -> Row:
        """The row to compare ``row`` with.

        Args:
            row: of this section.
            title: of the baseline. By default it is the same loss with average pooling, or else the first row.
        """
        named = self.find_row(title) if title is not None else None
        if named is not None:
            return named
        same_loss = [other for other in self.rows if other.cell.is_baseline and other.cell.loss == row.cell.loss]
        for other in same_loss:
            if other.variant == row.variant:
                return other
        return same_loss[0] if same_loss else self.rows[0]


def group_sections(
    cells: Sequence[CellResult], planned_folds: Mapping[str, int] = MappingProxyType({})
) -> list[Section]:
    """Sort the cells of a results folder into sections and rows.

    Args:
        cells: finished or not.
        planned_folds: folds by protocol, where more are planned than were begun.

    Returns:
        Sections by protocol and data set. Of several versions of the same, the latest results come first.
    """
    groups: dict[tuple[str, str, str, str], list[CellResult]] = {}
    for cell in cells:
        groups.setdefault((cell.protocol, cell.data, cell.version, cell.tested), []).append(cell)

    def order(key: tuple[str, str, str, str]) -> tuple[str, str, float]:
        protocol, data, _, _ = key
        return protocol, data, -max(cell.written for cell in groups[key])

    sections = []
    for key in sorted(groups, key=order):
        protocol, data, version, tested = key
        sections.append(
            Section(
                protocol,
                data,
                version,
                tested,
                title=f"{data}, protocol {protocol}{_version_suffix(key, list(groups))}",
                rows=list(_rows(groups[key], planned_folds.get(protocol, 1))),
                failed=[cell for cell in groups[key] if cell.status == "failed"],
                unfinished=[cell for cell in groups[key] if cell.status == "unfinished"],
            )
        )
    return sections


def _version_suffix(key: tuple[str, str, str, str], all_keys: Sequence[tuple[str, str, str, str]]) -> str:
    """Distinguishes sections of the same protocol and data set; empty if there is one."""
    _, _, version, tested = key
    same = [other for other in all_keys if other[:2] == key[:2]]
    suffix = ""
    if any(other[2] != version for other in same):
        suffix += f", version {version[:8]}"
    if any(other[3] != tested for other in same):
        suffix += f", test pictures {tested[:8]}"
    return suffix


def _rows(cells: list[CellResult], planned_folds: int) -> Iterator[Row]:
    folds = max(planned_folds, 1 + max(cell.fold for cell in cells))
    repeats = 1 + max(cell.repeat for cell in cells)
    planned = [(fold, repeat) for fold in range(folds) for repeat in range(repeats)]
    titles: dict[str, list[CellResult]] = {}
    for cell in sorted(cells, key=_order_of_rows):
        titles.setdefault(cell.title, []).append(cell)
    for same_title in titles.values():
        done = [cell for cell in same_title if cell.status == "done"]
        failed_runs = {cell.run for cell in same_title if cell.status == "failed"}
        for variant, results in _split_variants(done).items():
            latest: dict[Run, CellResult] = {}
            for result in sorted(results, key=lambda result: result.written):
                latest[result.run] = result
            kept = tuple(latest[run] for run in sorted(latest))
            missing = tuple(run for run in planned if run not in latest)
            yield Row(
                cell=kept[0] if kept else same_title[0],
                results=kept,
                missing=missing,
                failed=len(failed_runs.intersection(missing)),
                older=tuple(result for result in results if result not in kept),
                differing=tuple(differing_settings(kept)),
                variant=variant,
            )


def _order_of_rows(cell: CellResult) -> tuple[Any, ...]:
    methods = list(map(str, cell.methods))
    return str(cell.loss), not cell.is_baseline, str(cell.pooling), len(methods), methods, cell.run


def _split_variants(results: list[CellResult]) -> dict[str, list[CellResult]]:
    """Split results of one title by their settings if a run was done more than once with different ones.

    Returns:
        Results by the settings that distinguish them; one entry named "" if nothing needs to be split.
    """
    names = differing_settings(results)
    if _repeated_runs(results, []) == _repeated_runs(results, names):
        return {"": results}

    def count_values(name: str) -> int:
        return len({repr(result.settings.get(name)) for result in results})

    # Each run decides some settings for itself, such as a learning rate. Drop all that are not needed to distinguish.
    for name in sorted(names, key=count_values, reverse=True):
        others = [other for other in names if other != name]
        if _repeated_runs(results, others) == _repeated_runs(results, names):
            names = others
    variants: dict[str, list[CellResult]] = {}
    for result in results:
        variant = ", ".join(f"{name}={result.settings.get(name)}" for name in names)
        variants.setdefault(variant, []).append(result)
    return variants


def _repeated_runs(results: list[CellResult], names: list[str]) -> int:
    """How many results share their run and the settings ``names`` with an earlier one."""
    distinct = set()
    for result in results:
        distinct.add((result.run, *(repr(result.settings.get(name)) for name in names)))
    return len(results) - len(distinct)
