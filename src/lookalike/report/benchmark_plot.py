"""Bar plot of the change against the baseline in points, loss by loss."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from lookalike.experiments.rows import Row
from lookalike.experiments.sections import Section
from lookalike.report.theme import INK, Style, figure, styles, theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAR_HEIGHT = 0.72  # where bars are 1 apart
GROUP_GAP = 1.5  # between the last bar of a loss and the name of the next
INCHES_PER_BAR = 0.27
INCHES_PER_LINE = 0.09  # more for each further line of the longest name
LONGEST_LINE = 22  # characters of a name
WIDTH = 6.0  # inches: still readable when scaled down to a phone
TALLEST = 60.0  # inches


class Bar(NamedTuple):
    """``change`` and its std ``spread`` (0 if unknown) in points."""

    change: float
    spread: float
    is_complete: bool


def collect_bars(section: Section) -> dict[str, dict[str, Bar]]:
    """Bars by loss and by label, for all rows that can be compared with a baseline."""
    bars: dict[str, dict[str, Bar]] = {}
    for row in section.rows:
        measured = row.change()
        if measured is None or row.baseline is None:
            continue
        change, spread = measured
        is_complete = row.is_complete and row.baseline.is_complete
        bars.setdefault(str(row.cell.loss), {})[_label(row)] = Bar(change, spread or 0.0, is_complete)
    return bars


def plot_changes(section: Section, metric: str) -> Figure | None:
    """Draw horizontal bars with whiskers of one std over the pairs; pale bars miss models.

    Each bar has its name beside it, so long names fit and there is no legend.

    Returns:
        The figure, or None if nothing can be compared.
    """
    bars = collect_bars(section)
    if not bars:
        return None
    labels = [label for bars_of_loss in bars.values() for label in bars_of_loss]
    bar_styles = styles(dict.fromkeys(labels))
    extra_lines = max(_wrap(label).count("\n") for label in labels)
    height = (INCHES_PER_BAR + INCHES_PER_LINE * extra_lines) * (len(labels) + GROUP_GAP * len(bars))
    tick_names: dict[float, str] = {}
    y = 0.0
    with theme():
        drawn, [axes] = figure(WIDTH, min(1.0 + height, TALLEST))
        for loss, bars_of_loss in bars.items():
            tick_names[y] = loss
            for label, bar in bars_of_loss.items():
                y += 1
                tick_names[y] = _wrap(label)
                _draw_bar(axes, y, bar, bar_styles[label])
            y += GROUP_GAP
        axes.axvline(0, color=INK, linewidth=1)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.set_yticks(list(tick_names), list(tick_names.values()))
        for tick in axes.get_yticklabels():
            tick.set_fontweight("bold" if tick.get_text() in bars else "normal")
            tick.set_fontsize(11 if extra_lines == 0 else 9.5)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_ylim(y - GROUP_GAP + 0.6, -0.6)
        axes.margins(x=0.08)
        axes.set_xlabel(f"change of {metric} against the baseline, points")
    return drawn


def _draw_bar(axes: Any, y: float, bar: Bar, style: Style) -> None:
    pale: dict[str, Any] = {}
    if not bar.is_complete:
        pale = {"linestyle": "--", "alpha": 0.5}
    axes.barh(
        y,
        bar.change,
        BAR_HEIGHT,
        color=style.colour,
        hatch=style.hatch,
        edgecolor=INK,
        linewidth=0.7,
        xerr=bar.spread or None,
        error_kw={"elinewidth": 1, "capsize": 3, "ecolor": INK},
        **pale,
    )


def _label(row: Row) -> str:
    """What is compared within a loss: the pooling and the added methods."""
    label = " + ".join(map(str, (row.cell.pooling, *row.cell.methods)))
    if row.variant:
        return f"{label} [{row.variant}]"
    return label


def _wrap(name: str) -> str:
    return fill(name, LONGEST_LINE, break_long_words=False, break_on_hyphens=False)
