"""A table, once: for the terminal, for a spreadsheet, for LaTeX and for a page.

In every column that says which is better, the best of each group is bold and the second best underlined. Entries that
look the same when printed share a place.
"""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from io import StringIO
from typing import Literal

BOLD, UNDERLINED, PLAIN = "\033[1m", "\033[4m", "\033[0m"
BEST, SECOND = "*", "~"  # where there is no bold
NOTHING = "–"  # noqa: RUF001 - a dash


@dataclass(frozen=True)
class Entry:
    """What is printed; ``value`` and ``spread`` are for machines, ``rank`` is what best is judged by."""

    text: str
    value: float | None = None
    spread: float | None = None
    rank: float | None = None
    hint: str = ""  # more, for a page


@dataclass(frozen=True)
class Column:
    title: str
    align: Literal["left", "right"] = "right"
    best: Literal["most", "least"] | None = None


@dataclass(frozen=True)
class Line:
    """One row; ``group`` is what it competes in, and a rule is drawn where it changes."""

    entries: Sequence[Entry]
    group: str = ""


@dataclass(frozen=True)
class Table:
    columns: Sequence[Column]
    lines: Sequence[Line]
    title: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        for line in self.lines:
            if len(line.entries) != len(self.columns):
                raise ValueError(
                    f"every line must have {len(self.columns)} entries, one for each column, got {len(line.entries)}"
                )

    def places(self) -> list[list[int]]:
        """1 where an entry is the best of its column and group, 2 where it is the second best, else 0."""
        places = [[0] * len(self.columns) for _ in self.lines]
        for i, column in enumerate(self.columns):
            for group in dict.fromkeys(line.group for line in self.lines) if column.best else ():
                ranks = {n: line.entries[i].rank for n, line in enumerate(self.lines) if line.group == group}
                ranked = {n: rank for n, rank in ranks.items() if rank is not None}
                order = sorted(set(ranked.values()), reverse=column.best == "most")
                if len(order) > 1:
                    for n, rank in ranked.items():
                        places[n][i] = {0: 1, 1: 2}.get(order.index(rank), 0)
        return places

    def text(self, colour: bool = False) -> str:
        """For a terminal; without ``colour``, * stands at the best and ~ at the second best."""
        places = self.places()
        shown = [[column.title for column in self.columns]]
        for line, of in zip(self.lines, places, strict=True):
            marks = ("", "", "") if colour else ("", BEST, SECOND)
            shown.append([entry.text + marks[place] for entry, place in zip(line.entries, of, strict=True)])
        widths = [max(len(row[i]) for row in shown) for i in range(len(self.columns))]
        pieces = [self.title] if self.title else []
        for n, row in enumerate(shown):
            if n > 0 and (n == 1 or self.lines[n - 1].group != self.lines[n - 2].group):
                pieces.append("  ".join("-" * width for width in widths))
            padded = []
            for i, (word, width) in enumerate(zip(row, widths, strict=True)):
                space = " " * (width - len(word))
                place = places[n - 1][i] if n else 0
                styled = f"{(BOLD, UNDERLINED)[place - 1]}{word}{PLAIN}" if colour and place else word
                padded.append(styled + space if self.columns[i].align == "left" else space + styled)
            pieces.append("  ".join(padded).rstrip())
        legend = [f"{BEST} best, {SECOND} second best"] if not colour and any(map(any, places)) else []
        return "\n".join([*pieces, *legend, *self.notes])

    def csv(self) -> str:
        """Values as they are, and a column of their spread where there is any."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        spread = [any(line.entries[i].spread is not None for line in self.lines) for i in range(len(self.columns))]
        titles = zip(self.columns, spread, strict=True)
        writer.writerow([word for column, has in titles for word in ([column.title, f"{column.title} std"][: 1 + has])])
        for line in self.lines:
            words: list[str] = []
            for entry, has in zip(line.entries, spread, strict=True):
                words.append(_machine(entry.value) if entry.value is not None else _unset(entry.text))
                words += [_machine(entry.spread)] if has else []
            writer.writerow([_harmless(word) for word in words])
        return text.getvalue()

    def latex(self) -> str:
        """A ``tabular`` with booktabs' rules, for ``\\usepackage{booktabs}``."""
        lines = [f"% {' '.join(self.title.split())}"] if self.title else []
        lines.append(f"\\begin{{tabular}}{{{''.join(column.align[0] for column in self.columns)}}}")
        lines += ["\\toprule", _latex_row(latex_escape(column.title) for column in self.columns), "\\midrule"]
        for n, (line, places) in enumerate(zip(self.lines, self.places(), strict=True)):
            if n and line.group != self.lines[n - 1].group:
                lines.append("\\midrule")
            words = [(_latex_entry(entry), place) for entry, place in zip(line.entries, places, strict=True)]
            styled = (("{}", "\\textbf{{{}}}", "\\underline{{{}}}")[place].format(word) for word, place in words)
            lines.append(_latex_row(styled))
        lines += ["\\bottomrule", "\\end{tabular}"]
        return "\n".join([*lines, *(f"% {' '.join(note.split())}" for note in self.notes)]) + "\n"

    def html(self, *, titled: bool = True) -> str:
        """With the title above it, unless a heading has said it."""
        head = "".join(f'<th scope="col" class="{c.align}">{_unbroken(c.title)}</th>' for c in self.columns)
        bodies: list[str] = []
        for n, (line, places) in enumerate(zip(self.lines, self.places(), strict=True)):
            if n == 0 or line.group != self.lines[n - 1].group:
                bodies.append("")
            cells = []
            for i, (entry, place) in enumerate(zip(line.entries, places, strict=True)):
                word = ("{}", "<b>{}</b>", "<u>{}</u>")[place].format(escape(entry.text))
                hint = f' title="{escape(entry.hint)}"' if entry.hint else ""
                tag = 'th scope="row"' if i == 0 else "td"
                cells.append(f'<{tag} class="{self.columns[i].align}"{hint}>{word}</{tag.split()[0]}>')
            bodies[-1] += f"<tr>{''.join(cells)}</tr>\n"
        caption = f"<caption>{escape(self.title)}</caption>" if self.title and titled else ""
        body = "".join(f"<tbody>\n{rows}</tbody>" for rows in bodies)
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        listed = f'<ul class="notes">{notes}</ul>' if notes else ""
        return f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead>{body}</table></div>{listed}'


