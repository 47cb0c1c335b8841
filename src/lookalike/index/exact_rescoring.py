"""The last word on distances: candidates of any backend, measured again in fp64, in one order.

A search structure computes in fp32, in an order of summation of its own, and breaks ties as it happens. Here the
distance of a pair depends on the two vectors alone, equal distances are ordered by id, and so every backend gives the
same neighbours.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.index.items import Vectors

SAFETY = 4.0  # times the largest error that was seen
LEAST_ERROR = 1e-6


class Rescored(NamedTuple):
    """Places among the candidates, best first, and their distances."""

    places: list[int]
    distances: list[float]
    complete: bool  # no vector that was not a candidate can belong here


def distances(query: Vectors, vectors: Vectors, distance: str) -> NDArray[np.float64]:
    """(D,) and (n, D) -> (n,): 1 - cosine, or the Euclidean distance."""
    one, many = query.astype(np.float64), vectors.astype(np.float64)
    if distance == "l2":
        return np.sqrt(np.square(many - one).sum(1))
    lengths = np.sqrt(np.square(one).sum() * np.square(many).sum(1))
    return np.clip(1 - (many * one).sum(1) / lengths, 0.0, 2.0)


def squared(values: NDArray[np.float64], distance: str) -> NDArray[np.float64]:
    """Distances as the structures have them: squared, and between normalised vectors where the cosine is meant."""
    return np.square(values) if distance == "l2" else 2 * values


def rescore(
    query: Vectors, ids: Sequence[str], vectors: Vectors, reported: NDArray[np.float32], k: int, distance: str
) -> Rescored:
    """The k nearest of the candidates.

    ``reported`` (n,) are the squared distances that the structure found, of its nearest vectors. The k-th of ours must
    be nearer than the farthest that it reported, by more than it can be wrong: else a vector that it did not report
    may belong to the k, or tie with the last.
    """
    exact = distances(query, vectors, distance)
    order = sorted(range(len(ids)), key=lambda i: (exact[i], ids[i]))[:k]
    complete = False
    if len(order) == k and len(ids) > k:
        as_reported = squared(exact, distance)
        error = SAFETY * max(float(np.abs(as_reported - reported).max()), LEAST_ERROR * float(as_reported.max()), 1e-12)
        complete = bool(as_reported[order[-1]] + error < reported.max())
    return Rescored(order, [float(exact[i]) for i in order], complete)
