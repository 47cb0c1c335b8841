"""What the figures of several studies share: line styles, ticks, legends and numbers in heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lookalike.report.theme import INK, Style

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


def powers_of_two(panel: Any, ticks: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic, with these ticks alone."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()


def plain_log_ticks(axis: Any) -> None:
    """Label a logarithmic axis with 0.1, 0.2, 0.5, 1..., or with powers of ten alone if it spans several decades."""
    low, high = axis.get_view_interval()
    if high >= FEW_DECADES * low:
        set_log_ticks(axis, (1,))
    else:
        set_log_ticks(axis, (1, 2, 5))


def set_log_ticks(axis: Any, multiples: Sequence[float]) -> None:
    """Label a logarithmic axis with these multiples of powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=multiples))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def write_beside(panel: Any, value: float, error: float | None, row: int, text: str, offset: int = 5) -> None:
    """Write a text to the right of a horizontal bar and its error bar."""
    end = value + np.nan_to_num(error or 0.0)
    panel.annotate(text, (end, row), xytext=(offset, 0), textcoords="offset points", va="center")


def set_rows(panel: Any, labels: Sequence[str]) -> None:
    """Label the rows of horizontal bars, with grid lines for their values."""
    panel.set_yticks(range(len(labels)), labels)
    panel.grid(visible=False, axis="y")
    panel.grid(axis="x")


def write_cells(panel: Any, texts: Any, is_dark: Any, fontsize: float | None = None) -> None:
    """Write a text into each cell of a heat map, white on dark cells; both arguments are arrays (rows, columns)."""
    for (row, column), text in np.ndenumerate(texts):
        colour = "white" if is_dark[row, column] else INK
        panel.text(column, row, text, ha="center", va="center", fontsize=fontsize, color=colour)


def set_plane(panel: Any, reach: float) -> None:
    """Set a matplotlib panel to the square [-reach, reach] of the plane."""
    limits = (-reach, reach)
    panel.set(xlim=limits, ylim=limits, aspect="equal", xlabel="first coordinate", ylabel="second coordinate")
    panel.grid(visible=False)
