"""The fused forward and backward pass of generalized sum pooling.

    a_j   = 1 / max(1, ||f_j||)                                 clip(f_j) = a_j f_j, likewise clip(w_i)
    c_ij  = || clip(w_i) - clip(f_j) ||
    l_j   = logsumexp_i(-sharpness * c_ij),   S_ij = exp(-sharpness * c_ij - l_j)
    t_j   = sigmoid(l_j + bias) / (n keep)                      bias: see lookalike.pooling.transport
    p_j   = t_j, or sigmoid(-l_j - bias) / (n (1 - keep)) where the prototypes stand for the background
    vector = sum_j p_j f_j,   attributes_i = sum_j t_j S_ij

This is one ``autograd.Function`` because autograd would store five tensors of the size of ``c``. One is enough: the
backward pass only needs ``S_ij / c_ij``, which enters both of its matrix products up to a factor per feature. Both
passes work on blocks of bags that fit the cache, so the temporaries are small as well.
"""

from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lookalike.pooling.autograd import first_order_only, without_autocast
from lookalike.pooling.transport import count_features, gate_gradient, gate_logits, newton_tolerance, solver_dtype

CPU_BLOCK = 2**19  # elements of a temporary: 2 MB of fp32
OTHER_BLOCK = 2**26  # fewer and larger launches on an accelerator


