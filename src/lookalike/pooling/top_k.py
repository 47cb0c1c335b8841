"""Top-k as optimal transport: a smooth indicator of the k largest of n scores, and the hard one."""

from typing import Literal

import torch
from torch import Tensor

from lookalike._util.checks import check_count
from lookalike._util.tensor_checks import check_mask, require
from lookalike.pooling.autograd import precise
from lookalike.pooling.transport import partial_transport

Cost = Literal["squared", "absolute"]


def transport_top_k(
    scores: Tensor, k: int, sharpness: float | Tensor = 10.0, mask: Tensor | None = None, *, cost: Cost = "squared"
) -> Tensor:
    """Compute a smooth indicator of the k largest scores, exact and differentiable in scores and sharpness.

    The scores x_j, with mass 1/n each, are transported to the points y_0 = 0 and y_1 = 1. y_1 takes k/n:

        min <c, plan> + 1/sharpness * sum plan log plan     s.t.  plan_0j + plan_1j = 1/n,   sum_j plan_1j = k/n

    The indicator is n * plan_1j. Only the difference of the costs matters, so this is a partial transport to one
    prototype, y_1, and needs no iteration:

        indicator_j = sigmoid(sharpness * (c_0j - c_1j) + bias),   with the bias for which they sum to k

    GSP with a single prototype is this operator: its weights for the costs c are the indicator of the scores -c
    divided by k, with k/n = keep and half its sharpness.

    Reference: Xie et al., "Differentiable Top-k with Optimal Transport", NeurIPS 2020, with sharpness 1/epsilon = 10.
    Their code first divides the costs by the largest of the batch. (P5) in Gürbüz, Şener and Alatan, "Generalized Sum
    Pooling for Metric Learning", ICCV 2023.

    Args:
        scores: (..., n). Half precision is computed and returned in fp32.
        k: Number of scores to select.
        sharpness: Inverse strength of the entropy; a number, or a tensor that broadcasts with the batch shape (...).
        mask: (..., n) bool, True where a score is present.
        cost: "squared" for (y - x)^2 as in Xie et al., or "absolute" for |y - x| as printed in the paper of GSP. They
            agree for scores in [0, 1]. The second cannot distinguish scores above 1, nor scores below 0.

    Returns:
        The indicator (..., n), between 0 and 1, with the sum k. Absent scores get 0.

    Raises:
        TypeError: If the scores are not a floating-point tensor.
        ValueError: If a shape does not match or there are fewer than k scores.

    Examples:
        >>> transport_top_k(torch.tensor([0.1, 0.9, 0.5, 0.8]), k=2, sharpness=3.0)
        tensor([0.0452, 0.8520, 0.3431, 0.7596])
    """
    if cost not in ("squared", "absolute"):
        raise ValueError(f"cost must be 'squared' or 'absolute', got {cost!r}")
    scores = _checked(scores, k, mask)
    if cost == "squared":
        difference = -2 * scores  # c_1 - c_0 = 1 - 2x; a constant has no effect
    else:
        difference = (1 - scores).abs() - scores.abs()
    keep: float | Tensor = k / scores.shape[-1]
    if mask is not None:
        keep = k / mask.sum(-1, dtype=scores.dtype)
    return partial_transport(difference.unsqueeze(-2), keep, sharpness, mask).weights * k


def hard_top_k(scores: Tensor, k: int, mask: Tensor | None = None) -> Tensor:
    """Compute the limit of infinite sharpness: 1 for each of the k largest scores, else 0. It has no gradient.

    Args:
        scores: (..., n).
        k: Number of scores to select; the first of equal ones.
        mask: (..., n) bool, True where a score is present.

    Returns:
        The indicator (..., n).

    Examples:
        >>> hard_top_k(torch.tensor([0.1, 0.9, 0.5, 0.8]), k=2)
        tensor([0., 1., 0., 1.])
    """
    scores = _checked(scores, k, mask).detach()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    first = scores.argsort(dim=-1, descending=True, stable=True)[..., :k]
    return torch.zeros_like(scores).scatter(-1, first, 1.0)


def _checked(scores: Tensor, k: int, mask: Tensor | None) -> Tensor:
    """Check the arguments; return the scores in fp32 or fp64."""
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        kind = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"scores must be a floating point tensor, got {kind}")
    if scores.dim() < 1 or scores.shape[-1] == 0:
        raise ValueError(f"scores must have the shape (..., at least one), got {tuple(scores.shape)}")
    check_count("k", k)
    check_mask(mask, scores.shape)
    if k > scores.shape[-1]:
        raise ValueError(f"k must be at most the number of scores, {scores.shape[-1]}, got {k}")
    if mask is not None:
        require((mask.sum(-1) >= k).all(), f"k must be at most the number of present scores, got {k}")
    return precise(scores)
