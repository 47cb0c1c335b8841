"""A map of the collection: its vectors on their two principal directions.

    centred X = U S V^T,    (x, y) = the first two columns of U S, brought into the unit square with one scale for both

Which way a direction points is arbitrary; its largest entry is made positive, so that the map stays the same.
"""

import numpy as np
from numpy.typing import NDArray


def plane(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Vectors (n, D) -> points (n, 2) in [0, 1].

    >>> plane(np.array([[0, 0], [4, 0], [2, 2]], np.float32)).round(3).tolist()
    [[0.0, 0.25], [1.0, 0.25], [0.5, 0.75]]
    """
    centred = vectors.astype(np.float64) - (vectors.mean(0, dtype=np.float64) if len(vectors) else 0.0)
    points = np.zeros((len(vectors), 2))
    if len(vectors):
        _, directions = np.linalg.eigh(centred.T @ centred)
        directions = directions[:, ::-1][:, :2]
        directions = directions * np.where(
            directions[np.abs(directions).argmax(0), range(directions.shape[1])] < 0, -1, 1
        )
        points[:, : directions.shape[1]] = centred @ directions
    low, high = (points.min(0), points.max(0)) if len(points) else (np.zeros(2), np.zeros(2))
    extent = float((high - low).max()) if len(points) else 0.0
    if extent <= 1e-12:  # all in one place
        return np.full_like(points, 0.5)
    return ((points - (low + high) / 2) / extent + 0.5).clip(0, 1)
