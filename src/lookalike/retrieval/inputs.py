"""Checks and conversions of what callers pass: vectors, labels and ids as tensors."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookalike._util.arrays import as_numbers

INTEGER_KINDS = {"i", "u"}  # numpy's codes of signed and unsigned integers, which may be mixed
WHOLE_FP32 = 2**24  # larger whole numbers are rounded in fp32
KINDS = {  # of labels in lists and object arrays; bool comes before int, its base class
    bool: "b",
    np.bool_: "b",
    int: "i",
    np.integer: "i",
    float: "f",
    np.floating: "f",
    str: "U",
    bytes: "S",
}


def as_vectors(name: str, values: Any, like: Tensor | None = None) -> Tensor:
    """Convert vectors to a tensor. Memory is shared where possible.

    Args:
        name: What they are called in errors.
        values: Numpy array, tensor or nested lists (n, D).
        like: Move to its device; its number of columns must be the same.

    Returns:
        Finite vectors (n, D), fp32, or fp64 for fp64 and for whole numbers that fp32 would round.

    Raises:
        TypeError: If the values are not real numbers.
        ValueError: If the shape is wrong or a value is not finite.
    """
    if isinstance(values, Tensor):
        vectors = values.detach()
        if vectors.is_complex():
            raise TypeError(f"{name} must be real numbers, got {vectors.dtype}")
    else:
        vectors = torch.from_numpy(as_numbers(name, values))
    if vectors.dim() != 2 or 0 in vectors.shape:
        raise ValueError(f"{name} must have the shape (at least one, dimensions), got {tuple(vectors.shape)}")
    if like is not None and vectors.shape[1] != like.shape[1]:
        shapes = f"{tuple(like.shape)} and {tuple(vectors.shape)}"
        raise ValueError(f"queries and references must have vectors of one size, got {shapes}")
    if not vectors.is_floating_point():
        vectors = vectors.double()
        if float(vectors.abs().max()) <= WHOLE_FP32:
            vectors = vectors.float()
    if vectors.dtype != torch.float64:
        vectors = vectors.float()
    if not bool(torch.stack(vectors.aminmax()).isfinite().all()):
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    if like is None:
        return vectors
    return vectors.to(like.device)


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
        ValueError: If a shape is wrong or a value is NaN.
        TypeError: If values are not integers or strings, or of different kinds.
    """
    queries = _as_array(f"query_{name}", query_values, n)
    references = _as_array(f"reference_{name}", reference_values, r)
    kinds = {_kind(f"query_{name}", queries), _kind(f"reference_{name}", references)}
    if len(kinds) > 1 and not kinds <= INTEGER_KINDS:
        raise TypeError(f"query and reference {name} must be of one kind, got {queries.dtype} and {references.dtype}")
    if queries.dtype.kind == references.dtype.kind != "O":
        _, codes = np.unique(np.concatenate([queries, references]), return_inverse=True)
    else:  # compared as Python values: numpy would convert large integers to floats
        code_of: dict[Any, int] = {}
        values = queries.tolist() + references.tolist()
        codes = np.array([code_of.setdefault(value, len(code_of)) for value in values])
    both = torch.from_numpy(codes.astype(np.int64)).to(device)
    return both[:n], both[n:]


def _as_array(name: str, values: Any, count: int) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        if values.is_floating_point():
            values = values.double()  # numpy has no bf16
        values = values.numpy()
    elif isinstance(values, (list, tuple)):
        values = [value.item() if isinstance(value, Tensor) and value.dim() == 0 else value for value in values]
    if hasattr(values, "dtype"):
        array = np.asarray(values)
    else:
        array = np.asarray(values, dtype=object)  # numpy would convert [1, "1"] to strings
    if array.shape != (count,):
        raise ValueError(f"{name} must have the shape ({count},), got {array.shape}")
    return array


def _kind(name: str, array: NDArray[Any]) -> str:
    """Return numpy's code of the kind of all values; NaN, None and mixed kinds are refused."""
    if array.dtype.kind in "fcmM" and bool(np.isnan(array).any()):
        raise ValueError(f"{name} must not contain NaN, which equals no label")
    if array.dtype.kind != "O":
        return array.dtype.kind
    type_names: dict[str, str] = {}  # kind -> name of a type
    for value_type in {type(value) for value in array.tolist()}:
        kind = _kind_of_type(value_type)
        if kind is None:
            raise TypeError(f"{name} must be integers or strings, got {value_type.__name__}")
        type_names[kind] = value_type.__name__
    if len(type_names) > 1:
        raise TypeError(f"{name} must be of one kind, got {' and '.join(sorted(type_names.values()))}")
    if "f" in type_names and bool(np.isnan(array.astype(np.float64)).any()):
        raise ValueError(f"{name} must not contain NaN, which equals no label")
    return next(iter(type_names))


def _kind_of_type(value_type: type) -> str | None:
    for known_type, kind in KINDS.items():
        if issubclass(value_type, known_type):
            return kind
    return None
