"""Contrastive losses: they pull positive pairs together and push negative pairs apart.

C1, on similarity s (Hadsell et al., CVPR 2006, in the form of Wang et al., "Cross-Batch Memory", CVPR 2020):

    1/B sum_a ( sum_{p: s_ap < 1 - 1e-5} (1 - s_ap) + sum_{n: s_an > margin} s_an )

C2, on distance d, with a margin for positives as well (Wu et al., "Sampling Matters", ICCV 2017):

    mean of max(0, d_ap - positive_margin) + mean of max(0, negative_margin - d_an),  each over its non-zero terms
"""

from torch import Tensor

from lookalike._util.checks import check_range
from lookalike.objectives.base import Loss
from lookalike.objectives.pairs import PairObjective, Pairs, chord, halfway, mean, share, total

DUPLICATE = 1e-5  # positives with a similarity above 1 - DUPLICATE count as the same picture


class Contrastive(PairObjective):
    """C1, contrastive loss on similarities. The sums are divided by the number of anchors, not of active pairs.

    Args:
        margin: Similarity above which negatives are pushed.
        normalise: Project embeddings onto the unit sphere.
    """

    def __init__(self, margin: float = 0.5, *, normalise: bool = True) -> None:
        check_range("margin", margin, -1, 1)
        super().__init__(margin=margin, normalise=normalise)
        self.margin = margin

    def compare(self, pairs: Pairs) -> Loss:
        """Compute the loss of all pairs."""
        similarities = pairs.similarities
        far = pairs.positive & (similarities < 1 - DUPLICATE)
        near = pairs.negative & (similarities > self.margin)
        positive = total(1 - similarities, far) / len(similarities)
        negative = total(similarities, near) / len(similarities)
        return Loss(positive + negative, _parts(positive, negative, far, near, pairs))

    def boundary(self) -> tuple[float, float]:
        """Return beta and alpha: positives to distance 0, negatives to that of the margin on the sphere."""
        return halfway(0.0, chord(self.margin))


class ContrastiveDistance(PairObjective):
    """C2, contrastive loss on distances. Positives and negatives are averaged separately, with equal weight.

    Args:
        positive_margin: Distance up to which positives are not pulled.
        negative_margin: Distance from which negatives are not pushed.
        normalise: Project embeddings onto the unit sphere.
    """

    def __init__(self, positive_margin: float = 0.0, negative_margin: float = 0.5, *, normalise: bool = True) -> None:
        check_range("negative_margin", negative_margin, 0, None)
        if not 0 <= positive_margin < negative_margin:
            raise ValueError(f"positive_margin must lie in [0, negative_margin), got {positive_margin}")
        super().__init__(positive_margin=positive_margin, negative_margin=negative_margin, normalise=normalise)
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin

    def compare(self, pairs: Pairs) -> Loss:
        """Compute the loss of all pairs."""
        distances = pairs.distances
        far = pairs.positive & (distances > self.positive_margin)
        near = pairs.negative & (distances < self.negative_margin)
        positive = mean(distances - self.positive_margin, far)
        negative = mean(self.negative_margin - distances, near)
        return Loss(positive + negative, _parts(positive, negative, far, near, pairs))

    def boundary(self) -> tuple[float, float]:
        """Return beta and alpha, halfway between the margins."""
        return halfway(self.positive_margin, self.negative_margin)


def _parts(positive: Tensor, negative: Tensor, far: Tensor, near: Tensor, pairs: Pairs) -> dict[str, Tensor]:
    return {
        "positive": positive.detach(),
        "negative": negative.detach(),
        "active positives": share(far, pairs.positive),
        "active negatives": share(near, pairs.negative),
    }
