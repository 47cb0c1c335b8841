"""Plots of a hyperparameter search: history, importance, each setting by itself, and two settings together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from math import ceil, log10
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lookalike.report.theme import FAINT, INK, figure, theme
from lookalike.tuning.results import StudyResults, TrialResult
from lookalike.tuning.space import Axis, format_value, short_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINT, BEST, WEAK = "#0072B2", "#D55E00", "#8a8a8a"
COLOUR_MAP = "viridis"
LOG_RATIO = 6.0  # lists whose largest value is more than this times the smallest have a logarithmic axis
MOST_COLUMNS = 4  # of panels
MOST_TICKS = 4
SURFACE_STEPS = 60
LENGTHS = (0.15, 1.2)  # bounds for the Gaussian process, in units of the axes
NOISES = (1e-3, 0.3)  # bounds of its noise, as a share of the variance
CAPTIONS = {
    "history": "Every trial in its order, by {metric} on the held-out classes; the line is the best so far.",
    "importance": "The share of the variance of {metric} that each setting explains by itself (functional ANOVA).",
    "effects": "{metric} by the value of each setting; the line joins the means where values repeat.",
    "contour": "{metric} by two settings. Filled: every point of a grid, or a Gaussian process through the trials.",
}


def make_plots(results: StudyResults) -> dict[str, tuple[Figure, str]]:
    """Draw all plots for which there is enough data."""
    functions: dict[str, Callable[[StudyResults], Figure | None]] = {
        "history": plot_history,
        "importance": plot_importance,
        "effects": plot_effects,
        "contour": plot_contour,
    }
    plots = {}
    for name, function in functions.items():
        drawn = function(results)
        if drawn is not None:
            plots[name] = (drawn, CAPTIONS[name].format(metric=results.monitor))
    return plots


def plot_history(results: StudyResults) -> Figure | None:
    """Values of all trials in their order, and the best so far; None if no trial is done."""
    if not results.done:
        return None
    numbers = [trial.number for trial in results.done]
    values = _values(results.done)
    with theme():
        drawn, [axes] = figure(8.0, 3.8)
        pruned = {}
        for trial in results.trials:
            if trial.state == "pruned" and trial.curve:
                pruned[trial.number] = 100 * max(trial.curve.values())
        if pruned:
            axes.plot(list(pruned), list(pruned.values()), "x", color=WEAK, label="pruned, at its best")
        axes.plot(numbers, values, "o", color=POINT, label="done")
        axes.step(numbers, np.maximum.accumulate(values), where="post", color=BEST, label="best so far")
        axes.set(xlabel="trial", ylabel=f"{results.monitor}, %")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    return drawn


def plot_importance(results: StudyResults) -> Figure | None:
    """Bars of the share of the variance that each setting explains; None if unknown."""
    if not results.importance:
        return None
    short = short_names(results.space)
    shares = {}
    for name, share in sorted(results.importance.items(), key=lambda item: item[1]):
        shares[short[name]] = 100 * share
    with theme():
        drawn, [axes] = figure(7.0, 1.3 + 0.42 * len(shares))
        bars = axes.barh(list(shares), list(shares.values()), color=POINT)
        axes.bar_label(bars, fmt="%.0f %%", padding=4)
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.set(xlabel="share of the variance, %", xlim=(0, 110))
    return drawn


def plot_effects(results: StudyResults) -> Figure | None:
    """Values of the trials by each setting, one panel for each; None if there are fewer than two trials."""
    if len(results.done) < 2:
        return None
    short = short_names(results.space)
    columns = min(MOST_COLUMNS, len(results.space))
    rows = ceil(len(results.space) / columns)
    values = _values(results.done)
    with theme():
        drawn, panels = figure(0.8 + 2.9 * columns, 0.6 + 3.0 * rows, rows, columns)
        for axes, (name, axis) in zip(panels, results.space.items(), strict=False):
            scale = Scale(axis)
            positions = scale.positions(results.done)
            axes.plot(positions, values, "o", color=POINT, alpha=0.6)
            if axis.kind == "list":
                distinct = np.unique(positions)
                means = [values[positions == position].mean() for position in distinct]
                axes.plot(distinct, means, "-", color=INK, marker="_", markersize=14)
            scale.set_ticks(axes.xaxis, axes.set_xlim)
            axes.set_xlabel(short[name])
        lows, highs = zip(*(axes.get_ylim() for axes in panels[: len(results.space)]), strict=True)
        for n, axes in enumerate(panels):
            axes.set_ylim(min(lows), max(highs))
            axes.set_visible(n < len(results.space))
            if n % columns == 0:
                axes.set_ylabel(f"{results.monitor}, %")
    return drawn


def plot_contour(results: StudyResults) -> Figure | None:
    """Values by the two most important numeric settings; None if there are fewer than two, or four trials."""
    names = _most_important_pair(results)
    if len(names) < 2 or len(results.done) < 4:
        return None
    axis_pair = [results.space[name] for name in names]
    first, second = map(Scale, axis_pair)
    points = np.stack([first.positions(results.done), second.positions(results.done)], axis=1)
    values = _values(results.done)
    cell_means = mean_by_point(points, values)
    is_grid = all(axis.kind == "list" for axis in axis_pair)
    is_full_grid = is_grid and len(cell_means) == len(axis_pair[0].values) * len(axis_pair[1].values)
    short = short_names(results.space)
    with theme():
        drawn, [axes] = figure(7.0, 5.2)
        axes.grid(visible=False)
        if is_full_grid:
            _draw_grid(axes, drawn, cell_means, results.monitor)
            first.set_ticks(axes.xaxis)
            second.set_ticks(axes.yaxis)
        else:
            _draw_surface(axes, drawn, points, values, (first, second), results.monitor)
            first.set_ticks(axes.xaxis, axes.set_xlim)
            second.set_ticks(axes.yaxis, axes.set_ylim)
        if len(results.space) == 2:  # with more settings, these two do not determine the best trial
            axes.plot(*points[values.argmax()], "*", markersize=14, color=BEST, markeredgecolor="white")
        axes.set_xlabel(short[names[0]])
        axes.set_ylabel(short[names[1]])
    return drawn


class Scale:
    """Positions of a setting's values on an axis: logarithmic for wide ranges, side by side for words."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self.is_log = axis.kind == "log"
        if axis.kind == "list" and axis.is_numeric:
            numbers = list(map(float, map(str, axis.values)))
            self.is_log = min(numbers) > 0 and max(numbers) / min(numbers) > LOG_RATIO
        ends = list(map(self.position, axis.values))
        self.low, self.high = min(ends), max(ends)

    def position(self, value: Any) -> float:
        """Where a value is on the axis."""
        if not self.axis.is_numeric:
            return float(list(map(repr, self.axis.values)).index(repr(value)))
        if self.is_log:
            return log10(value)
        return float(value)

    def positions(self, trials: Sequence[TrialResult]) -> NDArray[np.float64]:
        """Where the values of trials are on the axis."""
        return np.array([self.position(trial.params[self.axis.name]) for trial in trials])

    def to_unit(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions scaled to [0, 1]."""
        return (positions - self.low) / ((self.high - self.low) or 1.0)

    def set_ticks(self, axis: Any, set_limits: Callable[[float, float], object] | None = None) -> None:
        """Label an axis of a plot with the values themselves.

        Args:
            axis: x or y axis of matplotlib.
            set_limits: sets the limits of that axis; None leaves them.
        """
        if self.axis.kind == "list":
            axis.set_ticks(list(map(self.position, self.axis.values)), list(map(format_value, self.axis.values)))
        elif self.is_log:
            first, last = int(np.ceil(self.low)), int(np.floor(self.high))
            exponents = range(first, last + 1, max(1, ceil((last - first) / MOST_TICKS)))
            if len(exponents) > 1:
                axis.set_ticks(list(exponents), [format_value(10.0**exponent) for exponent in exponents])
            else:
                ends = np.linspace(self.low, self.high, 3)
                axis.set_ticks(ends, [f"{10.0**exponent:.2g}" for exponent in ends])
        if set_limits is not None:
            margin = 0.06 * ((self.high - self.low) or 1.0)
            set_limits(self.low - margin, self.high + margin)


def mean_by_point(points: NDArray[np.float64], values: NDArray[np.float64]) -> dict[tuple[float, float], float]:
    """Average the values (n,) of equal points (n, 2)."""
    distinct, inverse = np.unique(points, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    means = np.bincount(inverse, weights=values) / np.bincount(inverse)
    return dict(zip(map(tuple, distinct.tolist()), means.tolist(), strict=True))


def gaussian_process(
    points: NDArray[np.float64], values: NDArray[np.float64], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Fit a Gaussian process to values (n,) at points (n, 2) in [0, 1], and return its mean (m,) ``at`` others (m, 2).

    Length and noise maximise the marginal likelihood.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel

    kernel = RBF(0.3, LENGTHS) + WhiteKernel(1e-2, NOISES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best length or noise may be at a bound
        model = GaussianProcessRegressor(kernel, normalize_y=True).fit(points, values)
    return np.asarray(model.predict(at))


def main_effect(trials: Sequence[TrialResult], name: str, values: Sequence[Any]) -> float:
    """The mean value of the trials at the second of two values less that at the first."""
    means = []
    for value in values:
        means.append(np.mean([trial.value or 0.0 for trial in trials if trial.params[name] == value]))
    return float(means[1] - means[0])


def _values(trials: Sequence[TrialResult]) -> NDArray[np.float64]:
    """Values of finished trials, in percent."""
    return np.array([100 * (trial.value or 0) for trial in trials])


def _most_important_pair(results: StudyResults) -> list[str]:
    """At most two numeric settings, in the order in which they were asked for."""
    numeric = [name for name, axis in results.space.items() if axis.is_numeric and len(axis.values) > 1]
    by_importance = sorted(numeric, key=lambda name: -results.importance.get(name, 0.0))
    return sorted(by_importance[:2], key=numeric.index)


def _draw_grid(axes: Any, drawn: Figure, cell_means: dict[tuple[float, float], float], metric: str) -> None:
    x, y = map(np.unique, zip(*cell_means, strict=True))
    table = np.empty((len(y), len(x)))
    for (cell_x, cell_y), value in cell_means.items():
        table[np.searchsorted(y, cell_y), np.searchsorted(x, cell_x)] = value
    mesh = axes.pcolormesh(_edges(x), _edges(y), table, cmap=COLOUR_MAP)
    drawn.colorbar(mesh, label=f"{metric}, %")
    middle = (table.min() + table.max()) / 2
    above_star = {"textcoords": "offset points", "xytext": (0, 7), "ha": "center", "fontsize": 9}
    for point, value in cell_means.items():
        colour = INK if value > middle else "white"
        axes.annotate(f"{value:.1f}", point, color=colour, **above_star)


def _edges(centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) -> (n + 1,), the borders of cells with these centres."""
    gaps = np.diff(centres)
    inner = (centres[1:] + centres[:-1]) / 2
    return np.concatenate([[centres[0] - gaps[0] / 2], inner, [centres[-1] + gaps[-1] / 2]])


def _draw_surface(
    axes: Any,
    drawn: Figure,
    points: NDArray[np.float64],
    values: NDArray[np.float64],
    scales: tuple[Scale, Scale],
    metric: str,
) -> None:
    x_scale, y_scale = scales
    x, y = np.meshgrid(
        np.linspace(x_scale.low, x_scale.high, SURFACE_STEPS), np.linspace(y_scale.low, y_scale.high, SURFACE_STEPS)
    )
    unit_points = np.stack([x_scale.to_unit(points[:, 0]), y_scale.to_unit(points[:, 1])], axis=1)
    unit_grid = np.stack([x_scale.to_unit(x.ravel()), y_scale.to_unit(y.ravel())], axis=1)
    surface = gaussian_process(unit_points, values, unit_grid).reshape(x.shape)
    filled = axes.contourf(x, y, surface, levels=12, cmap=COLOUR_MAP)
    drawn.colorbar(filled, label=f"{metric}, %")
    axes.scatter(
        *points.T, c=values, cmap=COLOUR_MAP, edgecolors=FAINT, linewidths=1, vmin=surface.min(), vmax=surface.max()
    )
