"""What people hand in, as tensors: vectors, labels and ids of queries and references."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_vectors(name: str, values: Any, like: Tensor | None = None) -> Tensor:
    """(n, D) in fp32 or fp64, where they are or, with ``like``, as it is and on its device. Shares memory if it can."""
    vectors = values.detach() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    if vectors.dim() != 2 or 0 in vectors.shape:
        raise ValueError(f"{name} must have the shape (at least one, dimensions), got {tuple(vectors.shape)}")
    if like is not None and vectors.shape[1] != like.shape[1]:
        shapes = f"{tuple(like.shape)} and {tuple(vectors.shape)}"
        raise ValueError(f"queries and references must have vectors of one size, got {shapes}")
    vectors = vectors if vectors.dtype == torch.float64 else vectors.float()
    if not bool(torch.stack(vectors.aminmax()).isfinite().all()):
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return vectors if like is None else vectors.to(like)


def as_codes(name: str, first: Any, n: int, second: Any, r: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Labels or ids of queries and references, of any kind, as integers that are equal where they are."""
    both = []
    for values, count, whose in ((first, n, "query"), (second, r, "reference")):
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        if array.shape != (count,):
            raise ValueError(f"{whose}_{name} must have the shape ({count},), got {array.shape}")
        both.append(array)
    if both[0].dtype.kind != both[1].dtype.kind and {both[0].dtype.kind, both[1].dtype.kind} - set("iu"):
        raise TypeError(f"query and reference {name} must be of one kind, got {both[0].dtype} and {both[1].dtype}")
    codes = np.unique(np.concatenate(both), return_inverse=True)[1].astype(np.int64)
    return torch.from_numpy(codes[:n]).to(device), torch.from_numpy(codes[n:]).to(device)
