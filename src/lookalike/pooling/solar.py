"""SOLAR's pooling: every place looks at all places (second-order attention); then the generalized mean.

    query_j = relu(norm(F feature_j + f)),   key_j = relu(norm(G feature_j + g)),   value_j = H feature_j + h
    A       = softmax_j(query_i . key_j / sqrt(d))                             (n, n), rows sum to 1
    x_i     = feature_i + V sum_j A_ij value_j + v                             1x1 convolutions, D -> d -> D
    vector  = generalized mean of the x_i, see lookalike.pooling.power

Reference: Ng, Balntas, Tian and Mikolajczyk, "SOLAR: Second-Order Loss and Attention for Image Retrieval", ECCV 2020.
In their network such a block stands after each of the last two stages of a ResNet, with d = D / 4 and d = D / 2; this
is the last one, so reduction 2, and their generalized mean with a learnt power from 3. Biases and batch norms are those
of their code (the norms see present places only); F, G and H are drawn by He's rule, V and v start at zero: a new
pooling is the plain generalized mean. Their second-order loss is not part of a pooling.

``weights`` are those of the generalized mean, the parts that the places of the refined map have in the vector. What a
place drew from others by attention counts as its own.
"""

from torch import Tensor, nn

from lookalike._util.checks import check_count
from lookalike.pooling.base import Pooled, Pooling
from lookalike.pooling.layers import PresentBatchNorm, linear, softmax_of_present
from lookalike.pooling.power import GeneralizedMeanPool


class SolarPool(Pooling):
    """The generalized mean of features that have seen each other.

    reduction: d is D / reduction, at least 1.  power: what the power of the mean starts from.

    >>> sum(parameter.numel() for parameter in SolarPool(dim=8).parameters())
    165
    """

    on_backbone = True

    def __init__(self, dim: int, *, reduction: int = 2, power: float = 3.0) -> None:
        super().__init__(dim)
        check_count("reduction", reduction)
        self.reduction = reduction
        inner = max(1, dim // reduction)
        self.query, self.key, self.value = (nn.Linear(dim, inner) for _ in range(3))
        self.query_norm, self.key_norm = PresentBatchNorm(inner), PresentBatchNorm(inner)
        self.out = nn.Linear(inner, dim)
        self.mean = GeneralizedMeanPool(dim, power)
        for layer in (self.query, self.key, self.value):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reduction={self.reduction}"

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        query = self.query_norm(linear(self.query, bags), mask).relu()
        key = self.key_norm(linear(self.key, bags), mask).relu()
        scores = query @ key.mT * query.shape[-1] ** -0.5
        attention = softmax_of_present(scores, None if mask is None else mask.unsqueeze(1))
        refined = bags + linear(self.out, attention @ linear(self.value, bags))
        return self.mean(refined, mask, details=True)
