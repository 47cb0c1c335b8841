"""The sum of two poolings of the same bag, and the one that is in use: average plus max.

    vector = first(bag) + second(bag),    weights = (first's + second's) / 2

Average plus max (GAP+GMP) is the conventional baseline of metric learning: the mean knows how much of something there
is and the maximum whether there is any.
"""

from torch import Tensor

from lookalike.pooling.average import AveragePool, MaxPool
from lookalike.pooling.base import Pooled, Pooling, pooled


class SumOfTwo(Pooling):
    """Two poolings of equal sizes, added. Attributes, if either has any, are left out."""

    on_backbone = True

    def __init__(self, first: Pooling, second: Pooling) -> None:
        if (first.dim, first.out_dim) != (second.dim, second.out_dim):
            raise ValueError(
                "two poolings must take and give the same sizes to be added, got "
                f"{first.dim} -> {first.out_dim} and {second.dim} -> {second.out_dim}"
            )
        for part in (first, second):
            if part.needs_map or type(part)._pool is Pooling._pool:
                raise TypeError(f"a pooling must be written as _pool to be added, got {type(part).__name__}")
        super().__init__(first.dim, first.out_dim)
        self.first, self.second = first, second

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        first, second = self.first._pool(bags, mask), self.second._pool(bags, mask)
        return pooled(first.vector + second.vector, (first.weights + second.weights) / 2)


class AveragePlusMaxPool(SumOfTwo):
    """The mean plus the maximum of the present features.

    >>> import torch
    >>> AveragePlusMaxPool(dim=2)(torch.tensor([[[1.0, 2.0], [3.0, 0.0]]]))
    tensor([[5., 3.]])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(AveragePool(dim), MaxPool(dim))
