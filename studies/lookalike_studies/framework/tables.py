"""Tables of results: one row per model, one column per metric, with mean and standard deviation over seeds."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lookalike.report.tables import Column, Entry, Line, Table, number, words
from lookalike_studies.framework.seeds import mean_entry


def tabulate(
    columns: Sequence[object],
    rows: Sequence[Sequence[Any]],
    *,
    digits: int | Sequence[int] = 2,
    groups: Sequence[str] = (),
    title: str = "",
    notes: Sequence[str] = (),
) -> Table:
    """Create a table.

    Args:
        columns: Titles, or columns where the best is marked. The first title is aligned to the left.
        rows: Cells: a text, a number, numbers of several seeds, None, or an entry that is used as it is. Rows that
            are too short end with empty cells.
        digits: After the decimal point, for all columns but the first, or for each of them.
        groups: Group of every row; a rule is drawn between groups.
        title: Title of the table.
        notes: Lines below the table.

    Returns:
        The table.
    """
    formatted: list[Column] = []
    for column in columns:
        if not isinstance(column, Column):
            column = Column(str(column), "right" if formatted else "left")
        formatted.append(column)
    if isinstance(digits, int):
        digits = [digits] * (len(columns) - 1)
    lines = []
    for row, group in zip(rows, groups or [""] * len(rows), strict=True):
        entries = [as_entry(cell, places) for cell, places in zip(row, [0, *digits], strict=False)]
        entries += [words("")] * (len(columns) - len(entries))
        lines.append(Line(entries, group))
    return Table(formatted, lines, title, notes=notes)


def as_entry(cell: Any, digits: int) -> Entry:
    """Convert a cell of ``tabulate``."""
    if isinstance(cell, Entry):
        return cell
    if isinstance(cell, str):
        return words(cell)
    if cell is None:
        return number(None)
    if np.ndim(cell) == 0:
        return number(float(cell), digits=digits)
    return mean_entry(cell, digits)
