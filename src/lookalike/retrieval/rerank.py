"""Re-ranking: better neighbours from the neighbours themselves.

    alpha query expansion       q' = q + sum_i cos(q, r_i)^alpha r_i over the n nearest r_i of q; then search again
    database-side augmentation  the same for every reference, with its n nearest others, before any search
    k-reciprocal re-ranking     d* = (1 - lambda) d_J + lambda d, where d_J is the Jaccard distance between the sets of
                                mutual k1-nearest neighbours: similar pictures have similar neighbours

Negative cosines count as 0. Sums are weighted means, of normalised vectors for the cosine, so that they stay on the
scale of the vectors. The query must not be among its own neighbours or references.

References: Chum et al., "Total Recall", ICCV 2007; Radenović, Tolias and Chum, "Fine-tuning CNN Image Retrieval with No
Human Annotation", TPAMI 2019; Arandjelović and Zisserman, "Three things everyone should know to improve object
retrieval", CVPR 2012; Zhong et al., "Re-ranking Person Re-identification with k-reciprocal Encoding", CVPR 2017.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookalike._util.arrays import as_numbers
from lookalike._util.checks import check_count, check_range
from lookalike.retrieval.search import check_distance, neighbours

Array = NDArray[np.float32]
MIN_OVERLAP = 2 / 3  # share of a neighbour's own set that must be common, for the set to be added


def alpha_query_expansion(
    queries: Any, references: Any, near: Any, alpha: float = 3.0, n: int = 10, *, distance: str = "cosine"
) -> Array:
    """Move queries towards their neighbours.

    Args:
        queries: Vectors (q, D).
        references: Vectors (r, D).
        near: Indices (q, at least n) of the nearest references, best first. If there are fewer than n, all are used.
        alpha: Exponent of the cosine in the weight of a neighbour.
        n: Number of neighbours.
        distance: "cosine" or "l2".

    Returns:
        Expanded queries (q, D).

    Raises:
        ValueError: If shapes or values are wrong.

    Examples:
        >>> [round(float(x), 3) for x in alpha_query_expansion([[1.0, 0.0]], [[0.6, 0.8]], [[0]], alpha=1.0)[0]]
        [0.943, 0.333]
    """
    check_distance(distance)
    check_range("alpha", alpha, 0, None)
    check_count("n", n)
    query_vectors = _vectors("queries", queries)
    reference_vectors = _vectors("references", references)
    indices = np.asarray(near)
    if indices.ndim != 2 or len(indices) != len(query_vectors) or indices.dtype.kind not in "iu":
        raise ValueError(
            f"near must be whole numbers of the shape ({len(query_vectors)}, n), got {indices.dtype} {indices.shape}"
        )
    if query_vectors.shape[1] != reference_vectors.shape[1]:
        shapes = f"{query_vectors.shape} and {reference_vectors.shape}"
        raise ValueError(f"queries and references must have vectors of one size, got {shapes}")
    if distance == "cosine":
        query_vectors = _normalised(query_vectors)
        reference_vectors = _normalised(reference_vectors)
    nearest = reference_vectors[indices[:, :n]]  # (q, n, D)
    weights = _cosines(query_vectors, nearest) ** alpha
    weighted_sum = query_vectors + np.einsum("qn,qnd->qd", weights, nearest)
    expanded = weighted_sum / (1 + weights.sum(1, keepdims=True))
    if distance == "cosine":
        expanded = _normalised(expanded)
    return expanded.astype(np.float32)


def augment_database(references: Any, n: int = 10, alpha: float = 3.0, *, distance: str = "cosine") -> Array:
    """Move every reference towards its nearest neighbours.

    Args:
        references: Vectors (r, D).
        n: Number of neighbours.
        alpha: Exponent of the cosine in the weight of a neighbour.
        distance: "cosine" or "l2".

    Returns:
        Augmented references (r, D).

    Raises:
        ValueError: If shapes or values are wrong.
    """
    check_count("n", n)
    vectors = _vectors("references", references)
    if len(vectors) > 1:
        near = nearest_others(vectors, min(n, len(vectors) - 1), distance=distance)
        return alpha_query_expansion(vectors, vectors, near, alpha, n, distance=distance)
    if distance == "cosine":
        vectors = _normalised(vectors)
    return vectors.astype(np.float32)


def nearest_others(vectors: Any, n: int, *, distance: str = "cosine") -> NDArray[np.int64]:
    """Find the nearest other vectors of each vector.

    Args:
        vectors: Vectors (r, D).
        n: Number of neighbours, less than r.
        distance: "cosine" or "l2".

    Returns:
        Indices (r, n), best first.
    """
    indices = neighbours(vectors, k=n + 1, distance=distance).indices.cpu().numpy()
    is_itself = indices == np.arange(len(indices))[:, None]
    is_itself[~is_itself.any(1), -1] = True  # it may be missing if many equal vectors have lower indices
    return indices[~is_itself].reshape(len(indices), n)


def k_reciprocal(
    queries: Any,
    references: Any,
    k1: int = 20,
    k2: int = 6,
    lambda_: float = 0.3,
    *,
    distance: str = "cosine",
) -> Array:
    """Compute the k-reciprocal distances d*.

    All pairwise distances are in memory, (q + r)^2 numbers: use it for a list of candidates, or for up to some ten
    thousand vectors.

    Args:
        queries: Vectors (q, D). None compares the references with each other.
        references: Vectors (r, D).
        k1: Number of neighbours that must be mutual.
        k2: Number of neighbours whose sets are averaged.
        lambda_: Share of the original distance: the squared distance divided by the largest from the same vector.
        distance: "cosine" or "l2".

    Returns:
        Distances (q, r) from 0 to 1 by which to order the references. Without queries (r, r), with infinity on the
        diagonal.

    Raises:
        ValueError: If shapes or values are wrong.
    """
    check_distance(distance)
    check_count("k1", k1)
    check_count("k2", k2)
    check_range("lambda_", lambda_, -1e-9, 1)
    vectors = _vectors("references", references)
    first_reference = 0
    num_queries = len(vectors)
    if queries is not None:
        query_vectors = _vectors("queries", queries)
        first_reference = num_queries = len(query_vectors)
        vectors = np.concatenate([query_vectors, vectors])
    if distance == "cosine":
        vectors = _normalised(vectors)
    relative = _relative_distances(vectors)
    ranks = _nearest(relative, min(max(k1 + 1, k2), len(vectors)))
    encoded = _encode(relative, ranks, k1)
    if k2 > 1:
        encoded = np.stack([encoded[row[:k2]].mean(0) for row in ranks])
    jaccard = _jaccard_distances(encoded, num_queries, first_reference)
    final = (1 - lambda_) * jaccard + lambda_ * relative[:num_queries, first_reference:]
    if queries is None:
        np.fill_diagonal(final, np.inf)
    return final.astype(np.float32)


def _relative_distances(vectors: Array) -> NDArray[np.float64]:
    """(n, D) -> (n, n): squared distances, each row divided by its largest."""
    exact = vectors.astype(np.float64)
    squares = np.square(exact).sum(1)
    squared = np.maximum(squares[:, None] + squares[None, :] - 2 * exact @ exact.T, 0.0)
    np.fill_diagonal(squared, 0.0)
    return squared / np.maximum(squared.max(1, keepdims=True), np.finfo(np.float64).tiny)


def _nearest(relative: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """(n, n) -> (n, k): itself, then the nearest; of equal ones the lower index first."""
    keyed = relative.copy()
    np.fill_diagonal(keyed, -1.0)
    return np.argsort(keyed, axis=1, kind="stable")[:, :k]


def _encode(relative: NDArray[np.float64], ranks: NDArray[np.int64], k1: int) -> NDArray[np.float32]:
    """(n, n): row i weighs the mutual neighbours of i, and theirs, by exp(-d), and sums to 1."""
    mutual = [_mutual(ranks, i, k1) for i in range(len(ranks))]
    half = max(1, round(k1 / 2))
    closer = [_mutual(ranks, i, half) for i in range(len(ranks))]
    encoded = np.zeros(relative.shape, np.float32)
    for i, neighbours_of_i in enumerate(mutual):
        member_set = set(neighbours_of_i.tolist())
        for neighbour in neighbours_of_i:
            theirs = closer[neighbour]
            common = np.intersect1d(theirs, neighbours_of_i, assume_unique=True)
            if len(common) > MIN_OVERLAP * len(theirs):
                member_set.update(theirs.tolist())
        members = np.fromiter(sorted(member_set), np.int64)
        weights = np.exp(-relative[i, members])
        encoded[i, members] = weights / weights.sum()
    return encoded


def _mutual(ranks: NDArray[np.int64], i: int, k: int) -> NDArray[np.int64]:
    """i and those of its k nearest neighbours that also have i among their k nearest."""
    forward = ranks[i, : k + 1]
    return forward[(ranks[forward, : k + 1] == i).any(1)]


def _jaccard_distances(encoded: NDArray[np.float32], num_queries: int, first_reference: int) -> NDArray[np.float64]:
    """1 - sum of minima / sum of maxima, of each query with each reference; each row of ``encoded`` sums to 1."""
    references = encoded[first_reference:]
    containing = [np.flatnonzero(column) for column in references.T]  # references with a weight in this column
    jaccard = np.empty((num_queries, len(references)))
    for i in range(num_queries):
        minima = np.zeros(len(references))
        for column in np.flatnonzero(encoded[i]):
            rows = containing[column]
            minima[rows] += np.minimum(encoded[i, column], references[rows, column])
        jaccard[i] = 1 - minima / (2 - minima)
    return jaccard


def _vectors(name: str, values: Any) -> Array:
    vectors = as_numbers(name, values).astype(np.float32)
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise ValueError(f"{name} must have the shape (at least one, dimensions), got {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return vectors


def _normalised(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1.0)).astype(vectors.dtype)


def _cosines(queries: Array, nearest: Array) -> Array:
    """(q, D), (q, n, D) -> (q, n), at least 0."""
    return np.maximum(np.einsum("qd,qnd->qn", _normalised(queries), _normalised(nearest)), 0.0)
