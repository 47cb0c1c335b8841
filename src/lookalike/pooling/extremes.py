"""WELDON pooling: of each channel the k largest and the k smallest features, evidence for it and against it.

    vector_d = 1/k+ sum of the k+ largest x_jd  +  1/k- sum of the k- smallest x_jd

Reference: Durand, Thome and Cord, "WELDON: Weakly Supervised Learning of Deep Convolutional Neural Networks", CVPR
2016, with k+ = k- = k. The authors of GSP compare with k = 3, the default here, and sum where the paper takes means.

The paper pools the maps of a learnt 1x1 layer, where a small value speaks against the channel. After a ReLU the
smallest values are zeros and say nothing, so this pooling stands behind the projection.
"""

import torch
from torch import Tensor

from lookalike._util.checks import check_count
from lookalike.pooling.base import Pooled, Pooling, pooled


class WeldonPool(Pooling):
    """The mean of the largest plus the mean of the smallest, channel by channel.

    largest: k+.  smallest: k-; 0 leaves the second mean out.  A bag of fewer features gives all it has, so one of a
    single feature is pooled to twice that feature.

    The weight of a place is its part in the choices: each mean spreads 1 over its features, and weights are the
    average over both means and all channels.

    >>> WeldonPool(dim=1, largest=2, smallest=1)(torch.tensor([[[1.0], [-2.0], [5.0]]]))
    tensor([[1.]])
    """

    def __init__(self, dim: int, largest: int = 3, smallest: int = 3) -> None:
        super().__init__(dim)
        check_count("largest", largest)
        check_count("smallest", smallest, least=0)
        self.largest, self.smallest = largest, smallest

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        vector, weights = _mean_of_largest(bags, mask, self.largest)
        if self.smallest:
            against, other = _mean_of_largest(-bags, mask, self.smallest)
            vector, weights = vector - against, (weights + other) / 2
        return pooled(vector, weights)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, largest={self.largest}, smallest={self.smallest}"


def _mean_of_largest(bags: Tensor, mask: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """The mean of the ``count`` largest present features of each channel (B, D), and its weights (B, N)."""
    batch, places, dim = bags.shape
    count = min(count, places)
    if mask is None:
        values, chosen = bags.topk(count, dim=1)
        parts = bags.new_full((batch, count), 1 / count)
    else:
        values, chosen = bags.masked_fill(~mask.unsqueeze(-1), -torch.inf).topk(count, dim=1)
        present = mask.sum(1, keepdim=True).clamp(max=count)
        real = torch.arange(count, device=bags.device) < present  # values are sorted: the absent come last
        values = values.masked_fill(~real.unsqueeze(-1), 0)
        parts = real.to(bags.dtype) / present
    weights = bags.new_zeros(batch, places).scatter_add(
        1, chosen.flatten(1), (parts / dim).unsqueeze(-1).expand(-1, -1, dim).flatten(1)
    )
    return torch.einsum("bk,bkd->bd", parts, values), weights
