"""Top-k as optimal transport: a smooth indicator of the k largest of n scores, and the hard one beside it.

(P5) of "Generalized Sum Pooling for Metric Learning" (Gürbüz, Şener and Alatan, ICCV 2023), after Xie et al.,
"Differentiable Top-k with Optimal Transport", NeurIPS 2020: the scores x_j, with mass 1/n each, are transported to the
two points y_0 = 0 and y_1 = 1, of which y_1 takes k/n,

    min <c, plan> + 1/sharpness * sum plan log plan     s.t.  plan_0j + plan_1j = 1/n,   sum_j plan_1j = k/n

and n * plan_1j is the indicator, between 0 and 1 and k in all. Of the two rows only the difference of the costs counts:
it is a partial transport to one prototype, y_1, and y_0 is what stays behind. So there is nothing to iterate:

    indicator_j = sigmoid(sharpness * (c_0j - c_1j) + bias),   bias such that they sum to k

by lookalike.pooling.transport.

The cost of Xie et al. is (y - x)^2, and then c_0 - c_1 = 2 x - 1, linear in the score. GSP's paper prints |y - x|:
the same for scores between 0 and 1, but it does not tell scores above 1, or those below 0, from each other.

What GSP adds, the papers say, is the choice among features by their distances to a *set* of prototypes. With a single
prototype it is this operator: its weights for the costs c are the indicator of the scores -c, over k, with k/n = keep
and half its sharpness.

The epsilon of Xie et al. is 1/sharpness, 0.1 in their code, which first divides the costs by the largest of the batch.
That is left to the caller: here no result depends on the rest of the batch.
"""

from typing import Literal

import torch
from torch import Tensor

from lookalike._util.checks import check_count
from lookalike._util.tensor_checks import check_mask, require
from lookalike.pooling.transport import partial_transport

Cost = Literal["squared", "absolute"]


def transport_top_k(
    scores: Tensor, k: int, sharpness: float | Tensor = 10.0, mask: Tensor | None = None, *, cost: Cost = "squared"
) -> Tensor:
    """Scores (..., n), mask (..., n) True where present -> how much each belongs to the k largest (..., n), k in all.

    Exact, and differentiable in the scores and in ``sharpness`` (a number, or a tensor that broadcasts with ``...``).
    Absent scores get zero. Half precision is computed and returned in fp32.

    >>> transport_top_k(torch.tensor([0.1, 0.9, 0.5, 0.8]), k=2, sharpness=3.0)
    tensor([0.0452, 0.8520, 0.3431, 0.7596])
    """
    if cost not in ("squared", "absolute"):
        raise ValueError(f"cost must be 'squared' or 'absolute', got {cost!r}")
    scores = _checked(scores, k, mask)
    # y_1 costs 1 - 2x more than y_0. What is the same for all places does not count.
    difference = -2 * scores if cost == "squared" else (1 - scores).abs() - scores.abs()
    keep = k / scores.shape[-1] if mask is None else k / mask.sum(-1, dtype=scores.dtype)
    return partial_transport(difference.unsqueeze(-2), keep, sharpness, mask).weights * k


def hard_top_k(scores: Tensor, k: int, mask: Tensor | None = None) -> Tensor:
    """The limit of infinite sharpness: 1 for each of the k largest, else 0; of equals the first. It has no gradient.

    >>> hard_top_k(torch.tensor([0.1, 0.9, 0.5, 0.8]), k=2)
    tensor([0., 1., 0., 1.])
    """
    scores = _checked(scores, k, mask).detach()
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    first = scores.argsort(dim=-1, descending=True, stable=True)[..., :k]
    return torch.zeros_like(scores).scatter(-1, first, 1.0)


def _checked(scores: Tensor, k: int, mask: Tensor | None) -> Tensor:
    """The scores in fp32 or fp64."""
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
    return scores if scores.dtype == torch.float64 else scores.float()
