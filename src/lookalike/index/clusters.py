"""Clusters of the points of a map, named by the label that most of their items have.

The points are counted in the cells of a grid, and the counts are smoothed. From every cell one climbs to the highest
of the cells around it until there is none higher: points that arrive at the same peak are a cluster (mean shift on a
grid).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CELLS_PER_POINT = 0.5  # of the root of their number, along a side
FEWEST_CELLS, MOST_CELLS = 16, 128
WIDTH = 1.2  # standard deviation of the smoothing, in cells
LEAST_SHARE = 0.001  # of all points; smaller clusters have no name
LEAST_POINTS = 4


class Cluster(NamedTuple):
    """A named cluster.

    Attributes:
        label: The label that most of its labelled items have; of equally many the first in the alphabet.
        x: The median of its points.
        y: Likewise.
        pictures: Number of its points.
        share: Part of its points that have the label.
    """

    label: str
    x: float
    y: float
    pictures: int
    share: float


def find_clusters(points: NDArray[Any], labels: Sequence[str]) -> list[Cluster]:
    """Name the clusters of a map.

    Args:
        points: Points (n, 2) in [0, 1].
        labels: Their labels (n,); "" is none.

    Returns:
        The clusters that have labelled items, the largest first.
    """
    if not len(points):
        return []
    names, codes = np.unique(np.asarray(labels, object).astype(str), return_inverse=True)
    peaks = assign_peaks(points)
    least = max(LEAST_POINTS, LEAST_SHARE * len(points))
    order = np.argsort(peaks, kind="stable")
    starts = np.flatnonzero(np.diff(peaks[order], prepend=-1))
    clusters = []
    for members in np.split(order, starts[1:]):
        if len(members) < least:
            continue
        counts = np.bincount(codes[members], minlength=len(names))
        counts[names == ""] = 0
        best = int(counts.argmax())
        if counts[best]:
            x, y = np.median(points[members], axis=0).tolist()
            share = float(counts[best] / len(members))
            clusters.append(Cluster(str(names[best]), x, y, len(members), share))
    return sorted(clusters, key=lambda cluster: (-cluster.pictures, cluster.label, cluster.x))


def assign_peaks(points: NDArray[Any]) -> NDArray[np.int64]:
    """Assign every point (n, 2) in [0, 1] to a peak of the density, the number of a cell."""
    side = int(np.clip(CELLS_PER_POINT * np.sqrt(len(points)), FEWEST_CELLS, MOST_CELLS))
    columns = np.minimum((np.asarray(points, np.float64) * side).astype(np.int64), side - 1)
    cells = columns[:, 1] * side + columns[:, 0]
    density = smooth(np.bincount(cells, minlength=side * side).reshape(side, side).astype(np.float64))
    above = _highest_neighbour(density)
    while True:
        further = above[above]
        if (further == above).all():
            return above[cells]
        above = further


def smooth(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Smooth a grid (side, side) by a Gaussian; zeros lie around it."""
    reach = int(np.ceil(3 * WIDTH))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / WIDTH) ** 2)
    for axis in (0, 1):
        counts = np.apply_along_axis(np.convolve, axis, counts, kernel, "same")
    return counts


def _highest_neighbour(density: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each cell, itself or the highest of the eight around it; of equally high ones the first."""
    side = len(density)
    numbers = np.arange(side * side).reshape(side, side)
    framed = np.pad(density, 1, constant_values=-1.0)
    framed_numbers = np.pad(numbers, 1, constant_values=-1)
    best, best_height = numbers.copy(), density.copy()
    for down in range(3):
        for right in range(3):
            height = framed[down : down + side, right : right + side]
            number = framed_numbers[down : down + side, right : right + side]
            is_better = (height > best_height) | ((height == best_height) & (number < best) & (number >= 0))
            best = np.where(is_better, number, best)
            best_height = np.where(is_better, height, best_height)
    return best.ravel()
