"""Entropy-smoothed partial transport of a bag of features to prototypes, solved exactly.

Each of ``n`` features has the mass ``1/n``. The share ``keep`` (mu) moves to ``m`` prototypes at cost ``c_ij``, with an
entropy of strength ``1/sharpness`` (1/epsilon). ``residual`` (rho) stays behind:

    min <c, plan> + 1/sharpness * (sum plan log plan + sum residual log residual)
    s.t. residual_j + sum_i plan_ij = 1/n,  sum_ij plan_ij = keep

With the closeness ``l_j = logsumexp_i(-sharpness * c_ij)`` the solution is a sigmoid gate,
``1 - n * residual_j = sigmoid(l_j + bias)``, and ``bias`` is the root of one increasing equation,

    mean_j sigmoid(l_j + bias) = keep.

So the problem is one scalar root per bag, and its gradient follows from the implicit function theorem.

Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023 (P2). Their iteration
converges to the same point, see ``lookalike.pooling.reference``.
"""

from math import log
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lookalike._util.checks import check_range
from lookalike._util.tensor_checks import check_mask
from lookalike.pooling.autograd import first_order_only, precise

# From a bracket of 2 log(n) the guarded Newton needs up to 12 steps on adversarial bags. Where it cannot stop early,
# many shifts are evaluated at once to narrow the bracket, after which no bag in the tests needs more than 2 steps.
NEWTON_STEPS = 16
STEPS_WHEN_NARROW = 4
NARROW_ROUNDS = 3
SHIFTS = 32  # intervals of a bracket that are told apart in one round

Count = int | Tensor  # a number, or (..., 1) where bags differ


class Transport(NamedTuple):
    """The solution of a partial transport.

    Attributes:
        residual: Mass that stays behind (..., n), between 0 and 1/n.
        plan: Mass moved (..., m, n). It sums to ``keep``; each column and its residual sum to 1/n.
        weights: Share of each feature in the moved mass (..., n); sums to 1.
    """

    residual: Tensor
    plan: Tensor
    weights: Tensor


def partial_transport(
    cost: Tensor, keep: float | Tensor, sharpness: float | Tensor, mask: Tensor | None = None
) -> Transport:
    """Solve entropy-smoothed partial transport to machine precision.

        min <cost, plan> + 1/sharpness * (sum plan log plan + sum residual log residual)
        s.t. residual_j + sum_i plan_ij = 1/n,  sum_ij plan_ij = keep

    Differentiable once in cost, keep and sharpness; second derivatives raise a RuntimeError. Half precision is computed
    and returned in fp32.

    Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023 (P2).

    Args:
        cost: Cost of moving each of n features to each of m prototypes (..., m, n).
        keep: Share of the mass to move, in (0, 1]; a number, or a tensor that broadcasts with the batch shape (...).
        sharpness: Inverse strength of the entropy, above 0; a number, or a tensor like ``keep``.
        mask: (..., n) bool, True where a feature is present. Absent features get no mass, and n counts the present
            ones.

    Returns:
        ``Transport`` with the residual (..., n), the plan (..., m, n) and the weights (..., n).

    Raises:
        TypeError: If the cost is not a floating-point tensor or the mask is not bool.
        ValueError: If a shape does not match, or keep or sharpness is out of range.

    Examples:
        >>> cost = torch.tensor([[0.0, 0.1, 1.0, 1.0]])             # one prototype, four features
        >>> partial_transport(cost, keep=0.5, sharpness=5.0).weights
        tensor([0.4666, 0.4473, 0.0431, 0.0431])
    """
    if not isinstance(cost, Tensor):
        raise TypeError(f"cost must be a tensor, got {type(cost).__name__}")
    if cost.dim() < 2:
        raise ValueError(f"cost must have the shape (..., prototypes, features), got {tuple(cost.shape)}")
    if 0 in cost.shape[-2:]:
        raise ValueError(f"cost needs at least one prototype and one feature, got {tuple(cost.shape)}")
    if not cost.is_floating_point():
        raise TypeError(f"cost must be floating point, got {cost.dtype}")
    check_range("keep", keep, 0, 1)
    check_range("sharpness", sharpness, 0, None)
    check_mask(mask, cost.shape[:-2] + cost.shape[-1:])

    with torch.autocast(cost.device.type, enabled=False):
        cost = precise(cost)
        keep = as_column(keep, cost)
        sharpness = as_column(sharpness, cost)
        if mask is not None:
            cost = cost.masked_fill(~mask.unsqueeze(-2), 0)
        # Subtract before multiplying: at sharpness 1e4 multiplying first would lose three digits.
        nearest = cost.detach().amin(-2, keepdim=True)
        logits = (nearest - cost) * sharpness.unsqueeze(-1)
        spread = logits.logsumexp(-2)
        wide = solver_dtype(cost)
        closeness = spread.to(wide) - sharpness.to(wide) * nearest.squeeze(-2).to(wide)

        count = count_features(closeness, mask)
        gate, rest = _Gate.apply(closeness, keep.to(wide), count, mask, newton_tolerance(cost.dtype))
        weights = (gate / (keep.to(wide) * count)).to(cost.dtype)
        plan = (keep * weights).unsqueeze(-2) * logits.softmax(-2)
        return Transport((rest / count).to(cost.dtype), plan, weights)


