"""Checks of arguments with uniform error messages.

This module does not import torch; checks of tensors are in ``lookalike._util.tensor_checks``.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def check_range(name: str, value: float | Tensor, above: float, up_to: float | None) -> None:
    """Check that a number is in an interval.

    Args:
        name: Name of the argument, for the message.
        value: A number, or a tensor, which is checked without a host sync.
        above: Lower bound, excluded.
        up_to: Upper bound, included; None: no bound, but finite.

    Raises:
        TypeError: If ``value`` is neither a number nor a tensor.
        ValueError: If it is out of bounds.
    """
    interval = f"finite and above {above}"
    if up_to is not None:
        interval = f"in ({above}, {up_to}]"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        from lookalike._util.tensor_checks import check_tensor_range

        check_tensor_range(name, value, above, up_to, interval)
    elif not (isfinite(value) and value > above and (up_to is None or value <= up_to)):
        raise ValueError(f"{name} must be {interval}, got {value}")


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Check that ``value`` is a whole number of at least ``least``.

    Args:
        name: Name of the argument, for the message.
        value: What to check.
        least: Smallest allowed number.

    Raises:
        TypeError: If ``value`` is not a whole number.
        ValueError: If it is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
