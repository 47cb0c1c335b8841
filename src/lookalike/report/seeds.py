"""Figures of several seeds, as they are told: their mean and, from two seeds on, the sample standard deviation."""

from collections.abc import Sequence

import numpy as np

from lookalike._util.checks import check_count
from lookalike.report.tables import Entry, number


def deviation(values: Sequence[float]) -> float | None:
    """
    >>> deviation([1.0, 3.0]), deviation([1.0])
    (1.4142135623730951, None)
    """
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def in_words(values: Sequence[float], digits: int = 1) -> str:
    """
    >>> in_words([1.0, 3.0]), in_words([1.0], digits=3)
    ('2.0 ± 1.4', '1.000')
    """
    spread = deviation(values)
    return f"{np.mean(values):.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def entry(values: Sequence[float], digits: int = 2) -> Entry:
    """Of a table."""
    return number(float(np.mean(values)), deviation(values), digits=digits)


def count_in_words(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def check_seeds(seeds: Sequence[int], name: str = "seeds") -> None:
    if not seeds:
        raise ValueError(f"{name} must name at least one, got none")
    for seed in seeds:
        check_count(f"every one of {name}", seed, least=0)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{name} must differ, or one run would count twice, got {', '.join(map(str, seeds))}")
