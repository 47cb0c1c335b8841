"""The chance constraint that CCP is named after, measured on the solution of a problem.

A pair of an anchor (proxy or sample) and a picture is violated if it has one class and lies at least beta apart, or has
two classes and lies at most beta apart. With u = d - beta for one class and beta - d for two,

    violation        P(u >= 0), over all pairs                                             (3.2.1)
    violation bound  E[max(0, u + alpha)] / alpha, which is never smaller (Markov)         (3.2.2)
    epsilon          the largest P(u >= 0) of an anchor, over its pictures: the smallest
                     epsilon for which all constraints of the problem hold                 (3.2.3)
    epsilon bound    the largest Markov bound of an anchor: an epsilon that holds by (3.2.2)

beta and alpha are those of the loss, see ``PairObjective.boundary``.

Reference: Gürbüz's thesis, section 3.2.1.
"""

from typing import NamedTuple

import torch
from torch import Tensor

ANCHORS_AT_ONCE = 4096


class ChanceConstraint(NamedTuple):
    """How far a solution is from satisfying the chance constraints of its problem.

    Attributes:
        violation: Share of violated pairs.
        violation_bound: Markov bound of that share.
        epsilon: Largest share of violated pairs of an anchor.
        epsilon_bound: Largest Markov bound of an anchor.
    """

    violation: float
    violation_bound: float
    epsilon: float
    epsilon_bound: float


@torch.no_grad()
def chance_constraint(
    vectors: Tensor,
    labels: Tensor,
    anchors: Tensor,
    anchor_labels: Tensor,
    boundary: tuple[float, float],
    same: Tensor | None = None,
) -> ChanceConstraint:
    """Measure the chance constraints of anchors on pictures.

    Args:
        vectors: Embeddings of pictures (n, D).
        labels: Their classes (n,).
        anchors: Proxies, or embeddings of samples (m, D).
        anchor_labels: Their classes (m,).
        boundary: beta, and alpha above 0.
        same: (m, n) bool, True where anchor and picture are the same; such pairs are left out.

    Returns:
        The four numbers; 0 if there are no pairs.
    """
    beta, alpha = boundary
    if not alpha > 0:
        raise ValueError(f"alpha must be above 0, got {alpha}")
    counts, violated, losses = [], [], []
    for first in range(0, len(anchors), ANCHORS_AT_ONCE):
        rows = slice(first, first + ANCHORS_AT_ONCE)
        distances = torch.cdist(anchors[rows], vectors, compute_mode="donot_use_mm_for_euclid_dist")
        one_class = anchor_labels[rows].unsqueeze(1) == labels
        excess = torch.where(one_class, distances - beta, beta - distances)
        pairs = torch.ones_like(one_class) if same is None else ~same[rows]
        counts.append(pairs.sum(1).cpu())
        violated.append(((excess >= 0) & pairs).sum(1).cpu())
        losses.append(((excess + alpha).clamp(min=0) * pairs).sum(1).cpu())
    count = torch.cat(counts).double()
    violated_pairs, bounds = torch.cat(violated).double(), torch.cat(losses).double() / alpha
    total, count_or_one = count.sum().clamp(min=1), count.clamp(min=1)
    return ChanceConstraint(
        float(violated_pairs.sum() / total),
        float(bounds.sum() / total),
        float((violated_pairs / count_or_one).max()),
        float((bounds / count_or_one).max()),
    )
