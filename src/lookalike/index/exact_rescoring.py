"""Exact distances: candidates of any backend, measured again in fp64 and put into one order.

A search structure computes in fp32, sums in its own order and breaks ties arbitrarily. Here the distance of a pair
depends on the two vectors alone, and equal distances are ordered by id. So every backend gives the same neighbours.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.index.items import Vectors

SAFETY = 4.0  # factor on the largest observed error
LEAST_ERROR = 1e-6  # relative


class Rescored(NamedTuple):
    """The nearest candidates.

    Attributes:
        rows: Rows of the candidates, best first.
        distances: Their distances.
        complete: Whether no vector outside of the candidates can belong here.
    """

    rows: list[int]
    distances: list[float]
    complete: bool


def distances(query: Vectors, vectors: Vectors, distance: str) -> NDArray[np.float64]:
    """Measure exact distances.

    Args:
        query: One vector (D,).
        vectors: Vectors (n, D).
        distance: "cosine" (1 - cosine) or "l2".

    Returns:
        Distances (n,) in fp64.
    """
    exact_query, exact_vectors = query.astype(np.float64), vectors.astype(np.float64)
    if distance == "l2":
        return np.sqrt(np.square(exact_vectors - exact_query).sum(1))
    norms = np.sqrt(np.square(exact_query).sum() * np.square(exact_vectors).sum(1))
    return np.clip(1 - (exact_vectors * exact_query).sum(1) / norms, 0.0, 2.0)


def as_squared(values: NDArray[np.float64], distance: str) -> NDArray[np.float64]:
    """Convert distances to what the search structures report: squared, between normalised vectors for the cosine."""
    if distance == "l2":
        return np.square(values)
    return 2 * values


def rescore(
    query: Vectors, ids: Sequence[str], vectors: Vectors, reported: NDArray[np.float32], k: int, distance: str
) -> Rescored:
    """Order candidates by their exact distances.

    The result is complete if the k-th exact distance is below the largest reported one by more than the structure's
    error. Otherwise a vector that was not reported may belong to the k, or tie with the last.

    Args:
        query: One vector (D,).
        ids: Ids of the candidates (n,).
        vectors: Vectors of the candidates (n, D).
        reported: Squared distances (n,) that the structure reported.
        k: Number of neighbours.
        distance: "cosine" or "l2".

    Returns:
        At most ``k`` candidates.
    """
    exact = distances(query, vectors, distance)
    order = sorted(range(len(ids)), key=lambda row: (exact[row], ids[row]))[:k]
    complete = False
    if len(order) == k and len(ids) > k:
        squared = as_squared(exact, distance)
        observed_error = float(np.abs(squared - reported).max())
        error = SAFETY * max(observed_error, LEAST_ERROR * float(squared.max()), 1e-12)
        complete = bool(squared[order[-1]] + error < reported.max())
    return Rescored(order, exact[order].tolist(), complete)
