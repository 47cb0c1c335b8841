"""Layers for poolings with parameters. They ignore absent features and cast the parameters to the dtype of the bags."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from lookalike._util.checks import check_count


def check_odd(name: str, side: int) -> None:
    """Check the side of a window around a position."""
    check_count(name, side)
    if side % 2 == 0:
        raise ValueError(f"{name} must be odd, so that it has a middle, got {side}")


def linear(layer: nn.Linear, values: Tensor) -> Tensor:
    """Apply a linear layer, (..., in) -> (..., out), in the dtype of the values."""
    bias = None if layer.bias is None else layer.bias.to(values.dtype)
    return functional.linear(values, layer.weight.to(values.dtype), bias)


def mean_of_present(values: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the mean (B, D) of the present values (B, N, D)."""
    if mask is None:
        return values.mean(1)
    return values.masked_fill(~mask.unsqueeze(-1), 0).sum(1) / mask.sum(1, keepdim=True)


def softmax_of_present(scores: Tensor, mask: Tensor | None, *, log: bool = False) -> Tensor:
    """Compute the softmax over the last dimension, or its logarithm; 0 where the mask, which broadcasts, is False."""
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if log:
        return scores.log_softmax(-1)
    return scores.softmax(-1)


class PresentBatchNorm(nn.Module):
    """Batch normalisation over the present rows.

    Like ``torch.nn.BatchNorm1d``, but absent rows do not enter mean and variance, and a batch of fewer than two rows
    uses the running statistics.

    Args:
        dim: Size of the rows.
        momentum: Weight of a batch in the running statistics.
        epsilon: Added to the variance.
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, dim: int, momentum: float = 0.1, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.epsilon = momentum, epsilon
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_variance", torch.ones(dim))

    def forward(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normalise values (..., dim); the mask (...) is True where a row is present."""
        dtype = values.dtype
        mean, variance = self.running_mean.to(dtype), self.running_variance.to(dtype)
        if self.training:
            mean, variance = self._batch_statistics(values, mask, mean, variance)
        scale = self.weight.to(dtype) * (variance + self.epsilon).rsqrt()
        return (values - mean) * scale + self.bias.to(dtype)

    def extra_repr(self) -> str:
        """Return the size and the momentum."""
        return f"{len(self.weight)}, momentum={self.momentum}"

    def _batch_statistics(
        self, values: Tensor, mask: Tensor | None, mean: Tensor, variance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Update the running statistics; return those of the batch, or the given ones if it is too small."""
        rows = values.flatten(0, -2)
        present = torch.ones_like(rows[:, :1]) if mask is None else mask.reshape(-1, 1).to(rows.dtype)
        count = present.sum()
        batch_mean = (rows * present).sum(0) / count.clamp(min=1)
        batch_variance = ((rows - batch_mean).square() * present).sum(0) / count.clamp(min=1)
        enough = count > 1
        batch_mean = torch.where(enough, batch_mean, mean)
        with torch.no_grad():
            unbiased = torch.where(enough, batch_variance * count / (count - 1).clamp(min=1), variance)
            self.running_mean.lerp_(batch_mean.to(self.running_mean.dtype), self.momentum)
            self.running_variance.lerp_(unbiased.to(self.running_variance.dtype), self.momentum)
        return batch_mean, torch.where(enough, batch_variance, variance)
