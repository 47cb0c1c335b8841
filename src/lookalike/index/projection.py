"""Vectors projected on their principal directions.

    centred X = U S V^T,    (x, y) = the first two columns of U S, scaled into the unit square by one factor

The sign of a direction is arbitrary. Its largest entry is made positive, so that the map is reproducible.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS = 8192  # vectors that are in memory in double precision at a time


def project(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Project vectors onto the unit square.

    Args:
        vectors: Vectors (n, D).

    Returns:
        Points (n, 2) in [0, 1]. All are (0.5, 0.5) if the vectors are equal.

    Examples:
        >>> project(np.array([[0, 0], [4, 0], [2, 2]], np.float32)).round(3).tolist()
        [[0.0, 0.25], [1.0, 0.25], [0.5, 0.75]]
    """
    points = np.zeros((len(vectors), 2))
    components = principal_components(vectors, 2)
    points[:, : components.shape[1]] = components
    return into_unit_square(points)


def principal_components(vectors: NDArray[np.float32], count: int) -> NDArray[np.float64]:
    """Compute the coordinates of vectors along their first principal directions.

    Args:
        vectors: Vectors (n, D).
        count: Number of directions.

    Returns:
        Coordinates (n, min(count, D)).
    """
    if not len(vectors):
        return np.zeros((0, min(count, vectors.shape[1])))
    mean = vectors.mean(0, dtype=np.float64)
    scatter = np.zeros((vectors.shape[1], vectors.shape[1]))
    for start in range(0, len(vectors), ROWS):
        centred = vectors[start : start + ROWS] - mean
        scatter += centred.T @ centred
    _, directions = np.linalg.eigh(scatter)
    directions = directions[:, ::-1][:, :count]
    largest = directions[np.abs(directions).argmax(0), range(directions.shape[1])]
    directions = directions * np.where(largest < 0, -1, 1)
    blocks = []
    for start in range(0, len(vectors), ROWS):
        blocks.append((vectors[start : start + ROWS] - mean) @ directions)
    return np.concatenate(blocks)


def into_unit_square(points: NDArray[Any]) -> NDArray[np.float64]:
    """Shift points (n, 2) and scale them by one factor, so that they fill the unit square along their longer side."""
    if not len(points):
        return np.zeros((0, 2))
    low, high = points.min(0), points.max(0)
    extent = float((high - low).max())
    if extent <= 1e-12:
        return np.full(points.shape, 0.5)
    scaled: NDArray[np.float64] = ((points - (low + high) / 2) / extent + 0.5).clip(0, 1)
    return scaled
