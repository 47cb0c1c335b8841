"""Figures of the study of chance-constrained programming: the disc, the problems, the gap, and unseen classes."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.report.theme import FAINT, INK, PAPER, Style, figure, styles, theme
from lookalike_studies.ccp_geometry.measures import radii
from lookalike_studies.ccp_geometry.race import ALTERNATING, ONE, SAMPLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lookalike_studies.ccp_geometry.claims import Gaps, Measured
    from lookalike_studies.ccp_geometry.measures import Labels
    from lookalike_studies.ccp_geometry.race import Course, Snapshot

Courses = dict[str, list["Course"]]
SHOWN = 5  # discs of alternating problems: the first ones and the last
CLASSES_SHOWN = 12  # unseen ones, in the plane
LEAST = 1e-5  # gap or radius, in logarithms
FEW_DECADES = 100  # from an axis's low end to its high one
STYLES = {  # the colours of the study of effects
    ONE: Style("#F0E442", "o", line=":"),
    ALTERNATING: Style("#009E73", "s", line="-"),
    SAMPLES: Style("#CC79A7", "^", line="--"),
}
ON_WHITE = {"#F0E442": "#8a6d00"}  # yellow lines cannot be seen, a darker one can
ANCHORS = {"k-centre": "s", "random": "^", "proxies": "o"}  # markers; the colour is that of the run's kind


def draw_plane(courses: Courses, labels: Labels, names: list[str], count: int) -> Figure:
    """The disc of the first seed: one problem for ever, then alternating ones."""
    problems = courses[ALTERNATING][0].snapshots
    chosen = [*problems[: SHOWN - 1], problems[-1]] if len(problems) > SHOWN else problems
    discs = [("one problem for ever", courses[ONE][0].snapshots[-1]), *((f"problem {s.number}", s) for s in chosen)]
    columns = min(3, len(discs))
    rows = -(-len(discs) // columns)
    long = any(len(name) > 2 for name in names)
    marks = [str(number) for number in range(len(names))] if long else names
    with theme():
        drawn, axes = figure(4.4 * columns, 4.75 * rows, rows, columns)
        for panel in axes:
            panel.set_axis_off()
        for panel, (title, snapshot) in zip(axes, discs, strict=False):
            _disc(panel, snapshot, labels, marks, count)
            radius = radii(snapshot.plane, labels, _shaped(snapshot.converged, count)).mean()
            panel.set_title(
                f"{title}, until step {snapshot.step}\nMAP@R {100 * snapshot.figure:.1f}, covering radius {radius:.3f}",
                fontsize=10,
            )
        told = "the unit disc. Dots: held-out pictures; squares: proxies; rings: the proxies of the next problem"
        listed = ", ".join(f"{mark} {name}" for mark, name in zip(marks, names, strict=True))
        width = int(50 * columns)  # letters of this size
        drawn.supxlabel("\n".join([told, *(wrap(listed, width) if long else [])]), fontsize=9)
    return drawn


def _disc(panel: Any, snapshot: Snapshot, labels: Labels, names: list[str], count: int) -> None:
    from matplotlib import colormaps

    colours = colormaps["tab20" if len(names) > 10 else "tab10"]
    turn = np.linspace(0, 2 * np.pi, 200)
    panel.plot(np.cos(turn), np.sin(turn), color=FAINT, linewidth=1)
    of_class = zip(range(len(names)), _shaped(snapshot.converged, count), strict=True)
    for label, proxies in of_class:
        colour = colours(label % colours.N)
        own = snapshot.plane[labels == label]
        panel.scatter(own[:, 0], own[:, 1], s=7, color=colour, alpha=0.55, linewidths=0)
        panel.scatter(
            proxies[:, 0], proxies[:, 1], s=34, marker="s", color=colour, edgecolors=INK, linewidths=0.9, zorder=3
        )
        if snapshot.following is not None:
            following = _shaped(snapshot.following, count)[label]
            panel.scatter(
                following[:, 0],
                following[:, 1],
                s=42,
                marker="o",
                facecolors="none",
                edgecolors=INK,
                linewidths=0.9,
                zorder=3,
            )
        centre = np.median(own, axis=0)
        outwards = centre / max(float(np.linalg.norm(centre)), 1e-6)
        x, y = centre + 0.13 * outwards
        panel.text(x, y, names[label], fontsize=11, weight="bold", ha="center", va="center", zorder=4)
    panel.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")


def draw_problems(courses: Courses, labels: Labels, count: int) -> Figure:
    """MAP@R by step with the ends of problems, the covering radius at every problem's best, and what the next add."""
    with theme():
        drawn, (curve, cover, pool) = figure(13, 4.4, 1, 3)
        for kind, runs in courses.items():
            steps = [step for step, _ in runs[0].curve]
            figures = 100 * np.mean([[figure for _, figure in run.curve] for run in runs], axis=0)
            curve.plot(steps, figures, **{**_line(kind), "marker": ""})
            ends = [each.step for each in runs[0].snapshots if each.following is not None]
            heights = np.interp(ends, steps, figures)
            curve.plot(ends, heights, **{**_line(kind), "linestyle": ""})
            numbers = [each.number for each in runs[0].snapshots]
            reached = [radii(each.plane, labels, _shaped(each.converged, count)).mean() for each in runs[0].snapshots]
            cover.plot(numbers, reached, label=kind, **_line(kind))
        for kind in (ALTERNATING, SAMPLES):
            ended = [each for each in courses[kind][0].snapshots if each.radius_before is not None]
            for name, line, fill in (("radius_before", ":", PAPER), ("radius_after", "-", STYLES[kind].colour)):
                pool.plot(
                    [each.number for each in ended],
                    [getattr(each, name) for each in ended],
                    **{**_line(kind), "linestyle": line, "markerfacecolor": fill},
                    label=f"{kind}, {'before' if name == 'radius_before' else 'with the next proxies'}",
                )
        curve.set(xlabel="steps", ylabel="MAP@R on held-out pictures, %", title="marks: where a problem ended")
        cover.set(xlabel="problem", ylabel="covering radius, held-out pictures", title="by the problem's own proxies")
        pool.set(xlabel="problem", ylabel="covering radius, next pool", title="what the next proxies add")
        drawn.legend(*cover.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        last = max(run.snapshots[-1].number for runs in courses.values() for run in runs[:1])
        for panel in (cover, pool):
            panel.set(xlim=(0.5, last + 0.5), ylim=(0, 1.08 * panel.get_ylim()[1]))
            panel.set_xticks(range(1, last + 1, -(-last // 8)))
        pool.set_ylim(0, 1.4 * pool.get_ylim()[1])  # room for the legend
        pool.legend(loc="upper left", fontsize=8)
        if not any(len(line.get_xdata()) for line in pool.get_lines()):
            pool.text(0.5, 0.5, "no problem ended", transform=pool.transAxes, ha="center")
    return drawn


def _line(kind: str) -> dict[str, Any]:
    """For ``plot``: the marker has the colour of the kind and a dark edge. One problem is small and lies above the
    others, which are the same in their first problem."""
    style = STYLES[kind]
    looks: dict[str, Any] = {"color": ON_WHITE.get(style.colour, style.colour), "linestyle": style.line}
    looks |= {"marker": style.marker, "markerfacecolor": style.colour, "markeredgecolor": INK, "markeredgewidth": 0.8}
    return {**looks, "markersize": 4 if kind == ONE else 7, "zorder": 3 if kind == ONE else 2}


def draw_gap(gaps: Gaps) -> Figure:
    """Of all seeds, both in logarithms; what is smaller than LEAST is drawn there."""
    titles = {
        "printed": "all anchors count alike, as printed",
        "weighted": "each counts for the pictures nearest to it",
    }
    flat = {key: [each for sets in runs for each in sets] for key, runs in gaps.items()}
    everything = [each for sets in flat.values() for each in sets]
    smallest = min((value for each in everything for value in each), default=LEAST)
    bottom, top = max(LEAST, smallest) / 2, 2 * max((each.radius for each in everything), default=1.0)
    with theme():
        drawn, axes = figure(11, 5, 1, 2)
        for panel, (field, title) in zip(axes, titles.items(), strict=True):
            panel.plot([bottom, top], [bottom, top], color=INK, linewidth=0.8, label="gap = radius")
            for (way, kind), sets in flat.items():
                panel.scatter(
                    [max(LEAST, each.radius) for each in sets],
                    [max(LEAST, getattr(each, field)) for each in sets],
                    s=14 if kind == ONE else 40,
                    zorder=3 if kind == ONE else 2,
                    marker=ANCHORS[way],
                    facecolors=STYLES[kind].colour,
                    edgecolors=INK,
                    linewidths=0.7,
                    label=f"anchors: {way}, {kind}",
                )
            panel.set(xscale="log", yscale="log", ylim=(bottom, top), title=title)
            panel.set(xlabel="covering radius of the anchors (largest of the classes)", ylabel="loss gap")
            nearest = min((max(LEAST, each.radius) for each in everything), default=LEAST)
            panel.set_xlim(nearest / 1.5, top)
            for axis in (panel.xaxis, panel.yaxis):
                _plain_ticks(axis)
        drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return drawn


def _plain_ticks(axis: Any) -> None:
    """Of an axis in logarithms: 0.1, 0.2, 0.5 and 1, or powers of ten alone where it spans several."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < FEW_DECADES * low else (1,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def draw_unseen(courses: Courses, labels: Labels, measured: dict[str, list[Measured]]) -> Figure:
    """Some of the held-out classes by t-SNE, under one problem and after alternating ones."""
    from sklearn.manifold import TSNE

    shown = np.unique(labels)[:CLASSES_SHOWN]
    chosen = np.flatnonzero(np.isin(labels, shown))
    with theme():
        drawn, axes = figure(11, 5.6, 1, 2)
        looks = styles([f"class {label}" for label in shown])
        for panel, (kind, runs) in zip(axes, courses.items(), strict=True):
            perplexity = max(1, min(30, (len(chosen) - 1) // 3))
            reduce = TSNE(perplexity=perplexity, init="pca", random_state=0)
            points = reduce.fit_transform(runs[0].validation[chosen])
            for label, style in zip(shown, looks.values(), strict=True):
                own = points[labels[chosen] == label]
                panel.scatter(
                    own[:, 0], own[:, 1], s=20, c=style.colour, marker=style.marker, edgecolors=INK, linewidths=0.3
                )
            found = measured[kind][0]
            panel.set_title(
                f"{kind}\nMAP@R {100 * found.figure:.1f}, covering radius {found.own_radius:.3f}, "
                f"between classes {found.distance:.3f}",
                fontsize=10,
            )
            panel.set(xticks=[], yticks=[], xlabel="t-SNE, first axis", ylabel="t-SNE, second axis")
            panel.grid(visible=False)
        drawn.supxlabel(f"{len(shown)} of {len(np.unique(labels))} held-out classes; figures are of all", fontsize=10)
    return drawn


def _shaped(proxies: Any, count: int) -> Any:
    """(classes * k, D) -> (classes, k, D)"""
    return proxies.reshape(-1, count, proxies.shape[-1])
