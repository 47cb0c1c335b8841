"""Claims and tables of the study ``average-pooling``.

Equalities and the bound must hold up to rounding, for every picture. The claim on hulls says nothing if the networks
have not learnt the classes, or if hulls overlap as before training, because then they do so with any pooling.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lookalike.report.tables import Table
from lookalike_studies.average_pooling.maths import EXACT, ROUNDING
from lookalike_studies.framework.claims import JudgedClaim, Verdict
from lookalike_studies.framework.hulls import Overlap
from lookalike_studies.framework.tables import format_mean, tabulate

Metrics = Mapping[str, float]


class ExactClaim(NamedTuple):
    """A statement of the thesis that holds if a metric of every network is at most ``tolerance``."""

    paper: str
    metric: str
    tolerance: float

    def judge(self, networks: Sequence[Metrics], here: str) -> JudgedClaim:
        """Compare the largest value of the metric with the tolerance."""
        holds = max(metrics[self.metric] for metrics in networks) <= self.tolerance
        return JudgedClaim(self.paper, here, "reproduced" if holds else "not reproduced")


HISTOGRAMS = ExactClaim(
    "the histogram operator, a linear programme, is assignment to the nearest prototype (Claim 4.2.1)",
    "programme off by",
    EXACT,
)
BOUND = ExactClaim(
    "average and mixture of prototypes are no farther apart than the covering radius (Proposition 4.2.1)",
    "violations",
    0,
)
SCORES = ExactClaim("the score of a class is the mean of the scores of its places (4.2.4)", "scores off by", ROUNDING)
HULLS = "class hulls overlap, due to prototypes that classes share (Figure 4.3, without numbers)"
HULLS_REPRODUCED_FROM = 0.5  # of the pairs of classes; "partly" if any pair overlaps
LEARNT_FROM = 2.0  # MAP@R of the averages, times 1 / classes; below, hulls are not tested
SEMANTIC = "prototypes correspond to semantic entities (Figure 4.2, without numbers)"

SEED_COLUMNS = {  # title: metric, factor, digits
    "MAP@R, %": ("MAP@R", 100, 1),
    "of PCC": ("MAP@R of PCC", 100, 1),
    "median norm": ("median norm", 1, 3),
    "covering radius": ("radius", 1, 4),
    "mean error": ("error", 1, 4),
    "largest": ("largest error", 1, 4),
    "above the bound": ("violations", 1, 0),
    "pairs that overlap, %": ("overlapping pairs", 100, 0),
    "overlap, %": ("overlap", 100, 0),
    "overlap untrained, %": ("untrained", 100, 0),
    "right by mean score, %": ("accuracy", 100, 1),
    "places that agree, %": ("places for the decision", 100, 1),
}
SEED_NOTE = (
    "median norm: of the local features, the largest of which is 1; error: the distance between average (GAP) and "
    "mixture of prototypes (PCC); overlap: of the hulls of active prototypes, as a share of the smaller, mean over "
    "pairs, and the same before training; places that agree with the decision of the mean score"
)


def judge_claims(
    networks: Sequence[Metrics], untrained: Sequence[Overlap], pictures: int, classes: int, differ: float
) -> list[JudgedClaim]:
    """Judge all claims, from the metrics of each network and the overlap of its class hulls before training.

    Hulls that have lost less than ``differ`` of their overlap in training are not judged.
    """
    values = {metric: [metrics[metric] for metrics in networks] for metric in networks[0]}
    radius = max(values["radius"])
    used = float(np.mean(np.divide(values["largest error"], values["radius"])))
    square = "follows for a radius up to 1" if radius <= 1 else "would not follow for a radius above 1"
    return [
        HISTOGRAMS.judge(
            networks,
            f"{sum(values['programmes'])} programmes solved: histograms differ by at most "
            f"{max(values['programme off by']):.1e}",
        ),
        BOUND.judge(
            networks,
            f"{sum(values['violations'])} exceptions among {pictures} pictures and {len(networks)} networks; at most "
            f"{max(values['largest error']):.3f} apart, covering radius {radius:.3f}, of which {used:.0%} is used. "
            f"Checked for the norm; the square, as printed, {square}",
        ),
        judge_hulls(values, untrained, classes, differ),
        SCORES.judge(networks, f"they differ by at most {max(values['scores off by']):.1e}"),
        JudgedClaim(
            SEMANTIC,
            f"judge by eye, from the patches; {np.mean(values['purity']):.0%} of the local features belong to the most "
            f"common class of their cell, {1 / classes:.0%} would by chance",
            "not tested",
        ),
    ]


def judge_hulls(
    values: Mapping[str, Sequence[float]], untrained: Sequence[Overlap], classes: int, differ: float
) -> JudgedClaim:
    """Judge how many class hulls overlap; ``values`` has each metric by network."""
    before = [overlap.pairs for overlap in untrained]
    before_share = [overlap.share for overlap in untrained]
    here = (
        f"hulls of active prototypes: {_percent(values['overlapping pairs'])} of the pairs of classes overlap, by "
        f"{_percent(values['overlap'])} of the smaller hull on average; before training {_percent(before)}, by "
        f"{_percent(before_share)}; hulls of the averages themselves: "
        f"{_percent(values['overlapping pairs of pictures'])} of the pairs"
    )
    mean = float(np.mean(values["overlapping pairs"]))
    verdict: Verdict = "not reproduced"
    if not has_learnt(values["MAP@R"], classes):
        here += f"; MAP@R of {_percent(values['MAP@R'])}: the classes have not been learnt"
        verdict = "not tested"
    elif np.mean(before_share) - np.mean(values["overlap"]) < differ:
        here += "; they hardly differ from those of the untrained network: more steps are needed"
        verdict = "not tested"
    elif mean >= HULLS_REPRODUCED_FROM:
        verdict = "reproduced"
    elif mean > 0:
        verdict = "partly"
    return JudgedClaim(HULLS, here, verdict)


def has_learnt(map_at_r: Sequence[float], classes: int) -> bool:
    """Return whether networks tell classes apart; with few classes, halfway from chance to 1 is enough.

    >>> has_learnt([0.21], 10), has_learnt([0.19], 10), has_learnt([0.8], 2), has_learnt([0.7], 2)
    (True, False, True, False)
    """
    return float(np.mean(map_at_r)) >= min(LEARNT_FROM / classes, 0.5 + 0.5 / classes)


def seeds_table(seeds: Sequence[int], networks: Sequence[Metrics], untrained: Sequence[Overlap]) -> Table:
    """Tabulate the metrics of every network."""
    rows = []
    for seed, metrics, before in zip(seeds, networks, untrained, strict=True):
        values = {**metrics, "untrained": before.share}
        rows.append([str(seed), *[factor * values[metric] for metric, factor, _ in SEED_COLUMNS.values()]])
    digits = [places for _, _, places in SEED_COLUMNS.values()]
    return tabulate(["seed", *SEED_COLUMNS], rows, digits=digits, notes=[SEED_NOTE])


def overlap_table(overlap: Overlap, classes: Sequence[str]) -> Table:
    """Tabulate the common area of every two classes."""
    rows = []
    for name, area, row in zip(classes, overlap.areas.tolist(), overlap.common.tolist(), strict=True):
        rows.append([name, area, *row])
    columns = ["class", "area of its hull", *classes]
    return tabulate(columns, rows, digits=4, title="Area common to the hulls of two classes (first seed)")


def _percent(shares: Sequence[float]) -> str:
    return format_mean([100 * share for share in shares], 0) + " %"
