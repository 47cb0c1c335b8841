"""The two poolings that learn nothing: the mean and the maximum of a bag.

    average: vector = 1/n sum_j feature_j        max: vector_d = max_j feature_jd

As every pooling they tell with ``details`` where the vector comes from. The mean weighs all places alike. The
maximum is a choice for each channel, so the weight of a place is the share of the channels it won. Neither has
prototypes, so their ``attributes`` are empty.
"""

from typing import Literal, overload

import torch
from torch import Tensor, nn

from lookalike.checks import check_count
from lookalike.pooling.bags import as_bags
from lookalike.pooling.gsp import Pooled


class _PlainPool(nn.Module):
    """What both share: the door, fp32 inside, the result cast back."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        check_count("dim", dim)
        self.dim = dim

    @overload
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: Literal[True]) -> Pooled: ...
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: bool = False) -> Tensor | Pooled:
        """Maps (B, D, H, W) or tokens (B, N, D), mask (B, N) True where present -> (B, D), or ``Pooled``."""
        bags = as_bags(features, self.dim, mask)
        bags = bags if bags.dtype == torch.float64 else bags.float()
        vector, weights = self._pool(bags, mask)
        vector = vector.to(features.dtype)
        return Pooled(vector, weights, vector.new_zeros(len(bags), 0, dtype=bags.dtype)) if details else vector

    @torch.no_grad()
    def explain(self, features: Tensor, mask: Tensor | None = None) -> Pooled:
        """``details`` for people: without gradients."""
        return self(features, mask, details=True)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"

    def _pool(self, bags: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Bags (B, N, D) -> vectors (B, D), weights (B, N)."""
        raise NotImplementedError


class AveragePool(_PlainPool):
    """The mean of the present features.

    >>> AveragePool(dim=2)(torch.tensor([[[1.0, 2.0], [3.0, 0.0]]]))
    tensor([[2., 1.]])
    """

    def _pool(self, bags: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if mask is None:
            return bags.mean(1), bags.new_full(bags.shape[:2], 1 / bags.shape[1])
        count = mask.sum(1, keepdim=True)
        return bags.sum(1) / count, mask.to(bags.dtype) / count


class MaxPool(_PlainPool):
    """The largest of the present features, channel by channel; of equals, the first place gets the gradient.

    >>> MaxPool(dim=2)(torch.tensor([[[1.0, 2.0], [3.0, 0.0]]]), details=True).weights
    tensor([[0.5000, 0.5000]])
    """

    def _pool(self, bags: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if mask is not None:
            bags = bags.masked_fill(~mask.unsqueeze(-1), -torch.inf)
        vector, winners = bags.max(1)
        wins = bags.new_zeros(bags.shape[:2]).scatter_add(1, winners, torch.ones_like(vector))
        return vector, wins / self.dim
