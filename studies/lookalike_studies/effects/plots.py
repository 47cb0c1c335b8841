"""Figures of the study of effects: lines with error bars, heat maps, bars, main effects, costs of the iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.report.theme import FAINT, INK, LINES, MARKERS, Style, figure, style, theme
from lookalike.tuning.space import format_value, short_names
from lookalike_studies.effects.claims import main_effects, published_effects
from lookalike_studies.effects.iterated import AUTOGRAD, CLOSED_FORM, EXACT, Cost
from lookalike_studies.effects.measured import Measured, short_point

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {
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
SHORT = {
    "keep": "share\nkept",
    "num_prototypes": "prototypes",
    "sharpness": "sharpness",
    "zero_shot": "zero-shot\nshare",
}
OF_METHODS = {"ccp": "#009E73", "centres": "#CC79A7"}  # what is varied along axes of average pooling, which is grey
WIDE = 6.0  # values that span more are drawn on a logarithmic axis
MAP = "viridis"


def lines(m: Measured) -> Figure:
    """One line for each series, or for each value of ``lines_by``; series of one point are level lines."""
    axis = m.axis
    name = next(each for each in axis.varied if each != axis.lines_by)
    groups = _groups(m)
    with theme():
        drawn, [axes] = figure(8.0, 4.6)
        chosen = _styles_of(m, groups)
        xs = sorted({float(m.points[i].values[name]) for where in groups.values() for i in where if m.points[i].values})
        is_log = max(xs) > 1 and min(xs) > 0 and max(xs) / min(xs) > WIDE  # shares are not
        for label, where in groups.items():
            own = chosen[label]
            if not m.points[where[0]].values:
                _level(axes, label, m, where[0], own)
                continue
            x = [float(m.points[i].values[name]) for i in where]
            errors = None if np.isnan(m.stds[where]).all() else m.stds[where]
            axes.errorbar(
                x,
                m.means[where],
                errors,
                color=own.colour,
                marker=own.marker,
                linestyle=own.line,
                capsize=4,
                label=label,
            )
        if is_log:
            axes.set_xscale("log", base=2)
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
        axes.minorticks_off()
        axes.set(xlabel=_word(m, name), ylabel=_measured(m))
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return drawn


def heat(m: Measured) -> Figure:
    """One panel for each series."""
    first, second = m.axis.varied
    names = list(dict.fromkeys(point.series for point in m.points))
    low, high = np.nanmin(m.means), np.nanmax(m.means)
    with theme():
        drawn, panels = figure(1.2 + 4.6 * len(names), 4.4, 1, len(names))
        for axes, name in zip(panels, names, strict=True):
            where = m.where(name)
            across, up = (sorted({m.points[i].values[each] for i in where}) for each in (first, second))
            table = np.full((len(up), len(across)), np.nan)
            for i in where:
                values = m.points[i].values
                row, column = up.index(values[second]), across.index(values[first])
                table[row, column] = m.means[i]
                std = "" if np.isnan(m.stds[i]) else f"\n± {m.stds[i]:.2f}"
                light = m.means[i] > (low + high) / 2
                axes.text(
                    column, row, f"{m.means[i]:.2f}{std}", ha="center", va="center", color=INK if light else "white"
                )
            mesh = axes.imshow(table, cmap=MAP, vmin=low, vmax=high, origin="lower", aspect="auto")
            axes.grid(visible=False)
            axes.set_xticks(range(len(across)), [format_value(each) for each in across])
            axes.set_yticks(range(len(up)), [format_value(each) for each in up])
            axes.set(xlabel=_word(m, first), ylabel=_word(m, second), title=name)
        drawn.colorbar(mesh, ax=panels, label=_measured(m))
    return drawn


def bars(m: Measured, order: Sequence[int] | None = None) -> Figure:
    """One mark with its spread for each point, the best at the top: marks, as the axis does not begin at 0."""
    done = [int(i) for i in (np.argsort(m.means) if order is None else order) if not np.isnan(m.means[i])]
    with theme():
        drawn, [axes] = figure(8.0, 1.4 + 0.36 * len(done))
        for place, i in enumerate(done):
            series = m.axis.named(m.points[i].series)
            own = style(series.pooling if series.methods == "none" else f"{series.pooling} + {series.methods}")
            error = None if np.isnan(m.stds[i]) else m.stds[i]
            looks: Any = {"color": own.colour, "mec": INK, "ms": 9, "capsize": 4, "elinewidth": 2}
            axes.errorbar(m.means[i], place, xerr=error, fmt=own.marker, **looks)
            right = m.means[i] + (error or 0)
            axes.annotate(f"{m.means[i]:.2f}", (right, place), xytext=(8, 0), textcoords="offset points", va="center")
        axes.set_ylim(-0.6, len(done) - 0.4)
        axes.set_yticks(range(len(done)), [m.points[i].series for i in done])
        axes.grid(visible=False, axis="y")
        axes.grid(axis="x")
        span = np.nanmax(m.means) - np.nanmin(m.means)
        low = max(0.0, np.nanmin(m.means) - max(span, 3 * np.nanmax([0.1, *m.stds])))
        axes.set(xlabel=f"{_measured(m)} (the axis does not begin at 0)" if low else _measured(m), xlim=(low, None))
        axes.margins(x=0.12)
    return drawn


def effects(m: Measured) -> Figure:
    """Main effects of the settings, beside those of the published table; the bars are those of ``error_bars``."""
    names = list(dict.fromkeys(point.series for point in m.points))
    with theme():
        drawn, panels = figure(1.0 + 4.6 * len(names), 4.2, 1, len(names))
        for axes, name in zip(panels, names, strict=True):
            where = m.where(name)
            ours = main_effects([short_point(m.points[i]) for i in where], m.means[where])
            theirs = published_effects({"C2": "c2", "ProxyNCA++": "proxy-nca++"}[name])
            margin = m.margin_of(len(where) / 2)
            places = np.arange(len(ours))
            error = None if np.isnan(margin) else margin
            axes.bar(places - 0.2, list(ours.values()), 0.38, yerr=error, color="#0072B2", capsize=4, label="here")
            axes.bar(
                places + 0.2,
                [theirs[each] for each in ours],
                0.38,
                color=FAINT,
                hatch="///",
                edgecolor=INK,
                label="Table 5.4",
            )
            axes.axhline(0, color=INK, linewidth=0.8)
            axes.set_xticks(places, [SHORT[each] for each in ours])
            axes.set(title=name, ylabel="effect from low to high, points of MAP@R")
        panels[0].legend()
    return drawn


def error_bars(m: Measured) -> str:
    """What they mean, for the caption."""
    blocks = m.figures.shape[1]
    if m.axis.draw == "effects":
        if np.isnan(m.margin):
            return "no error bars: nothing is known of chance"
        return "error bars: by how much an effect must differ from none to count, from the spread over seeds"
    if blocks == 1:
        return "one model each"
    return f"mean and standard deviation of {blocks} models each"


def problem_steps(m: Measured, steps: Mapping[str, Sequence[int]]) -> Figure:
    """Figures of each series, and how many steps the problems of those with CCP took."""
    with theme():
        drawn, [left, right] = figure(12.0, 4.6, 1, 2)
        done = [i for i in range(len(m.points)) if not np.isnan(m.means[i])][::-1]
        for place, i in enumerate(done):
            kind = (m.points[i].series.endswith("CCP")) + 2 * m.points[i].series.endswith("problem")
            error = None if np.isnan(m.stds[i]) else m.stds[i]
            colour, hatch = ((style("average").colour, ""), (OF_METHODS["ccp"], "xx"), ("#F0E442", "..."))[kind]
            left.barh(place, m.means[i], xerr=error, color=colour, hatch=hatch, edgecolor=INK, capsize=4)
            right_of = (m.means[i] + (error or 0), place)
            left.annotate(f"{m.means[i]:.2f}", right_of, xytext=(5, 0), textcoords="offset points", va="center")
        left.margins(x=0.15)
        left.set_yticks(range(len(done)), [m.points[i].series for i in done])
        left.set_xlabel(_measured(m))
        left.grid(visible=False, axis="y")
        left.grid(axis="x")
        some = {name: list(counts) for name, counts in steps.items() if len(counts)}
        if some:
            right.boxplot(list(some.values()), tick_labels=list(some), whis=(0, 100), medianprops={"color": INK})
            for place, counts in enumerate(some.values(), 1):
                spread = place + np.linspace(-0.12, 0.12, len(counts))
                right.plot(spread, counts, "o", color=OF_METHODS["ccp"], markeredgecolor=INK, alpha=0.7)
            right.set_ylabel("steps of a problem")
        else:
            right.text(0.5, 0.5, "no problem ended within the steps", ha="center", transform=right.transAxes)
    return drawn


def iteration_costs(m: Measured, costs: Sequence[Cost]) -> Figure:
    """Figure by k, and time and memory of a training step by k and gradient."""
    from matplotlib.ticker import LogLocator, NullLocator

    name = "pooling_settings.iterations"
    with theme():
        drawn, [left, middle, right] = figure(15.0, 4.4, 1, 3)
        for label, where in _groups(m).items():
            if not m.points[where[0]].values:
                _level(left, label, m, where[0], style("gsp"))
                continue
            own = _OF_WAYS[label.split(", ")[1]]
            errors = None if np.isnan(m.stds[where]).all() else m.stds[where]
            x = [m.points[i].values[name] for i in where]
            left.errorbar(
                x,
                m.means[where],
                errors,
                color=own.colour,
                marker=own.marker,
                linestyle=own.line,
                capsize=4,
                label=label,
            )
        left.set_ylabel(_measured(m))
        for axes, field, unit in (
            (middle, "milliseconds", "CPU ms for a training step"),
            (right, "megabytes", "MB kept"),
        ):
            for way in dict.fromkeys(cost.way for cost in costs):
                own = _OF_WAYS[way]
                of = [cost for cost in costs if cost.way == way]
                if way == EXACT:
                    axes.axhline(getattr(of[0], field), color=own.colour, linestyle=own.line, label=way)
                else:
                    y = [getattr(cost, field) for cost in of]
                    axes.plot(
                        [cost.iterations for cost in of],
                        y,
                        color=own.colour,
                        marker=own.marker,
                        linestyle=own.line,
                        label=way,
                    )
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(NullLocator())
            axes.set_ylabel(unit)
        right.set_ylabel("MB kept for the backward pass")
        ticks = sorted({cost.iterations for cost in costs if cost.iterations})
        trained = sorted({int(each) for line in left.lines[:-1] for each in line.get_xdata()})
        for axes, own_ticks in ((left, trained or ticks), (middle, ticks), (right, ticks)):
            axes.set_xscale("log", base=2)
            axes.set_xticks(own_ticks, [str(each) for each in own_ticks])
            axes.minorticks_off()
            axes.set_xlabel(WORDS["iterations"])
            axes.legend(fontsize=9)
    return drawn


_OF_WAYS = {  # gradients are no poolings: colours that none has, one darker and one lighter than GSP's
    EXACT: style("gsp"),
    CLOSED_FORM: Style("#882255", "v", "", "--"),
    AUTOGRAD: Style("#999933", "P", "", "-."),
}


def _groups(m: Measured) -> dict[str, list[int]]:
    """Which points make a line, by its label."""
    by, groups = m.axis.lines_by, dict[str, list[int]]()
    for i, point in enumerate(m.points):
        label = point.series
        if by:
            label += f", {WORDS[by.rpartition('.')[2]]}: {point.values[by]}"
        groups.setdefault(label, []).append(i)
    return groups


def _styles_of(m: Measured, groups: Mapping[str, list[int]]) -> dict[str, Style]:
    """The pooling decides the colour, as everywhere, and so do methods over average pooling; lines of the same colour
    differ in marker and dashes."""
    chosen: dict[str, Style] = {}
    for label, where in groups.items():
        series = m.axis.named(m.points[where[0]].series)
        methods = series.methods.split("(")[0]
        own = style(series.pooling if methods == "none" else f"{series.pooling} + {methods}")
        own = replace(own, colour=OF_METHODS.get(methods, own.colour))
        markers = [each for each in (own.marker, *MARKERS) if each not in {one.marker for one in chosen.values()}]
        dashes = [each for each in (own.line, *LINES) if each not in {one.line for one in chosen.values()}]
        if methods == "zero-shot":  # which dashes say
            dashes = [own.line]
        chosen[label] = replace(own, marker=(markers or MARKERS)[0], line=(dashes or [own.line])[0])
    return chosen


def _level(axes: Any, label: str, m: Measured, i: int, own: Style) -> None:
    axes.axhline(m.means[i], color=own.colour, linestyle=own.line, label=label)
    if not np.isnan(m.stds[i]):
        axes.axhspan(m.means[i] - m.stds[i], m.means[i] + m.stds[i], color=own.colour, alpha=0.15, linewidth=0)


def _word(m: Measured, name: str) -> str:
    short = short_names(dict.fromkeys(m.axis.varied))[name]
    return WORDS.get(short, short)


def _measured(m: Measured) -> str:
    return f"{m.axis.metric} on {'unseen' if m.axis.measure == 'test' else 'held-out'} classes, %"
