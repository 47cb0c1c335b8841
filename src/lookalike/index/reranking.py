"""A search that looks twice: ``lookalike.retrieval.rerank`` on the neighbours that an index gives.

The order is that of the re-ranking; the distances stay those between each picture and the query.
"""

from typing import Any

import numpy as np

from lookalike.index.base import Index
from lookalike.index.exact_rescoring import distances
from lookalike.index.items import Hit, Vectors, check_vectors
from lookalike.retrieval import rerank

METHODS = ("none", "expansion", "augmentation", "reciprocal")
CANDIDATES = 100  # that are ordered anew
N, ALPHA = 10, 3.0
K1, K2, LAMBDA = 20, 6, 0.3


def search_reranked(
    idx: Index,
    vectors: Any,
    k: int = 10,
    where: str | None = None,
    method: str = "expansion",
    without: str | None = None,
) -> list[list[Hit]]:
    """As ``idx.search``, re-ranked: by "expansion" of the query, "augmentation" of its candidates, or as "reciprocal"
    neighbours. "none" is ``idx.search`` itself. The item with the id ``without`` takes no part, as where it is what is
    searched for.
    """
    if method not in METHODS:
        raise ValueError(f"the re-ranking must be one of {', '.join(METHODS)}, got {method!r}")
    queries = check_vectors(vectors, idx.dim, idx.distance, what="queries")
    again = {"none": _as_it_is, "expansion": _expanded, "augmentation": _augmented, "reciprocal": _reciprocal}[method]
    return [again(idx, query, k, where, without) for query in queries]


def _others(idx: Index, query: Vectors, k: int, where: str | None, without: str | None) -> list[Hit]:
    (hits,) = idx.search(query[None], k + (without is not None), where)
    return [hit for hit in hits if hit.item.id != without][:k]


def _as_it_is(idx: Index, query: Vectors, k: int, where: str | None, without: str | None) -> list[Hit]:
    return _others(idx, query, k, where, without)


def _expanded(idx: Index, query: Vectors, k: int, where: str | None, without: str | None) -> list[Hit]:
    first = _others(idx, query, N, where, without)
    if not first:
        return []
    near = idx.vectors([hit.item.id for hit in first])
    drawn = rerank.alpha_query_expansion(query[None], near, np.arange(len(near))[None], ALPHA, N, distance=idx.distance)
    found = _others(idx, drawn[0], k, where, without)
    true = distances(query, idx.vectors([hit.item.id for hit in found]), idx.distance)
    return [Hit(hit.item, float(distance)) for hit, distance in zip(found, true, strict=True)]


def _augmented(idx: Index, query: Vectors, k: int, where: str | None, without: str | None) -> list[Hit]:
    candidates = _others(idx, query, max(k, CANDIDATES), where, without)
    if not candidates:
        return []
    own = idx.vectors([hit.item.id for hit in candidates])
    spare = 1 + (without is not None)  # itself, and what is searched for
    lists = [
        [near.item.id for near in hits if near.item.id not in (hit.item.id, without)][:N]
        for hit, hits in zip(candidates, idx.search(own, N + spare), strict=True)
    ]
    drawn = []
    for vector, ids in zip(own, lists, strict=True):
        near = idx.vectors(ids)
        indices = np.arange(len(near))[None]
        drawn.append(
            rerank.alpha_query_expansion(vector[None], near, indices, ALPHA, N, distance=idx.distance)[0]
            if ids
            else vector
        )
    return _ordered(candidates, distances(query, np.stack(drawn), idx.distance))[:k]


def _reciprocal(idx: Index, query: Vectors, k: int, where: str | None, without: str | None) -> list[Hit]:
    candidates = _others(idx, query, max(k, CANDIDATES), where, without)
    if not candidates:
        return []
    own = idx.vectors([hit.item.id for hit in candidates])
    (again,) = rerank.k_reciprocal(query[None], own, K1, K2, LAMBDA, distance=idx.distance)
    return _ordered(candidates, again)[:k]


def _ordered(hits: list[Hit], by: Any) -> list[Hit]:
    return [hits[i] for i in np.argsort(np.asarray(by), kind="stable")]
