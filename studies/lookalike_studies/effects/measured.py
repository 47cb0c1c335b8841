"""What was measured along an axis, and when two means differ.

Every model of an axis is trained with the same seeds (and folds), so a figure is taken as

    figure of point p in block b = level_p + luck_b + rest_pb,      block: fold and seed

and the spread of the rest, over all points that training has moved, says how much two means may differ by chance:

    rest^2 = sum_pb (x_pb - mean_p - mean_b + mean)^2 / ((P - 1)(B - 1)),     error of a difference = rest sqrt(2 / B)

"Above" and "below" mean by more than t such errors and a tenth of a point, which nobody would notice; t is Student's
quantile of (P - 1)(B - 1), as in ``rules``. Where means over k points are compared, the error is divided by sqrt(k). A
difference of MATTERS that may be there and not count leaves a claim untested. "Alike" means within that of the mean of
those compared, where it is less than what would matter. With one block nothing is known of chance, and nothing is
tested; nor where training made less than half of the models better than they began.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookalike.tuning.space import short_names
from lookalike_studies.effects.axis import Axis, Point
from lookalike_studies.framework.claims import Evidence, t_quantile

LEAST = 0.1  # points
LEAST_LEARNT = 0.5
MATTERS = 0.5  # points of MAP@R: half of what all of Table 5.3 gains
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """Figures (points, blocks) in percent; a point of which a model is missing is NaN."""

    axis: Axis
    points: Sequence[Point]
    figures: Array
    data_set: str = "cub"
    learnt: float = 1.0  # share of the models that training made better than they began
    stuck: frozenset[int] = frozenset()  # points of which it made none better: all seeds have the figure of the start

    @property
    def means(self) -> Array:
        return np.asarray(self.figures.mean(1))

    @property
    def stds(self) -> Array:
        blocks = self.figures.shape[1]
        return np.asarray(self.figures.std(1, ddof=1)) if blocks > 1 else np.full(len(self.points), np.nan)

    @property
    def whole(self) -> Array:
        """The figures of the points of which no model is missing, and that training has moved."""
        chosen = [i for i in range(len(self.points)) if i not in self.stuck and not np.isnan(self.figures[i]).any()]
        return np.asarray(self.figures[chosen])

    @property
    def rest(self) -> float:
        """The standard deviation of what neither point nor block explains; NaN if nothing can be said."""
        whole, freedom = self.whole, self.freedom
        if freedom < 1:
            return float("nan")
        rest = whole - whole.mean(1, keepdims=True) - whole.mean(0) + whole.mean()
        return float(np.sqrt(np.square(rest).sum() / freedom))

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the rest."""
        count, blocks = self.whole.shape
        return max(0, count - 1) * (blocks - 1)

    @property
    def margin(self) -> float:
        """By which the means of two points must differ to count."""
        return self.margin_of(1)

    def margin_of(self, count: float) -> float:
        """The same for means over ``count`` points; NaN where most models did not learn: then all is as it began."""
        if self.learnt < LEAST_LEARNT or self.freedom < 1:
            return float("nan")
        error = self.rest * float(np.sqrt(2 / (self.figures.shape[1] * max(1, count))))
        return max(LEAST, t_quantile(self.freedom) * error)

    def of(self, series: str, **values: Callable[[Any], bool]) -> Array:
        """Means of the points of a series whose values, by their short names, pass all tests."""
        return self.means[self.where(series, **values)]

    def where(self, series: str, **values: Callable[[Any], bool]) -> Array:
        chosen = []
        for i, point in enumerate(self.points):
            short = {short: point.values[name] for name, short in short_names(point.values).items()}
            chosen += [i] if point.series == series and all(test(short[name]) for name, test in values.items()) else []
        return np.array(chosen, dtype=np.int64)

    def one(self, series: str, **values: Any) -> float:
        """The mean of one point, NaN if it is not among them."""
        found = self.of(series, **{name: lambda each, wanted=value: each == wanted for name, value in values.items()})
        return float(found[0]) if len(found) else float("nan")


def mean_of(values: Sequence[float] | Array) -> float:
    """NaN of nothing."""
    return float(np.mean(values)) if len(values) else float("nan")


def least_of(values: Sequence[float] | Array) -> float:
    """NaN of nothing, and where there is one."""
    return float(np.min(values)) if len(values) else float("nan")


def most_of(values: Sequence[float] | Array) -> float:
    return float(np.max(values)) if len(values) else float("nan")


def more(name: str, lead: float, margin: float, matters: float = MATTERS) -> Evidence:
    """The part which says that one is larger than another by ``lead``."""
    return Evidence(name, lead, margin, effect=matters)


def alike(name: str, values: Array, margin: float, matters: float) -> Evidence:
    """The part which says that all lie within the margin of their mean."""
    apart = float(np.abs(values - values.mean()).max()) if len(values) > 1 else float("nan")
    return Evidence(name, apart, margin, matters)


def by_value(m: Measured, series: str, name: str) -> dict[Any, float]:
    """The mean over the rest of the grid, by the value of one setting."""
    values = sorted({each for p in m.points if p.series == series for each in [short_point(p)[name]]})
    return {each: float(m.of(series, **{name: lambda x, wanted=each: x == wanted}).mean()) for each in values}


def short_point(point: Point) -> dict[str, Any]:
    return {short: point.values[name] for name, short in short_names(point.values).items()}


def listed(values: Array) -> str:
    return ", ".join(f"{each:.2f}" for each in values) or "none"


def pairs(values: dict[Any, float], form: str = ".2f") -> str:
    return ", ".join(
        f"{name:g}: {each:{form}}" if isinstance(name, float) else f"{name}: {each:{form}}"
        for name, each in values.items()
    )


def chance(m: Measured, margin: float | None = None) -> str:
    margin = m.margin if margin is None else margin
    if m.learnt < LEAST_LEARNT:
        return f" (training made only {m.learnt:.0%} of the models better than they began: more steps are needed)"
    if np.isnan(margin):
        return " (one seed: nothing is known of chance)"
    return f" (a difference counts from {margin:.2f} on)"
