"""Generalized max pooling: the vector that every local feature of the bag matches alike, the rare as the frequent.

    vector = argmin_v  sum_j (x_j . v - 1)^2 + ridge ||v||^2
           = X^T alpha,    alpha = (X X^T + ridge I_N)^-1 1        the dual, N equations
           = (X^T X + ridge I_D)^-1 X^T 1                          the primal, D equations

X holds the bag's features as rows. The smaller system is solved, by Cholesky in fp64 where the device has it: with
features of norm 100 the condition number passes what fp32 can hold. ``ridge`` (the papers' lambda) goes from equal
matches (towards 0) to the direction of the plain sum (towards infinity), and its scale is that of the squared features:
no value suits all networks.

References: Murray and Perronnin, "Generalized Max Pooling", CVPR 2014; Murray, Jégou, Perronnin and Zisserman,
"Interferences in Match Kernels", TPAMI 2017. They choose lambda on validation data, in powers of ten; Christlein et
al., "Deep Generalized Max Pooling", ICDAR 2019, start a learnt one at 1000; the authors of GSP compare with lambda = 1,
the default here. The papers normalise the vector; here the model does.
"""

import torch
from torch import Tensor

from lookalike._util.checks import check_range
from lookalike.pooling.base import Pooled, Pooling, pooled
from lookalike.pooling.transport import solver_dtype

# The ridge never falls below this part of the trace, in units of rounding: there a Cholesky factor may not exist.
FLOOR = 16


class GeneralizedMaxPool(Pooling):
    """Ridge regression of all ones on the features of the bag.

    ridge: lambda, above 0.

    The weights are |alpha_j| / sum_k |alpha_k|: how loud each place speaks. alpha itself can be negative (a feature
    that many others already speak for may be taken back), though its sum never is.

    >>> GeneralizedMaxPool(dim=2, ridge=1.0)(torch.tensor([[[3.0, 0.0], [0.0, 1.0]]]))
    tensor([[0.3000, 0.5000]])
    """

    on_backbone = True

    def __init__(self, dim: int, ridge: float = 1.0) -> None:
        super().__init__(dim)
        check_range("ridge", ridge, 0, None)
        self.ridge = float(ridge)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        rows = bags.to(solver_dtype(bags))
        ones = rows.new_ones(rows.shape[:2]) if mask is None else mask.to(rows.dtype)
        trace = rows.detach().square().sum((1, 2))
        ridge = (self.ridge + FLOOR * torch.finfo(rows.dtype).eps * trace).unsqueeze(1)
        if rows.shape[1] <= rows.shape[2]:
            alpha = _ridge_solve(rows @ rows.mT, ridge, ones)
            vector = torch.einsum("bn,bnd->bd", alpha, rows)
        else:
            vector = _ridge_solve(rows.mT @ rows, ridge, torch.einsum("bn,bnd->bd", ones, rows))
            alpha = (ones - torch.einsum("bnd,bd->bn", rows, vector)) / ridge
        loudness = alpha.abs()
        weights = loudness / loudness.sum(1, keepdim=True)
        return pooled(vector.to(bags.dtype), weights.to(bags.dtype))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, ridge={self.ridge:g}"


def _ridge_solve(gram: Tensor, ridge: Tensor, right: Tensor) -> Tensor:
    """(gram + ridge I)^-1 right: (B, M, M), (B, 1), (B, M) -> (B, M)"""
    system = gram + torch.diag_embed(ridge.expand(-1, gram.shape[1]))
    factor, _ = torch.linalg.cholesky_ex(system)  # without "_ex" the host would wait for the verdict
    return torch.cholesky_solve(right.unsqueeze(2), factor).squeeze(2)
