"""Points in the unit ball, covering them by few centres, and convex hulls in the plane.

Greedy k-centre (Gonzalez, 1985): always add the point that is farthest from the centres so far. Its covering
radius is at most twice the best possible one. Hulls are Andrew's monotone chains, and two of them are intersected
by cutting one along every edge of the other (Sutherland and Hodgman, 1974).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lookalike._util.checks import check_count


class KCentre(NamedTuple):
    indices: Tensor  # (..., k) int64, the chosen points, in the order of choice, without repetition
    radii: Tensor  # (..., k) the covering radius once that many were chosen


def greedy_k_centre(points: Tensor, k: int, chosen: Tensor | None = None) -> KCentre:
    """Choose ``k`` of the points (..., n, d), each the farthest from those before it and from ``chosen`` (..., c, d).

    Without ``chosen`` the first is the point nearest to the mean. Ties go to the lowest index, so the choice is
    deterministic on every device. O(k n d) time and O(n d) memory per set of points.

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
        # Not argmax: it promises no order among equals.
        index = torch.where(farness == farness.amax(-1, keepdim=True), rank, count).amin(-1, keepdim=True)
        index = index.clamp(max=count - 1)  # only NaN distances leave none
        free = free.scatter(-1, index, False)
        centre = points.gather(-2, index.unsqueeze(-1).expand(*index.shape, dim))
        nearest = torch.minimum(nearest, _distances(points, centre))
        farness = nearest
        indices.append(index.squeeze(-1))
        radii.append(nearest.amax(-1))
    return KCentre(torch.stack(indices, -1), torch.stack(radii, -1))


def clip(vectors: Tensor) -> Tensor:
    """Into the unit ball: u / max(1, ||u||) for vectors (..., D)."""
    return vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp(min=1)


def covering_radius(points: Tensor, centres: Tensor) -> Tensor:
    """The largest distance from one of the points (..., n, d) to its nearest centre (..., c, d), shape (...).

    >>> covering_radius(torch.tensor([[0.0], [1.0], [10.0]]), torch.tensor([[0.0], [9.0]]))
    tensor(1.)
    """
    _check_points("points", points)
    _check_points("centres", centres)
    if centres.shape[-1] != points.shape[-1]:
        raise ValueError(f"centres must have {points.shape[-1]} dimensions as the points, got {tuple(centres.shape)}")
    return _nearest_distances(points, centres).amax(-1)


def convex_hull(points: Tensor) -> Tensor:
    """The corners of the smallest convex polygon around points of the plane (n, 2), counter-clockwise, in fp64.

    Points on an edge are no corners; points that all lie on a line have two of them, and equal points one.

    >>> convex_hull(torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.5, 0.5]])).tolist()
    [[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]
    """
    _check_points("points", points)
    if points.shape[1:] != (2,):
        raise ValueError(f"points must be of the plane, (n, 2), got {tuple(points.shape)}")
    ordered = sorted(set(map(tuple, points.detach().double().tolist())))
    if len(ordered) > 2:
        ordered = _chain(ordered)[:-1] + _chain(ordered[::-1])[:-1]
    return torch.tensor(ordered, dtype=torch.float64)


def polygon_area(corners: Tensor) -> float:
    """Of a polygon (k, 2) with its corners counter-clockwise; 0 for fewer than three.

    >>> polygon_area(torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]))
    2.0
    """
    if len(corners) < 3:
        return 0.0
    x, y = (corners.double() - corners[0].double()).unbind(-1)  # small and far away, it would drown in rounding
    return float((x * y.roll(-1) - y * x.roll(-1)).sum() / 2)


def hull_intersection(one: Tensor, other: Tensor) -> Tensor:
    """The corners (k, 2) of what two convex polygons have in common, perhaps none; both counter-clockwise.

    Polygons with fewer than three corners have no inside, and nothing in common with anything.
    """
    if len(one) < 3 or len(other) < 3:
        return torch.zeros(0, 2, dtype=torch.float64)
    kept = [(x, y) for x, y in one.tolist()]
    corners = [(x, y) for x, y in other.tolist()]
    for start, end in zip(corners, corners[1:] + corners[:1], strict=True):
        kept = _left_of(start, end, kept)
    return torch.tensor(kept, dtype=torch.float64).reshape(-1, 2)


def _chain(ordered: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """One side of a hull: of points in order, those at which it turns left."""
    chain: list[tuple[float, ...]] = []
    for point in ordered:
        while len(chain) > 1 and _turn(chain[-2], chain[-1], point) <= 0:
            chain.pop()
        chain.append(point)
    return chain


def _left_of(
    start: tuple[float, float], end: tuple[float, float], polygon: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    """What remains of a polygon to the left of a line."""
    sides = [_turn(start, end, corner) for corner in polygon]
    kept = []
    for i, (corner, side) in enumerate(zip(polygon, sides, strict=True)):
        before, last = polygon[i - 1], sides[i - 1]
        if (last < 0 < side) or (side < 0 < last):
            share = last / (last - side)
            kept.append((before[0] + share * (corner[0] - before[0]), before[1] + share * (corner[1] - before[1])))
        if side >= 0:
            kept.append(corner)
    return kept


def _turn(a: tuple[float, ...], b: tuple[float, ...], c: tuple[float, ...]) -> float:
    """Above 0 if the way from a through b to c turns left."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _nearest_distances(points: Tensor, centres: Tensor) -> Tensor:
    """Centre by centre: never a matrix of all distances."""
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
