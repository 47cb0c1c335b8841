"""N-pair: of each class one anchor and one positive; the negatives of an anchor are the positives of the others.

    mean_i log(1 + sum_{j != i} exp(scale (f_i . g_j - f_i . g_i)))        f_i anchor, g_i positive of class i

The anchor of a class is its first picture in the batch and the positive the next one (or the first reference), so that
batches want two pictures a class. Reference: Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss
Objective", NeurIPS 2016; vectors are not normalised there. Vectors that are want a ``scale`` well above 1.
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
        paired = pairs.positive.any(1)
        earlier = (pairs.labels.unsqueeze(1) == pairs.labels).tril(-1)
        chosen = paired & ~(earlier & paired).any(1)  # the first anchor of each class
        place = torch.arange(pairs.positive.shape[1], device=chosen.device)
        partner = torch.where(pairs.positive, place, len(place)).amin(1).clamp(max=len(place) - 1)
        logits = self.scale * pairs.similarities[:, partner]
        own = logits.diagonal()
        rivals = logits.masked_fill(~chosen, -torch.inf)
        # Rows that are not chosen may hold no finite entry; they take their own so that nothing is NaN.
        rivals = torch.where(torch.eye(len(own), dtype=torch.bool, device=own.device), own.unsqueeze(1), rivals)
        value = mean(torch.logsumexp(rivals, 1) - own, chosen)
        return Loss(value, {"pairs": chosen.sum()})
