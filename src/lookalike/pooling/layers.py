"""Layers for poolings that learn: in the precision of the bags, and blind to places that are absent.

The base class hands fp32 or fp64 bags to a pooling whatever the dtype of its parameters, so these cast the parameters.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from lookalike._util.checks import check_count


def check_odd(name: str, side: int) -> None:
    """For the side of a window around a place."""
    check_count(name, side)
    if side % 2 == 0:
        raise ValueError(f"{name} must be odd, so that it has a middle, got {side}")


def linear(layer: nn.Linear, values: Tensor) -> Tensor:
    """A linear layer, which on places is a 1x1 convolution: (..., in) -> (..., out)."""
    bias = None if layer.bias is None else layer.bias.to(values.dtype)
    return functional.linear(values, layer.weight.to(values.dtype), bias)


def mean_of_present(values: Tensor, mask: Tensor | None) -> Tensor:
    """Values (B, N, D) -> (B, D), whatever stands in absent places."""
    if mask is None:
        return values.mean(1)
    return values.masked_fill(~mask.unsqueeze(-1), 0).sum(1) / mask.sum(1, keepdim=True)


def softmax_of_present(scores: Tensor, mask: Tensor | None, *, log: bool = False) -> Tensor:
    """The softmax over the last dimension, or its logarithm. Where ``mask``, which broadcasts, is False it is 0."""
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return scores.log_softmax(-1) if log else scores.softmax(-1)


class PresentBatchNorm(nn.Module):
    """Batch normalisation of values (..., dim) over all present rows; mask (...) True where present.

        (value - mean) / sqrt(variance + epsilon) * weight + bias

    As ``torch.nn.BatchNorm1d``, but absent rows have no part in mean and variance, and where a batch has fewer than
    two rows in all, its statistics would say nothing and the running ones stand in.
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
        kind = values.dtype
        mean, variance = self.running_mean.to(kind), self.running_variance.to(kind)
        if self.training:
            mean, variance = self._batch_statistics(values, mask, mean, variance)
        scale = self.weight.to(kind) * (variance + self.epsilon).rsqrt()
        return (values - mean) * scale + self.bias.to(kind)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, momentum={self.momentum}"

    def _batch_statistics(
        self, values: Tensor, mask: Tensor | None, mean: Tensor, variance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Those of the batch, which also move the running ones; those given where the batch is too small."""
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
