"""The figures of the study ``tokens``."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lookalike.report.seeds import deviation
from lookalike.report.theme import INK, PAPER, figure, style, theme
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike_studies.framework.hulls import class_hulls, overlap
from lookalike_studies.tokens.race import Run, Samples, Trained, pool

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOM = 0.05  # below 0, that a circle there is whole
TOGETHER = 0.06  # tokens nearer than this share of half the plane have one number, as two could not be read
ANY_CLASS = "#dddddd"
NAMES = {"average": "average pooling", "gsp": "generalized sum pooling"}


def draw_planes(shown: Mapping[str, tuple[Run, Trained]], samples: Samples, tokens: int) -> "Figure":
    """Above before training, below after it: tokens, background, samples and the hulls of the samples by class.

    ``tokens``: how many each class has.
    """
    with theme():
        drawn, panels = figure(11.5, 11.5, 2, len(shown))
        for column, (name, (run, trained)) in enumerate(shown.items()):
            states = (
                ("before training", trained.first_tokens, trained.first_prototypes),
                ("after training", trained.tokens, trained.prototypes),
            )
            for row, (when, points, prototypes) in enumerate(states):
                panel = panels[row * len(shown) + column]
                vectors, _ = pool(run, points, prototypes, samples)
                _plane(panel, vectors, samples.labels, points, prototypes, tokens)
                figures = retrieval_metrics(vectors, samples.labels, distance="l2")
                common = overlap(class_hulls(vectors, samples.labels)).share
                panel.set_title(
                    f"{NAMES[name]}, margin {run.margin:g}, {when}\n"
                    f"MAP@R {100 * figures['MAP@R']:.1f}, mean overlap of two hulls {100 * common:.1f} %"
                )
        handles, labels = panels[-1].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return drawn


def _plane(panel: Any, vectors: Tensor, labels: Tensor, points: Any, prototypes: Any, tokens: int) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Polygon
    from matplotlib.patheffects import withStroke

    halo: Any = {"path_effects": [withStroke(linewidth=1.3, foreground=PAPER)], "ha": "center"}
    reach = 1.1 * float(np.abs(np.concatenate([points, prototypes])).max())
    classes = int(labels.max()) + 1
    colours = [colormaps["hsv"](i / classes) for i in range(classes)]
    for label, hull in enumerate(class_hulls(vectors, labels)):
        corners = hull.numpy()
        panel.add_patch(Polygon(corners, closed=True, fc=(*colours[label][:3], 0.35), ec=INK, lw=0.9, zorder=2))
        own = points[label * tokens : (label + 1) * tokens]
        panel.scatter(*own.T, s=14, color=colours[label], ec=INK, lw=0.4, zorder=8)
        panel.annotate(str(label), corners.mean(0), va="center", fontsize=9, weight="bold", zorder=7, **halo)
    for place, text in numbered(points[: classes * tokens], tokens, TOGETHER * reach):
        panel.annotate(text, place, xytext=(0, 3.5), textcoords="offset points", fontsize=6.5, zorder=6, **halo)
    panel.scatter([], [], s=14, fc=ANY_CLASS, ec=INK, lw=0.4, label="tokens of a class, with its number")
    panel.scatter(
        *points[classes * tokens :].T,
        s=110,
        marker="X",
        color="white",
        ec=INK,
        lw=1.4,
        zorder=5,
        label="background tokens",
    )
    if len(prototypes):
        panel.scatter(*prototypes.T, s=30, marker="D", fc="none", ec=INK, lw=0.7, zorder=4, label="prototypes")
    panel.scatter(
        [], [], s=90, marker="o", fc=ANY_CLASS, ec=INK, label="hull of the samples of a class, with its number"
    )
    panel.set(
        xlim=(-reach, reach),
        ylim=(-reach, reach),
        aspect="equal",
        xlabel="first coordinate",
        ylabel="second coordinate",
    )
    panel.grid(visible=False)


def numbered(points: NDArray[np.float32], tokens: int, near: float) -> list[tuple[tuple[float, float], str]]:
    """Tokens (classes * tokens, 2) -> above which places to write which classes, so that no colour is needed.

    >>> numbered(np.float32([[0, 0], [9, 9], [0, 0.5], [5, 5]]), 2, 1.0)
    [((9.0, 9.0), '0'), ((5.0, 5.0), '1'), ((0.0, 0.5), '0, 1')]
    """
    groups: list[list[int]] = []
    for i in np.argsort(-points[:, 1], kind="stable").tolist():  # from the top, where the number stands
        of = next((group for group in groups if np.linalg.norm(points[group[0]] - points[i]) < near), None)
        if of is None:
            groups.append([i])
        else:
            of.append(i)
    places = [(float(points[group, 0].mean()), float(points[group, 1].max())) for group in groups]
    texts = [", ".join(map(str, sorted({i // tokens for i in group}))) for group in groups]
    return list(zip(places, texts, strict=True))


class Measured(Protocol):
    best: Mapping[str, float]  # by pooling, the margin that validation chose

    def figures(self, name: str, margin: float, key: str) -> Sequence[float]: ...


def draw_margins(margins: Sequence[float], results: Measured, published: float) -> "Figure":
    """MAP@R and overlap of hulls over the margin."""
    with theme():
        drawn, panels = figure(11, 4.4, 1, 2)
        for panel, key, label in zip(
            panels,
            ("MAP@R", "overlap"),
            ("MAP@R of fresh samples, %", "mean overlap of two class hulls,\n% of the smaller"),
            strict=True,
        ):
            for name in NAMES:
                own = style(name)
                values = [[100 * each for each in results.figures(name, margin, key)] for margin in margins]
                means, spreads = [np.mean(v) for v in values], [deviation(v) or 0.0 for v in values]
                looks: Any = {"color": own.colour, "marker": own.marker, "ls": own.line, "capsize": 3}
                panel.errorbar(margins, means, spreads, label=NAMES[name], **looks)
                best, ring = results.best[name], {"ms": 15, "mfc": "none", "mec": own.colour, "mew": 1.6}
                panel.plot(best, means[margins.index(best)], "o", **ring)
            panel.axvline(published, color=INK, lw=0.9, ls=(0, (1, 3)))
            panel.set(
                xscale="log",
                xticks=list(margins),
                xticklabels=[f"{m:g}" for m in margins],
                ylabel=label,
            )
            panel.set_xlabel(
                "margin of the loss, in the units of the plane\n(circled: chosen by validation; dotted: published)"
            )
            panel.minorticks_off()
        for panel, top in zip(panels, (102, panels[1].get_ylim()[1]), strict=True):
            panel.set_ylim(-ROOM * top, top)
        panels[0].legend(loc="best")
    return drawn


def draw_curves(
    curves: Mapping[str, Mapping[float, Sequence[Sequence[float]]]],
    steps: int,
    best: Mapping[str, float],
    published: float,
) -> "Figure":
    """MAP@R over training: at the margin chosen for each, and at the published one. ``steps``: of an epoch."""
    with theme():
        drawn, panels = figure(11, 4.4, 1, 2)
        titles = ("margin chosen for each by validation", f"published margin, {published:g}")
        for panel, title, margins in zip(panels, titles, (best, dict.fromkeys(NAMES, published)), strict=True):
            for name in NAMES:
                own = style(name)
                for number, curve in enumerate(curves[name][margins[name]]):
                    label = None if number else f"{NAMES[name]}, margin {margins[name]:g}"
                    percent = 100 * np.array(curve)
                    panel.plot(steps * np.arange(len(curve)), percent, c=own.colour, ls=own.line, lw=1.6, label=label)
                    panel.plot(
                        steps * percent.argmax(), percent.max(), own.marker, c=own.colour, ms=6, mec=INK, mew=0.6
                    )
            panel.set(xlabel="training steps", ylabel="MAP@R of validation samples, %", ylim=(0, 102), title=title)
            panel.legend(loc="lower right")
    return drawn
