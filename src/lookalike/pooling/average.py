"""The two poolings that learn nothing: the mean and the maximum of a bag.

    average: vector = 1/n sum_j feature_j        max: vector_d = max_j feature_jd

As every pooling they tell with ``details`` where the vector comes from. The mean weighs all places alike. The
maximum is a choice for each channel, so the weight of a place is the share of the channels it won. Neither has
prototypes, so their ``attributes`` are empty.
"""

import torch
from torch import Tensor

from lookalike.pooling.base import Pooled, Pooling, pooled


class AveragePool(Pooling):
    """The mean of the present features.

    >>> AveragePool(dim=2)(torch.tensor([[[1.0, 2.0], [3.0, 0.0]]]))
    tensor([[2., 1.]])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        if mask is None:
            return pooled(bags.mean(1), bags.new_full(bags.shape[:2], 1 / bags.shape[1]))
        count = mask.sum(1, keepdim=True)
        return pooled(bags.sum(1) / count, mask.to(bags.dtype) / count)


class MaxPool(Pooling):
    """The largest of the present features, channel by channel; of equals, the first place gets the gradient.

    >>> MaxPool(dim=2)(torch.tensor([[[1.0, 2.0], [3.0, 0.0]]]), details=True).weights
    tensor([[0.5000, 0.5000]])
    """

    on_backbone = True

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        if mask is not None:
            bags = bags.masked_fill(~mask.unsqueeze(-1), -torch.inf)
        vector, winners = bags.max(1)
        wins = bags.new_zeros(bags.shape[:2]).scatter_add(1, winners, torch.ones_like(vector))
        return pooled(vector, wins / self.dim)
