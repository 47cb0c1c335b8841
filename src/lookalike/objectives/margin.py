"""The margin loss: one boundary beta between positive and negative distances, which is learnt.

    max(0, margin + d_ap - beta)    and    max(0, margin + beta - d_an)

averaged over the non-zero ones of all triplets (a, p, n) of the batch: a positive pair counts once for each negative
of its anchor and the other way round, so that the many negatives do not drown the few positives.

Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017; there triplets are sampled.
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

    hints = Hints(rate_multiplier=100.0)  # at the model's rate of 1e-5 Adam would not move beta at all

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
        distances, beta = pairs.distances, self.beta.to(pairs.anchors.dtype)
        too_far, too_near = self.margin + distances - beta, self.margin + beta - distances
        far, near = pairs.positive & (too_far > 0), pairs.negative & (too_near > 0)
        # Triplets are counted, not listed: the anchor of a pair has so many partners of the other kind.
        times_far = far * pairs.negative.sum(1, keepdim=True)
        times_near = near * pairs.positive.sum(1, keepdim=True)
        count = (times_far.sum() + times_near.sum()).clamp(min=1)
        positive = total(too_far * times_far, far) / count
        negative = total(too_near * times_near, near) / count
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
