"""A table, defined once: printed to the terminal, a spreadsheet, LaTeX or an HTML page.

In every column with a direction, the best entry of each group is bold and the second best is underlined. Entries that
look the same when printed share a rank.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from lookalike._util.outside_text import csv_line, printable

BOLD, UNDERLINED, PLAIN = "\033[1m", "\033[4m", "\033[0m"
NOTHING = "–"  # noqa: RUF001 - a dash
# By rank: 0 for any entry, 1 for the best, 2 for the second best.
TEXT_MARKS = ("", "*", "~")
TERMINAL_STYLES = ("{}", f"{BOLD}{{}}{PLAIN}", f"{UNDERLINED}{{}}{PLAIN}")
LATEX_STYLES = ("{}", "\\textbf{{{}}}", "\\underline{{{}}}")
HTML_STYLES = ("{}", "<b>{}</b>", "<u>{}</u>")


@dataclass(frozen=True)
class Entry:
    """One entry of a table.

    Attributes:
        text: what is printed.
        value: the number for a spreadsheet.
        spread: its standard deviation.
        rank: the number that decides which entry is best.
        hint: more information, shown on a page.
    """

    text: str
    value: float | None = None
    spread: float | None = None
    rank: float | None = None
    hint: str = ""


@dataclass(frozen=True)
class Column:
    """A column; ``best`` says whether the most or the least is best, None for neither."""

    title: str
    align: Literal["left", "right"] = "right"
    best: Literal["most", "least"] | None = None


@dataclass(frozen=True)
class Line:
    """One row. Rows compete within their ``group``; a rule is drawn between groups."""

    entries: Sequence[Entry]
    group: str = ""


@dataclass(frozen=True)
class Table:
    """A table with an entry for each line and column.

    Raises:
        ValueError: a line has more or fewer entries than there are columns.
    """

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

    def ranks(self) -> list[list[int]]:
        """Rank the entries by line and column: 1 for the best of its column and group, 2 for the second, else 0."""
        ranks = [[0] * len(self.columns) for _ in self.lines]
        groups = dict.fromkeys(line.group for line in self.lines)
        for column_number, column in enumerate(self.columns):
            if column.best is None:
                continue
            for group in groups:
                self._rank_group(ranks, column_number, group, descending=column.best == "most")
        return ranks

    def _rank_group(self, ranks: list[list[int]], column_number: int, group: str, descending: bool) -> None:
        values: dict[int, float] = {}  # by line
        for line_number, line in enumerate(self.lines):
            value = line.entries[column_number].rank
            if line.group == group and value is not None:
                values[line_number] = value
        order = sorted(set(values.values()), reverse=descending)
        if len(order) < 2:  # nothing to compare
            return
        for line_number, value in values.items():
            if value in order[:2]:
                ranks[line_number][column_number] = 1 + order.index(value)

    def _starts_group(self, line_number: int) -> bool:
        """Whether a line's group differs from that of the line before."""
        return line_number > 0 and self.lines[line_number].group != self.lines[line_number - 1].group

    def text(self, colour: bool = False) -> str:
        """Format for a terminal.

        Args:
            colour: use bold and underlined text; otherwise * marks the best and ~ the second best.
        """
        ranks = self.ranks()
        titles = [printable(column.title) for column in self.columns]
        texts = []
        for line, line_ranks in zip(self.lines, ranks, strict=True):
            line_texts = []
            for entry, rank in zip(line.entries, line_ranks, strict=True):
                mark = "" if colour else TEXT_MARKS[rank]
                line_texts.append(printable(entry.text) + mark)
            texts.append(line_texts)
        widths = []
        for column_texts in zip(titles, *texts, strict=True):
            widths.append(max(map(len, column_texts)))
        rule = "  ".join("-" * width for width in widths)
        no_ranks = [0] * len(self.columns)
        printed = [printable(self.title)] if self.title else []
        printed.append(self._text_line(titles, no_ranks, widths))
        if texts:
            printed.append(rule)
        for line_number, line_texts in enumerate(texts):
            if self._starts_group(line_number):
                printed.append(rule)
            printed.append(self._text_line(line_texts, ranks[line_number] if colour else no_ranks, widths))
        if not colour and any(map(any, ranks)):
            printed.append(f"{TEXT_MARKS[1]} best, {TEXT_MARKS[2]} second best")
        return "\n".join([*printed, *map(printable, self.notes)])

    def _text_line(self, texts: Sequence[str], ranks: Sequence[int], widths: Sequence[int]) -> str:
        padded = []
        for column, text, rank, width in zip(self.columns, texts, ranks, widths, strict=True):
            styled = TERMINAL_STYLES[rank].format(text)
            padding = " " * (width - len(text))
            if column.align == "left":
                padded.append(styled + padding)
            else:
                padded.append(padding + styled)
        return "  ".join(padded).rstrip()

    def csv(self) -> str:
        """Format as CSV, with numbers in full precision and a column of standard deviations where there are any."""
        titles = []
        has_spread = []
        for column_number, column in enumerate(self.columns):
            has_spread.append(any(line.entries[column_number].spread is not None for line in self.lines))
            titles.append(column.title)
            if has_spread[-1]:
                titles.append(f"{column.title} std")
        lines = [csv_line(titles)]
        for line in self.lines:
            words = []
            for entry, with_spread in zip(line.entries, has_spread, strict=True):
                words.append(_csv_value(entry))
                if with_spread:
                    words.append(_full_precision(entry.spread))
            lines.append(csv_line(words))
        return "".join(lines)

    def latex(self) -> str:
        """Format as a ``tabular`` with rules of booktabs; needs ``\\usepackage{booktabs}``."""
        lines = [_latex_comment(self.title)] if self.title else []
        alignment = "".join(column.align[0] for column in self.columns)
        titles = [latex_escape(column.title) for column in self.columns]
        lines += [f"\\begin{{tabular}}{{{alignment}}}", "\\toprule", _latex_row(titles), "\\midrule"]
        for line_number, (line, line_ranks) in enumerate(zip(self.lines, self.ranks(), strict=True)):
            if self._starts_group(line_number):
                lines.append("\\midrule")
            words = []
            for entry, rank in zip(line.entries, line_ranks, strict=True):
                words.append(LATEX_STYLES[rank].format(_latex_entry(entry)))
            lines.append(_latex_row(words))
        lines += ["\\bottomrule", "\\end{tabular}", *map(_latex_comment, self.notes)]
        return "\n".join(lines) + "\n"

    def html(self, *, titled: bool = True) -> str:
        """Format for an HTML page."""
        titles = ""
        for column in self.columns:
            titles += f'<th scope="col" class="{column.align}">{_keep_hyphens(column.title)}</th>'
        body = ""
        for line_number, (line, line_ranks) in enumerate(zip(self.lines, self.ranks(), strict=True)):
            if self._starts_group(line_number):
                body += "</tbody><tbody>\n"
            body += self._html_line(line, line_ranks)
        if body:
            body = f"<tbody>\n{body}</tbody>"
        caption = f"<caption>{escape(self.title)}</caption>" if self.title and titled else ""
        table = f'<div class="wide"><table>{caption}<thead><tr>{titles}</tr></thead>{body}</table></div>'
        if not self.notes:
            return table
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return f'{table}<ul class="notes">{notes}</ul>'

    def _html_line(self, line: Line, ranks: Sequence[int]) -> str:
        cells = ""
        tag, scope = "th", ' scope="row"'  # the first entry names the row
        for column, entry, rank in zip(self.columns, line.entries, ranks, strict=True):
            hint = f' title="{escape(entry.hint)}"' if entry.hint else ""
            text = HTML_STYLES[rank].format(escape(entry.text))
            cells += f'<{tag}{scope} class="{column.align}"{hint}>{text}</{tag}>'
            tag, scope = "td", ""
        return f"<tr>{cells}</tr>\n"


