"""By how much each method changes the baseline, loss by loss, as in Figure 5.7 of the thesis."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

from lookalike.report.benchmark import Entry, Part
from lookalike.report.theme import INK, figure, styles, theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THICKNESS = 0.72  # of a bar, where bars are 1 apart
GROUP = 1.5  # between the last bar of a loss and the name of the next
PITCH = 0.27  # inches from bar to bar, and for each further line of the longest name
LINE = 0.09
LONGEST = 22  # letters in a line of a name
WIDTH = 6.0  # inches: letters can still be read where it is shrunk to a telephone


def label_of(entry: Entry) -> str:
    """What is compared within a loss: the pooling, and what was added."""
    about, variant = entry.row.about, entry.row.variant
    label = " + ".join(map(str, (about.pooling, *about.methods)))
    return f"{label} [{variant}]" if variant else label


class Bar(NamedTuple):
    change: float  # in % of the baseline
    spread: float  # its std, 0 if unknown
    is_complete: bool


def bars_of(part: Part) -> dict[str, dict[str, Bar]]:
    """Loss -> what -> its bar, where there is something to compare with."""
    bars: dict[str, dict[str, Bar]] = {}
    for entry in part.entries:
        if entry.relative is not None:
            change, spread = entry.relative
            whole = entry.row.is_complete and entry.baseline.is_complete
            bars.setdefault(str(entry.row.about.loss), {})[label_of(entry)] = Bar(change, spread or 0.0, whole)
    return bars


def relative_changes(part: Part, metric: str) -> Figure | None:
    """Bars with whiskers of one std over the pairs, pale where models are missing; None if nothing can be compared.

    They lie, each with its name beside it: so there is room for long names, and no legend to be searched.
    """
    bars = bars_of(part)
    if not bars:
        return None
    chosen = styles(dict.fromkeys(label for of in bars.values() for label in of))
    names: dict[float, str] = {}
    place = 0.0
    with theme():
        lines = max(_wrapped(label).count("\n") for label in chosen)
        pitch = PITCH + LINE * lines
        count = sum(map(len, bars.values())) + GROUP * len(bars)
        drawn, [axes] = figure(WIDTH, min(1.0 + pitch * count, 60.0))
        for loss, of in bars.items():
            names[place] = loss
            for label, bar in of.items():
                place += 1
                names[place] = _wrapped(label)
                axes.barh(
                    place,
                    bar.change,
                    THICKNESS,
                    color=chosen[label].colour,
                    hatch=chosen[label].hatch,
                    edgecolor=INK,
                    linewidth=0.7,
                    xerr=bar.spread or None,
                    error_kw={"elinewidth": 1, "capsize": 3, "ecolor": INK},
                    **({} if bar.is_complete else {"linestyle": "--", "alpha": 0.5}),
                )
            place += GROUP
        axes.axvline(0, color=INK, linewidth=1)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.set_yticks(list(names), list(names.values()))
        for tick in axes.get_yticklabels():
            tick.set(fontweight="bold" if tick.get_text() in bars else "normal", fontsize=11 if lines == 0 else 9.5)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_ylim(place - GROUP + 0.6, -0.6)
        axes.margins(x=0.08)
        axes.set_xlabel(f"change of {metric}, in % of the baseline's")
    return drawn


def _wrapped(name: str) -> str:
    return fill(name, LONGEST, break_long_words=False, break_on_hyphens=False)
