"""Slow reference solutions of the transport of generalized sum pooling, for tests, perf and studies.

They follow the paper, independently of ``lookalike.pooling.transport``:

    P1   min <c, plan>   s.t.  residual_j + sum_i plan_ij = 1/n,   sum_ij plan_ij = keep,   residual, plan >= 0
    P2   the same with 1/sharpness * (sum plan log plan + sum residual log residual) added

The paper solves P2 by k iterations of ``residual = 1/n / (1 + t a)``, ``t = keep / (a . residual)`` from ``t = 1``,
with ``a_j = sum_i exp(-sharpness * c_ij)`` (Proposition 4.1). This is in the linear domain, so fp32 underflows from a
sharpness of about 50. It converges slowly if sharpness or keep is large, and never at keep = 1.

Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023, where keep is mu,
sharpness epsilon, residual rho and plan pi.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from lookalike._util.checks import check_count, check_range
from lookalike.geometry import clip

# (cost (..., m, n), keep, sharpness) -> residual (..., n), plan (..., m, n), perhaps more
TransportFunction = Callable[[Tensor, float, float], tuple[Tensor, ...]]


def linear_programme(cost: ArrayLike | Tensor, keep: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Solve P1, the limit of infinite sharpness, by scipy's HiGHS.

    Args:
        cost: (m, n).
        keep: Share of the mass to move, in (0, 1].

    Returns:
        The residual (n,) and the plan (m, n).

    Raises:
        RuntimeError: If the solver fails.
        ValueError: If the cost is not a matrix or keep is out of range.

    Examples:
        >>> linear_programme([[0.0, 0.1, 1.0, 1.0]], keep=0.5)[0]
        array([0.  , 0.  , 0.25, 0.25])
    """
    from scipy.optimize import linprog

    matrix = np.asarray(cost.detach().cpu() if isinstance(cost, Tensor) else cost, dtype=np.float64)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"cost must have the shape (prototypes, features), got {matrix.shape}")
    check_range("keep", keep, 0, 1)
    m, n = matrix.shape
    # Variables: the n residuals, then the plan row by row.
    columns = np.tile(np.eye(n), m + 1)  # residual_j + sum_i plan_ij
    total = np.concatenate([np.zeros(n), np.ones(m * n)])  # sum_ij plan_ij
    result = linprog(
        c=np.concatenate([np.zeros(n), matrix.ravel()]),
        A_eq=np.vstack([columns, total]),
        b_eq=np.append(np.full(n, 1 / n), keep),
        bounds=(0, None),
        method="highs",
    )
    if not result.success:
        raise RuntimeError(f"the linear programme was not solved: {result.message}")
    return result.x[:n], result.x[n:].reshape(m, n)


def paper_iteration(cost: Tensor, keep: float, sharpness: float, iterations: int = 100) -> tuple[Tensor, Tensor]:
    """Solve P2 by the iteration of the paper. Autograd stores every iteration.

    Args:
        cost: (..., m, n).
        keep: Share of the mass to move, in (0, 1].
        sharpness: Inverse strength of the entropy, above 0.
        iterations: Number of iterations.

    Returns:
        The residual (..., n) and the plan (..., m, n).
    """
    check_range("keep", keep, 0, 1)
    check_range("sharpness", sharpness, 0, None)
    check_count("iterations", iterations)
    return _iterate(cost, keep, sharpness, iterations)


def paper_closed_form(cost: Tensor, keep: float, sharpness: float, iterations: int = 100) -> tuple[Tensor, Tensor]:
    """Like ``paper_iteration``, with the gradient on the cost by Proposition 4.2, which stores the solution only.

    The gradient assumes convergence. Before that its divisor is wrong, and may be zero or negative.
    """
    check_range("keep", keep, 0, 1)
    check_range("sharpness", sharpness, 0, None)
    check_count("iterations", iterations)
    residual, plan = _ClosedForm.apply(cost, keep, sharpness, iterations)
    return residual, plan


def pool_by(
    transport: TransportFunction, features: Tensor, prototypes: Tensor, keep: float, sharpness: float
) -> Tensor:
    """Pool features (B, N, D) by prototypes (m, D) into vectors (B, D), with a given transport function."""
    # One product for all bags: cdist of (m, D) with (B, N, D) copies the prototypes B times and is 3 times slower.
    distances = torch.cdist(clip(features).flatten(0, 1), clip(prototypes))
    cost = distances.view(*features.shape[:2], -1).mT
    residual = transport(cost, keep, sharpness)[0]
    weights = (1 / features.shape[1] - residual) / keep
    return (weights.unsqueeze(-1) * features).sum(1)


def _iterate(cost: Tensor, keep: float, sharpness: float, iterations: int) -> tuple[Tensor, Tensor]:
    n = cost.shape[-1]
    kernel = torch.exp(-sharpness * cost)
    a = kernel.sum(-2)
    t = cost.new_ones(())
    for _ in range(iterations):
        residual = 1 / (n * (1 + t * a))
        t = keep / (a * residual).sum(-1, keepdim=True)
    return residual, t.unsqueeze(-1) * kernel * residual.unsqueeze(-2)


class _ClosedForm(torch.autograd.Function):
    """Proposition 4.2, with the signs that are missing in print. ``g`` are the gradients on residual and plan:

    q    = residual * g_residual + sum_i plan_ij * g_plan_ij
    eta  = sum_j residual_j * g_residual_j - n * q . residual
    g_cost = -sharpness * plan * (g_plan - n * (q - eta / (1 - keep - n * residual . residual) * residual))
    """

    @staticmethod
    def forward(ctx: Any, cost: Tensor, keep: float, sharpness: float, iterations: int) -> tuple[Tensor, Tensor]:
        residual, plan = _iterate(cost, keep, sharpness, iterations)
        ctx.save_for_backward(residual, plan)
        ctx.keep, ctx.sharpness = keep, sharpness
        return residual, plan

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_residual: Tensor, grad_plan: Tensor) -> tuple[Tensor | None, ...]:
        residual, plan = ctx.saved_tensors
        n = residual.shape[-1]
        q = residual * grad_residual + (plan * grad_plan).sum(-2)
        eta = (residual * grad_residual).sum(-1, keepdim=True) - n * (q * residual).sum(-1, keepdim=True)
        divisor = 1 - ctx.keep - n * residual.square().sum(-1, keepdim=True)
        per_feature = n * (q - eta / divisor * residual)
        return -ctx.sharpness * plan * (grad_plan - per_feature.unsqueeze(-2)), None, None, None
