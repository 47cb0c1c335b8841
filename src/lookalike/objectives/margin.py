"""The margin loss: a learnt boundary beta between positive and negative distances.

    max(0, margin + d_ap - beta)    and    max(0, margin + beta - d_an)

are averaged over the non-zero terms of all triplets (a, p, n) of the batch. A positive pair counts once for each
negative of its anchor, and a negative pair once for each positive. So the many negatives do not outweigh the positives.

Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, where triplets are sampled.
"""

import torch
from torch import nn

from lookalike._util.checks import check_range
from lookalike.objectives.base import Hints, Loss
from lookalike.objectives.pairs import PairObjective, Pairs, share, total


class Margin(PairObjective):
    """Margin loss; the formula stands at the top of this file.

    Args:
        margin: Half the width of the gap between positive and negative distances.
        beta: Initial boundary.
        learn_beta: Train the boundary.
        normalise: Project embeddings onto the unit sphere.
    """

    hints = Hints(rate_multiplier=100.0)  # at the model's rate of 1e-5, Adam would hardly move beta

    def __init__(
        self, margin: float = 0.2, beta: float = 1.2, *, learn_beta: bool = True, normalise: bool = True
    ) -> None:
        check_range("margin", margin, 0, None)
        check_range("beta", beta, 0, None)
        super().__init__(margin=margin, beta=beta, learn_beta=learn_beta, normalise=normalise)
        self.margin = margin
        self.beta = nn.Parameter(torch.tensor(float(beta)), requires_grad=learn_beta)

    def compare(self, pairs: Pairs) -> Loss:
        """Compute the loss of all pairs."""
        distances = pairs.distances
        beta = self.beta.to(pairs.anchors.dtype)
        positive_terms = self.margin + distances - beta
        negative_terms = self.margin + beta - distances
        far = pairs.positive & (positive_terms > 0)
        near = pairs.negative & (negative_terms > 0)
        # Triplets are counted, not listed: a pair is in one triplet for each partner of the other kind.
        far_triplets = far * pairs.negative.sum(1, keepdim=True)
        near_triplets = near * pairs.positive.sum(1, keepdim=True)
        count = (far_triplets.sum() + near_triplets.sum()).clamp(min=1)
        positive = total(positive_terms * far_triplets, far) / count
        negative = total(negative_terms * near_triplets, near) / count
        parts = {
            "positive": positive.detach(),
            "negative": negative.detach(),
            "active positives": share(far, pairs.positive),
            "active negatives": share(near, pairs.negative),
            "beta": beta.detach().clone(),
        }
        return Loss(positive + negative, parts)

    def boundary(self) -> tuple[float, float]:
        """Return beta as it is now, and the margin."""
        return float(self.beta.detach()), self.margin
