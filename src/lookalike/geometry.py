"""Geometry of point sets: clipping to the unit ball, greedy k-centre, and convex hulls in the plane.

Greedy k-centre (Gonzalez, 1985) always adds the point that is farthest from the centres so far. Its covering radius is
at most twice the best possible one. Hulls are Andrew's monotone chains. Two hulls are intersected by clipping one at
every edge of the other (Sutherland and Hodgman, 1974).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lookalike._util.checks import check_count

Point = tuple[float, ...]


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

    >>> covering_radius(torch.tensor([[0.0], [1.0], [10.0]]), torch.tensor([[0.0], [9.0]]))
    tensor(1.)
    """
    _check_points("points", points)
    _check_points("centres", centres)
    if centres.shape[-1] != points.shape[-1]:
        raise ValueError(f"centres must have {points.shape[-1]} dimensions as the points, got {tuple(centres.shape)}")
    return _nearest_distances(points, centres).amax(-1)


def convex_hull(points: Tensor) -> Tensor:
    """Compute the convex hull of points in the plane.

    Args:
        points: Points (n, 2).

    Returns:
        Corners (k, 2) in fp64, counter-clockwise. Points on an edge are no corners. Points on a line have two corners,
        equal points have one.

    Raises:
        ValueError: If the points are not of the shape (n, 2).

    >>> convex_hull(torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.5, 0.5]])).tolist()
    [[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]
    """
    _check_points("points", points)
    if points.shape[1:] != (2,):
        raise ValueError(f"points must have the shape (n, 2), got {tuple(points.shape)}")
    ordered = sorted(set(map(tuple, points.detach().double().tolist())))
    if len(ordered) > 2:
        ordered = _chain(ordered)[:-1] + _chain(ordered[::-1])[:-1]
    return torch.tensor(ordered, dtype=torch.float64)


def polygon_area(corners: Tensor) -> float:
    """Compute the area of a polygon.

    Args:
        corners: Corners (k, 2), counter-clockwise.

    Returns:
        The area; 0 for fewer than three corners.

    >>> polygon_area(torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]))
    2.0
    """
    if len(corners) < 3:
        return 0.0
    x, y = (corners.double() - corners[0].double()).unbind(-1)  # keeps the digits of a small polygon far away
    return float((x * y.roll(-1) - y * x.roll(-1)).sum() / 2)


def hull_intersection(one: Tensor, other: Tensor) -> Tensor:
    """Intersect two convex polygons.

    Args:
        one: Corners (k, 2), counter-clockwise.
        other: Corners (m, 2), counter-clockwise.

    Returns:
        Corners of the intersection, possibly none. A polygon with fewer than three corners has no interior, and its
        intersections are empty.
    """
    if len(one) < 3 or len(other) < 3:
        return torch.zeros(0, 2, dtype=torch.float64)
    remaining: list[Point] = list(map(tuple, one.tolist()))
    corners: list[Point] = list(map(tuple, other.tolist()))
    for start, end in zip(corners, corners[1:] + corners[:1], strict=True):
        remaining = _clip_left(start, end, remaining)
    return torch.tensor(remaining, dtype=torch.float64).reshape(-1, 2)


def _chain(ordered: list[Point]) -> list[Point]:
    """One side of a hull: of points in order, those where it turns left."""
    chain: list[Point] = []
    for point in ordered:
        while len(chain) > 1 and _turn(chain[-2], chain[-1], point) <= 0:
            chain.pop()
        chain.append(point)
    return chain


def _clip_left(start: Point, end: Point, polygon: list[Point]) -> list[Point]:
    """The part of a polygon to the left of a line."""
    sides = [_turn(start, end, corner) for corner in polygon]
    clipped: list[Point] = []
    for i, (corner, side) in enumerate(zip(polygon, sides, strict=True)):
        previous, previous_side = polygon[i - 1], sides[i - 1]
        if (previous_side < 0 < side) or (side < 0 < previous_side):  # the edge crosses the line
            share = previous_side / (previous_side - side)
            x = previous[0] + share * (corner[0] - previous[0])
            y = previous[1] + share * (corner[1] - previous[1])
            clipped.append((x, y))
        if side >= 0:
            clipped.append(corner)
    return clipped


def _turn(a: Point, b: Point, c: Point) -> float:
    """Positive if the path a, b, c turns left."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


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
