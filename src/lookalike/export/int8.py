"""Weights in a quarter of the space: one byte each, and one scale for every output channel.

    scale_o = max_i |w_oi| / 127,    q_oi = round(w_oi / scale_o),    w_oi is taken to be scale_o q_oi

For the weights of convolutions and linear layers, which are nearly all there are; biases, norms and prototypes stay as
they are, and so does the arithmetic: the weights are multiplied out before they are used. What it costs in quality is
to be measured (``lookalike export --int8 --data DATA``), which takes no calibration since no activation is rounded.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

LEVELS = 127


class _Dequantised(nn.Module):
    """As parametrisation of a weight: (int8 (O, ...), scales (O, 1, ...)) -> fp32 (O, ...)."""

    def forward(self, levels: Tensor, scales: Tensor) -> Tensor:
        return levels.to(scales.dtype) * scales

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        largest = weight.abs().amax(tuple(range(1, weight.dim())), keepdim=True)
        scales = torch.where(largest > 0, largest / LEVELS, 1.0)
        return (weight / scales).round().clamp(-LEVELS, LEVELS).to(torch.int8), scales


@torch.no_grad()
def quantise_weights(module: nn.Module) -> int:
    """Replace the weights in place, for inference only; returns how many numbers are now one byte each."""
    count = 0
    for layer in list(module.modules()):
        if not isinstance(layer, (nn.Conv2d, nn.Linear)) or parametrize.is_parametrized(layer):
            continue
        weight = layer.weight.detach().clone()
        del layer.weight
        layer.register_buffer("weight", weight)  # no Parameter: bytes have no gradient
        parametrize.register_parametrization(layer, "weight", _Dequantised())
        count += weight.numel()
    return count
