"""Convex hulls of classes in the plane, and how much they overlap.

Hulls are Andrew's monotone chains. Two hulls are intersected by clipping one at every edge of the other (Sutherland and
Hodgman, 1974).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Point = tuple[float, ...]


class Overlap(NamedTuple):
    """Areas of the hulls of C classes."""

    areas: Tensor  # area of each hull, (C,)
    common: Tensor  # area that two hulls share, (C, C) with a diagonal of 0

    @property
    def shares(self) -> Tensor:
        """Common area as a share of the smaller hull, (C, C); 0 if the smaller hull has no area."""
        smaller = torch.minimum(self.areas, self.areas.unsqueeze(1))
        return torch.where(smaller > 0, self.common / smaller, 0)

    @property
    def pairs(self) -> float:
        """Share of the pairs of classes that overlap at all."""
        return _mean_over_pairs((self.common > 0).double())

    @property
    def share(self) -> float:
        """Mean of ``shares`` over all pairs."""
        return _mean_over_pairs(self.shares)

    @property
    def area(self) -> float:
        """Sum of all common areas, as a share of the sum of all areas."""
        total = float(self.areas.sum())
        return float(self.common.sum()) / 2 / max(total, torch.finfo(torch.float64).tiny)


def convex_hull(points: Tensor) -> Tensor:
    """Compute the corners (k, 2) of the convex hull of points (n, 2), counter-clockwise, in fp64.

    Points on an edge are no corners. Points on a line have two corners, equal points have one.

    >>> convex_hull(torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.5, 0.5]])).tolist()
    [[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]
    """
    if points.dim() != 2 or points.shape[1] != 2 or not len(points):
        raise ValueError(f"points must have the shape (n, 2), got {tuple(points.shape)}")
    ordered = sorted(set(map(tuple, points.detach().double().tolist())))
    if len(ordered) > 2:
        ordered = _chain(ordered)[:-1] + _chain(ordered[::-1])[:-1]
    return torch.tensor(ordered, dtype=torch.float64)


def polygon_area(corners: Tensor) -> float:
    """Compute the area of a polygon (k, 2), counter-clockwise; 0 for fewer than three corners.

    >>> polygon_area(torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]))
    2.0
    """
    if len(corners) < 3:
        return 0.0
    x, y = (corners.double() - corners[0].double()).unbind(-1)  # keeps the digits of a small polygon far away
    return float((x * y.roll(-1) - y * x.roll(-1)).sum() / 2)


def hull_intersection(one: Tensor, other: Tensor) -> Tensor:
    """Intersect two convex polygons (k, 2) and (m, 2), counter-clockwise; the result may have no corners.

    A polygon with fewer than three corners has no interior: its intersections are empty.
    """
    if len(one) < 3 or len(other) < 3:
        return torch.zeros(0, 2, dtype=torch.float64)
    remaining: list[Point] = list(map(tuple, one.tolist()))
    corners: list[Point] = list(map(tuple, other.tolist()))
    for start, end in zip(corners, corners[1:] + corners[:1], strict=True):
        remaining = _clip_left(start, end, remaining)
    return torch.tensor(remaining, dtype=torch.float64).reshape(-1, 2)


def overlap(hulls: Sequence[Tensor]) -> Overlap:
    """Compute areas and common areas of convex polygons (n, 2), n may differ."""
    count = len(hulls)
    common = torch.zeros(count, count, dtype=torch.float64)
    for i in range(count):
        for j in range(i):
            common[i, j] = common[j, i] = polygon_area(hull_intersection(hulls[i], hulls[j]))
    return Overlap(torch.tensor([polygon_area(hull) for hull in hulls], dtype=torch.float64), common)


def class_hulls(points: Tensor, labels: Tensor) -> list[Tensor]:
    """Compute the convex hulls of points (n, 2) by their labels (n,) 0, 1, ..."""
    return [convex_hull(points[labels == label]) for label in range(int(labels.max()) + 1)]


def _mean_over_pairs(matrix: Tensor) -> float:
    """Mean of a matrix without its diagonal, which is 0."""
    count = len(matrix)
    return float(matrix.mean()) * count / max(1, count - 1)


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
