"""Better neighbours from the neighbours themselves: three ways to look twice.

    alpha query expansion       q' = q + sum_i cos(q, r_i)^alpha r_i over the n nearest r_i of q, and search again
    database-side augmentation  the same for every reference, by the n nearest others, before any search
    k-reciprocal re-ranking     who is near has the same neighbours: d* = (1 - l) d_J + l d, where d_J is the Jaccard
                                distance between the sets of those that are among each other's k1 nearest

Negative cosines count as 0. Sums are weighted means, of normalised vectors where the cosine is meant, so that they stay
where the vectors are. Who is searched for must not be among the neighbours given, nor among the references.

References: Chum et al., "Total Recall", ICCV 2007; Radenović, Tolias and Chum, "Fine-tuning CNN Image Retrieval with No
Human Annotation", TPAMI 2019; Arandjelović and Zisserman, "Three things everyone should know to improve object
retrieval", CVPR 2012; Zhong et al., "Re-ranking Person Re-identification with k-reciprocal Encoding", CVPR 2017.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookalike._util.checks import check_count, check_range
from lookalike.retrieval.search import check_distance, neighbours

Array = NDArray[np.float32]
AGREEMENT = 2 / 3  # of a neighbour's own set, for it to be taken in


def alpha_query_expansion(
    queries: Any, references: Any, near: Any, alpha: float = 3.0, n: int = 10, *, distance: str = "cosine"
) -> Array:
    """Queries (q, D) drawn towards their neighbours -> (q, D).

    ``near`` (q, at least n): indices of the nearest references (r, D), best first. Fewer than n are all taken.

    >>> [round(float(x), 3) for x in alpha_query_expansion([[1.0, 0.0]], [[0.6, 0.8]], [[0]], alpha=1.0)[0]]
    [0.943, 0.333]
    """
    check_distance(distance)
    check_range("alpha", alpha, 0, None)
    check_count("n", n)
    own, others = _vectors("queries", queries), _vectors("references", references)
    indices = np.asarray(near)
    if indices.ndim != 2 or len(indices) != len(own) or indices.dtype.kind not in "iu":
        raise ValueError(
            f"near must be whole numbers of the shape ({len(own)}, n), got {indices.dtype} {indices.shape}"
        )
    if own.shape[1] != others.shape[1]:
        raise ValueError(f"queries and references must have vectors of one size, got {own.shape} and {others.shape}")
    own, others = (_normalised(own), _normalised(others)) if distance == "cosine" else (own, others)
    chosen = others[indices[:, :n]]  # (q, n, D)
    weights = _cosines(own, chosen) ** alpha
    drawn = (own + np.einsum("qn,qnd->qd", weights, chosen)) / (1 + weights.sum(1, keepdims=True))
    return (_normalised(drawn) if distance == "cosine" else drawn).astype(np.float32)


def augment_database(references: Any, n: int = 10, alpha: float = 3.0, *, distance: str = "cosine") -> Array:
    """Every reference (r, D) drawn towards its n nearest others -> (r, D)."""
    check_count("n", n)
    vectors = _vectors("references", references)
    if len(vectors) == 1:
        return (_normalised(vectors) if distance == "cosine" else vectors).astype(np.float32)
    near = nearest_others(vectors, min(n, len(vectors) - 1), distance=distance)
    return alpha_query_expansion(vectors, vectors, near, alpha, n, distance=distance)


def nearest_others(vectors: Any, n: int, *, distance: str = "cosine") -> NDArray[np.int64]:
    """For each of (r, D) the n nearest, itself not among them -> (r, n)."""
    found = neighbours(vectors, k=n + 1, distance=distance).indices.cpu().numpy()
    itself = found == np.arange(len(found))[:, None]
    itself[~itself.any(1), -1] = True  # equal vectors with lower indices may have left no place for it
    return found[~itself].reshape(len(found), n)


def k_reciprocal(
    queries: Any,
    references: Any,
    k1: int = 20,
    k2: int = 6,
    lambda_: float = 0.3,
    *,
    distance: str = "cosine",
) -> Array:
    """Distances d* (q, r) by which to order the references, from 0 to 1.

    With queries None the references are searched for among each other, (r, r), and each is infinitely far from itself.
    All distances are held at once, (q + r)^2 numbers, so this is for a list of candidates or for some ten thousands.

    k1: neighbours that must be mutual; k2: neighbours whose sets are averaged; lambda_: the share of the distance
    itself, here the squared distance divided by the largest from the same vector.
    """
    check_distance(distance)
    for name, count in (("k1", k1), ("k2", k2)):
        check_count(name, count)
    check_range("lambda_", lambda_, -1e-9, 1)
    rest = _vectors("references", references)
    first = None if queries is None else _vectors("queries", queries)
    everything = rest if first is None else np.concatenate([first, rest])
    start = 0 if first is None else len(first)
    apart = _relative_distances(_normalised(everything) if distance == "cosine" else everything)
    ranks = _ranked(apart, min(max(k1 + 1, k2), len(everything)))
    encoded = _encoded(apart, ranks, k1)
    if k2 > 1:
        encoded = np.stack([encoded[row[:k2]].mean(0) for row in ranks])
    rows = range(len(rest) if first is None else start)
    jaccard = _jaccard(encoded, rows, start)
    final = (1 - lambda_) * jaccard + lambda_ * apart[: len(rows), start:]
    if first is None:
        np.fill_diagonal(final, np.inf)
    return final.astype(np.float32)


def _relative_distances(vectors: Array) -> NDArray[np.float64]:
    """(n, D) -> (n, n): squared distances, each row divided by its largest."""
    many = vectors.astype(np.float64)
    squares = np.square(many).sum(1)
    found = np.maximum(squares[:, None] + squares[None, :] - 2 * many @ many.T, 0.0)
    np.fill_diagonal(found, 0.0)
    return found / np.maximum(found.max(1, keepdims=True), np.finfo(np.float64).tiny)


def _ranked(apart: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """(n, n) -> (n, k): itself, then the nearest; of equal ones the lower index first."""
    keyed = apart.copy()
    np.fill_diagonal(keyed, -1.0)
    return np.argsort(keyed, axis=1, kind="stable")[:, :k]


def _encoded(apart: NDArray[np.float64], ranks: NDArray[np.int64], k1: int) -> NDArray[np.float32]:
    """(n, n): row i weighs the reciprocal neighbours of i, extended by theirs, by exp(-d), and sums to 1."""
    mutual = [_mutual(ranks, i, k1) for i in range(len(ranks))]
    half = max(1, round(k1 / 2))
    closer = [_mutual(ranks, i, half) for i in range(len(ranks))]
    encoded = np.zeros(apart.shape, np.float32)
    for i, own in enumerate(mutual):
        taken = set(own.tolist())
        for neighbour in own:
            theirs = closer[neighbour]
            if len(np.intersect1d(theirs, own, assume_unique=True)) > AGREEMENT * len(theirs):
                taken |= set(theirs.tolist())
        members = np.fromiter(sorted(taken), np.int64)
        weights = np.exp(-apart[i, members])
        encoded[i, members] = weights / weights.sum()
    return encoded


def _mutual(ranks: NDArray[np.int64], i: int, k: int) -> NDArray[np.int64]:
    """Those among the k nearest of i, and i itself, that have i among theirs."""
    forward = ranks[i, : k + 1]
    return forward[(ranks[forward, : k + 1] == i).any(1)]


def _jaccard(encoded: NDArray[np.float32], rows: range, start: int) -> NDArray[np.float64]:
    """1 - sum of minima / sum of maxima, of rows with those from ``start`` on. Each row sums to 1."""
    members = [np.flatnonzero(column) for column in encoded[start:].T]  # of each column, the references that have it
    found = np.empty((len(rows), len(encoded) - start))
    for i in rows:
        smaller = np.zeros(len(encoded) - start)
        for column in np.flatnonzero(encoded[i]):
            those = members[column]
            smaller[those] += np.minimum(encoded[i, column], encoded[start + those, column])
        found[i] = 1 - smaller / (2 - smaller)
    return found


def _vectors(name: str, values: Any) -> Array:
    vectors = np.asarray(values, dtype=np.float32)
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise ValueError(f"{name} must have the shape (at least one, dimensions), got {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return vectors


def _normalised(vectors: Array) -> Array:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _cosines(own: Array, chosen: Array) -> Array:
    """(q, D), (q, n, D) -> (q, n), not below 0."""
    return np.maximum(np.einsum("qd,qnd->qn", _normalised(own), _normalised(chosen)), 0.0)
