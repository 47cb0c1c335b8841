"""SimPool: one step of attention, asked by the average, and a power mean of what it finds.

    x_j    = LayerNorm(feature_j)
    query  = Q mean_j feature_j,     key_j = K x_j,     weight = softmax_j(query . key_j / sqrt(D))
    value_j = x_j - min x + 1e-6                        the least number of the bag, over places and channels
    vector = (sum_j weight_j value_j^power)^(1/power),  or without a power  sum_j weight_j x_j

Learnt are Q and K (D x D, no bias) and scale and shift of the LayerNorm; one head, and values have no layer.

Reference: Psomas, Kakogeorgiou, Karantzalos and Avrithis, "Keep It SimPool: Who Said Supervised Transformers Suffer
from Attention Deficit?", ICCV 2023. Their power (gamma) is 2 for convolutional networks and 1.25 for transformers; they
find "no power" a little better in figures now and then, with poorer attention maps.

Ours differs from their code in one point: there the minimum is that of the whole batch, so that pictures change each
other's vectors. We take it for each bag, as the paper writes it.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from lookalike._util.checks import check_range
from lookalike.pooling.base import Pooled, Pooling, pooled
from lookalike.pooling.layers import linear, mean_of_present, softmax_of_present

LEAST = 1e-6  # of a value, the authors'


class SimPool(Pooling):
    """Attention whose query is the average of the bag.

    power: above 0, or None for the plain weighted mean.

    >>> sum(parameter.numel() for parameter in SimPool(dim=8, power=1.25).parameters())
    144
    """

    on_backbone = True

    def __init__(self, dim: int, *, power: float | None = 2.0) -> None:
        super().__init__(dim)
        if power is not None:
            check_range("power", power, 0, None)
        self.power = power
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, power={self.power}"

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        kind = bags.dtype
        seen = layer_norm(bags, (self.dim,), self.norm.weight.to(kind), self.norm.bias.to(kind), self.norm.eps)
        query = linear(self.query, mean_of_present(bags, mask)).unsqueeze(-1)
        scores = (linear(self.key, seen) @ query).squeeze(-1) * self.dim**-0.5
        log_weights = softmax_of_present(scores, mask, log=True)
        weights = log_weights.exp()
        if self.power is None:
            return pooled((weights.unsqueeze(1) @ seen).squeeze(1), weights)
        # By logarithms: the power of a number near 1e-6 soon leaves the range of fp32, and its root has no gradient.
        terms = log_weights.unsqueeze(-1) + self.power * _from_least(seen, mask).log()
        return pooled((terms.logsumexp(1) / self.power).exp(), weights)


def _from_least(seen: Tensor, mask: Tensor | None) -> Tensor:
    """Counted from the least present number of each bag (B, N, D), and 1 where absent, which has a logarithm."""
    if mask is None:
        return seen - seen.amin((1, 2), keepdim=True) + LEAST
    absent = ~mask.unsqueeze(-1)
    least = seen.masked_fill(absent, torch.inf).amin((1, 2), keepdim=True)
    return (seen - least + LEAST).masked_fill(absent, 1)
