"""By how much each method changes the baseline, loss by loss, as in Figure 5.7 of the thesis."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lookalike.report.benchmark import Entry, Part
from lookalike.report.look import INK, figure, look, styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDEST = 0.8  # of a group of bars, where groups are 1 apart


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
    """Bars with whiskers of one std over the pairs, pale where models are missing; None if nothing can be compared."""
    from matplotlib.patches import Patch

    bars = bars_of(part)
    labels = list(dict.fromkeys(label for of in bars.values() for label in of))
    if not labels:
        return None
    chosen = styles(labels)
    width = min(0.22, WIDEST / len(labels))
    legend_rows = -(-len(labels) // 3)
    with look():
        inches = max(6.0, 1.6 + len(bars) * max(1.2, 0.42 * len(labels)))
        drawn, [axes] = figure(min(inches, 16.0), 3.8 + 0.24 * legend_rows)
        for n, label in enumerate(labels):
            places = [i for i, of in enumerate(bars.values()) if label in of]
            values = [of[label] for of in bars.values() if label in of]
            shift = (n - (len(labels) - 1) / 2) * width
            patches = axes.bar(
                [place + shift for place in places],
                [bar.change for bar in values],
                0.92 * width,
                color=chosen[label].colour,
                hatch=chosen[label].hatch,
                edgecolor=INK,
                linewidth=0.7,
                yerr=[bar.spread for bar in values] if any(bar.spread for bar in values) else None,
                error_kw={"elinewidth": 1, "capsize": 3, "ecolor": INK},
            )
            for patch, bar in zip(patches, values, strict=True):
                if not bar.is_complete:
                    patch.set(linestyle="--", alpha=0.5)
        axes.axhline(0, color=INK, linewidth=1)
        tilt = {"rotation": 20, "ha": "right"} if max(map(len, bars)) > 16 and len(bars) > 3 else {}
        axes.set_xticks(range(len(bars)), list(bars), **tilt)
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.6, len(bars) - 0.4)
        axes.set_ylabel(f"change of {metric}, % of baseline")
        keys = [Patch(fc=each.colour, ec=INK, hatch=each.hatch, lw=0.7, label=name) for name, each in chosen.items()]
        drawn.legend(handles=keys, loc="outside lower center", ncols=min(3, len(labels)))
    return drawn
