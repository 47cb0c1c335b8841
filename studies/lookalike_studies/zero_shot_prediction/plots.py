"""The figures of the study ``zero-shot-prediction``: histograms, accuracies, and prototypes coloured on pictures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lookalike.report.theme import INK, PAPER, figure, style, theme
from lookalike_studies.framework.plots import hide_ticks, write_cells
from lookalike_studies.framework.tables import sample_std
from lookalike_studies.zero_shot_prediction.claims import BEFORE, PERMUTED, PLAIN, ZERO_SHOT, Scores
from lookalike_studies.zero_shot_prediction.prediction import DISTANCES, Run

# Okabe and Ito's eight, grey and two more; positions carry numbers as well.
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999", "#8C6BB1", "#A6761D")
FAINTEST = 0.12
CHANCE = "by chance"


def draw_histograms(runs: Mapping[str, Run], classes: Sequence[str]) -> Figure:
    """Draw the mean histogram of every class, a panel for each network."""
    percent = 100 * np.stack([run.histograms for run in runs.values()])  # (networks, classes, m)
    lowest, highest = percent.min(), percent.max()
    count = percent.shape[2]
    with theme():
        drawn, panels = figure(2.8 + 0.6 * count * len(runs), 1.3 + 0.36 * len(classes), 1, len(runs))
        for panel, name, histograms in zip(panels, runs, percent, strict=True):
            image = panel.imshow(histograms, cmap="Greys", vmin=lowest, vmax=highest, aspect="auto")
            texts = np.vectorize("{:.1f}".format)(histograms)
            write_cells(panel, texts, histograms > (lowest + highest) / 2, fontsize=9)
            panel.set(xticks=range(count), xticklabels=range(1, count + 1), xlabel="prototype", title=name, yticks=[])
            panel.grid(visible=False)
        panels[0].set_yticks(range(len(classes)), classes)
        drawn.colorbar(image, ax=panels, label="share of a class's weight, %")
    return drawn


def draw_accuracies(scores: Scores, chance: float) -> Figure:
    """Draw bars by ridge, distance and network, with the accuracy of permuted histograms marked on each."""
    zero_shot = style("gsp + zero-shot")
    looks: dict[str, Any] = {
        BEFORE: {"color": PAPER, "hatch": "..."},
        PLAIN: {"color": style("gsp").colour, "alpha": 0.55},
        ZERO_SHOT: {"color": zero_shot.colour, "hatch": zero_shot.hatch},
    }
    width = 0.8 / len(looks)
    box = {"boxstyle": "round,pad=0.2", "fc": PAPER, "ec": "none"}
    with theme():
        drawn, panels = figure(11, 4.8, 1, len(scores))
        for panel, (ridge, by_network) in zip(panels, scores.items(), strict=True):
            for i, (name, look) in enumerate(looks.items()):
                for j, distance in enumerate(DISTANCES):
                    accuracy, x = by_network[name][distance], j + (i - (len(looks) - 1) / 2) * width
                    height, spread = float(np.mean(accuracy.right)), sample_std(accuracy.right)
                    panel.bar(x, height, 0.92 * width, yerr=spread, edgecolor=INK, capsize=4, label=name, **look)
                    marker: Any = {"color": PAPER, "markeredgecolor": INK, "zorder": 3, "label": PERMUTED}
                    panel.plot(x, np.mean(accuracy.permuted), "D", **marker)
                    panel.annotate(f"{height:.0f}", (x, 3), ha="center", bbox=box)
            panel.axhline(chance, color=INK, linestyle="--", linewidth=1, label=CHANCE)
            panel.set_xticks(range(len(DISTANCES)), [f"nearest by {distance}" for distance in DISTANCES])
            panel.set(ylim=(0, 100), yticks=range(0, 101, 20), title=f"fit with {ridge}")
        panels[0].set_ylabel("class means predicted rightly, %")
        handles, labels = panels[0].get_legend_handles_labels()
        by_label = dict(zip(labels, handles, strict=True))
        order = [*looks, PERMUTED, CHANCE]
        drawn.legend([by_label[label] for label in order], order, loc="outside lower center", ncols=len(order))
    return drawn


def draw_prototypes(pixels: NDArray[np.uint8], names: Sequence[str], runs: Mapping[str, Run]) -> Figure:
    """Draw a column for each picture: the picture, then the nearest prototypes of each network over it."""
    colours = np.array([to_rgb(colour) for colour in COLOURS])
    count = len(pixels)
    with theme():
        drawn, panels = figure(0.6 + 1.4 * count, 1.9 + 1.5 * len(runs), 1 + len(runs), count)
        for column in range(count):
            panels[column].imshow(pixels[column])
            panels[column].set_title(names[column], fontsize=9)
            for row, run in enumerate(runs.values(), 1):
                weights, nearest = run.weights[column], run.nearest[column]
                side = round(len(weights) ** 0.5)
                panel = panels[row * count + column]
                strength = np.maximum(weights / weights.max(), FAINTEST)[:, None]
                shown = strength * colours[nearest % len(colours)] + (1 - strength)
                panel.imshow(shown.reshape(side, side, 3))
                for position in np.flatnonzero(weights >= weights.mean()).tolist():
                    y, x = divmod(position, side)
                    number = panel.text(x, y, nearest[position] + 1, fontsize=5.5, ha="center", va="center")
                    number.set_in_layout(False)  # hundreds of texts inside the panel make the layout slow
        for panel in panels:
            hide_ticks(panel)
        for row, label in enumerate(["picture", *runs]):
            panels[row * count].set_ylabel(label.replace(" ", "\n", 1), fontsize=9)
    return drawn
