"""Rows of the benchmark tables: one for each method.

A row has k folds with some repeats each. A combination takes one repeat of every fold (3 repeats of 4 folds: 81), and
its metric is the mean over its k models. Over all N combinations, with m_f and v_f the mean and the variance (of the
population) of the repeats of fold f:

    mean = 1/k sum_f m_f        std = sqrt( N / (N - 1) * 1/k^2 sum_f v_f )

which equals listing them all (ddof = 1). With a single fold these are the mean and the std of its repeats.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod, sqrt
from statistics import mean, median, pvariance, stdev
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lookalike.experiments.results import CellResult, FoldRepeat

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
    """What a method costs: medians over its models, and the maximum of their memory.

    Times are of the CPU, so that other work on the machine does not count; on a GPU they are those of the clock.
    """

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
    missing: tuple[FoldRepeat, ...]
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
        """All combinations of one repeat per fold.

        Args:
            most: if there are more combinations, take this many that are evenly spread.
        """
        folds = list(self.folds.values())
        sizes = list(map(len, folds))
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
        if len(self.folds) != 1:
            return None
        best, best_value = None, -1.0
        for result in self.results:
            if not result.held_out:
                continue
            value = result.held_out.get(result.settings.get("monitor", "MAP@R"), 0.0)
            if value > best_value:
                best, best_value = result, value
        return best

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
        """Mean and std of the best step over the models that have one."""
        steps = [result.best_step for result in self.results if result.best_step is not None]
        if not steps:
            return None, None
        if len(steps) == 1:
            return steps[0], None
        return mean(steps), stdev(steps)

    def change(self) -> tuple[float, float | None] | None:
        """Change against the baseline in points, over the pairs, and its std; None if there is none."""
        comparison = self.comparison
        if comparison is None or comparison.difference is None:
            return None
        if comparison.spread is None:
            return 100 * comparison.difference, None
        return 100 * comparison.difference, 100 * comparison.spread

    def cost(self) -> Cost:
        """Parameters, time and memory of its models."""
        if not self.results:
            return Cost()
        times = _known(result.seconds_of_step for result in self.results)
        totals = _known(result.seconds_in_all for result in self.results)
        memory = [result.megabytes for result in self.results if result.megabytes is not None]
        return Cost(
            pooling_parameters=self.results[0].pooling_parameters,
            head_parameters=self.results[0].head_parameters,
            milliseconds_per_step=1000 * median(times) if times else None,
            megabytes=max(memory, default=None),
            seconds=median(totals) if totals else None,
        )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
