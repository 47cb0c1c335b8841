"""Figures of the study of chance-constrained programming: the disc, the problems, the gap, and unseen classes."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lookalike.report.theme import FAINT, INK, PAPER, Style, figure, styles, theme
from lookalike_studies.ccp_geometry.claims import Courses, Gaps, Measured
from lookalike_studies.ccp_geometry.measures import Labels, radii
from lookalike_studies.ccp_geometry.race import ALTERNATING, ONE, SAMPLES, Course, Snapshot
from lookalike_studies.framework.plots import hide_ticks, legend_below, plain_log_ticks

MOST_DISCS = 5  # of alternating problems: the first ones and the last
MOST_CLASSES = 12  # unseen ones, in the plane
LEAST = 1e-5  # gap or radius; smaller ones are drawn here
STYLES = {  # the colours of the study of effects
    ONE: Style("#F0E442", "o", line=":"),
    ALTERNATING: Style("#009E73", "s", line="-"),
    SAMPLES: Style("#CC79A7", "^", line="--"),
}
LINE_COLOURS = {ONE: "#8a6d00"}  # a yellow line is invisible on white
ANCHOR_MARKERS = {"k-centre": "s", "random": "^", "proxies": "o"}
GAP_TITLES = {
    "printed": "all anchors count alike, as printed",
    "weighted": "each counts for the pictures nearest to it",
}


def draw_plane(courses: Courses, labels: Labels, names: list[str]) -> Figure:
    """Draw the disc of the first seed: a single problem, then alternating ones."""
    problems = courses[ALTERNATING][0].snapshots
    if len(problems) > MOST_DISCS:
        problems = [*problems[: MOST_DISCS - 1], problems[-1]]
    discs = [("a single problem", courses[ONE][0].snapshots[-1])]
    for snapshot in problems:
        discs.append((f"problem {snapshot.number}", snapshot))
    columns = min(3, len(discs))
    rows = -(-len(discs) // columns)
    marks = names
    caption = ["the unit disc. Dots: held-out pictures; squares: proxies; rings: the proxies of the next problem"]
    if max(map(len, names)) > 2:  # too long for the disc: numbers there, names below
        marks = [str(number) for number in range(len(names))]
        listed = ", ".join(f"{number} {name}" for number, name in enumerate(names))
        caption += wrap(listed, 50 * columns)
    with theme():
        drawn, axes = figure(4.4 * columns, 4.75 * rows, rows, columns)
        for panel in axes:
            panel.set_axis_off()
        for panel, (title, snapshot) in zip(axes, discs, strict=False):
            _draw_disc(panel, snapshot, labels, marks)
            radius = radii(snapshot.plane, labels, snapshot.converged).mean()
            measured = f"MAP@R {100 * snapshot.figure:.1f}, covering radius {radius:.3f}"
            panel.set_title(f"{title}, until step {snapshot.step}\n{measured}", fontsize=10)
        drawn.supxlabel("\n".join(caption), fontsize=9)
    return drawn


def _draw_disc(panel: Any, snapshot: Snapshot, labels: Labels, marks: list[str]) -> None:
    from matplotlib import colormaps

    colours = colormaps["tab10"]
    if len(marks) > 10:
        colours = colormaps["tab20"]
    edge: Any = {"edgecolors": INK, "linewidths": 0.9, "zorder": 3}
    turn = np.linspace(0, 2 * np.pi, 200)
    panel.plot(np.cos(turn), np.sin(turn), color=FAINT, linewidth=1)
    for label, mark in enumerate(marks):
        colour = colours(label % colours.N)
        points = snapshot.plane[labels == label]
        panel.scatter(*points.T, s=7, color=colour, alpha=0.55, linewidths=0)
        panel.scatter(*snapshot.converged[label].T, s=34, marker="s", color=colour, **edge)
        if snapshot.following is not None:
            panel.scatter(*snapshot.following[label].T, s=42, marker="o", facecolors="none", **edge)
        centre = np.median(points, axis=0)
        outwards = centre / max(float(np.linalg.norm(centre)), 1e-6)
        x, y = centre + 0.13 * outwards
        panel.text(x, y, mark, fontsize=11, weight="bold", ha="center", va="center", zorder=4)
    panel.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")


def draw_problems(courses: Courses, labels: Labels) -> Figure:
    """Draw MAP@R by step, the covering radius at the best of every problem, and what the next proxies add."""
    with theme():
        drawn, (curve, cover, pool) = figure(13, 4.4, 1, 3)
        for kind, runs in courses.items():
            _draw_curve(curve, kind, runs)
            snapshots = runs[0].snapshots
            covered = [radii(snapshot.plane, labels, snapshot.converged).mean() for snapshot in snapshots]
            cover.plot([snapshot.number for snapshot in snapshots], covered, label=kind, **_line(kind))
        for kind in (ALTERNATING, SAMPLES):
            _draw_pool(pool, kind, courses[kind][0])
        curve.set(xlabel="steps", ylabel="MAP@R on held-out pictures, %", title="marks: where a problem ended")
        cover.set(xlabel="problem", ylabel="covering radius, held-out pictures", title="by the problem's own proxies")
        pool.set(xlabel="problem", ylabel="covering radius, next pool", title="what the next proxies add")
        legend_below(drawn, cover, 3)
        last = max(runs[0].snapshots[-1].number for runs in courses.values())
        for panel in (cover, pool):
            panel.set(xlim=(0.5, last + 0.5), ylim=(0, 1.08 * panel.get_ylim()[1]))
            panel.set_xticks(range(1, last + 1, -(-last // 8)))
        pool.set_ylim(0, 1.4 * pool.get_ylim()[1])  # room for the legend
        pool.legend(loc="upper left", fontsize=8)
        if not any(len(line.get_xdata()) for line in pool.get_lines()):
            pool.text(0.5, 0.5, "no problem ended", transform=pool.transAxes, ha="center")
    return drawn


def draw_constraint(courses: Courses) -> Figure:
    """Draw the chance constraint at the solution of every problem, with its bounds, for the first seed."""
    kinds = (ALTERNATING, SAMPLES)
    with theme():
        drawn, axes = figure(11, 4.6, 1, 2)
        for panel, (share, bound), title in zip(
            axes, ((0, 1), (2, 3)), ("all pairs", "the worst proxy: epsilon"), strict=True
        ):
            for kind in (*kinds, ONE):
                snapshots = courses[kind][0].snapshots
                numbers = [snapshot.number for snapshot in snapshots]
                values = 100 * np.array([snapshot.constraint for snapshot in snapshots])
                panel.plot(numbers, values[:, share], label=f"{kind}, violated pairs", **_line(kind))
                dotted = {**_line(kind), "linestyle": ":", "markerfacecolor": PAPER}
                panel.plot(numbers, values[:, bound], label=f"{kind}, Markov bound", **dotted)
            panel.set(xlabel="problem", ylabel="% of the pairs", title=title)
            panel.set_ylim(bottom=0)
            panel.xaxis.get_major_locator().set_params(integer=True)
        legend_below(drawn, axes[0], 3)
    return drawn


def _draw_curve(panel: Any, kind: str, runs: list[Course]) -> None:
    """Draw MAP@R by step, the mean over seeds; markers where problems of the first seed ended."""
    curves = np.array([run.curve for run in runs])  # (seeds, evaluations, step and MAP@R)
    steps, percent = curves[0, :, 0], 100 * curves[:, :, 1].mean(0)
    panel.plot(steps, percent, **{**_line(kind), "marker": ""})
    ends = [snapshot.step for snapshot in runs[0].snapshots if snapshot.following is not None]
    panel.plot(ends, np.interp(ends, steps, percent), **{**_line(kind), "linestyle": ""})


def _draw_pool(panel: Any, kind: str, course: Course) -> None:
    """Draw how well the next pool is covered before and with the next proxies."""
    ended = [snapshot for snapshot in course.snapshots if snapshot.radius_before is not None]
    numbers = [snapshot.number for snapshot in ended]
    before = {**_line(kind), "linestyle": ":", "markerfacecolor": PAPER}
    after = {**_line(kind), "linestyle": "-"}
    panel.plot(numbers, [snapshot.radius_before for snapshot in ended], label=f"{kind}, before", **before)
    panel.plot(numbers, [snapshot.radius_after for snapshot in ended], label=f"{kind}, with the next proxies", **after)


def _line(kind: str) -> dict[str, Any]:
    """Arguments of ``plot``. The single problem is small and above the others, which share its first problem."""
    style = STYLES[kind]
    line: dict[str, Any] = {"color": LINE_COLOURS.get(kind, style.colour), "linestyle": style.line}
    marker = {"marker": style.marker, "markerfacecolor": style.colour, "markeredgecolor": INK, "markeredgewidth": 0.8}
    size = {"markersize": 7, "zorder": 2}
    if kind == ONE:
        size = {"markersize": 4, "zorder": 3}
    return {**line, **marker, **size}


def draw_gap(gaps: Gaps) -> Figure:
    """Draw gap against radius for all seeds, both in logarithms."""
    by_way = {}
    for key, runs in gaps.items():
        of_runs = [np.array(sets).reshape(-1, 3) for sets in runs]  # radius, printed and weighted gap of every set
        by_way[key] = np.concatenate(of_runs).clip(min=LEAST)
    values = np.concatenate(list(by_way.values()))
    if not len(values):
        values = np.array([[LEAST, LEAST, LEAST], [1.0, 1.0, 1.0]])
    bottom, top = values.min() / 2, 2 * values[:, 0].max()
    with theme():
        drawn, axes = figure(11, 5, 1, 2)
        for column, (panel, title) in enumerate(zip(axes, GAP_TITLES.values(), strict=True), 1):
            panel.plot([bottom, top], [bottom, top], color=INK, linewidth=0.8, label="gap = radius")
            for (way, kind), table in by_way.items():
                shape: Any = {"s": 40, "zorder": 2}
                if kind == ONE:
                    shape = {"s": 14, "zorder": 3}
                shape |= {"facecolors": STYLES[kind].colour, "edgecolors": INK, "linewidths": 0.7}
                label = f"anchors: {way}, {kind}"
                panel.scatter(table[:, 0], table[:, column], marker=ANCHOR_MARKERS[way], label=label, **shape)
            panel.set(xscale="log", yscale="log", ylim=(bottom, top), title=title)
            panel.set(xlabel="covering radius of the anchors (largest of the classes)", ylabel="loss gap")
            panel.set_xlim(values[:, 0].min() / 1.5, top)
            plain_log_ticks(panel.xaxis)
            plain_log_ticks(panel.yaxis)
        legend_below(drawn, axes[0], 4)
    return drawn


def draw_unseen(courses: Courses, labels: Labels, measured: dict[str, list[Measured]]) -> Figure:
    """Draw some of the held-out classes by t-SNE, under one problem and after alternating ones."""
    from sklearn.manifold import TSNE

    classes = np.unique(labels)
    drawn_classes = classes[:MOST_CLASSES]
    positions = np.flatnonzero(np.isin(labels, drawn_classes))
    perplexity = max(1, min(30, (len(positions) - 1) // 3))
    class_styles = styles([f"class {label}" for label in drawn_classes])
    with theme():
        drawn, axes = figure(11, 5.6, 1, 2)
        for panel, (kind, runs) in zip(axes, courses.items(), strict=True):
            tsne = TSNE(perplexity=perplexity, init="pca", random_state=0)
            points = tsne.fit_transform(runs[0].validation[positions])
            for label, style in zip(drawn_classes, class_styles.values(), strict=True):
                of_class = points[labels[positions] == label]
                edge: Any = {"edgecolors": INK, "linewidths": 0.3}
                panel.scatter(*of_class.T, s=20, c=style.colour, marker=style.marker, **edge)
            values = measured[kind][0]
            text = f"MAP@R {100 * values.figure:.1f}, covering radius {values.own_radius:.3f}, "
            panel.set_title(f"{kind}\n{text}between classes {values.distance:.3f}", fontsize=10)
            panel.set(xlabel="t-SNE, first axis", ylabel="t-SNE, second axis")
            hide_ticks(panel)
        count = f"{len(drawn_classes)} of {len(classes)} held-out classes"
        drawn.supxlabel(f"{count}; figures are of all", fontsize=10)
    return drawn
