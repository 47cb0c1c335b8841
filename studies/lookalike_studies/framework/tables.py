"""Values of several seeds, as text and in tables: mean and, for two seeds or more, sample standard deviation."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lookalike._util.checks import check_count
from lookalike.report.tables import Column, Entry, Line, Table, number, words


def tabulate(
    columns: Sequence[object],
    rows: Sequence[Sequence[Any]],
    *,
    digits: int | Sequence[int] = 2,
    groups: Sequence[str] = (),
    title: str = "",
    notes: Sequence[str] = (),
) -> Table:
    """Create a table; the first column is aligned to the left.

    A column is a title, or a ``Column`` where the best is marked. A cell is a text, a number, numbers of several seeds,
    None, or an entry that is used as it is; rows that are too short end with empty cells. ``digits`` after the decimal
    point: for all columns but the first, or for each of them. A rule is drawn between ``groups`` of rows.
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


def sample_std(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None for a single value.

    Examples:
        >>> sample_std([1.0, 3.0]), sample_std([1.0])
        (1.4142135623730951, None)
    """
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1))


def format_mean(values: Sequence[float], digits: int = 1) -> str:
    """Mean and standard deviation as text.

    Examples:
        >>> format_mean([1.0, 3.0]), format_mean([1.0], digits=3)
        ('2.0 ± 1.4', '1.000')
    """
    return number(float(np.mean(values)), sample_std(values), digits=digits).text.replace(",", "")


def mean_entry(values: Sequence[float], digits: int = 2) -> Entry:
    """Mean and standard deviation as an entry of a table."""
    return number(float(np.mean(values)), sample_std(values), digits=digits)


def format_seed_count(count: int) -> str:
    """The number of seeds as text."""
    return "one seed" if count == 1 else f"{count} seeds"


def check_seeds(seeds: Sequence[int], name: str = "seeds") -> None:
    """Raise ValueError or TypeError unless there are seeds, all of them different whole numbers."""
    if not seeds:
        raise ValueError(f"{name} must name at least one, got none")
    for seed in seeds:
        check_count(f"every one of {name}", seed, least=0)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{name} must differ, or one run would count twice, got {', '.join(map(str, seeds))}")
