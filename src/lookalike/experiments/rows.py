"""The models of a benchmark as tables: a section for each protocol and data set, a row for each method.

A row has k folds with some repeats each. A combination takes one repeat of every fold (3 repeats of 4 folds: 81), and
its figure is the mean over its k models. Over all N combinations, with m_f and v_f the mean and the variance (of the
population) of the repeats of fold f:

    mean = 1/k sum_f m_f        std = sqrt( N / (N - 1) * 1/k^2 sum_f v_f )

which is what listing them gives (ddof = 1). With a single fold these are the mean and the std of its repeats.
Results of another version of the code, or of other test pictures, are another section and never averaged with these.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod, sqrt
from statistics import mean, pvariance
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from lookalike.experiments.results import About, Findings, Place, Result, differing


class Summary(NamedTuple):
    """Of a figure over combinations; ``std`` is None if there is only one."""

    mean: float
    std: float | None
    best: float
    combinations: int


@dataclass(frozen=True)
class Row:
    """One method: its models, one for each place that is done."""

    about: About  # of any of its models, done or not
    results: tuple[Result, ...]
    missing: tuple[Place, ...]  # what others of the section have
    failed: int  # of the missing ones
    left_out: tuple[Result, ...]  # older results of places that were done again
    mixed: tuple[str, ...]  # settings in which its models differ
    variant: str = ""  # what tells it from rows of the same title

    @property
    def title(self) -> str:
        return f"{self.about.title} [{self.variant}]" if self.variant else self.about.title

    @property
    def is_complete(self) -> bool:
        return bool(self.results) and not self.missing

    @property
    def never_improved(self) -> bool:
        """Whether the start was the best that every one of its models had: training has changed nothing."""
        return bool(self.results) and all(each.best_step == 0 for each in self.results)

    @property
    def planned(self) -> list[Place]:
        return sorted([*self.missing, *(each.place for each in self.results)])

    @property
    def folds(self) -> dict[int, list[Result]]:
        """Fold -> its repeats, in order."""
        return {
            fold: [each for each in self.results if each.fold == fold]
            for fold in sorted({r.fold for r in self.results})
        }

    def combinations(self, most: int | None = None) -> list[tuple[Result, ...]]:
        """One repeat of every fold, in all ways; if there are more than ``most``, as many that are evenly spread."""
        folds = list(self.folds.values())
        sizes = [len(repeats) for repeats in folds]
        count = prod(sizes) if sizes else 0
        numbers = (
            np.arange(count) if most is None or count <= most else np.linspace(0, count - 1, most).astype(np.int64)
        )
        chosen = zip(*np.unravel_index(numbers, sizes), strict=True) if count else iter(())
        return [tuple(repeats[i] for repeats, i in zip(folds, places, strict=True)) for places in chosen]

    def steered(self) -> Result | None:
        """The repeat that was best by what steered it, as conventional evaluation reports; None if there are folds."""
        known = [each for each in self.results if each.held_out]
        if len(self.folds) != 1 or not known:
            return None
        return max(known, key=lambda each: (each.held_out or {}).get(each.settings.get("monitor", "MAP@R"), 0.0))

    def summary(self, metric: str) -> Summary | None:
        """Over all combinations; None if no model is done."""
        folds = [[each.test[metric] for each in repeats] for repeats in self.folds.values()]
        if not folds:
            return None
        count = prod(len(values) for values in folds)
        variance = sum(pvariance(values) for values in folds) / len(folds) ** 2
        std = sqrt(variance * count / (count - 1)) if count > 1 else None
        return Summary(mean(map(mean, folds)), std, mean(map(max, folds)), count)


@dataclass(frozen=True)
class Section:
    """The rows that may be compared with each other."""

    protocol: str
    data: str
    code: str
    tested: str
    rows: tuple[Row, ...]
    failed: tuple[tuple[About, str], ...]
    unfinished: tuple[About, ...]

    @property
    def results(self) -> list[Result]:
        return [result for row in self.rows for result in row.results]

    def row(self, title: str) -> Row | None:
        return next((row for row in self.rows if title in (row.title, row.about.title)), None)

    def baseline_of(self, row: Row, title: str | None = None) -> Row:
        """The row called ``title``, else the same loss with average pooling and nothing more, else the first row."""
        named = self.row(title) if title is not None else None
        plain = [each for each in self.rows if each.about.is_plain and each.about.loss == row.about.loss]
        alike = [each for each in plain if each.variant == row.variant]
        return named or next(iter([*alike, *plain, *self.rows]))


def sections(found: Findings, folds: Mapping[str, int] = MappingProxyType({})) -> list[Section]:
    """By protocol and data set; what was done last comes first where there are several versions of the same.

    ``folds``: how many models there should be by protocol, where more are planned than have been begun.
    """
    waiting = [*(about for about, _ in found.failed), *found.unfinished]
    groups: dict[tuple[str, str, str, str], list[About]] = {}
    for about in [*found.results, *waiting]:
        groups.setdefault((about.protocol, about.data, about.code, about.tested), []).append(about)

    def newest(members: list[About]) -> float:
        return max((each.written for each in members if isinstance(each, Result)), default=0.0)

    ordered = sorted(groups.items(), key=lambda group: (*group[0][:2], -newest(group[1])))
    return [
        Section(
            *key,
            rows=tuple(_rows(members, {about.key for about, _ in found.failed}, folds.get(key[0], 1))),
            failed=tuple(pair for pair in found.failed if pair[0] in members),
            unfinished=tuple(about for about in found.unfinished if about in members),
        )
        for key, members in ordered
    ]


def _rows(members: list[About], failed: set[str], folds: int) -> Iterable[Row]:
    begun, repeats = (1 + max(each.place[i] for each in members) for i in (0, 1))
    planned = [(fold, repeat) for fold in range(max(begun, folds)) for repeat in range(repeats)]
    titles: dict[str, list[About]] = {}
    for each in sorted(members, key=_order):
        titles.setdefault(each.title, []).append(each)
    for same in titles.values():
        done = [each for each in same if isinstance(each, Result)]
        variants = _variants(done)
        for variant, results in variants.items():
            latest = {each.place: each for each in sorted(results, key=lambda each: each.written)}
            kept = tuple(latest[place] for place in sorted(latest))
            missing = tuple(place for place in planned if place not in latest)
            yield Row(
                about=kept[0] if kept else same[0],
                results=kept,
                missing=missing,
                failed=len({each.place for each in same if each.key in failed and each.place in missing}),
                left_out=tuple(each for each in results if each not in kept),
                mixed=tuple(differing(kept)),
                variant=variant,
            )


def _order(about: About) -> tuple[Any, ...]:
    methods = [str(method) for method in about.methods]
    return str(about.loss), not about.is_plain, str(about.pooling), len(methods), methods, about.place


def _variants(results: list[Result]) -> dict[str, list[Result]]:
    """Apart by their settings if a place was done more than once with different ones; by name, "" if there is one."""

    def again(names: list[str]) -> int:
        return len(results) - len(
            {(each.place, *(repr(each.settings.get(name)) for name in names)) for each in results}
        )

    names = differing(results)
    if again([]) == again(names):
        return {"": results}
    # Some settings are decided by each run for itself, such as a rate: what is not needed to tell apart is left out.
    for name in sorted(names, key=lambda name: -len({repr(each.settings.get(name)) for each in results})):
        if again(rest := [other for other in names if other != name]) == again(names):
            names = rest
    variants: dict[str, list[Result]] = {}
    for each in results:
        variants.setdefault(", ".join(f"{name}={each.settings.get(name)}" for name in names), []).append(each)
    return variants