def select_and_sum(
    features: Tensor,
    prototypes: Tensor,
    keep: float | Tensor,
    sharpness: float | Tensor,
    mask: Tensor | None = None,
    *,
    background: bool = False,
    attributes: bool = True,
    exact: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Select the features nearest to the prototypes and sum them.

    Args:
        features: Bags (B, N, D) in fp32 or fp64; absent features must be zero.
        prototypes: (m, D), in the dtype of the features.
        keep: Share of a bag to keep; a number, or a scalar in ``solver_dtype`` if it is learnt.
        sharpness: How hard the selection is; a number, or a scalar in ``solver_dtype`` if it is learnt.
        mask: (B, N) bool, True where a feature is present.
        background: The prototypes stand for the background: sum the features that they leave.
        attributes: Also compute the attributes.
        exact: Compute distances between fp32 vectors by an fp64 product.

    Returns:
        vector (B, D), weights (B, N), and attributes (B, m) or None.
    """
    inputs = (features, prototypes, keep, sharpness)
    needs_gradient = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    vector, weights, histogram = _SelectAndSum.apply(*inputs, mask, background, attributes, exact, needs_gradient)
    return vector, weights, histogram


class _SelectAndSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        prototypes: Tensor,
        keep: float | Tensor,
        sharpness: float | Tensor,
        mask: Tensor | None,
        background: bool,
        attributes: bool,
        exact: bool,
        needs_gradient: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        dtype = features.dtype
        centres = prototypes.to(solver_dtype(features)) if exact else prototypes
        centre_norms = torch.linalg.vector_norm(centres, dim=-1, keepdim=True).clamp(min=1)
        centres = centres / centre_norms
        step = _bags_per_block(features, len(centres), exact)
        lean = not attributes and not isinstance(sharpness, Tensor)
        near = [_nearness(bags, centres, sharpness, lean, exact) for bags in _split(features, step)]

        closeness = _join([block.closeness(sharpness) for block in near])
        count = count_features(closeness, mask)
        logits = gate_logits(closeness, keep, count, mask, newton_tolerance(dtype))
        transported = weights = (logits.sigmoid() / (keep * count)).to(dtype)
        if background:
            weights = (logits.neg().sigmoid() / ((1 - keep) * count)).to(dtype)
            if mask is not None:
                weights = weights * mask

        vector = torch.bmm(weights.unsqueeze(1), features).squeeze(1)
        histogram = None
        if attributes:
            histograms = []
            for shares, block in zip(_split(transported, step), near, strict=True):
                histograms.append(torch.bmm((shares / block.total).unsqueeze(1), block.kernel))
            histogram = _join(histograms).squeeze(1)
        if needs_gradient:
            # Not the prototypes themselves: they may be replaced between forward and backward.
            small = (logits, weights, transported, centres.to(dtype), centre_norms.to(dtype))
            ctx.save_for_backward(features, *small, *chain.from_iterable(near))
        ctx.set_materialize_grads(False)
        ctx.inputs = (prototypes, keep, sharpness)
        ctx.count, ctx.background, ctx.lean, ctx.step = count, background, lean, step
        return vector, weights, histogram

    @staticmethod
    def backward(
        ctx: Any, grad_vector: Tensor | None, grad_weights: Tensor | None, grad_attributes: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        features = ctx.saved_tensors[0]
        with torch.no_grad(), without_autocast(features.device):
            gradients = _gradients(ctx, grad_vector, grad_weights, grad_attributes)
        inputs = (features, *ctx.inputs, grad_vector, grad_weights, grad_attributes)
        return first_order_only(gradients, [value for value in inputs if isinstance(value, Tensor)])


def _gradients(
    ctx: Any, grad_vector: Tensor | None, grad_weights: Tensor | None, grad_attributes: Tensor | None
) -> tuple[Tensor | None, ...]:
    features, logits, weights, transported, centres, centre_norms, *rest = ctx.saved_tensors
    _, keep, sharpness = ctx.inputs
    fields = len(_Nearness._fields)
    near = [_Nearness(*rest[i : i + fields]) for i in range(0, len(rest), fields)]
    need_features, need_prototypes, need_keep, need_sharpness = ctx.needs_input_grad[:4]

    # Gradients on the pooling weights p and the transported shares t, each (B, N), and through them on the gate.
    signed_keep = keep  # p = sigmoid(+-logits) / (+-n signed_keep)
    if ctx.background:
        signed_keep = keep - 1
    grad_p, grad_t = grad_weights, None
    if grad_vector is not None:
        grad_p = torch.bmm(grad_vector.unsqueeze(1), features.mT).squeeze(1)
        if grad_weights is not None:
            grad_p = grad_p + grad_weights
    if grad_p is None:
        grad_gate = torch.zeros_like(weights)
    else:
        grad_gate = grad_p / (signed_keep * ctx.count)
    if grad_attributes is not None:
        grads = []
        for block, grad in zip(near, _split(grad_attributes, ctx.step), strict=True):
            grads.append((block.kernel * grad.unsqueeze(1)).sum(-1) / block.total)
        grad_t = _join(grads)
        grad_gate = grad_gate + grad_t / (keep * ctx.count)

    # Through the gate, on the closeness l (B, N) and on keep.
    grad_closeness, grad_bias = gate_gradient(logits, grad_gate.to(logits.dtype))
    grad_keep = None
    if need_keep:
        grad_keep = (ctx.count * grad_bias).sum()
        if grad_p is not None:
            grad_keep = grad_keep - (grad_p * weights).sum() / signed_keep
        if grad_t is not None:
            grad_keep = grad_keep - (grad_t * transported).sum() / keep

    # Through the distances: the gradient on -sharpness * c_ij is S_ij (base_j + t_j grad_attributes_i).
    base = grad_closeness.to(features.dtype)
    if grad_t is not None:
        base = base - transported * grad_t
    grad_features = features.new_empty(features.shape) if need_features else None
    grad_centres = torch.zeros_like(centres) if need_prototypes else None
    grad_sharpness = torch.zeros_like(sharpness) if need_sharpness else None
    start = 0
    for block, bags in zip(near, _split(features, ctx.step), strict=True):
        rows = slice(start, start + bags.shape[0])
        start = rows.stop
        onto = (base[rows] / block.total).unsqueeze(-1)
        if grad_attributes is not None:
            share = (transported[rows] / block.total).unsqueeze(-1)
            onto = share * grad_attributes[rows].unsqueeze(1) + onto
        pull = block.kernel * (onto * (sharpness / block.norms))
        if not ctx.lean:
            distance = block.distance(sharpness)
            if grad_sharpness is not None:
                grad_sharpness -= (block.kernel * distance).nan_to_num_(nan=0).mul_(onto).sum()  # nan: 0 * infinity
            pull.div_(distance)
        if grad_centres is not None:
            _pull_prototypes(grad_centres, centres, bags, block.norms, pull)
        if grad_features is not None:
            out = grad_features[rows]
            torch.mm(pull.view(-1, len(centres)), centres, out=out.view(-1, out.shape[-1]))
            inside = pull.sum(-1, keepdim=True)
            del pull  # before the next temporary of its size
            along = (out * bags).sum(-1, keepdim=True) / block.norms.square()
            # Clipping removes the component along a feature. Inside the ball the feature's own pull is subtracted.
            out.addcmul_(bags, torch.where(_is_clipped(block.norms), along, inside), value=-1)
            if grad_vector is not None:
                out.addcmul_(weights[rows].unsqueeze(-1), grad_vector[rows].unsqueeze(1))
    if grad_centres is not None:
        radial = (grad_centres * centres).sum(-1, keepdim=True) * _is_clipped(centre_norms)
        grad_centres = (grad_centres - radial * centres) / centre_norms
    return grad_features, grad_centres, grad_keep, grad_sharpness, None, None, None, None, None


class _Nearness(NamedTuple):
    """How near the features of a block of b bags are to the prototypes."""

    norms: Tensor  # (b, N, 1) max(1, ||f_j||)
    nearest: Tensor | None  # (b, N) min_i c_ij if exact; else None, which means 0
    total: Tensor  # (b, N) Z_j = sum_i exp(-sharpness * (c_ij - nearest_j))
    kernel: Tensor  # (b, N, m) Z_j S_ij; if lean, Z_j S_ij / c_ij

    def closeness(self, sharpness: float | Tensor) -> Tensor:
        log_total = self.total.to(solver_dtype(self.total)).log()
        if self.nearest is None:
            return log_total
        return log_total - sharpness * self.nearest

    def distance(self, sharpness: float | Tensor) -> Tensor:
        """c_ij (b, N, m), recovered from a kernel that is not lean; infinite where that has underflowed to zero."""
        distance = self.kernel.log().div_(-sharpness)
        if self.nearest is not None:
            distance.add_(self.nearest.unsqueeze(-1))
        return distance.clamp_(min=torch.finfo(distance.dtype).eps ** 0.5)


def _nearness(bags: Tensor, centres: Tensor, sharpness: float | Tensor, lean: bool, exact: bool) -> _Nearness:
    """Compare bags (b, N, D) with clipped prototypes (m, D), in the dtype of the prototypes."""
    dtype, bags = bags.dtype, bags.to(centres.dtype)
    norm = torch.linalg.vector_norm(bags, dim=-1, keepdim=True)
    norms = norm.clamp(min=1)
    # || clip(w) - clip(f) ||^2 expanded. Scaling the product saves a clipped copy of the features.
    squares = torch.mm(bags.reshape(-1, bags.shape[-1]), centres.T).view(*bags.shape[:2], len(centres))
    squares.mul_(-2 / norms).add_(centres.square().sum(-1)).add_(norm.clamp_(max=1).square_())
    # Below this resolution a distance is rounding error. Clamped to it, it has a finite inverse and so a gradient.
    distance = squares.clamp_(min=torch.finfo(squares.dtype).eps).sqrt_()
    nearest = None
    if exact:
        smallest = distance.amin(-1, keepdim=True)
        kernel = (smallest - distance).to(dtype).mul_(sharpness).exp_()
        nearest = smallest.squeeze(-1)
    else:
        kernel = (distance * -sharpness).exp_()
    total = kernel.sum(-1)
    if lean:
        kernel.div_(distance)
    return _Nearness(norms.to(dtype), nearest, total, kernel)


def _pull_prototypes(out: Tensor, centres: Tensor, bags: Tensor, norms: Tensor, pull: Tensor) -> None:
    """out (m, D) += pull' @ features, minus the same pull along each prototype."""
    pull = pull.view(-1, len(centres))
    out.addmm_(pull.T, bags.reshape(-1, bags.shape[-1]))
    out.addcmul_(centres, pull.T @ norms.view(-1, 1), value=-1)


def _is_clipped(norms: Tensor) -> Tensor:
    """Whether max(1, norm) is above 1. On the edge, where rounding would decide, a vector counts as inside."""
    return norms > 1 + 16 * torch.finfo(norms.dtype).eps


def _bags_per_block(features: Tensor, prototypes: int, exact: bool) -> int | None:
    """Bags per block; None: all at once, because a compiler fuses the operations and would unroll a loop."""
    if torch.compiler.is_compiling():
        return None
    _, size, dim = features.shape
    limit = CPU_BLOCK if features.device.type == "cpu" else OTHER_BLOCK
    if exact:
        limit //= 2  # its temporaries are twice as wide
    return max(1, limit // (size * max(dim, prototypes)))


def _split(tensor: Tensor, step: int | None) -> tuple[Tensor, ...]:
    if step is None or tensor.shape[0] <= step:
        return (tensor,)
    return tensor.split(step)


def _join(blocks: list[Tensor]) -> Tensor:
    if len(blocks) == 1:
        return blocks[0]
    return torch.cat(blocks)
