"""Re-ranked search: ``lookalike.retrieval.rerank`` applied to the neighbours from an index.

The order is that of the re-ranking; the distances stay those between each picture and the query.
"""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from lookalike.index.base import Index
from lookalike.index.exact_rescoring import distances
from lookalike.index.filters import Where
from lookalike.index.items import Hit, Vectors, check_vectors

METHODS = ("none", "expansion", "augmentation", "reciprocal")
CANDIDATES = 100  # hits that are put into a new order
N, ALPHA = 10, 3.0  # of expansion and augmentation
K1, K2, LAMBDA = 20, 6, 0.3  # of k-reciprocal re-ranking

Search = Callable[[Vectors, int], list[Hit]]  # query (D,) and number of hits


def search_reranked(
    idx: Index,
    vectors: Any,
    k: int = 10,
    where: Where = None,
    method: str = "expansion",
    without: str | Collection[str] | None = None,
) -> list[list[Hit]]:
    """Search an index and re-rank the hits.

    Args:
        idx: The index.
        vectors: Queries (q, D).
        k: Number of hits per query.
        where: A filter.
        method: "expansion" of the query, "augmentation" of the candidates, "reciprocal" neighbours, or "none", which
            is ``idx.search``.
        without: Id or ids of items to leave out, for example the one that is searched for.

    Returns:
        At most ``k`` hits for each query.

    Raises:
        ValueError: If the method is unknown or an argument of ``idx.search`` is wrong.
    """
    if method not in METHODS:
        raise ValueError(f"the re-ranking must be one of {', '.join(METHODS)}, got {method!r}")
    queries = check_vectors(vectors, idx.dim, idx.distance, what="queries")
    excluded = {without} if isinstance(without, str) else set(without or ())

    def search(query: Vectors, count: int) -> list[Hit]:
        (hits,) = idx.search(query[None], count + len(excluded), where)
        return [hit for hit in hits if hit.item.id not in excluded][:count]

    results = []
    for query in queries:
        if method == "none":
            hits = search(query, k)
        elif method == "expansion":
            hits = _expansion(idx, query, k, search)
        elif method == "augmentation":
            hits = _augmentation(idx, query, k, search, excluded)
        else:
            hits = _reciprocal(idx, query, k, search)
        results.append(hits)
    return results


def _expansion(idx: Index, query: Vectors, k: int, search: Search) -> list[Hit]:
    neighbours = search(query, N)
    if not neighbours:
        return []
    hits = search(_expanded(idx, query, _vectors(idx, neighbours)), k)
    distances_to_query = distances(query, _vectors(idx, hits), idx.distance)
    return [Hit(hit.item, float(distance)) for hit, distance in zip(hits, distances_to_query, strict=True)]


def _augmentation(idx: Index, query: Vectors, k: int, search: Search, excluded: set[str]) -> list[Hit]:
    candidates = search(query, max(k, CANDIDATES))
    if not candidates:
        return []
    vectors = _vectors(idx, candidates)
    count = N + 1 + len(excluded)  # with the candidate itself
    augmented = []
    for candidate, vector, hits in zip(candidates, vectors, idx.search(vectors, count), strict=True):
        ids = [hit.item.id for hit in hits if hit.item.id not in excluded and hit.item.id != candidate.item.id][:N]
        if ids:
            vector = _expanded(idx, vector, idx.vectors(ids))
        augmented.append(vector)
    return _ordered(candidates, distances(query, np.stack(augmented), idx.distance))[:k]


def _reciprocal(idx: Index, query: Vectors, k: int, search: Search) -> list[Hit]:
    candidates = search(query, max(k, CANDIDATES))
    if not candidates:
        return []
    from lookalike.retrieval import rerank  # loads torch

    vectors = _vectors(idx, candidates)
    (reciprocal_distances,) = rerank.k_reciprocal(query[None], vectors, K1, K2, LAMBDA, distance=idx.distance)
    return _ordered(candidates, reciprocal_distances)[:k]


def _vectors(idx: Index, hits: list[Hit]) -> Vectors:
    return idx.vectors([hit.item.id for hit in hits])


def _expanded(idx: Index, vector: Vectors, neighbours: Vectors) -> Vectors:
    """Move one vector (D,) towards its neighbours (n, D)."""
    from lookalike.retrieval import rerank  # loads torch

    near = np.arange(len(neighbours))[None]
    return rerank.alpha_query_expansion(vector[None], neighbours, near, ALPHA, N, distance=idx.distance)[0]


def _ordered(hits: list[Hit], scores: Any) -> list[Hit]:
    """Hits by ascending score; ties keep their order."""
    return [hits[i] for i in np.argsort(np.asarray(scores), kind="stable")]
