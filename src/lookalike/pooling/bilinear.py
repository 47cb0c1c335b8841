"""Bilinear pooling: which channels are active together.

    M = 1/n sum_j feature_j feature_j^T,    R_ab = root(M_ab),    vector = unit(R_aa and sqrt(2) R_ab for a < b)

``root(x) = sign(x) sqrt(|x|)``. M is symmetric, so one triangle of it says all; with the off-diagonal places times
sqrt(2), inner products and norms are exactly those of the whole D x D matrix, at D (D + 1) / 2 numbers.

Reference: Lin, RoyChowdhury and Maji, "Bilinear CNN Models for Fine-grained Visual Recognition", ICCV 2015: both of
their networks being one. Its 512 channels make 131,328 numbers here, 262,144 in theirs. They sum over the places, which
unit() undoes; but root() is ``x / sqrt(|x| + 1e-8)``, since the exact one has no finite gradient at zero. They put
the same constant into the gradient alone, which is then not that of the value.
"""

from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lookalike._util.checks import check_count
from lookalike.pooling.base import Pooled, Pooling, pooled

ROOT_FLOOR = 1e-8


class BilinearPool(Pooling):
    """Pool local features (B, N, D) into vectors (B, D (D + 1) / 2) of norm 1. Mind the size of a projection after it.

    >>> BilinearPool(dim=2)(torch.tensor([[[2.0, 1.0]]])) ** 2      # 4, 2 * 2 and 1 of 9
    tensor([[0.4444, 0.4444, 0.1111]])
    """

    on_backbone = True
    has_weights = False
    places: Tensor
    factors: Tensor

    def __init__(self, dim: int) -> None:
        check_count("dim", dim)
        super().__init__(dim, dim * (dim + 1) // 2)
        first, second = torch.triu_indices(dim, dim)
        self.register_buffer("places", first * dim + second, persistent=False)
        self.register_buffer("factors", torch.where(first == second, 1.0, sqrt(2)), persistent=False)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        count = bags.shape[1] if mask is None else mask.sum(1).view(-1, 1, 1)
        products = torch.bmm(bags.mT, bags) / count
        roots = signed_root(products.flatten(1)[:, self.places])
        return pooled(normalize(roots * self.factors.to(bags.dtype)))


def signed_root(x: Tensor) -> Tensor:
    """sign(x) sqrt(|x|), but for |x| below 1e-8, where it is a straight line through zero.

    >>> signed_root(torch.tensor([4.0, 0.0, -9.0]))
    tensor([ 2.,  0., -3.])
    """
    return x / (x.abs() + ROOT_FLOOR).sqrt()
