"""Retrieval metrics: P@1, P@R, MAP@R and R@K, computed exactly.

For a query with R references of its label, ranked by distance, with hit_j = 1 where the j-th has that label:

    P@1 = hit_1      P@R = 1/R sum_{j<=R} hit_j      MAP@R = 1/R sum_{j<=R} hit_j * (hits up to j) / j
    R@K = 1 if there is a hit among the first K

Reference: Musgrave, Belongie and Lim, "A Metric Learning Reality Check", ECCV 2020.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lookalike._util.checks import check_count
from lookalike.retrieval.inputs import as_codes, as_vectors
from lookalike.retrieval.search import check_distance, ranked_blocks


def retrieval_metrics(
    queries: Any,
    query_labels: Any,
    references: Any = None,
    reference_labels: Any = None,
    *,
    query_ids: Any = None,
    reference_ids: Any = None,
    distance: str = "cosine",
    ks: Sequence[int] = (1, 2, 4, 8),
) -> dict[str, float]:
    """Measure how well nearest neighbours share labels.

    A reference with the id of the query is the query itself and never counts as its neighbour, at any rank. Of equal
    distances the earlier reference comes first. Scores are computed block by block, so memory is bounded.

    The result is that of fp64 for inputs of any offset, scale and precision: products in fp32 only propose neighbours,
    and wherever a bound on their error leaves the order of a hit and another reference open, fp64 decides.

    Args:
        queries: Vectors (n, D), numpy array or tensor on any device.
        query_labels: Labels (n,), integers of any size or strings. NaN, None and mixed types are refused.
        references: Vectors (r, D). None compares each query with all others (leave-one-out).
        reference_labels: Labels (r,) of the references.
        query_ids: Ids (n,), integers or strings.
        reference_ids: Ids (r,) of the references.
        distance: "cosine" or "l2". A vector of zeros has the cosine 0 with every vector.
        ks: The values K of R@K.

    Returns:
        Means over the queries as fractions, {"P@1", "P@R", "MAP@R", "R@1", ...}, with the number of evaluated
        "queries" and of queries "left_out" because no reference has their label.

    Raises:
        ValueError: If shapes or values are wrong, or if no query can be evaluated.
        TypeError: If vectors are not real numbers, or labels or ids are of different types.

    Examples:
        >>> retrieval_metrics([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], ["cat", "cat", "dog"], ks=(1,))
        {'P@1': 1.0, 'P@R': 1.0, 'MAP@R': 1.0, 'R@1': 1.0, 'queries': 2, 'left_out': 1}
    """
    check_distance(distance)
    for k in ks:
        check_count("every one of ks", k)
    task = _as_task(queries, query_labels, references, reference_labels, query_ids, reference_ids)

    relevant, duplicates = _count_relevant(task)
    has_relevant = relevant > 0
    left_out = int((~has_relevant).sum())
    evaluated = len(relevant) - left_out
    if evaluated == 0:
        raise ValueError(f"no query has a reference of its label: nothing to measure in {len(relevant)} queries")

    depth = min(len(task.reference_labels), max(int(relevant.max()), *ks, 1) + int(duplicates.max()))
    totals: dict[str, float] = {}
    for rows, indices in _neighbours(task, has_relevant, depth, distance):
        hits = task.reference_labels.take(indices) == task.query_labels[rows].unsqueeze(1)
        is_other = task.reference_ids.take(indices) != task.query_ids[rows].unsqueeze(1)
        for name, values in _metrics_per_query(hits, is_other, relevant[rows], ks).items():
            totals[name] = totals.get(name, 0.0) + values.sum().item()
    metrics = {name: total / evaluated for name, total in totals.items()}
    return {**metrics, "queries": evaluated, "left_out": left_out}


class _Task(NamedTuple):
    """All inputs as tensors on one device. Without ids, queries have -1 and references -2, which never match."""

    queries: Tensor  # (n, D)
    references: Tensor | None  # (r, D); None: the queries
    query_labels: Tensor  # (n,) int64
    reference_labels: Tensor  # (r,) int64
    query_ids: Tensor  # (n,) int64
    reference_ids: Tensor  # (r,) int64


def _as_task(
    queries: Any, query_labels: Any, references: Any, reference_labels: Any, query_ids: Any, reference_ids: Any
) -> _Task:
    query_vectors = as_vectors("queries", queries)
    n = r = len(query_vectors)
    if references is None:
        if reference_labels is not None or reference_ids is not None:
            raise ValueError("reference_labels and reference_ids need references, got none")
        reference_vectors, reference_labels = None, query_labels
        if query_ids is None:
            query_ids = np.arange(n)
        reference_ids = query_ids
    else:
        reference_vectors = as_vectors("references", references, like=query_vectors)
        r = len(reference_vectors)
        if (query_ids is None) != (reference_ids is None):
            raise ValueError("query_ids and reference_ids must be given together, got only one of them")
    labels = as_codes("labels", query_labels, n, reference_labels, r, query_vectors.device)
    if query_ids is None:
        ids = labels[0].new_full((n,), -1), labels[1].new_full((r,), -2)
    else:
        ids = as_codes("ids", query_ids, n, reference_ids, r, query_vectors.device)
    return _Task(query_vectors, reference_vectors, *labels, *ids)


def _count_relevant(task: _Task) -> tuple[Tensor, Tensor]:
    """Count per query (n,): references of its label other than itself, and references that are itself."""
    num_labels = int(max(task.query_labels.max(), task.reference_labels.max())) + 1
    relevant = torch.bincount(task.reference_labels, minlength=num_labels)[task.query_labels]
    duplicates = torch.zeros_like(relevant)
    if int(task.query_ids[0]) < 0:  # no ids
        return relevant, duplicates
    order = task.reference_ids.argsort(stable=True)
    sorted_ids = task.reference_ids[order]
    first = torch.searchsorted(sorted_ids, task.query_ids)
    duplicates = torch.searchsorted(sorted_ids, task.query_ids, right=True) - first
    for offset in range(int(duplicates.max())):
        itself = order[(first + offset).clamp(max=len(order) - 1)]
        same_label = (task.reference_labels[itself] == task.query_labels) & (offset < duplicates)
        relevant = relevant - same_label.long()
    return relevant, duplicates


def _neighbours(task: _Task, has_relevant: Tensor, depth: int, distance: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield blocks (b,) of queries with relevant references, and their neighbours (b, depth), themselves included."""
    chosen = has_relevant.nonzero().squeeze(1)

    def is_hit(rows: Tensor, indices: Tensor) -> Tensor:
        return task.reference_labels.take(indices) == query_labels[rows].unsqueeze(1)

    query_labels = task.query_labels
    if task.references is None and 2 * len(chosen) > len(has_relevant):  # else symmetry does not pay
        for rows, ranked in ranked_blocks(task.queries, None, depth, distance, is_hit):
            evaluated = has_relevant[rows]
            yield rows[evaluated], ranked.indices[evaluated]
        return
    references = task.queries if task.references is None else task.references
    queries = task.queries
    if len(chosen) < len(has_relevant):
        queries = queries[chosen]
        query_labels = query_labels[chosen]
    for rows, ranked in ranked_blocks(queries, references, depth, distance, is_hit):
        yield chosen[rows], ranked.indices


def _metrics_per_query(hits: Tensor, is_other: Tensor, relevant: Tensor, ks: Sequence[int]) -> dict[str, Tensor]:
    """Compute the metrics (b,) of each query in fp64.

    Args:
        hits: (b, depth), whether the j-th neighbour has the query's label.
        is_other: (b, depth), whether it is not the query itself, which gets no rank.
        relevant: (b,), number of relevant references.
        ks: The values K of R@K.
    """
    hits = hits & is_other
    rank = is_other.cumsum(1)
    hits_up_to_r = (hits & (rank <= relevant.unsqueeze(1))).double()
    precision = hits_up_to_r.cumsum(1) / rank.clamp(min=1)
    metrics = {
        "P@1": (hits & (rank == 1)).any(1).double(),
        "P@R": hits_up_to_r.sum(1) / relevant,
        "MAP@R": (precision * hits_up_to_r).sum(1) / relevant,
    }
    for k in ks:
        metrics[f"R@{k}"] = (hits & (rank <= k)).any(1).double()
    return metrics
