"""Lifted structured feature embedding as Oh Song et al. define it.

A positive pair (i, j) is compared with all negatives of i and of j:

    J_ij = log(sum_{k: y_k != y_i} exp(margin - d_ik) + sum_{l: y_l != y_j} exp(margin - d_jl)) + d_ij
    loss = 1 / (2 |P|) sum_{(i, j) in P} max(0, J_ij)^2

``LiftedStructure`` is the form of Hermans et al., which compares an anchor with all its positives and is not squared.

Reference: Oh Song et al., "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR 2016.
"""

import torch
from torch import Tensor

from lookalike._util.checks import check_range
from lookalike.objectives.base import Loss
from lookalike.objectives.pairs import PairObjective, Pairs, halfway, mean, share

MASKED = -1e4  # exponent of a pair that does not count; its exp is 0


class LiftedStructureSong(PairObjective):
    """Lifted structure loss of Oh Song et al.; the formula stands at the top of this file.

    With references (a memory, proxies), the negatives of a reference are the anchors of other classes.

    Args:
        margin: Distance beyond which negatives have little weight; alpha in the paper.
        normalise: Project embeddings onto the unit sphere.
    """

    def __init__(self, margin: float = 1.0, *, normalise: bool = True) -> None:
        check_range("margin", margin, 0, None)
        super().__init__(margin=margin, normalise=normalise)
        self.margin = margin

    def compare(self, pairs: Pairs) -> Loss:
        """Compute the loss of all pairs."""
        distances = pairs.distances
        exponents = (self.margin - distances).masked_fill(~pairs.negative, MASKED)
        of_anchor = torch.logsumexp(exponents, 1, keepdim=True)
        of_reference = torch.logsumexp(exponents, 0, keepdim=True)
        terms: Tensor = (torch.logaddexp(of_anchor, of_reference) + distances).clamp(min=0)
        value = mean(terms.square(), pairs.positive) / 2
        return Loss(value, {"active positives": share(terms > 0, pairs.positive)})

    def boundary(self) -> tuple[float, float]:
        """Return beta and alpha: positives to distance 0, negatives to the margin."""
        return halfway(0.0, self.margin)
