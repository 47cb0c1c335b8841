"""Geometry of point sets: clipping to the unit ball and greedy k-centre.

Greedy k-centre (Gonzalez, 1985) always adds the point that is farthest from the centres so far. Its covering radius is
at most twice the best possible one.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lookalike._util.checks import check_count


class KCentre(NamedTuple):
    """The result of ``greedy_k_centre``.

    Attributes:
        indices: (..., k) int64, the chosen points in the order of choice, without repetition.
        radii: (..., k), the covering radius after each choice.
    """

    indices: Tensor
    radii: Tensor


def greedy_k_centre(points: Tensor, k: int, chosen: Tensor | None = None) -> KCentre:
    """Choose points that cover all others, each the farthest from those before it.

    Ties go to the lowest index, so the choice is deterministic on every device. O(k n d) time and O(n d) memory per set
    of points.

    Args:
        points: Points (..., n, d).
        k: How many to choose.
        chosen: Centres (..., c, d) that are already there. Without them the first choice is nearest to the mean.

    Returns:
        The chosen points and the covering radii.

    Raises:
        ValueError: If there are fewer than ``k`` points, or if shapes do not match.
        TypeError: If a tensor is not of floating point.

    Examples:
        >>> greedy_k_centre(torch.tensor([[0.0], [1.0], [10.0]]), 2)
        KCentre(indices=tensor([1, 2]), radii=tensor([9., 1.]))
    """
    check_count("k", k)
    _check_points("points", points)
    count, dim = points.shape[-2:]
    if k > count:
        raise ValueError(f"k must be at most the number of points, {count}, got {k}")
    if chosen is None:
        farness = -_distances(points, points.mean(-2, keepdim=True))
        nearest = torch.full_like(farness, torch.inf)
    else:
        _check_points("chosen", chosen)
        if chosen.shape[-1] != dim or chosen.shape[:-2] != points.shape[:-2]:
            raise ValueError(f"chosen must match points {tuple(points.shape)}, got {tuple(chosen.shape)}")
        farness = nearest = _nearest_distances(points, chosen)

    rank = torch.arange(count, device=points.device)
    free = torch.ones_like(nearest, dtype=torch.bool)
    indices, radii = [], []
    for _ in range(k):
        farness = farness.masked_fill(~free, -torch.inf)
        # Not argmax, which guarantees no order of ties.
        index = torch.where(farness == farness.amax(-1, keepdim=True), rank, count).amin(-1, keepdim=True)
        index = index.clamp(max=count - 1)  # NaN distances leave none
        free = free.scatter(-1, index, False)
        centre = points.gather(-2, index.unsqueeze(-1).expand(*index.shape, dim))
        nearest = torch.minimum(nearest, _distances(points, centre))
        farness = nearest
        indices.append(index.squeeze(-1))
        radii.append(nearest.amax(-1))
    return KCentre(torch.stack(indices, -1), torch.stack(radii, -1))


def clip(vectors: Tensor) -> Tensor:
    """Clip vectors (..., D) to the unit ball: u / max(1, ||u||)."""
    return vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp(min=1)


def covering_radius(points: Tensor, centres: Tensor) -> Tensor:
    """Compute the largest distance from a point to its nearest centre.

    Args:
        points: Points (..., n, d).
        centres: Centres (..., c, d).

    Returns:
        The radius (...).

    Raises:
        ValueError: If the dimensions differ.

    Examples:
        >>> covering_radius(torch.tensor([[0.0], [1.0], [10.0]]), torch.tensor([[0.0], [9.0]]))
        tensor(1.)
    """
    _check_points("points", points)
    _check_points("centres", centres)
    if centres.shape[-1] != points.shape[-1]:
        raise ValueError(f"centres must have {points.shape[-1]} dimensions as the points, got {tuple(centres.shape)}")
    return _nearest_distances(points, centres).amax(-1)


def _nearest_distances(points: Tensor, centres: Tensor) -> Tensor:
    """(..., n, d), (..., c, d) -> (..., n); centre by centre, without a matrix of all distances."""
    nearest = _distances(points, centres[..., :1, :])
    for index in range(1, centres.shape[-2]):
        nearest = torch.minimum(nearest, _distances(points, centres[..., index : index + 1, :]))
    return nearest


def _distances(points: Tensor, centre: Tensor) -> Tensor:
    """(..., n, d), (..., 1, d) -> (..., n)"""
    return torch.linalg.vector_norm(points - centre, dim=-1)


def _check_points(name: str, points: Tensor) -> None:
    if not isinstance(points, Tensor) or not points.is_floating_point():
        kind = points.dtype if isinstance(points, Tensor) else type(points).__name__
        raise TypeError(f"{name} must be a floating point tensor, got {kind}")
    if points.dim() < 2 or 0 in points.shape[-2:]:
        raise ValueError(f"{name} must have the shape (..., at least one, dimensions), got {tuple(points.shape)}")
