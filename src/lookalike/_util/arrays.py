"""Conversion of numbers to arrays that torch can share, without importing torch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

REAL_KINDS = "fiub"  # numpy's codes of real numbers


def as_numbers(name: str, values: Any) -> NDArray[Any]:
    """Convert real numbers to an array that torch can share.

    Args:
        name: What they are called in errors.
        values: Numpy array of any layout and byte order, tensor on any device, or nested lists.

    Returns:
        Array in native byte order, writable, without negative strides; fp64 for types that torch lacks.

    Raises:
        TypeError: If the values are not real numbers.
        ValueError: If rows have different lengths, or values are masked.
    """
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
        values = values.numpy()
    if np.ma.is_masked(values):
        raise ValueError(f"{name} must not have masked values")
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must be rows of one length") from None
    if array.dtype.kind not in REAL_KINDS:
        raise TypeError(f"{name} must be real numbers, got {array.dtype}")
    dtype = array.dtype.newbyteorder("=")
    if (dtype.kind == "f" and dtype.itemsize > 8) or (dtype.kind == "u" and dtype.itemsize > 1):
        dtype = np.dtype(np.float64)
    array = array.astype(dtype, copy=False)
    if min(array.strides, default=0) < 0 or not array.flags.writeable:
        array = array.copy()
    return array