class _Gate(torch.autograd.Function):
    """closeness (..., n), keep (..., 1) -> sigmoid(x) and sigmoid(-x), x = closeness + bias (..., n)."""

    @staticmethod
    def forward(
        ctx: Any, closeness: Tensor, keep: Tensor, count: Count, mask: Tensor | None, tolerance: float
    ) -> tuple[Tensor, Tensor]:
        x = gate_logits(closeness, keep, count, mask, tolerance)
        ctx.save_for_backward(closeness, keep, x)
        ctx.count = count
        rest = x.neg().sigmoid()
        if mask is not None:
            rest = rest * mask
        return x.sigmoid(), rest

    @staticmethod
    def backward(ctx: Any, grad_gate: Tensor, grad_rest: Tensor) -> tuple[Tensor | None, ...]:
        closeness, keep, x = ctx.saved_tensors
        with torch.no_grad():
            grad_closeness, grad_bias = gate_gradient(x, grad_gate - grad_rest)
        gradients = (grad_closeness, (ctx.count * grad_bias).sum_to_size(keep.shape), None, None, None)
        return first_order_only(gradients, (closeness, keep, grad_gate, grad_rest))


def gate_logits(closeness: Tensor, keep: float | Tensor, count: Count, mask: Tensor | None, tolerance: float) -> Tensor:
    """Find ``closeness + bias`` such that the mean of its sigmoid is ``keep``.

    Args:
        closeness: (..., n), in ``solver_dtype``.
        keep: In (0, 1]; a number, a scalar or (..., 1).
        count: Number of present features, from ``count_features``.
        mask: (..., n) bool, True where a feature is present.
        tolerance: Last Newton step at which to stop. Newton squares the error, so the root has an error of about
            ``tolerance`` squared.

    Returns:
        (..., n), -inf where absent.
    """
    limit = 1 - 4 * torch.finfo(closeness.dtype).eps
    log_odds: float | Tensor
    if isinstance(keep, Tensor):
        keep = keep.clamp(max=limit)
        log_odds = keep.logit()
    else:
        keep = min(keep, limit)
        log_odds = log(keep / (1 - keep))
    if mask is None:
        start = log_odds - closeness.mean(-1, keepdim=True)
        if _is_eager_cpu(closeness) and closeness.numel():
            x = _newton(closeness + start, log_odds, tolerance)
            if x is not None:
                return x
    else:
        start = log_odds - closeness.masked_fill(~mask, 0).sum(-1, keepdim=True) / count
        closeness = closeness.masked_fill(~mask, -torch.inf)
    lower, upper = _bracket(closeness, keep * count, count)
    start = torch.minimum(torch.maximum(start, lower), upper)
    # From here on everything is relative to the start, which is within a few units of the root. The values near the
    # gate are then small numbers, however large sharpness and closeness are.
    x = closeness + start
    x = x + _guarded_newton(x, keep * count, lower - start, upper - start, tolerance)
    return x + _plateau_shift(x)


