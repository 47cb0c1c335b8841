"""One look for every plot: a name keeps its colour everywhere, and nothing is told by colour alone.

Colours are Okabe and Ito's, which people with any kind of colour vision can tell apart; markers, hatches and lines
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
COLOURS = ("#009E73", "#CC79A7", "#56B4E9", "#F0E442", "#8C6BB1")  # those that no name below has for its own
HATCHES = ("", "///", "...", "xx", "\\\\\\", "oo", "--", "++", "**")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
LINES = ("-", "--", "-.", ":")

RULES: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that it is the same everywhere
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
    colour: str
    marker: str
    hatch: str = ""
    line: str = "-"


# What is in most plots has a colour of its own; every other name has the style that its letters give.
_KNOWN = {
    "average": Style("#8a8a8a", "o", "", ":"),
    "max": Style("#E69F00", "^", "\\\\\\", "--"),
    "gsp": Style("#0072B2", "s", "", "-"),
    "attention": Style("#D55E00", "D", "...", "-."),
}
_OF_METHODS = {"zero-shot": 1, "memory": 2, "ccp": 3, "centres": 4}


def style(name: str) -> Style:
    """Of a pooling, with or without methods: ``gsp``, ``gsp(keep=0.2) + zero-shot``.

    The pooling decides the colour, the methods the hatch and the line.
    """
    pooling, *methods = (part.split("(")[0].strip() for part in name.split(" + "))
    own = _KNOWN.get(pooling) or Style(
        *(_by_letters(pooling, choices, salt) for salt, choices in enumerate((COLOURS, MARKERS, HATCHES, LINES)))
    )
    if not methods:
        return own
    number = sum(_OF_METHODS.get(method, 5 + len(method)) for method in methods)
    start = HATCHES.index(own.hatch) + number
    return replace(own, hatch=HATCHES[start % len(HATCHES)], line=LINES[number % len(LINES)])


def styles(names: Iterable[str]) -> dict[str, Style]:
    """For one plot: as ``style`` says, but no two of them the same."""
    chosen: dict[str, Style] = {}
    for name in names:
        own = style(name)
        bars = {(each.colour, each.hatch) for each in chosen.values()}
        points = {(each.colour, each.marker) for each in chosen.values()}
        others = (
            replace(own, colour=colour, hatch=hatch, marker=marker)
            for colour, hatch, marker in product((own.colour, *COLOURS), HATCHES, MARKERS)
        )
        free = [each for each in (own, *others) if (each.colour, each.hatch) not in bars] or [own]
        chosen[name] = next((each for each in free if (each.colour, each.marker) not in points), free[0])
    return chosen


def _by_letters(name: str, choices: tuple[str, ...], salt: int) -> str:
    number = int.from_bytes(blake2b(f"{salt} {name}".encode(), digest_size=4).digest(), "little")
    return choices[number % len(choices)]


@contextmanager
def theme() -> Iterator[None]:
    """Draw in here."""
    from matplotlib import rc_context

    with rc_context(cast("Any", RULES)):
        yield


def figure(width: float = 8.0, height: float = 4.5, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Any]]:
    """A figure in inches and its axes, row by row. Draw on it inside ``with theme():``."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height), dpi=120, layout="constrained")
    return drawn, list(drawn.subplots(rows, columns, squeeze=False).ravel())


def as_bytes(drawn: Figure, kind: str) -> bytes:
    """As "png" or "svg", with room for whatever reaches beyond the edges."""
    content = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with theme():
        drawn.savefig(content, format=kind, bbox_inches="tight", pad_inches=0.1, metadata=metadata)
    return content.getvalue()


def save(drawn: Figure, stem: Path) -> list[Path]:
    """``stem``.png and ``stem``.svg."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for path in paths:
        with replacing(path) as unfinished:
            unfinished.write_bytes(as_bytes(drawn, path.suffix[1:]))
    return paths
