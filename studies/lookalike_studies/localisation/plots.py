"""Figures of the study of localisation: bars with chance marked, and heat maps side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lookalike.demo.page import outline_cell
from lookalike.demo.pictures import Shots
from lookalike.demo.training import Contestant
from lookalike.report.theme import INK, figure, style, theme
from lookalike_studies.framework.plots import hide_ticks, set_rows, write_beside
from lookalike_studies.framework.tables import sample_std
from lookalike_studies.localisation.masks import Located, spread

TITLES = {"share": "share of the weight inside, %", "pointing": "largest weight inside, % of pictures"}


class Heat(NamedTuple):
    """A pooling and its weights (n, N) on n pictures."""

    contestant: Contestant
    weights: NDArray[np.float32]


def bars(
    locations: Mapping[str, Sequence[Located]], chance: Mapping[str, float], contestants: Sequence[Contestant]
) -> Figure:
    """Draw a row of panels for the share and one for pointing, with a column for each mask."""
    with theme():
        drawn, panels = figure(1.5 + 3.6 * len(chance), 1.2 + 0.9 * len(locations), 2, len(chance))
        remaining = iter(panels)
        for measure, title in TITLES.items():
            for column, mask in enumerate(chance):
                panel = next(remaining)
                for row, contestant in enumerate(reversed(contestants)):
                    by_seed = [getattr(located, measure)[mask] for located in locations[contestant.name]]
                    _bar(panel, row, 100 * np.array(by_seed), _style(contestant))
                panel.axvline(100 * chance[mask], color=INK, linestyle="--", linewidth=1)
                names = [contestant.name for contestant in reversed(contestants)]
                if column > 0:
                    names = [""] * len(names)
                set_rows(panel, names)
                panel.margins(x=0.15)
                panel.set_xlabel(title)
                if measure == "share":
                    panel.set_title(f"{mask}, {100 * chance[mask]:.0f} % of the picture")
    return drawn


def heat_maps(shots: Shots, heats: Sequence[Heat], chosen: NDArray[np.int64]) -> Figure:
    """Draw a row for each chosen picture: the picture, then the weights of each pooling over it."""
    side = shots.pixels.shape[1]
    columns = 1 + len(heats)
    maps = [spread(heat.weights[chosen], side) for heat in heats]
    with theme():
        drawn, panels = figure(1.55 * columns, 0.4 + 1.55 * len(chosen), len(chosen), columns)
        for row, index in enumerate(chosen.tolist()):
            row_panels = panels[row * columns : (row + 1) * columns]
            row_panels[0].imshow(shots.pixels[index])
            for panel, pixels in zip(row_panels[1:], maps, strict=True):
                panel.imshow(pixels[row], cmap="Greys", vmin=0, vmax=max(2 / side**2, pixels[row].max()))
            for panel in row_panels:
                outline_cell(panel, shots.cells[index], side)
                hide_ticks(panel)
        panels[0].set_title("picture", fontsize=10)
        for panel, heat in zip(panels[1:], heats, strict=False):
            panel.set_title(_short(heat.contestant.name), fontsize=10)
    return drawn


def _bar(panel: Any, row: int, values: NDArray[np.float64], look: Any) -> None:
    mean, error = float(values.mean()), sample_std(values.tolist())
    panel.barh(row, mean, xerr=error, color=look.colour, hatch=look.hatch, edgecolor=INK, capsize=3)
    write_beside(panel, mean, error, row, f"{mean:.0f}", 4)


def _style(contestant: Contestant) -> Any:
    names = [contestant.pooling]
    if contestant.settings.get("learn_keep"):
        names.append("learnt")
    if contestant.zero_shot:
        names.append("zero-shot")
    return style(" + ".join(names))


def _short(name: str) -> str:
    return name.replace(" pooling", "").replace(" loss", "").replace(" + ", "\n+ ").replace(", ", ",\n")
