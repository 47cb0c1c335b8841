"""The theme of all plots: a name has the same colour everywhere, and nothing depends on colour alone.

Colours are Okabe and Ito's, which people with any kind of colour vision can distinguish. Markers, hatches and lines
differ as well, so that a plot can be read in grey.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lookalike._util.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, PAPER, FAINT = "#1a1a1a", "#ffffff", "#c9c9c9"
COLOURS = ("#009E73", "#CC79A7", "#56B4E9", "#F0E442", "#8C6BB1")  # free ones: POOLING_STYLES has the others
HATCHES = ("", "///", "...", "xx", "\\\\\\", "oo", "--", "++", "**")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
LINES = ("-", "--", "-.", ":")

RULES: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so plots are the same everywhere
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "legend.fontsize": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "svg.hashsalt": "lookalike",  # the same bytes every time
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class Style:
    """How one name is drawn: ``hatch`` for bars, ``marker`` for points, ``line`` for curves."""

    colour: str
    marker: str
    hatch: str = ""
    line: str = "-"


# The poolings that are in most plots. Every other name gets a style from a hash of its name.
POOLING_STYLES = {
    "average": Style("#8a8a8a", "o", "", ":"),
    "max": Style("#E69F00", "^", "\\\\\\", "--"),
    "gsp": Style("#0072B2", "s", "", "-"),
    "attention": Style("#D55E00", "D", "...", "-."),
}
METHOD_NUMBERS = {"zero-shot": 1, "memory": 2, "ccp": 3, "centres": 4}


def style(name: str) -> Style:
    """The style of a pooling, with or without methods, such as ``gsp(keep=0.2) + zero-shot``.

    The pooling decides the colour, the methods the hatch and the line.
    """
    pooling, *methods = [part.split("(")[0].strip() for part in name.split(" + ")]
    pooling_style = POOLING_STYLES.get(pooling)
    if pooling_style is None:
        options = enumerate((COLOURS, MARKERS, HATCHES, LINES))
        pooling_style = Style(*(_choose_by_hash(pooling, choices, salt) for salt, choices in options))
    if not methods:
        return pooling_style
    number = 0
    for method in methods:
        number += METHOD_NUMBERS.get(method, 5 + len(method))
    hatch = HATCHES[(HATCHES.index(pooling_style.hatch) + number) % len(HATCHES)]
    return replace(pooling_style, hatch=hatch, line=LINES[number % len(LINES)])


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Styles for one plot: those of ``style``, changed where two of them would look the same."""
    chosen: dict[str, Style] = {}
    for name in names:
        chosen[name] = _distinct_style(style(name), list(chosen.values()))
    return chosen


def _distinct_style(preferred: Style, others: list[Style]) -> Style:
    """A style whose bars, and if possible points, differ from those of ``others``."""
    bars = {(other.colour, other.hatch) for other in others}
    points = {(other.colour, other.marker) for other in others}
    first_with_new_bar = None
    options = product((preferred.colour, *COLOURS), HATCHES, MARKERS)
    for colour, hatch, marker in [(preferred.colour, preferred.hatch, preferred.marker), *options]:
        if (colour, hatch) in bars:
            continue
        candidate = replace(preferred, colour=colour, hatch=hatch, marker=marker)
        if (colour, marker) not in points:
            return candidate
        first_with_new_bar = first_with_new_bar or candidate
    return first_with_new_bar or preferred


def _choose_by_hash(name: str, choices: tuple[str, ...], salt: int) -> str:
    number = int.from_bytes(blake2b(f"{salt} {name}".encode(), digest_size=4).digest(), "little")
    return choices[number % len(choices)]


@contextmanager
def theme() -> Iterator[None]:
    """Apply the theme to everything that is drawn inside this context."""
    from matplotlib import rc_context

    with rc_context(cast("Any", RULES)):
        yield


def figure(width: float = 8.0, height: float = 4.5, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Any]]:
    """Create a figure of a size in inches and its panels, row by row, to draw on inside ``with theme():``."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height), dpi=120, layout="constrained")
    return drawn, list(drawn.subplots(rows, columns, squeeze=False).ravel())


def as_bytes(drawn: Figure, kind: str) -> bytes:
    """Render a figure as "png", "jpeg" or "svg"; nothing beyond the edges is cut off."""
    content = io.BytesIO()
    metadata = {"svg": {"Date": None}, "png": {"Software": None}, "jpeg": None}[kind]
    options: dict[str, Any] = {"pil_kwargs": {"quality": 85}} if kind == "jpeg" else {}
    with theme():
        drawn.savefig(content, format=kind, bbox_inches="tight", pad_inches=0.1, metadata=metadata, **options)
    return content.getvalue()


def save(drawn: Figure, stem: Path) -> list[Path]:
    """Write ``stem``.png and ``stem``.svg, and return their paths."""
    paths = []
    for kind in ("png", "svg"):
        path = stem.with_name(f"{stem.name}.{kind}")
        with replacing(path) as unfinished:
            unfinished.write_bytes(as_bytes(drawn, kind))
        paths.append(path)
    return paths