def words(text: str, hint: str = "") -> Entry:
    """An entry of text."""
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
    """An entry of a number and its standard deviation.

    Args:
        value: None prints a dash.
        spread: standard deviation.
        digits: after the decimal point.
        sign: also print a plus.
        ranked: compare it with the other entries of the column.
        hint: more information, shown on a page.
    """
    if value is None:
        return Entry(NOTHING, hint=hint)
    rounded = round(value, digits) + 0.0  # no -0.00
    text = f"{rounded:{'+' if sign else ''},.{digits}f}"
    if spread is not None:
        text += f" ± {spread:.{digits}f}"
    return Entry(text, value, spread, rounded if ranked else None, hint)


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
    """Escape what LaTeX would take for commands."""
    return re.sub("|".join(map(re.escape, _LATEX)), lambda match: _LATEX[match[0]], text)


def _latex_entry(entry: Entry) -> str:
    text = latex_escape(entry.text)
    if entry.value is not None and text.startswith("-"):
        return f"$-${text[1:]}"  # a hyphen is shorter than a minus
    return text


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_comment(text: str) -> str:
    return f"% {' '.join(text.split())}"


def _keep_hyphens(title: str) -> str:
    """Escape a title so that a browser breaks no line at a hyphen: "128-D" stays one word."""
    return re.sub(r"\S*-\S*", r'<span class="word">\g<0></span>', escape(title))


def _csv_value(entry: Entry) -> str:
    if entry.value is not None:
        return _full_precision(entry.value)
    return "" if entry.text == NOTHING else entry.text


def _full_precision(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"
