"""DELF's pooling: a score of at least zero for each place, and the sum of the features so weighted.

    score_j = softplus(a . relu(V feature_j + b) + c)         two 1x1 convolutions, D -> hidden -> 1
    vector  = 1/n sum_j score_j unit(feature_j),     unit(u) = u / max(||u||, 1e-6)

Unlike a softmax, the scores do not compete: a picture may have much to say, or little. ``weights`` are their shares.

Reference: Noh, Araujo, Sim, Weyand and Han, "Large-Scale Image Retrieval with Attentive Deep Local Features", ICCV
2017: 512 hidden units. The formula of the paper sums features as they are; their model DELF+FT+Att, and their code,
makes them unit vectors when they are summed (not when they are scored): ``unit_features``, which False takes back.

As in their code it is the mean of the weighted features, not the sum, so that vectors do not grow with the picture;
their direction is the same. Their code has a batch norm before the ReLU that the paper does not mention; we have none.
They train the scores after the features, and let no gradient from them into the backbone. Here all is one training.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from lookalike._util.checks import check_count
from lookalike.pooling.base import Pooled, Pooling, pooled
from lookalike.pooling.layers import linear, mean_of_present, softmax_of_present

SMALLEST_NORM = 1e-6  # that becomes 1, as theirs


class DelfPool(Pooling):
    """The mean of features times their scores.

    hidden: the units between the two convolutions.  unit_features: whether features are weighed as unit vectors.

    >>> DelfPool(dim=8, hidden=4)
    DelfPool(
      dim=8, hidden=4, unit_features=True
      (inner): Linear(in_features=8, out_features=4, bias=True)
      (score): Linear(in_features=4, out_features=1, bias=True)
    )
    """

    on_backbone = True

    def __init__(self, dim: int, *, hidden: int = 512, unit_features: bool = True) -> None:
        super().__init__(dim)
        check_count("hidden", hidden)
        self.hidden, self.unit_features = hidden, unit_features
        self.inner = nn.Linear(dim, hidden)
        self.score = nn.Linear(hidden, 1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, hidden={self.hidden}, unit_features={self.unit_features}"

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        scores = linear(self.score, linear(self.inner, bags).relu())
        features = normalize(bags, dim=-1, eps=SMALLEST_NORM) if self.unit_features else bags
        vector = mean_of_present(softplus(scores) * features, mask)
        return pooled(vector, softmax_of_present(_log_softplus(scores.squeeze(-1)), mask))


def _log_softplus(scores: Tensor) -> Tensor:
    """log(log(1 + exp(score))), also where the softplus is too small for a number: there it is exp(score)."""
    return torch.where(scores < -30, scores, softplus(scores.clamp(min=-30)).log())
