"""The map of a collection: vectors projected on their two principal directions.

    centred X = U S V^T,    (x, y) = the first two columns of U S, scaled into the unit square by one factor

The sign of a direction is arbitrary. Its largest entry is made positive, so that the map is reproducible.
"""

import numpy as np
from numpy.typing import NDArray


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
    if not len(vectors):
        return points
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    _, directions = np.linalg.eigh(centred.T @ centred)
    directions = directions[:, ::-1][:, :2]
    largest = directions[np.abs(directions).argmax(0), range(directions.shape[1])]
    directions = directions * np.where(largest < 0, -1, 1)
    points[:, : directions.shape[1]] = centred @ directions
    low, high = points.min(0), points.max(0)
    extent = float((high - low).max())
    if extent <= 1e-12:
        return np.full_like(points, 0.5)
    return ((points - (low + high) / 2) / extent + 0.5).clip(0, 1)