def _newton(x: Tensor, log_odds: float | Tensor, tolerance: float) -> Tensor | None:
    """Plain Newton on logit(mean sigmoid) = log_odds, in place; None if it does not converge.

    With usual training settings the equation is nearly linear and two or three steps suffice. This saves the sorting
    and two thirds of the work per step, but it checks its convergence, which is free on a CPU only.
    """
    for _ in range(5):
        gate = x.sigmoid()
        mean = gate.mean(-1, keepdim=True)
        slope = mean - gate.square_().mean(-1, keepdim=True)
        gain = mean * (1 - mean) / slope
        step = (log_odds - mean.logit_()) * gain
        x.add_(step)
        if bool((step.abs_() <= tolerance).all()):  # False for NaN
            if bool((gain < 100).all()):
                return x
            return None  # on the plateau of a hard selection logit(mean) is too flat to be trusted
    return None


def _bracket(closeness: Tensor, kept: float | Tensor, count: Count) -> tuple[Tensor, Tensor]:
    """Bound the bias from below and above, each (..., 1), usually within a few units whatever the range of closeness.

    With the closeness sorted downwards, sum_j sigmoid >= i * sigmoid(l_i + bias) for every rank i, so the bias
    at which the right side reaches ``kept`` lies above the root. Likewise from below with 1 - sigmoid.
    """
    rank = torch.arange(closeness.shape[-1], device=closeness.device, dtype=closeness.dtype)
    ordered = closeness.sort(-1, descending=True).values
    above = (kept / (rank + 1 - kept)).log() - ordered
    below = ((kept - rank) / (count - kept)).log() - ordered
    upper = torch.where((rank + 1 > kept) & (rank < count), above, torch.inf).amin(-1, keepdim=True)
    lower = torch.where(rank < kept, below, -torch.inf).amax(-1, keepdim=True)
    return lower, upper


def _guarded_newton(x: Tensor, kept: float | Tensor, lower: Tensor, upper: Tensor, tolerance: float) -> Tensor:
    """The shift (..., 1) inside [lower, upper] for which ``sum_j sigmoid(x_j + shift) = kept``.

    The equation is split into what lets through too much and what lets through too little,

        excess   = sum_{x<=0} sigmoid(x)  + max(open - kept, 0)       open = how many x > 0
        shortage = sum_{x>0}  sigmoid(-x) + max(kept - open, 0),

    both free of cancellation, and Newton runs on log(excess / shortage), which is nearly linear even on
    the plateaus of a hard selection. A step that leaves the bracket is replaced by bisection.
    """
    shift = torch.zeros_like(lower)
    steps = NEWTON_STEPS
    if not _is_eager_cpu(x):
        lower, upper = _narrowed(x, kept, lower, upper)
        shift = (lower + upper) / 2
        steps = STEPS_WHEN_NARROW
    for _ in range(steps):
        excess, shortage, slopes = _balance(x + shift, kept)
        step = (shortage.log() - excess.log()) / (slopes[0] / excess + slopes[1] / shortage)
        lower = torch.where(excess < shortage, shift, lower)
        upper = torch.where(excess > shortage, shift, upper)
        # The tolerance keeps rounding at the root from being mistaken for a step out of the bracket.
        inside = (shift + step >= lower - tolerance) & (shift + step <= upper + tolerance)
        step = torch.where(inside, step, (lower + upper) / 2 - shift)
        step = torch.where(excess == shortage, 0, step)
        shift = shift + step
        if _is_eager_cpu(x) and bool((step.abs() <= tolerance).all()):
            break
    return shift


