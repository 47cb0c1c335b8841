"""Convex hulls of classes in the plane, and how much they overlap."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lookalike.geometry import convex_hull, hull_intersection, polygon_area


class Overlap(NamedTuple):
    """Areas of the hulls of C classes.

    Attributes:
        areas: Area of each hull, (C,).
        common: Area that two hulls share, (C, C) with a diagonal of 0.
    """

    areas: Tensor
    common: Tensor

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


def set_plane(panel: Any, reach: float) -> None:
    """Set a matplotlib panel to the square [-reach, reach] of the plane."""
    limits = (-reach, reach)
    panel.set(xlim=limits, ylim=limits, aspect="equal", xlabel="first coordinate", ylabel="second coordinate")
    panel.grid(visible=False)


def _mean_over_pairs(matrix: Tensor) -> float:
    """Mean of a matrix without its diagonal, which is 0."""
    count = len(matrix)
    return float(matrix.mean()) * count / max(1, count - 1)
