"""What the figures of several studies share: line styles, ticks, legends and numbers in heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.report.theme import INK, Style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW_DECADES = 100  # ratio of the ends of an axis


def curve(style: Style) -> dict[str, Any]:
    """Arguments of ``plot`` for a style."""
    return {"color": style.colour, "marker": style.marker, "linestyle": style.line}


def legend_below(drawn: Figure, panel: Any, columns: int) -> None:
    """Add one legend below all panels, with the labels of one of them."""
    drawn.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=columns)


def hide_ticks(panel: Any) -> None:
    """Leave out ticks and grid, as for a picture."""
    panel.set(xticks=[], yticks=[])
    panel.grid(visible=False)


def vertical_grid(panel: Any) -> None:
    """Draw grid lines for horizontal bars."""
    panel.grid(visible=False, axis="y")
    panel.grid(axis="x")


def powers_of_two(panel: Any, ticks: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic, with these ticks alone."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()


def plain_log_ticks(axis: Any) -> None:
    """Label a logarithmic axis with 0.1, 0.2, 0.5, 1..., or with powers of ten alone if it spans several decades."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    multiples: tuple[int, ...] = (1, 2, 5)
    if high >= FEW_DECADES * low:
        multiples = (1,)
    axis.set_major_locator(LogLocator(subs=multiples))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def write_cells(panel: Any, texts: Any, is_dark: Any, fontsize: float | None = None) -> None:
    """Write a text into each cell of a heat map, white on dark cells; both arguments are arrays (rows, columns)."""
    for (row, column), text in np.ndenumerate(texts):
        colour = "white" if is_dark[row, column] else INK
        panel.text(column, row, text, ha="center", va="center", fontsize=fontsize, color=colour)
