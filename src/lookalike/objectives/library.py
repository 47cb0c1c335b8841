"""Pair losses as pytorch-metric-learning has them: triplet, generalised lifted structure and circle.

    triplet    max(0, d_ap - d_an + margin), mean over the non-zero of all triplets (Schroff et al., CVPR 2015)
    lifted     mean_a max(0, log sum_p exp(d_ap - positive_margin) + log sum_n exp(negative_margin - d_an))
               (Oh Song et al., CVPR 2016, in the form of Hermans et al., 2017)
    circle     log(1 + sum_p exp(-scale w_p (s_ap - 1 + relaxation)) * sum_n exp(scale w_n (s_an - relaxation))),
               mean over the non-zero anchors, with w_p = max(0, 1 + relaxation - s_ap) and
               w_n = max(0, s_an + relaxation) held constant (Sun et al., CVPR 2020)

Pairs and distances are computed here, the losses by the library. It is imported when the first loss is created.
"""

from typing import Any

import torch
from torch import Tensor, nn

from lookalike._util.checks import check_range
from lookalike.objectives.base import Loss
from lookalike.objectives.pairs import PairObjective, Pairs, halfway, share


class Triplet(PairObjective):
    """Triplet loss, by pytorch-metric-learning: max(0, d(anchor, positive) - d(anchor, negative) + margin).

    Args:
        margin: Difference of distances from which on a triplet has no loss.
        normalise: Project embeddings onto the unit sphere.
    """

    def __init__(self, margin: float = 0.1, *, normalise: bool = True) -> None:
        from pytorch_metric_learning.losses import TripletMarginLoss

        check_range("margin", margin, 0, None)
        super().__init__(margin=margin, normalise=normalise)
        self.margin = margin
        self.loss: nn.Module = TripletMarginLoss(margin=margin, distance=_distance())

    def compare(self, pairs: Pairs) -> Loss:
        """Compute the loss of all pairs."""
        triplets = _triplets(pairs)
        value = _value(self.loss, pairs, triplets)
        with torch.no_grad():
            anchor, positive, negative = triplets
            distances = pairs.distances
            active = distances[anchor, positive] - distances[anchor, negative] + self.margin > 0
        return Loss(value, {"active triplets": share(active, torch.ones_like(active))})


class LiftedStructure(PairObjective):
    """Generalized lifted structure loss (Hermans et al.), by pytorch-metric-learning.

    Args:
        positive_margin: Distance up to which positives are not pulled.
        negative_margin: Distance from which negatives are not pushed.
        normalise: Project embeddings onto the unit sphere.
    """

    def __init__(self, positive_margin: float = 0.0, negative_margin: float = 1.0, *, normalise: bool = True) -> None:
        from pytorch_metric_learning.losses import GeneralizedLiftedStructureLoss

        check_range("negative_margin", negative_margin, 0, None)
        super().__init__(positive_margin=positive_margin, negative_margin=negative_margin, normalise=normalise)
        self.margins = positive_margin, negative_margin
        self.loss: nn.Module = GeneralizedLiftedStructureLoss(
            pos_margin=positive_margin, neg_margin=negative_margin, distance=_distance()
        )

    def compare(self, pairs: Pairs) -> Loss:
        """Compute the loss of all pairs."""
        return Loss(_value(self.loss, pairs, _both_kinds(pairs)), {})

    def boundary(self) -> tuple[float, float]:
        """Return beta and alpha, halfway between the margins."""
        return halfway(*self.margins)


class Circle(PairObjective):
    """Circle loss, by pytorch-metric-learning; the formula stands at the top of this file.

    It always compares cosines, because its weights assume their range.

    Args:
        scale: gamma in the paper.
        relaxation: m in the paper.
    """

    def __init__(self, scale: float = 80.0, relaxation: float = 0.4) -> None:
        from pytorch_metric_learning.losses import CircleLoss

        check_range("scale", scale, 0, None)
        check_range("relaxation", relaxation, -1, 1)
        super().__init__(scale=scale, relaxation=relaxation, normalise=True)
        del self.settings["normalise"]  # always True, so no setting
        self.loss: nn.Module = CircleLoss(m=relaxation, gamma=scale)

    def compare(self, pairs: Pairs) -> Loss:
        """Compute the loss of all pairs."""
        return Loss(_value(self.loss, pairs, _both_kinds(pairs)), {})


def _distance() -> Any:
    from pytorch_metric_learning.distances import LpDistance

    return LpDistance(normalize_embeddings=False)  # the objective normalises them, if it should


def _value(loss: nn.Module, pairs: Pairs, indices: tuple[Tensor, ...]) -> Tensor:
    value: Tensor = loss(pairs.anchors, pairs.labels, indices, pairs.references, pairs.reference_labels)
    return value


def _triplets(pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    anchor, positive = pairs.positive.nonzero(as_tuple=True)
    pair, negative = pairs.negative[anchor].nonzero(as_tuple=True)
    return anchor[pair], positive[pair], negative


def _both_kinds(pairs: Pairs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Positive and negative pairs of the anchors that have both kinds.

    The library would give other anchors a log-sum of 0 for the missing kind. Every pair is listed twice: the loss stays
    the same, but the library treats a single pair of each kind as none.
    """
    has_both = (pairs.positive.any(1) & pairs.negative.any(1)).unsqueeze(1)
    positive = (pairs.positive & has_both).nonzero().repeat(2, 1)
    negative = (pairs.negative & has_both).nonzero().repeat(2, 1)
    return positive[:, 0], positive[:, 1], negative[:, 0], negative[:, 1]
