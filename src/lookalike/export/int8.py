"""Weights in a quarter of the space: one byte each, and one scale for every output channel.

    scale_o = max_i |w_oi| / 127,    q_oi = round(w_oi / scale_o),    w_oi is taken to be scale_o q_oi

This applies to convolutions and linear layers, which have nearly all weights. Biases, norms and prototypes keep their
precision, and so does the arithmetic: weights are converted back before they are used. There is no calibration, since
activations are not rounded. Measure the loss of quality by ``lookalike export --int8 --data DATA``.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

LEVELS = 127


class _Dequantised(nn.Module):
    """Parametrisation of a weight: (int8 (O, ...), scales (O, 1, ...)) -> fp32 (O, ...)."""

    def forward(self, levels: Tensor, scales: Tensor) -> Tensor:
        return levels.to(scales.dtype) * scales

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        largest = weight.abs().amax(tuple(range(1, weight.dim())), keepdim=True)
        scales = torch.where(largest > 0, largest / LEVELS, 1.0)
        return (weight / scales).round().clamp(-LEVELS, LEVELS).to(torch.int8), scales


@torch.no_grad()
def quantise_weights(module: nn.Module) -> int:
    """Replace the weights of a module by int8 ones, for inference only.

    Args:
        module: Changed in place.

    Returns:
        How many numbers now take one byte each.
    """
    count = 0
    for layer in list(module.modules()):
        if not isinstance(layer, (nn.Conv2d, nn.Linear)) or parametrize.is_parametrized(layer):
            continue
        weight = layer.weight.detach().clone()
        del layer.weight
        layer.register_buffer("weight", weight)  # not a Parameter: bytes have no gradient
        parametrize.register_parametrization(layer, "weight", _Dequantised())
        count += weight.numel()
    return count
