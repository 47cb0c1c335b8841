"""Precision and autograd helpers shared by poolings and objectives."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which nothing is cast to half precision, also in a backward pass under autocast."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def precise(values: Tensor) -> Tensor:
    """Cast to fp32; fp64 stays fp64."""
    if values.dtype == torch.float64:
        return values
    return values.float()


def first_order_only(gradients: Sequence[Tensor | None], inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Make the gradients that a ``backward`` returns raise an error if they are differentiated again.

    ``torch.autograd.function.once_differentiable`` detects second derivatives through the incoming gradient only. It
    silently ignores those through the saved inputs.

    Args:
        gradients: The gradients that the ``backward`` computed.
        inputs: All tensors that they depend on.
    """
    if not torch.is_grad_enabled():
        return tuple(gradients)  # there is no graph of the backward pass
    tensors = [gradient for gradient in gradients if gradient is not None]
    guarded = iter(_RefuseSecondOrder.apply(len(tensors), *tensors, *inputs))
    return tuple(None if gradient is None else next(guarded) for gradient in gradients)


class _RefuseSecondOrder(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(_: Any, *_gradients: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError("partial transport and generalized sum pooling cannot be differentiated twice")
