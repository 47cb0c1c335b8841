"""Figures of the study of zero-shot prediction: class histograms, accuracies, prototypes coloured on pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.report.theme import INK, PAPER, figure, style, theme
from lookalike_studies.zero_shot_prediction.claims import BEFORE, PERMUTED, PLAIN, ZERO_SHOT, Scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's eight; grey and two more for those who want more prototypes. Places carry numbers as well.
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999", "#8C6BB1", "#A6761D")
FAINTEST = 0.12
CHANCE = "by chance"


class Coloured(NamedTuple):
    name: str
    weights: NDArray[np.float32]  # (n, N)
    nearest: NDArray[np.int64]  # (n, N)


def draw_histograms(histograms: Mapping[str, NDArray[np.float64]], classes: Sequence[str]) -> Figure:
    """Of each network (classes, m), rows sum to 1."""
    count = next(iter(histograms.values())).shape[1]
    with theme():
        drawn, panels = figure(
            2.8 + 1.1 * count * 0.55 * len(histograms), 1.3 + 0.36 * len(classes), 1, len(histograms)
        )
        lowest, highest = (float(pick([pick(each) for each in histograms.values()])) for pick in (np.min, np.max))
        for panel, (name, own) in zip(panels, histograms.items(), strict=True):
            image = panel.imshow(100 * own, cmap="Greys", vmin=100 * lowest, vmax=100 * highest, aspect="auto")
            for (row, column), share in np.ndenumerate(own):
                colour = "white" if share > (lowest + highest) / 2 else INK
                panel.text(column, row, f"{100 * share:.1f}", ha="center", va="center", fontsize=9, color=colour)
            panel.set(xticks=range(count), xticklabels=range(1, count + 1), xlabel="prototype", title=name)
            panel.set_yticks(range(len(classes)), classes if panel is panels[0] else [])
            panel.grid(visible=False)
        drawn.colorbar(image, ax=panels, label="share of a class's weight, %")
    return drawn


def draw_accuracies(scores: Scores, chance: float) -> Figure:
    """Bars by ridge, distance and network; on each what it is with permuted histograms."""
    own = style("gsp + zero-shot")
    looks: dict[str, dict[str, Any]] = {
        BEFORE: {"color": PAPER, "hatch": "..."},
        PLAIN: {"color": style("gsp").colour, "alpha": 0.55},
        ZERO_SHOT: {"color": own.colour, "hatch": own.hatch},
    }
    width = 0.8 / len(looks)
    with theme():
        drawn, panels = figure(11, 4.8, 1, len(scores))
        for panel, (ridge, by) in zip(panels, scores.items(), strict=True):
            distances = list(by[PLAIN])
            for i, (name, bar) in enumerate(looks.items()):
                places = np.arange(len(distances)) + (i - (len(looks) - 1) / 2) * width
                right = [np.array(by[name][distance].right) for distance in distances]
                heights = [float(each.mean()) for each in right]
                spread = [each.std(ddof=1) for each in right] if len(right[0]) > 1 else None
                panel.bar(places, heights, 0.92 * width, yerr=spread, edgecolor=INK, capsize=4, label=name, **bar)
                permuted = [float(np.mean(by[name][distance].permuted)) for distance in distances]
                panel.plot(places, permuted, "D", color=PAPER, markeredgecolor=INK, zorder=3, label=PERMUTED)
                for place, height in zip(places, heights, strict=True):
                    box = {"boxstyle": "round,pad=0.2", "fc": PAPER, "ec": "none"}
                    panel.annotate(f"{height:.0f}", (place, 3), ha="center", bbox=box)
            panel.axhline(chance, color=INK, linestyle="--", linewidth=1, label=CHANCE)
            panel.set_xticks(range(len(distances)), [f"nearest by {distance}" for distance in distances])
            panel.set(ylim=(0, 100), yticks=range(0, 101, 20), title=f"fit with {ridge}")
        panels[0].set_ylabel("class means predicted rightly, %")
        handles, labels = panels[0].get_legend_handles_labels()
        of = dict(zip(labels, handles, strict=True))
        told = [*looks, PERMUTED, CHANCE]
        drawn.legend([of[name] for name in told], told, loc="outside lower center", ncols=len(told))
    return drawn


def draw_prototypes(pixels: NDArray[np.uint8], names: Sequence[str], coloured: Sequence[Coloured]) -> Figure:
    """A column for each picture: the picture, then each network's prototypes over it."""
    from matplotlib.colors import to_rgb

    colours = np.array([to_rgb(colour) for colour in COLOURS])
    rows = 1 + len(coloured)
    with theme():
        drawn, panels = figure(0.6 + 1.4 * len(pixels), 0.4 + 1.5 * rows, rows, len(pixels))
        for column, (picture, name) in enumerate(zip(pixels, names, strict=True)):
            panels[column].imshow(picture)
            panels[column].set_title(name, fontsize=9)
            for row, (_, weights, nearest) in enumerate(coloured, 1):
                side = round(weights.shape[1] ** 0.5)
                panel = panels[row * len(pixels) + column]
                strength = np.maximum(weights[column] / weights[column].max(), FAINTEST)[:, None]
                shown = strength * colours[nearest[column] % len(colours)] + (1 - strength)
                panel.imshow(shown.reshape(side, side, 3))
                for place in np.flatnonzero(weights[column] >= weights[column].mean()).tolist():
                    down, right = divmod(place, side)
                    number = panel.text(right, down, nearest[column, place] + 1, ha="center", va="center", fontsize=5.5)
                    number.set_in_layout(False)  # it lies inside, and hundreds of them take seconds to lay out
        for panel in panels:
            panel.set(xticks=[], yticks=[])
            panel.grid(visible=False)
        for row, label in enumerate(["picture", *(each.name.replace(" ", "\n", 1) for each in coloured)]):
            panels[row * len(pixels)].set_ylabel(label, fontsize=9)
    return drawn