def _balance(logits: Tensor, kept: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Excess and shortage (..., 1), as ``_guarded_newton`` defines them, and the slopes of both (2, ..., 1)."""
    is_open = logits > 0
    tail = logits.abs().neg().sigmoid()
    tails = torch.stack((tail.masked_fill(is_open, 0), tail.masked_fill(~is_open, 0)))
    sums = tails.sum(-1, keepdim=True)
    slopes = sums - tails.square().sum(-1, keepdim=True)  # tail <= 1/2: no cancellation
    balance = is_open.sum(-1, keepdim=True, dtype=logits.dtype) - kept
    return sums[0] + balance.clamp(min=0), sums[1] - balance.clamp(max=0), slopes


def _narrowed(x: Tensor, kept: float | Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Narrow a bracket of the shift, each side (..., 1), by a factor of ``SHIFTS`` in every round."""
    fractions = torch.linspace(0, 1, SHIFTS + 1, dtype=x.dtype, device=x.device)
    if isinstance(kept, Tensor) and kept.dim():
        kept = kept.unsqueeze(-2)
    for _ in range(NARROW_ROUNDS):
        shifts = lower + (upper - lower) * fractions
        excess, shortage, _ = _balance(x.unsqueeze(-2) + shifts.unsqueeze(-1), kept)
        is_below = (excess < shortage).squeeze(-1)
        lower = torch.where(is_below, shifts, lower).amax(-1, keepdim=True)
        upper = torch.where(is_below, upper, shifts).amin(-1, keepdim=True)
    return lower, upper


def _plateau_shift(x: Tensor) -> Tensor:
    """The remaining shift to the root (..., 1) where no feature is near the gate, so that all tails may underflow.

    Any shift gives the same weights there, but the gradient on keep depends on the position of the gate between the
    last selected and the first ignored feature. Far out both tails are exponentials, and the balance of
    ``_guarded_newton`` is a difference of logarithms.
    """
    is_open = x > 0
    shortage = torch.where(is_open, -x, -torch.inf).logsumexp(-1, keepdim=True)
    excess = torch.where(is_open, -torch.inf, x).logsumexp(-1, keepdim=True)
    shift = (shortage - excess) / 2
    on_plateau = (x.abs().amin(-1, keepdim=True) > 30) & shift.isfinite()
    return torch.where(on_plateau, shift, 0)


def gate_gradient(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Turn the gradient on sigmoid(x) (..., n) into those on closeness (..., n) and, per feature, on keep (..., 1).

    With the slopes v = sigmoid(x) sigmoid(-x), the bias moves by -v/sum(v) per closeness and n/sum(v) per
    keep. The quotient is a softmax of log v, which is defined also where every v underflows.
    """
    distance = x.abs()
    log_slopes = 2 * logsigmoid(distance) - distance
    pull = (log_slopes.softmax(-1) * grad).sum(-1, keepdim=True)
    return log_slopes.exp_() * (grad - pull), pull


def count_features(like: Tensor, mask: Tensor | None) -> Count:
    """Count the present features (..., n): a number, or with a mask (..., 1) in the dtype of ``like``."""
    if mask is None:
        return like.shape[-1]
    return mask.sum(-1, keepdim=True, dtype=like.dtype)


def _is_eager_cpu(tensor: Tensor) -> bool:
    """Whether reading values is free: no device sync, no tracing."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def as_column(value: float | Tensor, like: Tensor) -> Tensor:
    """Convert a number to (1,) or a tensor (...) to (..., 1), in the dtype and on the device of ``like``."""
    if isinstance(value, Tensor):
        return value.to(like).unsqueeze(-1)
    return like.new_full((1,), value)


def solver_dtype(like: Tensor) -> torch.dtype:
    """Return the dtype of the root finder: float64 where the device has it, since it is only O(n) work."""
    return like.dtype if like.device.type == "mps" else torch.float64


def newton_tolerance(dtype: torch.dtype) -> float:
    """Return the Newton step below which results in ``dtype`` do not change."""
    return 1e-5 if dtype == torch.float32 else 1e-8
