"""Paired tests: whether one row of a table is better than another, or only luckier.

Both rows have a model for each fold and repeat, trained on the same classes with the same seed: these are the pairs.
The combinations of a table are no pairs: they share models, and a test over them would find everything significant.
Runs of different folds still share most training classes and all test pictures, so p is rather too small.
"""

from dataclasses import dataclass

import numpy as np

from lookalike.experiments.rows import Row

LEAST_FOR_WILCOXON = 6  # with fewer pairs, even differences of one sign give p > 0.05
ROUNDING = 1e-12  # differences that vary by less differ by rounding only


@dataclass(frozen=True)
class Comparison:
    """A row against its baseline.

    Attributes:
        pairs: how many (fold, repeat) both have.
        level: mean of the baseline over the pairs.
        difference: mean of the row minus the baseline over the pairs.
        spread: std of the difference.
        t_test: two-sided p of the paired t-test; None if ``reason`` says why.
        wilcoxon: two-sided p of the signed-rank test; None if there are too few pairs.
        reason: why there is no p.
    """

    pairs: int
    level: float | None = None
    difference: float | None = None
    spread: float | None = None
    t_test: float | None = None
    wilcoxon: float | None = None
    reason: str | None = None


def compare(row: Row, baseline: Row, metric: str) -> Comparison:
    """Compare two rows by a paired t-test, and by Wilcoxon's signed-rank test if there are enough pairs."""
    baseline_results = {result.run: result for result in baseline.results}
    shared_runs = 0
    row_values, baseline_values = [], []
    for result in row.results:
        other = baseline_results.get(result.run)
        if other is None:
            continue
        shared_runs += 1
        if result.fingerprint == other.fingerprint:
            row_values.append(result.test[metric])
            baseline_values.append(other.test[metric])
    if not row_values:
        reason = "their data differ" if shared_runs else "no fold and repeat is done in both"
        return Comparison(0, reason=reason)
    differences = np.array(row_values) - np.array(baseline_values)
    pairs = len(differences)
    level = float(np.mean(baseline_values))
    difference = float(differences.mean())
    if pairs < 2:
        return Comparison(pairs, level, difference, reason="one pair is too few for a test")
    if np.ptp(differences) <= ROUNDING:
        return Comparison(pairs, level, difference, 0.0, reason="all pairs have the same difference")
    from scipy import stats

    t_test = float(stats.ttest_rel(row_values, baseline_values).pvalue)
    wilcoxon = None
    if np.count_nonzero(differences) >= LEAST_FOR_WILCOXON:
        wilcoxon = float(stats.wilcoxon(differences).pvalue)
    return Comparison(pairs, level, difference, float(differences.std(ddof=1)), t_test, wilcoxon)
