"""Exact distances: candidates of any backend, measured again in fp64 and put into one order.

A search structure computes in fp32, sums in its own order and breaks ties arbitrarily. Here the distance of a pair
depends on the two vectors alone, and equal distances are ordered by id. So every backend gives the same neighbours.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.index.items import Vectors

UNIT = 2.0**-24  # rounding of fp32, relative
HALF = 2.0**-11 + 2.0**-20  # rounding of unit vectors to fp16, of all their numbers together
UNDERFLOW = 1e-30  # squares below vanish in fp32


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


class Accuracy(NamedTuple):
    """What is known about the squared distances that a structure reports for a query.

    Attributes:
        dim: Size D of the vectors.
        length: Length of the query in the coordinates of the structure.
        scale: A distance of 1 in these coordinates.
        direct: Whether it sums squares of differences; otherwise it subtracts products, which loses digits.
        rounding: How far the structure may have moved a vector, relative to its length.
    """

    dim: int
    length: float
    scale: float = 1.0
    direct: bool = False
    rounding: float = 0.0

    def largest_report(self, distance: float) -> float:
        """Bound what is reported for a vector at this distance, in the coordinates of the structure.

        Both vectors are rounded to fp32, no longer than ``length`` and ``length`` + ``distance``, and D numbers are
        added in any order.
        """
        distance += self.rounding * (self.length + distance)
        both = 2 * self.length + distance
        error = (self.dim + 16) * UNIT * both**2
        if self.direct:
            error = (self.dim + 4) * UNIT * distance**2 + 4 * UNIT * both * (distance + UNIT * both)
        return distance**2 + error + UNDERFLOW


def rescore(
    query: Vectors,
    ids: Sequence[str],
    vectors: Vectors,
    reported: NDArray[np.float32],
    k: int,
    distance: str,
    accuracy: Accuracy,
) -> Rescored:
    """Order candidates by their exact distances.

    The result is complete if a vector at the k-th exact distance would be reported below the largest reported one.
    Otherwise a vector that was not reported may belong to the k, or tie with the last.

    Args:
        query: One vector (D,).
        ids: Ids of the candidates (n,).
        vectors: Vectors of the candidates (n, D).
        reported: Squared distances (n,) that the structure reported.
        k: Number of neighbours.
        distance: "cosine" or "l2".
        accuracy: Of the reported distances.

    Returns:
        At most ``k`` candidates.
    """
    exact = distances(query, vectors, distance)
    order = sorted(range(len(ids)), key=lambda row: (exact[row], ids[row]))[:k]
    complete = False
    if len(order) == k and len(ids) > k:
        last = float(exact[order[-1]])
        if distance == "cosine":
            last = math.sqrt(2 * last)
        complete = accuracy.largest_report(last / accuracy.scale) < float(reported.max())
    return Rescored(order, exact[order].tolist(), complete)
