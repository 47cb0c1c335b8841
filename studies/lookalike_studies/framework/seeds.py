"""Values of several seeds: their mean and, for two seeds or more, the sample standard deviation."""

from collections.abc import Sequence

import numpy as np

from lookalike._util.checks import check_count
from lookalike.report.tables import Entry, number


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
    """Check that there are seeds and that they differ.

    Raises:
        ValueError: there are none, or one occurs twice.
        TypeError: a seed is no whole number.
    """
    if not seeds:
        raise ValueError(f"{name} must name at least one, got none")
    for seed in seeds:
        check_count(f"every one of {name}", seed, least=0)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{name} must differ, or one run would count twice, got {', '.join(map(str, seeds))}")
