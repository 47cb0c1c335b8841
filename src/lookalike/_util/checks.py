"""One style of error for bad input: what came, what was expected. Raised before any work.

Nothing here loads torch: ``lookalike._util.tensor_checks`` has what looks at tensors.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def check_range(name: str, value: float | Tensor, above: float, up_to: float | None) -> None:
    """``above`` < value <= ``up_to`` (None: no bound). Tensor values are checked without a host sync."""
    interval = f"in ({above}, {up_to}]" if up_to is not None else f"finite and above {above}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        from lookalike._util.tensor_checks import check_tensor_range

        check_tensor_range(name, value, above, up_to, interval)
    elif not (isfinite(value) and value > above and (up_to is None or value <= up_to)):
        raise ValueError(f"{name} must be {interval}, got {value}")


def check_count(name: str, value: Any, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
