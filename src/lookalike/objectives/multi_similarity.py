"""Multi-similarity loss: for each anchor, a soft maximum over its positives and one over its negatives.

    mean_a  1/alpha log(1 + sum_p exp(-alpha (s_ap - base))) + 1/beta log(1 + sum_n exp(beta (s_an - base)))

With ``mining`` = epsilon, only hard pairs count: positives with s_ap < max_n s_an + epsilon and negatives with
s_an > min_p s_ap - epsilon.

Reference: Wang et al., "Multi-Similarity Loss with General Pair Weighting", CVPR 2019. Their lambda is our base, and
their code mines with epsilon 0.1. Mining is off by default, because Musgrave et al. tuned alpha, beta and base of the
loss without its miner.
"""

import torch

from lookalike._util.checks import check_range
from lookalike.objectives.base import Loss
from lookalike.objectives.pairs import PairObjective, Pairs, chord, halfway, log_one_plus_sum_exp, share


class MultiSimilarity(PairObjective):
    """Multi-similarity loss; the formula stands at the top of this file.

    Args:
        alpha: Sharpness over positives.
        beta: Sharpness over negatives.
        base: Similarity that separates positives from negatives; lambda in the paper.
        mining: epsilon of the miner; None: all pairs count.
        normalise: Project embeddings onto the unit sphere.
    """

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 40.0,
        base: float = 0.5,
        *,
        mining: float | None = None,
        normalise: bool = True,
    ) -> None:
        check_range("alpha", alpha, 0, None)
        check_range("beta", beta, 0, None)
        if mining is not None and mining < 0:
            raise ValueError(f"mining must be at least 0, or None for all pairs, got {mining}")
        super().__init__(alpha=alpha, beta=beta, base=base, mining=mining, normalise=normalise)
        self.alpha = alpha
        self.beta = beta
        self.base = base
        self.mining = mining

    def compare(self, pairs: Pairs) -> Loss:
        """Compute the loss of all pairs."""
        similarities = pairs.similarities
        hard_positive, hard_negative = pairs.positive, pairs.negative
        if self.mining is not None:
            values = similarities.detach()
            hardest_negative = values.masked_fill(~pairs.negative, -torch.inf).amax(1, keepdim=True)
            hardest_positive = values.masked_fill(~pairs.positive, torch.inf).amin(1, keepdim=True)
            hard_positive = pairs.positive & (values - self.mining < hardest_negative)
            hard_negative = pairs.negative & (values + self.mining > hardest_positive)
        margins = similarities - self.base
        positive = log_one_plus_sum_exp(-self.alpha * margins, hard_positive, 1).mean() / self.alpha
        negative = log_one_plus_sum_exp(self.beta * margins, hard_negative, 1).mean() / self.beta
        parts = {"positive": positive.detach(), "negative": negative.detach()}
        if self.mining is not None:
            parts["active positives"] = share(hard_positive, pairs.positive)
            parts["active negatives"] = share(hard_negative, pairs.negative)
        return Loss(positive + negative, parts)

    def boundary(self) -> tuple[float, float]:
        """Return beta and alpha: both are the distance of ``base`` on the sphere, so positives are pulled to 0."""
        return halfway(0.0, 2 * chord(self.base))