def words(text: str, hint: str = "") -> Entry:
    return Entry(text, hint=hint)


def number(
    value: float | None,
    spread: float | None = None,
    *,
    digits: int = 2,
    sign: bool = False,
    ranked: bool = True,
    hint: str = "",
) -> Entry:
    """A figure and its spread, or a dash."""
    if value is None:
        return Entry(NOTHING, hint=hint)
    shown = round(value, digits) + 0.0  # no -0.00
    text = f"{shown:{'+' if sign else ''},.{digits}f}"
    text = text if spread is None else f"{text} ± {spread:.{digits}f}"
    return Entry(text, value, spread, shown if ranked else None, hint)


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",  # noqa: RUF001
    "†": r"\dag{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def latex_escape(text: str) -> str:
    return re.sub("|".join(map(re.escape, _LATEX)), lambda found: _LATEX[found[0]], text)


def _latex_entry(entry: Entry) -> str:
    word = latex_escape(entry.text)
    is_negative = entry.value is not None and word.startswith("-")
    return f"$-${word[1:]}" if is_negative else word  # a hyphen is shorter than a minus


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _unbroken(title: str) -> str:
    """For a page, where lines would break at a hyphen: "128-D" stays one word."""
    pieces = (escape(word) for word in title.split(" "))
    return " ".join(f'<span class="word">{word}</span>' if "-" in word else word for word in pieces)


def _machine(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def _unset(text: str) -> str:
    return "" if text == NOTHING else text


def _harmless(word: str) -> str:
    """A spreadsheet takes a word for a formula if it begins like one."""
    is_number = re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", word) is not None
    return word if is_number or not word.startswith(("=", "+", "-", "@")) else f"'{word}"
