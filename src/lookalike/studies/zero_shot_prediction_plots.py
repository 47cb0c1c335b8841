"""Figures of the study of zero-shot prediction: class histograms, accuracies, prototypes coloured on pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.report.look import INK, figure, look, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's eight; grey and two more for those who want more prototypes. Places carry numbers as well.
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999", "#8C6BB1", "#A6761D")
FAINTEST = 0.12


class Coloured(NamedTuple):
    name: str
    weights: NDArray[np.float32]  # (n, N)
    nearest: NDArray[np.int64]  # (n, N)


def draw_histograms(histograms: Mapping[str, NDArray[np.float64]], classes: Sequence[str]) -> Figure:
    """Of each network (classes, m), rows sum to 1."""
    count = next(iter(histograms.values())).shape[1]
    with look():
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


def draw_accuracies(
    right: Mapping[float, Mapping[str, Mapping[str, Sequence[NDArray[np.float64]]]]], chance: float
) -> Figure:
    """By ridge, network and distance, for each seed the accuracies of all splits."""
    with look():
        drawn, panels = figure(10, 4.2, 1, len(right))
        for panel, (ridge, by) in zip(panels, right.items(), strict=True):
            distances = list(next(iter(by.values())))
            width = 0.8 / len(by)
            for i, (name, own) in enumerate(by.items()):
                looks = style("gsp + zero-shot" if i else "gsp")
                means = [100 * np.array([each.mean() for each in own[distance]]) for distance in distances]
                places = np.arange(len(distances)) + (i - (len(by) - 1) / 2) * width
                panel.bar(
                    places,
                    [each.mean() for each in means],
                    0.92 * width,
                    yerr=[each.std(ddof=1) for each in means] if len(means[0]) > 1 else None,
                    color=looks.colour,
                    hatch=looks.hatch,
                    alpha=1 if i else 0.55,
                    edgecolor=INK,
                    capsize=4,
                    label=name,
                )
                for place, each in zip(places, means, strict=True):
                    box = {"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none"}
                    panel.annotate(f"{each.mean():.0f}", (place, 3), ha="center", bbox=box)
            panel.axhline(chance, color=INK, linestyle="--", linewidth=1)
            panel.set_xticks(range(len(distances)), [f"nearest by {distance}" for distance in distances])
            panel.set(ylim=(0, 100), yticks=range(0, 101, 20), title=f"fit with ridge {ridge:g}")
        panels[0].set_ylabel("class means predicted rightly, %")
        panels[0].legend(loc="upper left")
    return drawn


def draw_prototypes(pixels: NDArray[np.uint8], names: Sequence[str], coloured: Sequence[Coloured]) -> Figure:
    """A column for each picture: the picture, then each network's prototypes over it."""
    from matplotlib.colors import to_rgb

    colours = np.array([to_rgb(colour) for colour in COLOURS])
    rows = 1 + len(coloured)
    with look():
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
