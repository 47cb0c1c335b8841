"""Second derivatives refused out loud.

``torch.autograd.function.once_differentiable`` notices only second derivatives that come in through the incoming
gradient; those through the saved inputs it leaves out without a word. This one refuses both.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def first_order_only(gradients: Sequence[Tensor | None], inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients that a ``backward`` returns, made to raise an error if they are differentiated in turn.

    ``inputs`` are the tensors that the gradients depend on.
    """
    if not torch.is_grad_enabled():
        return tuple(gradients)  # nobody asked for a graph of the backward pass
    given = [gradient for gradient in gradients if gradient is not None]
    guarded = iter(_Refuse.apply(len(given), *given, *inputs))
    return tuple(None if gradient is None else next(guarded) for gradient in gradients)


class _Refuse(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(_: Any, *_gradients: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError("partial transport and generalized sum pooling cannot be differentiated twice")
