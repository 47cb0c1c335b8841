"""Checks of tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def check_tensor_range(name: str, value: Any, above: float, up_to: float | None, interval: str) -> None:
    """Check that all entries of a tensor are in an interval, as ``lookalike._util.checks.check_range``."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a number or a tensor, got {type(value).__name__}")
    below = value.isfinite() if up_to is None else value <= up_to
    require(((value > above) & below).all(), f"every {name} must be {interval}")


def check_mask(mask: Tensor | None, shape: Sequence[int]) -> None:
    """Check a mask of present features.

    Args:
        mask: Bool tensor, True where a feature is present, with at least one in every bag; or None.
        shape: Its shape (B, N).

    Raises:
        TypeError: If the mask is not a bool tensor.
        ValueError: If it has another shape, or a bag has no feature.
    """
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a bool tensor, True where a feature is present, got {kind}")
    if mask.shape != torch.Size(shape):
        raise ValueError(f"mask must have the shape {tuple(shape)}, got {tuple(mask.shape)}")
    require(mask.any(-1).all(), "every bag needs at least one present feature, got a mask that is False throughout")


def require(condition: Tensor, message: str) -> None:
    """Raise ValueError unless the scalar bool ``condition`` holds.

    On a GPU and in a traced graph the device checks it asynchronously, to avoid a stall or a graph break.
    """
    if condition.device.type == "cpu" and not torch.compiler.is_compiling():
        if not bool(condition):
            raise ValueError(message)
    else:
        torch._assert_async(condition, message)
