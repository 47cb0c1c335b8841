"""Two smooth ways from the mean to the maximum: the generalized mean and the log-mean-exp of a bag.

    gem: vector_d = (1/n sum_j x_jd^p)^(1/p)            p = 1 is the mean, p to infinity the maximum
    lse: vector_d = 1/r log(1/n sum_j exp(r x_jd))      r to 0 is the mean, r to infinity the maximum

With y = p log x the first is exp of 1/p log(1/n sum_j exp(y_jd)), so both are one log-mean-exp, taken with the largest
term in front: nothing overflows, however large the power or the features.

Where the vector comes from: of channel d, place j holds the share exp(y_jd) / sum_k exp(y_kd), the softmax over places
(y = r x for lse). For lse it is the gradient of vector_d; for gem it is gradient times feature over vector_d, and as
gem scales with its features these are exact parts of the whole. The weight of a place is the mean of its shares over
the channels.

References: Radenović, Tolias and Chum, "Fine-tuning CNN Image Retrieval with No Human Annotation", TPAMI 2019: p is
learnt from 3, one for all channels, and features are clamped at 1e-6. Pinheiro and
Collobert, "From Image-level to Pixel-level Labeling with Convolutional Networks", CVPR 2015: r is fixed.
"""

from math import log

import torch
from torch import Tensor, nn

from lookalike._util.checks import check_range
from lookalike.pooling.base import Pooled, Pooling, pooled

LEAST = 1e-2  # of a power and of a sharpness: at 0, 1/p log(mean) is 0/0


class GeneralizedMeanPool(Pooling):
    """The mean of the p-th powers, and of that the p-th root. Negative features count as ``eps``.

    power: p, or what it starts from.  learn: make it a parameter; below LEAST it is held there.
    shared: one power for all channels, or one for each.  eps: the least a feature can be.

    >>> vector = GeneralizedMeanPool(dim=1, power=2.0)(torch.tensor([[[1.0], [7.0]]]))
    >>> round(float(vector), 4)
    5.0
    """

    on_backbone = True

    def __init__(
        self, dim: int, power: float = 3.0, *, learn: bool = True, shared: bool = True, eps: float = 1e-6
    ) -> None:
        super().__init__(dim)
        check_range("power", power, LEAST, None)
        check_range("eps", eps, 0, None)
        self.shared, self.eps = shared, float(eps)
        self.power: Tensor
        _register(self, "power", torch.full((1 if shared else dim,), float(power)), learn)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        power = _value(self.power, bags)
        mean, weights = log_mean_exp(power * bags.clamp(min=self.eps).log(), mask)
        return pooled((mean / power).exp(), weights)

    def extra_repr(self) -> str:
        kind = f"shared={self.shared}, learn={self.power.requires_grad}"
        power = f", power={float(self.power.detach()[0]):g}" if self.shared else ""
        return f"{super().extra_repr()}{power}, {kind}, eps={self.eps:g}"


class LogSumExpPool(Pooling):
    """The log-mean-exp, a maximum with soft edges. Features may be negative.

    sharpness: r.  learn: make it a parameter; below LEAST it is held there.

    >>> LogSumExpPool(dim=1, sharpness=100.0)(torch.tensor([[[1.0], [7.0]]]))
    tensor([[6.9931]])
    """

    on_backbone = True

    def __init__(self, dim: int, sharpness: float = 10.0, *, learn: bool = False) -> None:
        super().__init__(dim)
        check_range("sharpness", sharpness, LEAST, None)
        self.sharpness: Tensor
        _register(self, "sharpness", torch.full((1,), float(sharpness)), learn)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        sharpness = _value(self.sharpness, bags)
        mean, weights = log_mean_exp(sharpness * bags, mask)
        return pooled(mean / sharpness, weights)

    def extra_repr(self) -> str:
        sharpness, learn = float(self.sharpness.detach()[0]), self.sharpness.requires_grad
        return f"{super().extra_repr()}, sharpness={sharpness:g}, learn={learn}"


def log_mean_exp(logits: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Logits (B, N, D), mask (B, N) -> log(mean_j exp(logits_jd)) (B, D), the mean softmax over channels (B, N)."""
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


def _register(module: nn.Module, name: str, value: Tensor, learn: bool) -> None:
    if learn:
        module.register_parameter(name, nn.Parameter(value))
    else:
        module.register_buffer(name, value)


def _value(setting: Tensor, like: Tensor) -> Tensor:
    return setting.to(like.dtype).clamp(min=LEAST)
