"""Metrics measured along an axis, and the margin from which on two means differ.

All models of an axis have the same seeds and folds. The metric of point p in block b (a fold and a seed) is taken as

    x_pb = level_p + luck_b + rest_pb

The spread of the rest, over all points that training has improved, tells how much two means may differ by chance:

    rest^2 = sum_pb (x_pb - mean_p - mean_b + mean)^2 / ((P - 1)(B - 1)),     error of a difference = rest sqrt(2 / B)

A difference counts if it exceeds t such errors and LEAST; t is Student's quantile of (P - 1)(B - 1) degrees of freedom.
For means over k points the error is divided by sqrt(k). With one block nothing is tested, nor if training improved less
than half of the models.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookalike.tuning.space import short_names
from lookalike_studies.effects.axis import Axis, Point
from lookalike_studies.framework.claims import t_quantile

LEAST = 0.1  # points; a smaller difference never counts
LEAST_LEARNT = 0.5
NAN = float("nan")
REDUCTIONS: dict[str, Callable[[list[float]], Any]] = {
    "mean": np.mean,
    "least": np.min,
    "most": np.max,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}
Array = NDArray[np.float64]
Limit = float | Sequence[float]


@dataclass(frozen=True)
class Means:
    """Means to compare, in the order of the axis."""

    values: dict[Any, float]  # by the value of a setting, the series, or the number of the point
    count: float = 1.0  # number of points that each mean is over

    def reduce(self, how: str = "mean") -> float:
        """Compute the mean, least, most, first or last of the values; NaN if there are none."""
        if not self.values:
            return NAN
        return float(REDUCTIONS[how](list(self.values.values())))

    def spread(self) -> float:
        """Compute the largest distance from the mean of the values; NaN with fewer than two."""
        if len(self.values) < 2:
            return NAN
        values = np.array(list(self.values.values()))
        return float(np.abs(values - values.mean()).max())

    def __format__(self, spec: str) -> str:
        """Format as numbers; "by": with their names; "+": with their names, signed."""
        if not self.values:
            return "none"
        if not spec:
            return ", ".join(f"{value:.2f}" for value in self.values.values())
        sign = spec.removeprefix("by")
        texts = []
        for name, value in self.values.items():
            if isinstance(name, float):
                name = f"{name:g}"
            texts.append(f"{name}: {value:{sign}.2f}")
        return ", ".join(texts)


@dataclass(frozen=True)
class Measured:
    """Metrics of all models of an axis."""

    axis: Axis
    points: Sequence[Point]
    metrics: Array  # (points, blocks) in percent; NaN where a model is missing
    data_set: str = "cub"
    learnt: float = 1.0  # share of the models that training improved
    stuck: frozenset[int] = frozenset()  # points of which training improved no model: they say nothing about chance

    @property
    def means(self) -> Array:
        """Mean of each point (points,)."""
        return np.asarray(self.metrics.mean(1))

    @property
    def stds(self) -> Array:
        """Standard deviation over the models of each point (points,); NaN with one model."""
        if self.metrics.shape[1] < 2:
            return np.full(len(self.points), NAN)
        return np.asarray(self.metrics.std(1, ddof=1))

    @property
    def complete(self) -> Array:
        """Metrics of the points that have all their models and that training has improved."""
        improved = np.ones(len(self.points), dtype=bool)
        improved[list(self.stuck)] = False
        return np.asarray(self.metrics[improved & ~np.isnan(self.metrics).any(1)])

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the rest."""
        count, blocks = self.complete.shape
        return max(0, count - 1) * (blocks - 1)

    @property
    def rest(self) -> float:
        """Standard deviation that neither point nor block explains; NaN without degrees of freedom."""
        if self.freedom < 1:
            return NAN
        complete = self.complete
        rest = complete - complete.mean(1, keepdims=True) - complete.mean(0) + complete.mean()
        return float(np.sqrt(np.square(rest).sum() / self.freedom))

    @property
    def margin(self) -> float:
        """Difference of the means of two points from which on it counts."""
        return self.margin_of(1)

    def margin_of(self, count: float) -> float:
        """Compute the same for means over ``count`` points; NaN if nothing can be tested."""
        if self.learnt < LEAST_LEARNT or self.freedom < 1:
            return NAN
        error = self.rest * float(np.sqrt(2 / (self.metrics.shape[1] * max(1, count))))
        return max(LEAST, t_quantile(self.freedom) * error)

    def margin_in_words(self, margin: float) -> str:
        """Describe the margin, or why there is none."""
        if self.learnt < LEAST_LEARNT:
            return f" (training improved only {self.learnt:.0%} of the models: more steps are needed)"
        if np.isnan(margin):
            return " (one seed: the noise is unknown)"
        return f" (a difference counts from {margin:.2f} on)"

    def where(self, series: Sequence[str], limits: Mapping[str, Limit] | None = None) -> list[int]:
        """Find the numbers of the points of some series whose settings lie within limits.

        ``limits``: by the short name of a setting, the lowest and highest value, or the only one. Points without that
        setting are found, too.
        """
        numbers = []
        for number, point in enumerate(self.points):
            settings = short_point(point)
            is_within = True
            for name, limit in (limits or {}).items():
                low, high = limit if isinstance(limit, Sequence) else (limit, limit)
                if name in settings and not low <= settings[name] <= high:
                    is_within = False
            if point.series in series and is_within:
                numbers.append(number)
        return numbers

    def of(self, series: str | Sequence[str], by: str = "", **limits: Limit) -> Means:
        """Compute the means of the points that ``where`` finds.

        ``by``: average over all points with the same value of this setting; "": every point stands for itself.
        """
        if isinstance(series, str):
            series = [series]
        means = self.means
        groups: dict[Any, list[float]] = {}
        for number in self.where(series, limits):
            point = self.points[number]
            name: Any = point.series
            if by:
                name = short_point(point)[by]
            elif point.values:
                name = number
            groups.setdefault(name, []).append(means[number])
        if by:
            groups = dict(sorted(groups.items()))
        count = max(map(len, groups.values()), default=1)
        return Means({name: float(np.mean(values)) for name, values in groups.items()}, count)


def short_point(point: Point) -> dict[str, Any]:
    """Get the values of a point by the short names of the settings."""
    return {short: point.values[name] for name, short in short_names(point.values).items()}
