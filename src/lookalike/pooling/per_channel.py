"""Poolings that work channel by channel: average, maximum, their sum, generalized mean, log-mean-exp and WELDON."""

from math import log

import torch
from torch import Tensor, nn

from lookalike._util.checks import check_count, check_range
from lookalike.pooling.base import Pooled, Pooling, pooled

MIN_POWER = 1e-2  # of a power and of a sharpness: at 0, 1/p log(mean) is 0/0


class AveragePool(Pooling):
    """The mean of the present features. All positions have the same weight.

    Args:
        dim: Size D of the local features.

    Examples:
        >>> AveragePool(dim=2)(torch.tensor([[[1.0, 2.0], [3.0, 0.0]]]))
        tensor([[2., 1.]])
    """

    is_weighted_sum = True

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        if mask is None:
            return pooled(bags.mean(1), bags.new_full(bags.shape[:2], 1 / bags.shape[1]))
        count = mask.sum(1, keepdim=True)
        return pooled(bags.sum(1) / count, mask.to(bags.dtype) / count)


class MaxPool(Pooling):
    """The largest present feature of each channel. If several are equal, the first gets the gradient.

    The weight of a position is the share of channels in which it is the largest.

    Args:
        dim: Size D of the local features.

    Examples:
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


class SumOfTwo(Pooling):
    """The sum of two poolings of the same bag. Weights are the mean of both; attributes are dropped.

    Args:
        first: A pooling that implements ``_pool``.
        second: Another one with the same sizes.

    Raises:
        TypeError: If a pooling does not implement ``_pool``.
        ValueError: If the sizes differ.
    """

    on_backbone = True

    def __init__(self, first: Pooling, second: Pooling) -> None:
        if (first.dim, first.out_dim) != (second.dim, second.out_dim):
            raise ValueError(
                "two poolings must take and give the same sizes to be added, got "
                f"{first.dim} -> {first.out_dim} and {second.dim} -> {second.out_dim}"
            )
        for pooling in (first, second):
            if pooling.needs_map or type(pooling)._pool is Pooling._pool:
                raise TypeError(f"a pooling must implement _pool to be added, got {type(pooling).__name__}")
        super().__init__(first.dim, first.out_dim)
        self.first, self.second = first, second

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        first, second = self.first._pool(bags, mask), self.second._pool(bags, mask)
        return pooled(first.vector + second.vector, (first.weights + second.weights) / 2)


class AveragePlusMaxPool(SumOfTwo):
    """Average plus maximum (GAP+GMP), a common baseline of metric learning.

    Args:
        dim: Size D of the local features.

    Examples:
        >>> AveragePlusMaxPool(dim=2)(torch.tensor([[[1.0, 2.0], [3.0, 0.0]]]))
        tensor([[5., 3.]])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(AveragePool(dim), MaxPool(dim))


class GeneralizedMeanPool(Pooling):
    """Generalized mean (GeM): vector_d = (1/n sum_j x_jd^p)^(1/p), from the mean (p = 1) to the maximum.

    With y = p log x this is exp(1/p log(1/n sum_j exp(y_jd))), computed without overflow. The weight of a position is
    its softmax exp(y_jd) / sum_k exp(y_kd), averaged over the channels.

    Reference: Radenović, Tolias and Chum, "Fine-tuning CNN Image Retrieval with No Human Annotation", TPAMI 2019. They
    learn one p for all channels from 3 and clamp features at 1e-6.

    Args:
        dim: Size D of the local features.
        power: The power p, or its start if it is learnt; at least 0.01.
        learn: Learn the power.
        shared: One power for all channels instead of one per channel.
        eps: Smaller and negative features are replaced by this.

    Examples:
        >>> vector = GeneralizedMeanPool(dim=1, power=2.0)(torch.tensor([[[1.0], [7.0]]]))
        >>> round(float(vector), 4)
        5.0
    """

    on_backbone = True

    def __init__(
        self, dim: int, power: float = 3.0, *, learn: bool = True, shared: bool = True, eps: float = 1e-6
    ) -> None:
        super().__init__(dim)
        check_range("power", power, MIN_POWER, None)
        check_range("eps", eps, 0, None)
        self.shared, self.eps = shared, float(eps)
        self.power: Tensor
        _register(self, "power", torch.full((1 if shared else dim,), float(power)), learn)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        power = self.power.to(bags.dtype).clamp(min=MIN_POWER)
        mean, weights = log_mean_exp(power * bags.clamp(min=self.eps).log(), mask)
        return pooled((mean / power).exp(), weights)

    def extra_repr(self) -> str:
        """Return the settings."""
        text = super().extra_repr()
        if self.shared:
            text += f", power={float(self.power.detach()[0]):g}"
        return f"{text}, shared={self.shared}, learn={self.power.requires_grad}, eps={self.eps:g}"


