"""How much the convex hulls of classes overlap in the plane."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lookalike.geometry import convex_hull, hull_intersection, polygon_area


class Overlap(NamedTuple):
    """Of the hulls of C classes: their areas (C,), and the area that each two have in common (C, C), 0 of itself."""

    areas: Tensor
    common: Tensor

    @property
    def pairs(self) -> float:
        """The share of the pairs of classes whose hulls overlap."""
        return float((self.common > 0).double().mean()) * self._without_diagonal

    @property
    def share(self) -> float:
        """The mean over pairs of what is common, as a share of the smaller hull; a hull without inside counts as 0."""
        smaller = torch.minimum(self.areas, self.areas.unsqueeze(1))
        return float(torch.where(smaller > 0, self.common / smaller, 0).mean()) * self._without_diagonal

    @property
    def area(self) -> float:
        """What is common to pairs, added up, as a share of the areas of all hulls, added up."""
        whole = float(self.areas.sum())
        return float(self.common.sum()) / 2 / whole if whole else 0.0

    @property
    def _without_diagonal(self) -> float:
        return len(self.areas) / max(1, len(self.areas) - 1)


def overlap(hulls: Sequence[Tensor]) -> Overlap:
    count = len(hulls)
    common = torch.zeros(count, count, dtype=torch.float64)
    for i in range(count):
        for j in range(i):
            common[i, j] = common[j, i] = polygon_area(hull_intersection(hulls[i], hulls[j]))
    return Overlap(torch.tensor([polygon_area(hull) for hull in hulls], dtype=torch.float64), common)


def class_hulls(points: Tensor, labels: Tensor) -> list[Tensor]:
    """The hulls of the points (n, 2) of classes 0, 1, ..."""
    return [convex_hull(points[labels == label]) for label in range(int(labels.max()) + 1)]
