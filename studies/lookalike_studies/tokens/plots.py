"""The figures of the study ``tokens``."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from matplotlib.patheffects import withStroke
from torch import Tensor

from lookalike.report.theme import INK, PAPER, figure, style, theme
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike_studies.framework.hulls import class_hulls, overlap
from lookalike_studies.framework.plots import curve, legend_below, set_plane
from lookalike_studies.framework.tables import sample_std
from lookalike_studies.tokens.claims import GAP, GSP, Outcome, Results
from lookalike_studies.tokens.model import Points, Samples, pool

NAMES = {GAP: "average pooling", GSP: "generalized sum pooling"}
NEAR = 0.06  # tokens nearer than this share of half the plane get one label, as two would not be readable
GREY = "#dddddd"


def draw_planes(outcomes: Sequence[Outcome], samples: Samples, tokens: int) -> "Figure":
    """Draw tokens, prototypes and hulls of samples before training (top) and after it (bottom), a column by outcome."""
    with theme():
        drawn, panels = figure(11.5, 11.5, 2, len(outcomes))
        for column, outcome in enumerate(outcomes):
            trained = outcome.trained
            states = {
                "before training": (trained.first_tokens, trained.first_prototypes),
                "after training": (trained.tokens, trained.prototypes),
            }
            for row, (when, (points, prototypes)) in enumerate(states.items()):
                panel = panels[row * len(outcomes) + column]
                vectors, _ = pool(outcome.run, points, prototypes, samples)
                _draw_plane(panel, vectors, samples.labels, points, prototypes, tokens)
                map_at_r = retrieval_metrics(vectors, samples.labels, distance="l2")["MAP@R"]
                share = overlap(class_hulls(vectors, samples.labels)).share
                panel.set_title(
                    f"{NAMES[outcome.pooling]}, margin {outcome.run.margin:g}, {when}\n"
                    f"MAP@R {100 * map_at_r:.1f}, mean overlap of two hulls {100 * share:.1f} %"
                )
        legend_below(drawn, panels[-1], len(panels[-1].get_legend_handles_labels()[1]))
    return drawn


def _draw_plane(panel: Any, vectors: Tensor, labels: Tensor, points: Points, prototypes: Points, tokens: int) -> None:
    halo: Any = {"path_effects": [withStroke(linewidth=1.3, foreground=PAPER)], "ha": "center"}
    edge: Any = {"ec": INK, "lw": 0.4, "s": 14}
    reach = 1.1 * float(np.abs(np.concatenate([points, prototypes])).max())
    classes = int(labels.max()) + 1
    for label, hull in enumerate(class_hulls(vectors, labels)):
        corners, colour = hull.numpy(), colormaps["hsv"](label / classes)
        panel.add_patch(Polygon(corners, closed=True, fc=(*colour[:3], 0.35), ec=INK, lw=0.9, zorder=2))
        panel.scatter(*points[label * tokens : (label + 1) * tokens].T, color=colour, zorder=8, **edge)
        panel.annotate(str(label), corners.mean(0), va="center", fontsize=9, weight="bold", zorder=7, **halo)
    for position, text in label_tokens(points[: classes * tokens], tokens, NEAR * reach):
        panel.annotate(text, position, xytext=(0, 3.5), textcoords="offset points", fontsize=6.5, zorder=6, **halo)
    panel.scatter([], [], fc=GREY, label="tokens of a class, with its number", **edge)
    background: Any = {"s": 110, "marker": "X", "color": "white", "ec": INK, "lw": 1.4, "zorder": 5}
    panel.scatter(*points[classes * tokens :].T, label="background tokens", **background)
    if len(prototypes):
        panel.scatter(*prototypes.T, s=30, marker="D", fc="none", ec=INK, lw=0.7, zorder=4, label="prototypes")
    panel.scatter([], [], s=90, fc=GREY, ec=INK, label="hull of the samples of a class, with its number")
    set_plane(panel, reach)


def label_tokens(points: Points, tokens: int, near: float) -> list[tuple[tuple[float, float], str]]:
    """Group tokens (classes * tokens, 2) that lie close together: positions and texts of one label for each group.

    >>> label_tokens(np.float32([[0, 0], [9, 9], [0, 0.5], [5, 5]]), 2, 1.0)
    [((9.0, 9.0), '0'), ((5.0, 5.0), '1'), ((0.0, 0.5), '0, 1')]
    """
    remaining = np.argsort(-points[:, 1], kind="stable")  # from the top, where the label stands
    labels = []
    while len(remaining):
        is_near = np.linalg.norm(points[remaining] - points[remaining[0]], axis=1) < near
        is_near[0] = True
        group = remaining[is_near]
        position = float(points[group, 0].mean()), float(points[group, 1].max())
        labels.append((position, ", ".join(str(label) for label in np.unique(group // tokens))))
        remaining = remaining[~is_near]
    return labels


def draw_margins(results: Results, published: float) -> "Figure":
    """Draw MAP@R and overlap of hulls over the margin."""
    titles = {"MAP@R": "MAP@R of fresh samples, %", "overlap": "mean overlap of two class hulls,\n% of the smaller"}
    margins = results.margins
    with theme():
        drawn, panels = figure(11, 4.4, 1, 2)
        for panel, (metric, title) in zip(panels, titles.items(), strict=True):
            for pooling, name in NAMES.items():
                look = style(pooling)
                values = [results.percent(pooling, margin, metric) for margin in margins]
                means = [np.mean(of_seeds) for of_seeds in values]
                spreads = [sample_std(of_seeds) or 0.0 for of_seeds in values]
                panel.errorbar(margins, means, spreads, label=name, capsize=3, **curve(look))
                best = margins.index(results.best_margin[pooling])
                panel.plot(margins[best], means[best], "o", ms=15, mfc="none", mec=look.colour, mew=1.6)
            panel.axvline(published, color=INK, lw=0.9, ls=(0, (1, 3)))
            panel.set(xscale="log", xticks=margins, xticklabels=[f"{margin:g}" for margin in margins], ylabel=title)
            panel.set_xlabel("margin of the loss\n(circled: chosen by validation; dotted: published)")
            panel.minorticks_off()
        panels[0].set_ylim(top=102)
        for panel in panels:
            panel.set_ylim(bottom=-0.05 * panel.get_ylim()[1])  # circles at 0 stay complete
        panels[0].legend(loc="best")
    return drawn


def draw_curves(results: Results, steps: int, published: float) -> "Figure":
    """Draw MAP@R over training, at the chosen margins and at the published one; ``steps`` of an epoch."""
    readings: dict[str, Mapping[str, float]] = {
        "margin chosen for each by validation": results.best_margin,
        f"published margin, {published:g}": dict.fromkeys(NAMES, published),
    }
    with theme():
        drawn, panels = figure(11, 4.4, 1, 2)
        for panel, (title, margins) in zip(panels, readings.items(), strict=True):
            for pooling, name in NAMES.items():
                look = style(pooling)
                label: str | None = f"{name}, margin {margins[pooling]:g}"
                for outcome in results.at(pooling, margins[pooling]):
                    percent = 100 * np.array(outcome.trained.curve)
                    best = int(percent.argmax())
                    panel.plot(steps * np.arange(len(percent)), percent, c=look.colour, ls=look.line, label=label)
                    panel.plot(steps * best, percent[best], look.marker, c=look.colour, ms=6, mec=INK, mew=0.6)
                    label = None  # one entry in the legend
            panel.set(xlabel="training steps", ylabel="MAP@R of validation samples, %", ylim=(0, 102), title=title)
            panel.legend(loc="lower right")
    return drawn
