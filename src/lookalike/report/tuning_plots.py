"""Plots of a search: how it went, what matters, each setting by itself, and two settings together."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lookalike.report.theme import FAINT, INK, figure, theme
from lookalike.tuning.results import Findings, Record
from lookalike.tuning.space import Axis, format_value, short_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINT, BEST, WEAK = "#0072B2", "#D55E00", "#8a8a8a"
COLOURS = "viridis"
SPREAD = 6.0  # lists that span more than this are drawn on a logarithmic axis
MOST_TICKS = 4
LENGTHS, NOISES = (0.15, 0.3, 0.6, 1.2), (1e-3, 1e-2, 1e-1, 0.3)  # of the Gaussian process, in units of the axes


def plots(found: Findings) -> dict[str, tuple[Figure, str]]:
    """By the name of the file: a figure, and its caption. Only those that there is something to draw for."""
    metric = found.monitor
    drawn = {
        "history": (
            history(found),
            f"Every trial in its order, by {metric} on the held-out classes; the line is the best so far.",
        ),
        "importance": (
            importance(found),
            f"The share of the variance of {metric} that each setting explains by itself (functional ANOVA).",
        ),
        "effects": (
            effects(found),
            f"{metric} by the value of each setting; the line joins the means where values repeat.",
        ),
        "contour": (
            contour(found),
            f"{metric} by two settings. Filled: every point of a grid, or a Gaussian process through the trials.",
        ),
    }
    return {name: (each, caption) for name, (each, caption) in drawn.items() if each is not None}


def history(found: Findings) -> Figure | None:
    done, best = found.done, -np.inf
    if not done:
        return None
    with theme():
        drawn, [axes] = figure(8.0, 3.8)
        pruned = [record for record in found.records if record.state == "pruned" and record.curve]
        if pruned:
            heights = [100 * max(record.curve.values()) for record in pruned]
            axes.plot([record.number for record in pruned], heights, "x", color=WEAK, label="pruned, at its best")
        axes.plot([r.number for r in done], [100 * (r.value or 0) for r in done], "o", color=POINT, label="done")
        so_far = [best := max(best, 100 * (record.value or 0)) for record in done]
        axes.step([record.number for record in done], so_far, where="post", color=BEST, label="best so far")
        axes.set(xlabel="trial", ylabel=f"{found.monitor}, %")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    return drawn


def importance(found: Findings) -> Figure | None:
    if not found.importance:
        return None
    short = short_names(found.space)
    shares = dict(sorted(found.importance.items(), key=lambda each: each[1]))
    with theme():
        drawn, [axes] = figure(7.0, 1.3 + 0.42 * len(shares))
        bars = axes.barh([short[name] for name in shares], [100 * share for share in shares.values()], color=POINT)
        axes.bar_label(bars, fmt="%.0f %%", padding=4)
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.set(xlabel="share of the variance, %", xlim=(0, 110))
    return drawn


def effects(found: Findings) -> Figure | None:
    """One panel for each setting."""
    if len(found.done) < 2:
        return None
    short, names = short_names(found.space), list(found.space)
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    with theme():
        drawn, panels = figure(0.8 + 2.9 * columns, 0.6 + 3.0 * rows, rows, columns)
        for axes, name in zip(panels, names, strict=False):
            scale = Scale(found.space[name])
            places = [scale.place(record.params[name]) for record in found.done]
            values = [100 * (record.value or 0) for record in found.done]
            axes.plot(places, values, "o", color=POINT, alpha=0.6)
            if found.space[name].kind == "list":
                means = {
                    p: np.mean([v for q, v in zip(places, values, strict=True) if p == q]) for p in sorted(set(places))
                }
                axes.plot(list(means), list(means.values()), "-", color=INK, marker="_", markersize=14)
            scale.label(axes.xaxis, axes.set_xlim)
            axes.set_xlabel(short[name])
        shared = [axes.get_ylim() for axes in panels[: len(names)]]
        for n, axes in enumerate(panels):
            axes.set_ylim(min(low for low, _ in shared), max(high for _, high in shared))
            axes.set_visible(n < len(names))
            if n % columns == 0:
                axes.set_ylabel(f"{found.monitor}, %")
    return drawn


def contour(found: Findings) -> Figure | None:
    """The two settings that matter most, among those that are numbers."""
    order = sorted(found.space, key=lambda name: -found.importance.get(name, 0.0))
    names = [name for name in order if found.space[name].is_numeric and len(found.space[name].values) > 1][:2]
    names = [name for name in found.space if name in names]  # in the order in which they were asked for
    if len(names) < 2 or len(found.done) < 4:
        return None
    first, second = (Scale(found.space[name]) for name in names)
    points = np.array([[first.place(r.params[names[0]]), second.place(r.params[names[1]])] for r in found.done])
    values = np.array([100 * (record.value or 0) for record in found.done])
    cells = means_of(points, values)
    whole = all(found.space[name].kind == "list" for name in names)
    whole = whole and len(cells) == len(found.space[names[0]].values) * len(found.space[names[1]].values)
    short = short_names(found.space)
    with theme():
        drawn, [axes] = figure(7.0, 5.2)
        axes.grid(visible=False)
        if whole:
            _draw_cells(axes, drawn, cells, found.monitor)
        else:
            _draw_surface(axes, drawn, points, values, (first, second), found.monitor)
        if len(found.space) == 2:  # else a cell is a mean, and the best is not told by these two
            axes.plot(*points[int(values.argmax())], "*", markersize=14, color=BEST, markeredgecolor="white")
        for scale, axis, limits, name in (
            (first, axes.xaxis, axes.set_xlim, names[0]),
            (second, axes.yaxis, axes.set_ylim, names[1]),
        ):
            scale.label(axis, None if whole else limits)
            axis.set_label_text(short[name])
    return drawn


class Scale:
    """Where the values of a setting stand on an axis: wide ranges by their logarithm, words side by side."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        numbers = [float(str(value)) for value in axis.values] if axis.is_numeric else []
        wide = axis.kind == "list" and bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) > SPREAD
        self.is_log = axis.kind == "log" or wide
        ends = [self.place(value) for value in axis.values]
        self.low, self.high = min(ends), max(ends)

    def place(self, value: Any) -> float:
        if not self.axis.is_numeric:
            return float([repr(each) for each in self.axis.values].index(repr(value)))
        return log10(value) if self.is_log else float(value)

    def unit(self, places: NDArray[np.float64]) -> NDArray[np.float64]:
        return (places - self.low) / ((self.high - self.low) or 1.0)

    def label(self, axis: Any, limits: Any) -> None:
        """Ticks with the values themselves."""
        if self.axis.kind == "list":
            axis.set_ticks(
                [self.place(value) for value in self.axis.values], [format_value(value) for value in self.axis.values]
            )
        elif self.is_log:
            first, last = int(np.ceil(self.low)), int(np.floor(self.high))
            ticks = range(first, last + 1, max(1, -(-(last - first) // MOST_TICKS)))
            if len(ticks) > 1:
                axis.set_ticks(list(ticks), [format_value(10.0**tick) for tick in ticks])
            else:
                ends = np.linspace(self.low, self.high, 3)
                axis.set_ticks(ends, [f"{10.0**tick:.2g}" for tick in ends])
        if limits is not None:
            margin = 0.06 * ((self.high - self.low) or 1.0)
            limits(self.low - margin, self.high + margin)


def means_of(points: NDArray[np.float64], values: NDArray[np.float64]) -> dict[tuple[float, float], float]:
    places = [(float(x), float(y)) for x, y in points]
    return {place: float(np.mean([v for p, v in zip(places, values, strict=True) if p == place])) for place in places}


def gaussian_process(
    points: NDArray[np.float64], values: NDArray[np.float64], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The posterior mean at ``at`` (n, 2) of a process with a squared exponential kernel and noise; points in [0, 1].

    Length and noise are those of a few with the largest marginal likelihood
    -1/2 y' K^-1 y - 1/2 log det K - n/2 log(2 pi)  (Rasmussen and Williams, 2006, equation 2.30).
    """
    mean, spread = values.mean(), values.std() or 1.0
    y = (values - mean) / spread
    squared = ((points[:, None] - points) ** 2).sum(-1)
    crossed = ((at[:, None] - points) ** 2).sum(-1)
    best, answer = -np.inf, np.zeros(len(at))
    for length in LENGTHS:
        for noise in NOISES:
            kernel = np.exp(-squared / (2 * length**2)) + noise * np.eye(len(y))
            weights = np.linalg.solve(kernel, y)
            evidence = -0.5 * float(y @ weights) - 0.5 * float(np.linalg.slogdet(kernel)[1])
            if evidence > best:
                best, answer = evidence, np.exp(-crossed / (2 * length**2)) @ weights
    return np.asarray(mean + spread * answer)


def _draw_cells(axes: Any, drawn: Figure, cells: dict[tuple[float, float], float], metric: str) -> None:
    across, up = (sorted({place[i] for place in cells}) for i in (0, 1))
    edges = [
        np.concatenate([[s[0] - (s[1] - s[0]) / 2], (np.array(s[1:]) + s[:-1]) / 2, [s[-1] + (s[-1] - s[-2]) / 2]])
        for s in (across, up)
    ]
    table = np.array([[cells[x, y] for x in across] for y in up])
    mesh = axes.pcolormesh(*edges, table, cmap=COLOURS)
    drawn.colorbar(mesh, label=f"{metric}, %")
    middle = (table.min() + table.max()) / 2
    for (x, y), value in cells.items():
        colour = INK if value > middle else "white"
        above = {"textcoords": "offset points", "xytext": (0, 7), "ha": "center", "fontsize": 9}  # of the star
        axes.annotate(f"{value:.1f}", (x, y), color=colour, **above)


def _draw_surface(
    axes: Any,
    drawn: Figure,
    points: NDArray[np.float64],
    values: NDArray[np.float64],
    scales: Sequence[Scale],
    metric: str,
) -> None:
    x, y = (np.linspace(scale.low, scale.high, 60) for scale in scales)
    across, up = np.meshgrid(x, y)
    units = [scale.unit(places) for scale, places in zip(scales, points.T, strict=True)]
    at = np.stack([scale.unit(places.ravel()) for scale, places in zip(scales, (across, up), strict=True)], 1)
    surface = gaussian_process(np.stack(units, 1), values, at).reshape(across.shape)
    filled = axes.contourf(across, up, surface, levels=12, cmap=COLOURS)
    drawn.colorbar(filled, label=f"{metric}, %")
    axes.scatter(
        *points.T, c=values, cmap=COLOURS, edgecolors=FAINT, linewidths=1, vmin=surface.min(), vmax=surface.max()
    )


def effects_of(records: Sequence[Record], name: str, values: Sequence[Any]) -> float:
    """The mean at the second of two values less that at the first: the main effect of a setting."""
    means = [np.mean([record.value for record in records if record.params[name] == value]) for value in values]
    return float(means[1] - means[0])
