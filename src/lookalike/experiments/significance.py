"""Whether one row of a table is better than another, or only luckier.

Both have a model for each fold and repeat, made with the same classes and the same seed: these are the pairs. (The
combinations of a table are not: they share models, and a test over them would find everything significant.) Runs of
different folds still share most of their training classes and all of the test pictures, so p is rather too small.
"""

from dataclasses import dataclass

import numpy as np

from lookalike.experiments.rows import Row

LEAST_FOR_WILCOXON = 6  # with fewer pairs, even differences of one sign give p > 0.05
SAME = 1e-12  # differences that vary by less differ by rounding


@dataclass(frozen=True)
class Comparison:
    """``difference`` is the mean of ours minus the baseline's over the pairs, ``spread`` its std, ``level`` the mean of
    the baseline's. Both p are two-sided, None where ``reason`` says why or there are too few pairs.
    """

    pairs: int
    level: float | None = None
    difference: float | None = None
    spread: float | None = None
    t_test: float | None = None
    wilcoxon: float | None = None
    reason: str | None = None


def compare(row: Row, baseline: Row, metric: str) -> Comparison:
    """Paired t-test, and Wilcoxon's signed-rank test where there are enough pairs."""
    theirs = {each.place: each for each in baseline.results}
    pairs = [(each, theirs[each.place]) for each in row.results if each.place in theirs]
    alike = [(ours, other) for ours, other in pairs if ours.fingerprint == other.fingerprint]
    if not alike:
        reason = "their data differ" if pairs else "no fold and repeat is done in both"
        return Comparison(0, reason=reason)
    ours, other = (np.array([pair[i].test[metric] for pair in alike]) for i in (0, 1))
    differences = ours - other
    count, level, difference = len(alike), float(other.mean()), float(differences.mean())
    if count < 2:
        return Comparison(count, level, difference, reason="a single pair says nothing about chance")
    spread = float(differences.std(ddof=1))
    if np.ptp(differences) <= SAME:
        return Comparison(count, level, difference, 0.0, reason="every pair differs by the same")
    from scipy import stats

    t_test = float(stats.ttest_rel(ours, other).pvalue)
    wilcoxon = None
    if np.count_nonzero(differences) >= LEAST_FOR_WILCOXON:
        wilcoxon = float(stats.wilcoxon(differences).pvalue)
    return Comparison(count, level, difference, spread, t_test, wilcoxon)
