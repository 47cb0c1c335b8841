"""Figures of the study of effects: lines with error bars, heat maps, bars, main effects, costs of the iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lookalike.report.theme import FAINT, INK, LINES, MARKERS, Style, figure, style, theme
from lookalike.tuning.space import format_value, short_names
from lookalike_studies.effects.claims import measured_effects, published_effects
from lookalike_studies.effects.iterated import AUTOGRAD, CLOSED_FORM, EXACT, Cost
from lookalike_studies.effects.measured import Measured
from lookalike_studies.framework.plots import curve, powers_of_two, set_log_ticks, set_rows, write_beside, write_cells

LABELS = {
    "keep": "share that is kept (keep, μ)",
    "num_prototypes": "prototypes (m)",
    "sharpness": "sharpness (ε)",
    "zero_shot": "share of the zero-shot loss (λ)",
    "iterations": "rounds of the iteration (k)",
    "dim": "size of the embedding",
    "batch_size": "pictures in a batch",
    "ccp_pull": "pull towards the last solution (λ)",
    "ccp_proxies": "proxies of a class",
    "ccp_pool": "pictures of a class to choose from (pool, b)",
}
SHORT_LABELS = {
    "keep": "share\nkept",
    "num_prototypes": "prototypes",
    "sharpness": "sharpness",
    "zero_shot": "zero-shot\nshare",
}
OF_METHODS = {"ccp": "#009E73", "centres": "#CC79A7"}  # colours of methods over average pooling, which is grey
OF_WAYS = {  # gradients are no poolings: colours that none has, one darker and one lighter than GSP's
    EXACT: style("gsp"),
    CLOSED_FORM: Style("#882255", "v", "", "--"),
    AUTOGRAD: Style("#999933", "P", "", "-."),
}
WIDE = 6.0  # values that span a larger ratio have a logarithmic axis


def lines(measured: Measured) -> Figure:
    """Draw a line for each series, or for each value of ``lines_by``; series of one point are level lines."""
    (setting,) = [name for name in measured.axis.varied if name != measured.axis.lines_by]
    groups = _groups(measured)
    styles = _styles_of(measured, groups)
    with theme():
        drawn, [axes] = figure(8.0, 4.6)
        ticks: set[float] = set()
        for label, numbers in groups.items():
            ticks |= _line(axes, measured, setting, label, numbers, styles[label])
        xs = sorted(ticks)
        if max(xs) > 1 and min(xs) > 0 and max(xs) / min(xs) > WIDE:
            powers_of_two(axes, xs)
        else:
            axes.set_xticks(xs, map("{:g}".format, xs))
        axes.set(xlabel=_label(measured, setting), ylabel=_metric(measured))
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return drawn


def heat(measured: Measured) -> Figure:
    """Draw a heat map of two settings for each series."""
    first, second = measured.axis.varied
    names = _series_names(measured)
    low, high = np.nanmin(measured.means), np.nanmax(measured.means)
    with theme():
        drawn, panels = figure(1.2 + 4.6 * len(names), 4.4, 1, len(names))
        for axes, name in zip(panels, names, strict=True):
            numbers = measured.where([name])
            across = sorted({measured.points[i].values[first] for i in numbers})
            up = sorted({measured.points[i].values[second] for i in numbers})
            table = np.full((len(up), len(across)), np.nan)
            texts = np.full(table.shape, "", dtype=object)
            for i in numbers:
                values = measured.points[i].values
                cell = up.index(values[second]), across.index(values[first])
                table[cell] = measured.means[i]
                texts[cell] = f"{measured.means[i]:.2f}"
                if not np.isnan(measured.stds[i]):
                    texts[cell] += f"\n± {measured.stds[i]:.2f}"
            write_cells(axes, texts, table <= (low + high) / 2)
            mesh = axes.imshow(table, cmap="viridis", vmin=low, vmax=high, origin="lower", aspect="auto")
            axes.grid(visible=False)
            axes.set_xticks(range(len(across)), map(format_value, across))
            axes.set_yticks(range(len(up)), map(format_value, up))
            axes.set(xlabel=_label(measured, first), ylabel=_label(measured, second), title=name)
        drawn.colorbar(mesh, ax=panels, label=_metric(measured))
    return drawn


def bars(measured: Measured) -> Figure:
    """Draw a mark with its spread for each point, the best at the top; four points keep their order."""
    means, stds = measured.means, measured.stds
    order = np.argsort(means)
    if measured.axis.name == "zero-shot":
        order = np.arange(len(means))[::-1]
    order = order[~np.isnan(means[order])]
    with theme():
        drawn, [axes] = figure(8.0, 1.4 + 0.36 * len(order))
        for position, i in enumerate(order):
            series = measured.axis.named(measured.points[i].series)
            looks = _style_of(series.pooling, series.methods)
            shape: Any = {"color": looks.colour, "mec": INK, "ms": 9, "capsize": 4, "elinewidth": 2}
            axes.errorbar(means[i], position, xerr=_errors(stds[i]), fmt=looks.marker, **shape)
            write_beside(axes, means[i], stds[i], position, f"{means[i]:.2f}", 8)
        axes.set_ylim(-0.6, len(order) - 0.4)
        set_rows(axes, [measured.points[i].series for i in order])
        span = np.nanmax(means) - np.nanmin(means)
        low = max(0.0, np.nanmin(means) - max(span, 3 * np.nanmax([0.1, *stds])))
        label = _metric(measured)
        if low:
            label += " (the axis does not begin at 0)"
        axes.set(xlabel=label, xlim=(low, None))
        axes.margins(x=0.12)
    return drawn


def effects(measured: Measured) -> Figure:
    """Draw the main effects of the settings beside those of the published table."""
    names = _series_names(measured)
    with theme():
        drawn, panels = figure(1.0 + 4.6 * len(names), 4.2, 1, len(names))
        for axes, name in zip(panels, names, strict=True):
            ours = measured_effects(measured, name)
            theirs = published_effects(measured.axis.named(name).loss)
            settings, x = list(ours.values), np.arange(len(ours.values))
            here: Any = {"yerr": _errors(measured.margin_of(ours.count)), "color": "#0072B2", "capsize": 4}
            published: Any = {"color": FAINT, "hatch": "///", "edgecolor": INK}
            axes.bar(x - 0.2, list(ours.values.values()), 0.38, label="here", **here)
            axes.bar(x + 0.2, [theirs[name] for name in settings], 0.38, label="Table 5.4", **published)
            axes.axhline(0, color=INK, linewidth=0.8)
            axes.set_xticks(x, [SHORT_LABELS[name] for name in settings])
            axes.set(title=name, ylabel="effect from low to high, points of MAP@R")
        panels[0].legend()
    return drawn


def error_bars(measured: Measured) -> str:
    """Describe the error bars, for the caption."""
    blocks = measured.metrics.shape[1]
    if measured.axis.draw == "effects" and np.isnan(measured.margin):
        return "no error bars: one seed"
    if measured.axis.draw == "effects":
        return "error bars: how large an effect must be to count, from the spread over seeds"
    if blocks == 1:
        return "one model each"
    return f"mean and standard deviation of {blocks} models each"


def problem_steps(measured: Measured, steps: Mapping[str, Sequence[int]]) -> Figure:
    """Draw the metric of each series, and how many steps the problems with CCP took."""
    means, stds = measured.means, measured.stds
    with theme():
        drawn, [left, right] = figure(12.0, 4.6, 1, 2)
        order = np.flatnonzero(~np.isnan(means))[::-1]
        for position, i in enumerate(order):
            colour, hatch = style("average").colour, ""
            if measured.points[i].series.endswith("CCP"):
                colour, hatch = OF_METHODS["ccp"], "xx"
            elif measured.points[i].series.endswith("problem"):
                colour, hatch = "#F0E442", "..."
            shape: Any = {"color": colour, "hatch": hatch, "edgecolor": INK, "capsize": 4}
            left.barh(position, means[i], xerr=_errors(stds[i]), **shape)
            write_beside(left, means[i], stds[i], position, f"{means[i]:.2f}")
        left.margins(x=0.15)
        left.set_xlabel(_metric(measured))
        set_rows(left, [measured.points[i].series for i in order])
        ended = {name: list(counts) for name, counts in steps.items() if counts}
        if ended:
            right.boxplot(list(ended.values()), tick_labels=list(ended), whis=(0, 100), medianprops={"color": INK})
            right.set_ylabel("steps of a problem")
        else:
            right.text(0.5, 0.5, "no problem ended within the steps", ha="center", transform=right.transAxes)
        for position, counts in enumerate(ended.values(), 1):
            spread = position + np.linspace(-0.12, 0.12, len(counts))
            right.plot(spread, counts, "o", color=OF_METHODS["ccp"], markeredgecolor=INK, alpha=0.7)
    return drawn


def iteration_costs(measured: Measured, costs: Sequence[Cost]) -> Figure:
    """Draw the metric by k, and time and memory of a training step by k and gradient."""
    rounds = sorted({cost.iterations for cost in costs if cost.iterations})
    units = {"milliseconds": "CPU ms for a training step", "megabytes": "MB kept for the backward pass"}
    with theme():
        drawn, panels = figure(15.0, 4.4, 1, 3)
        trained: set[float] = set()
        for label, numbers in _groups(measured).items():
            looks = OF_WAYS[EXACT]
            for way in (CLOSED_FORM, AUTOGRAD):
                if way in label:
                    looks = OF_WAYS[way]
            trained |= _line(panels[0], measured, "pooling_settings.iterations", label, numbers, looks)
        panels[0].set_ylabel(_metric(measured))
        for axes, (field, unit) in zip(panels[1:], units.items(), strict=True):
            for way, looks in OF_WAYS.items():
                of_way = [cost for cost in costs if cost.way == way]
                values = [getattr(cost, field) for cost in of_way]
                if way == EXACT:
                    axes.axhline(values[0], color=looks.colour, linestyle=looks.line, label=way)
                else:
                    axes.plot([cost.iterations for cost in of_way], values, label=way, **curve(looks))
            axes.set(yscale="log", ylabel=unit)
            set_log_ticks(axes.yaxis, (1, 2, 5))
        for axes, ticks in zip(panels, (sorted(trained) or rounds, rounds, rounds), strict=True):
            powers_of_two(axes, ticks)
            axes.set_xlabel(LABELS["iterations"])
            axes.legend(fontsize=9)
    return drawn


def _groups(measured: Measured) -> dict[str, list[int]]:
    """The points of each line, by its label."""
    lines_by = measured.axis.lines_by
    groups: dict[str, list[int]] = {}
    for i, point in enumerate(measured.points):
        label = point.series
        if lines_by:
            label += f", {LABELS[lines_by.rpartition('.')[2]]}: {point.values[lines_by]}"
        groups.setdefault(label, []).append(i)
    return groups


def _styles_of(measured: Measured, groups: Mapping[str, list[int]]) -> dict[str, Style]:
    """Pooling or method decide the colour, as everywhere; lines of the same colour differ in marker and dashes."""
    styles: dict[str, Style] = {}
    for label, numbers in groups.items():
        series = measured.axis.named(measured.points[numbers[0]].series)
        looks = _style_of(series.pooling, series.methods)
        marker = _first_unused((looks.marker, *MARKERS), [other.marker for other in styles.values()], MARKERS[0])
        line = looks.line
        if series.methods != "zero-shot":  # whose dashes mean the method
            line = _first_unused((looks.line, *LINES), [other.line for other in styles.values()], looks.line)
        styles[label] = replace(looks, marker=marker, line=line)
    return styles


def _first_unused(choices: Sequence[str], used: Sequence[str], otherwise: str) -> str:
    for choice in choices:
        if choice not in used:
            return choice
    return otherwise


def _series_names(measured: Measured) -> list[str]:
    return list(dict.fromkeys(point.series for point in measured.points))


def _style_of(pooling: str, methods: str) -> Style:
    method = methods.partition("(")[0]
    if method == "none":
        return style(pooling)
    looks = style(f"{pooling} + {method}")
    return replace(looks, colour=OF_METHODS.get(method, looks.colour))


def _line(axes: Any, measured: Measured, setting: str, label: str, numbers: list[int], looks: Style) -> set[float]:
    """Draw a line with error bars, or a level line for a point without values; return the values along the axis."""
    means, stds = measured.means[numbers], measured.stds[numbers]
    if not measured.points[numbers[0]].values:
        axes.axhline(means[0], color=looks.colour, linestyle=looks.line, label=label)
        if not np.isnan(stds[0]):
            axes.axhspan(means[0] - stds[0], means[0] + stds[0], color=looks.colour, alpha=0.15, linewidth=0)
        return set()
    x = [float(measured.points[i].values[setting]) for i in numbers]
    axes.errorbar(x, means, _errors(stds), capsize=4, label=label, **curve(looks))
    return set(x)


def _errors(stds: Any) -> Any:
    """For matplotlib: None without any deviation."""
    return None if np.isnan(stds).all() else stds


def _label(measured: Measured, setting: str) -> str:
    short = short_names(dict.fromkeys(measured.axis.varied))[setting]
    return LABELS.get(short, short)


def _metric(measured: Measured) -> str:
    classes = {"test": "unseen", "held_out": "held-out"}[measured.axis.measure]
    return f"{measured.axis.metric} on {classes} classes, %"
