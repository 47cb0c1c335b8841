"""The door of every pooling: maps and tokens become one bag of local features per picture."""

import torch
from torch import Tensor

from lookalike._util.tensor_checks import check_mask, require


def as_bags(features: Tensor, dim: int, mask: Tensor | None = None, *, check_finite: bool = False) -> Tensor:
    """Maps (B, D, H, W) or tokens (B, N, D) -> bags (B, N, D), a view, with absent features set to zero.

    ``mask`` (B, N) is True where a feature is present; the features of a map count row by row. ``check_finite``
    looks for NaN and infinity among the present features.
    """
    if not isinstance(features, Tensor):
        raise TypeError(f"features must be a tensor, got {type(features).__name__}")
    if not features.is_floating_point():
        raise TypeError(f"features must be floating point, got {features.dtype}")
    if features.dim() == 4:
        bags = features.flatten(2).transpose(1, 2)
    elif features.dim() == 3:
        bags = features
    else:
        raise ValueError(f"features must be maps (B, D, H, W) or tokens (B, N, D), got {tuple(features.shape)}")
    if bags.shape[2] != dim:
        kind = "maps (B, D, H, W)" if features.dim() == 4 else "tokens (B, N, D)"
        raise ValueError(f"expected {kind} with D = {dim}, got {tuple(features.shape)}")
    if bags.shape[1] == 0:
        raise ValueError(f"every bag needs at least one feature, got {tuple(features.shape)}")
    if mask is not None:
        check_mask(mask, bags.shape[:2])
        bags = bags.masked_fill(~mask.unsqueeze(-1), 0)
    if check_finite:
        require(torch.isfinite(bags).all(), "features must be finite, got NaN or infinity")
    return bags
