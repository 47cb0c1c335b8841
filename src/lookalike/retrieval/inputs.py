"""Checks and conversions of what callers pass: vectors, labels and ids as tensors."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

INTEGER_KINDS = {"i", "u"}  # numpy's codes of signed and unsigned integers, which may be mixed


def as_vectors(name: str, values: Any, like: Tensor | None = None) -> Tensor:
    """Convert vectors to a tensor. Memory is shared where possible.

    Args:
        name: What they are called in errors.
        values: Numpy array, tensor or nested lists (n, D).
        like: Convert to its dtype and device; its number of columns must be the same.

    Returns:
        Finite vectors (n, D), fp32 or fp64.

    Raises:
        ValueError: If the shape is wrong or a value is not finite.
    """
    if isinstance(values, Tensor):
        vectors = values.detach()
    else:
        vectors = torch.as_tensor(np.asarray(values))
    if vectors.dim() != 2 or 0 in vectors.shape:
        raise ValueError(f"{name} must have the shape (at least one, dimensions), got {tuple(vectors.shape)}")
    if like is not None and vectors.shape[1] != like.shape[1]:
        shapes = f"{tuple(like.shape)} and {tuple(vectors.shape)}"
        raise ValueError(f"queries and references must have vectors of one size, got {shapes}")
    if vectors.dtype != torch.float64:
        vectors = vectors.float()
    if not bool(torch.stack(vectors.aminmax()).isfinite().all()):
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    if like is None:
        return vectors
    return vectors.to(like)


def as_codes(
    name: str, query_values: Any, n: int, reference_values: Any, r: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Convert labels or ids of any kind to integers that are equal where the values are.

    Args:
        name: "labels" or "ids", for errors.
        query_values: Values of the queries (n,).
        n: Number of queries.
        reference_values: Values of the references (r,).
        r: Number of references.
        device: Where the codes go.

    Returns:
        Codes of the queries (n,) and of the references (r,), int64.

    Raises:
        ValueError: If a shape is wrong.
        TypeError: If queries and references have values of different kinds.
    """
    queries = _as_array(f"query_{name}", query_values, n)
    references = _as_array(f"reference_{name}", reference_values, r)
    kinds = {queries.dtype.kind, references.dtype.kind}
    if len(kinds) > 1 and kinds != INTEGER_KINDS:
        raise TypeError(f"query and reference {name} must be of one kind, got {queries.dtype} and {references.dtype}")
    _, codes = np.unique(np.concatenate([queries, references]), return_inverse=True)
    both = torch.from_numpy(codes.astype(np.int64)).to(device)
    return both[:n], both[n:]


def _as_array(name: str, values: Any, count: int) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    array = np.asarray(values)
    if array.shape != (count,):
        raise ValueError(f"{name} must have the shape ({count},), got {array.shape}")
    return array