class LogSumExpPool(Pooling):
    """Log-mean-exp: vector_d = 1/r log(1/n sum_j exp(r x_jd)), from the mean (r to 0) to the maximum.

    The weight of a position is its softmax exp(r x_jd) / sum_k exp(r x_kd), averaged over the channels.

    Reference: Pinheiro and Collobert, "From Image-level to Pixel-level Labeling with Convolutional Networks", CVPR
    2015, with a fixed r.

    Args:
        dim: Size D of the local features. They may be negative.
        sharpness: The factor r, or its start if it is learnt; at least 0.01.
        learn: Learn the sharpness.

    Examples:
        >>> LogSumExpPool(dim=1, sharpness=100.0)(torch.tensor([[[1.0], [7.0]]]))
        tensor([[6.9931]])
    """

    on_backbone = True

    def __init__(self, dim: int, sharpness: float = 10.0, *, learn: bool = False) -> None:
        super().__init__(dim)
        check_range("sharpness", sharpness, MIN_POWER, None)
        self.sharpness: Tensor
        _register(self, "sharpness", torch.full((1,), float(sharpness)), learn)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        sharpness = self.sharpness.to(bags.dtype).clamp(min=MIN_POWER)
        mean, weights = log_mean_exp(sharpness * bags, mask)
        return pooled(mean / sharpness, weights)

    def extra_repr(self) -> str:
        """Return the settings."""
        sharpness = float(self.sharpness.detach()[0])
        return f"{super().extra_repr()}, sharpness={sharpness:g}, learn={self.sharpness.requires_grad}"


class WeldonPool(Pooling):
    """WELDON: the mean of the k+ largest features of each channel plus the mean of the k- smallest, or their sums.

    A smaller bag uses all its features. The weight of a position is its share in both means, averaged over channels.
    A sum is k times the mean; after l2 normalisation sums and means are equal if k+ = k-.
    After a ReLU the smallest values are zeros, so this pooling comes after the projection.

    Reference: Durand, Thome and Cord, "WELDON: Weakly Supervised Learning of Deep Convolutional Neural Networks", CVPR
    2016, with k+ = k-. The authors of GSP compare with k = 3 and sums instead of means.

    Args:
        dim: Size D of the local features.
        largest: The number k+.
        smallest: The number k-; 0 leaves the second mean out.
        sums: Add the features up instead of averaging them.

    Examples:
        >>> WeldonPool(dim=1, largest=2, smallest=1)(torch.tensor([[[1.0], [-2.0], [5.0]]]))
        tensor([[1.]])
    """

    shown = ("largest", "smallest", "sums")

    def __init__(self, dim: int, largest: int = 3, smallest: int = 3, *, sums: bool = False) -> None:
        super().__init__(dim)
        check_count("largest", largest)
        check_count("smallest", smallest, least=0)
        self.largest, self.smallest, self.sums = largest, smallest, sums

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        vector, weights = self._pool_largest(bags, mask, self.largest)
        if self.smallest:
            negated, smallest_weights = self._pool_largest(-bags, mask, self.smallest)
            vector, weights = vector - negated, (weights + smallest_weights) / 2
        return pooled(vector, weights)

    def _pool_largest(self, bags: Tensor, mask: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
        mean, weights = _mean_of_largest(bags, mask, count)
        if not self.sums:
            return mean, weights
        used: int | Tensor = min(count, bags.shape[1])
        if mask is not None:
            used = mask.sum(1, keepdim=True).clamp(max=count)
        return mean * used, weights


def log_mean_exp(logits: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute log(mean_j exp(logits_jd)).

    Args:
        logits: (B, N, D).
        mask: (B, N) bool, True where a feature is present.

    Returns:
        The logarithms (B, D) and the softmax over positions, averaged over channels (B, N).
    """
    if mask is None:
        log_count: float | Tensor = log(logits.shape[1])
    else:
        logits = logits.masked_fill(~mask.unsqueeze(-1), -torch.inf)
        log_count = mask.sum(1, keepdim=True).to(logits.dtype).log()
    largest = logits.detach().amax(1, keepdim=True)
    terms = (logits - largest).exp()
    total = terms.sum(1)
    weights = torch.einsum("bnd,bd->bn", terms, total.reciprocal()) / logits.shape[2]
    return largest.squeeze(1) + (total.log() - log_count), weights


def _mean_of_largest(bags: Tensor, mask: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """The mean of the ``count`` largest present features of each channel (B, D), and its weights (B, N)."""
    batch, positions, dim = bags.shape
    count = min(count, positions)
    if mask is None:
        values, chosen = bags.topk(count, dim=1)
        shares = bags.new_full((batch, count), 1 / count)
    else:
        values, chosen = bags.masked_fill(~mask.unsqueeze(-1), -torch.inf).topk(count, dim=1)
        present = mask.sum(1, keepdim=True).clamp(max=count)
        is_present = torch.arange(count, device=bags.device) < present  # values are sorted: the absent come last
        values = values.masked_fill(~is_present.unsqueeze(-1), 0)
        shares = is_present.to(bags.dtype) / present
    weights = bags.new_zeros(batch, positions).scatter_add(
        1, chosen.flatten(1), (shares / dim).unsqueeze(-1).expand(-1, -1, dim).flatten(1)
    )
    return torch.einsum("bk,bkd->bd", shares, values), weights


def _register(module: nn.Module, name: str, value: Tensor, learn: bool) -> None:
    if learn:
        module.register_parameter(name, nn.Parameter(value))
    else:
        module.register_buffer(name, value)
