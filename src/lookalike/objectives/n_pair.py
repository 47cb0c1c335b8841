"""N-pair loss: one anchor and one positive of each class; the positives of other classes are the negatives.

    mean_i log(1 + sum_{j != i} exp(scale (f_i . g_j - f_i . g_i)))        f_i anchor, g_i positive of class i

The anchor of a class is its first picture in the batch. The positive is its next picture, or the first reference. So a
batch should have two pictures per class. Reference: Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss
Objective", NeurIPS 2016, where vectors are not normalised. Normalised vectors need a ``scale`` well above 1.
"""

import torch

from lookalike._util.checks import check_range
from lookalike.objectives.base import Hints, Loss
from lookalike.objectives.pairs import PairObjective, Pairs, mean


class NPair(PairObjective):
    """N-pair loss; the formula stands at the top of this file.

    Args:
        scale: Multiplies the dot products.
        normalise: Project embeddings onto the unit sphere.
    """

    hints = Hints(per_class=2)

    def __init__(self, scale: float = 1.0, *, normalise: bool = False) -> None:
        check_range("scale", scale, 0, None)
        super().__init__(scale=scale, normalise=normalise)
        self.scale = scale

    def compare(self, pairs: Pairs) -> Loss:
        """Compute the loss of all pairs."""
        has_positive = pairs.positive.any(1)
        is_earlier = (pairs.labels.unsqueeze(1) == pairs.labels).tril(-1)
        is_anchor = has_positive & ~(is_earlier & has_positive).any(1)  # the first of each class
        reference_count = pairs.positive.shape[1]
        references = torch.arange(reference_count, device=is_anchor.device)
        first_positive = torch.where(pairs.positive, references, reference_count).amin(1).clamp(max=reference_count - 1)
        logits = self.scale * pairs.similarities[:, first_positive]
        own_logits = logits.diagonal()
        logits = logits.masked_fill(~is_anchor, -torch.inf)
        # A row that is no anchor may have no finite entry. Its own logit keeps it from becoming NaN.
        is_own = torch.eye(len(own_logits), dtype=torch.bool, device=own_logits.device)
        logits = torch.where(is_own, own_logits.unsqueeze(1), logits)
        value = mean(torch.logsumexp(logits, 1) - own_logits, is_anchor)
        return Loss(value, {"pairs": is_anchor.sum()})
