"""Figures of the study of localisation: bars with chance marked, and heat maps side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.demo.page import outline_cell
from lookalike.demo.race import Contestant, Shots
from lookalike.report.seeds import deviation
from lookalike.report.theme import INK, figure, style, theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = "Greys"
TITLES = {"share": "share of the weight inside, %", "pointing": "largest weight inside, % of pictures"}


class Heat(NamedTuple):
    contestant: Contestant
    weights: NDArray[np.float32]  # (n, places)


def bars(
    places: Mapping[str, Sequence[dict[str, dict[str, float]]]],
    chance: Mapping[str, float],
    contestants: Mapping[str, Contestant],
) -> Figure:
    """A row of panels for the share, a row for pointing; a column for each mask."""
    with theme():
        drawn, panels = figure(1.5 + 3.6 * len(chance), 1.2 + 0.9 * len(places), 2, len(chance))
        for panel, (what, mask) in zip(panels, [(w, m) for w in TITLES for m in chance], strict=True):
            for place, (name, own) in enumerate(reversed(list(places.items()))):
                values = [100 * each[what][mask] for each in own]
                error = deviation(values)
                look_of = _style(contestants[name])
                mean = float(np.mean(values))
                panel.barh(place, mean, xerr=error, color=look_of.colour, hatch=look_of.hatch, edgecolor=INK, capsize=3)
                above = (mean + (error or 0), place)
                panel.annotate(f"{mean:.0f}", above, xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
            panel.axvline(100 * chance[mask], color=INK, linestyle="--", linewidth=1)
            panel.set_yticks(range(len(places)), list(places)[::-1] if mask == next(iter(chance)) else [])
            panel.grid(visible=False, axis="y")
            panel.grid(axis="x")
            panel.margins(x=0.15)
            panel.set(
                xlabel=TITLES[what],
                title=f"{mask}, {100 * chance[mask]:.0f} % of the picture" if what == "share" else "",
            )
    return drawn


def heat_maps(
    shots: Shots,
    heats: Sequence[Heat],
    spread: Callable[[NDArray[np.float32], int], NDArray[np.float32]],
    chosen: NDArray[np.int64],
) -> Figure:
    """A row for each picture: the picture, then the weights of each pooling over it."""
    side = shots.pixels.shape[1]
    with theme():
        columns = 1 + len(heats)
        drawn, panels = figure(1.55 * columns, 0.4 + 1.55 * len(chosen), len(chosen), columns)
        maps = [spread(heat.weights[chosen], side) for heat in heats]
        for row, index in enumerate(chosen.tolist()):
            own = panels[row * columns : (row + 1) * columns]
            own[0].imshow(shots.pixels[index])
            flat = 1 / side**2
            for panel, of in zip(own[1:], maps, strict=True):
                panel.imshow(of[row], cmap=COLOURS, vmin=0, vmax=max(2 * flat, of[row].max()))
            for panel in own:
                outline_cell(panel, shots.cells[index], side)
                panel.set(xticks=[], yticks=[])
                panel.grid(visible=False)
        for panel, title in zip(panels, ["picture", *(_short(heat.contestant.name) for heat in heats)], strict=False):
            panel.set_title(title, fontsize=10)
    return drawn


def _style(contestant: Contestant) -> Any:
    methods = [contestant.settings.get("learn_keep") and "learnt", contestant.zero_shot and "zero-shot"]
    return style(" + ".join([contestant.pooling, *filter(None, methods)]))


def _short(name: str) -> str:
    return name.replace(" pooling", "").replace(" loss", "").replace(" + ", "\n+ ").replace(", ", ",\n")
