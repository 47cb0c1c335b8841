"""How well neighbours share labels: P@1, P@R, MAP@R and R@K, exactly.

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
    """Figures as fractions over the queries: {"P@1", "P@R", "MAP@R", "R@1", ..., "queries", "left_out"}.

    ``queries`` (n, D) and ``references`` (r, D) are numpy arrays or tensors, on any device; labels and ids are
    integers or strings, one for each. Without references, each query is compared with all others (leave-one-out).
    A reference with the id of the query is the query itself and never its neighbour, whatever its distance and rank.
    ``distance`` is "cosine" or "l2"; of equal distances the earlier reference comes first.
    Queries for which there is no reference of their label are left out of the mean, and counted.
    Memory is bounded: the scores are computed block by block.

    >>> retrieval_metrics([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], ["cat", "cat", "dog"], ks=(1,))
    {'P@1': 1.0, 'P@R': 1.0, 'MAP@R': 1.0, 'R@1': 1.0, 'queries': 2, 'left_out': 1}
    """
    check_distance(distance)
    for k in ks:
        check_count("every one of ks", k)
    task = _read(queries, query_labels, references, reference_labels, query_ids, reference_ids)

    relevant, hidden = _count_relevant(task)
    there = relevant > 0
    left_out = int((~there).sum())
    figures = dict.fromkeys(("P@1", "P@R", "MAP@R", *(f"R@{k}" for k in ks)), 0.0)
    evaluated = len(relevant) - left_out
    if evaluated == 0:
        raise ValueError(f"no query has a reference of its label: nothing to measure in {len(relevant)} queries")

    depth = min(len(task.reference_labels), max(int(relevant.max()), *ks, 1) + int(hidden.max()))
    for rows, indices in _neighbours(task, there, depth, distance):
        hits = task.reference_labels.take(indices) == task.query_labels[rows].unsqueeze(1)
        others = task.reference_ids.take(indices) != task.query_ids[rows].unsqueeze(1)
        for name, values in _per_query(hits, others, relevant[rows], ks).items():
            figures[name] += values.sum().item()
    return {**{name: total / evaluated for name, total in figures.items()}, "queries": evaluated, "left_out": left_out}


class _Task(NamedTuple):
    """Everything as tensors on one device. Ids that cannot match are -1 (queries) and -2 (references)."""

    queries: Tensor  # (n, D)
    references: Tensor | None  # (r, D); None: the queries
    query_labels: Tensor  # (n,) int64
    reference_labels: Tensor  # (r,) int64
    query_ids: Tensor  # (n,) int64
    reference_ids: Tensor  # (r,) int64


def _read(
    queries: Any, query_labels: Any, references: Any, reference_labels: Any, query_ids: Any, reference_ids: Any
) -> _Task:
    query_vectors = as_vectors("queries", queries)
    n = r = len(query_vectors)
    if references is None:
        if reference_labels is not None or reference_ids is not None:
            raise ValueError("reference_labels and reference_ids come with references, which were not given")
        reference_vectors, reference_labels = None, query_labels
        query_ids = reference_ids = np.arange(n) if query_ids is None else query_ids
    else:
        reference_vectors = as_vectors("references", references, like=query_vectors)
        r = len(reference_vectors)
        if (query_ids is None) != (reference_ids is None):
            raise ValueError("query_ids and reference_ids come together, got only one of them")
    labels = as_codes("labels", query_labels, n, reference_labels, r, query_vectors.device)
    if query_ids is None:
        ids = labels[0].new_full((n,), -1), labels[1].new_full((r,), -2)
    else:
        ids = as_codes("ids", query_ids, n, reference_ids, r, query_vectors.device)
    return _Task(query_vectors, reference_vectors, *labels, *ids)


def _count_relevant(task: _Task) -> tuple[Tensor, Tensor]:
    """Per query (n,): references of its label other than itself, and how many references are itself."""
    highest = int(max(task.query_labels.max(), task.reference_labels.max())) + 1
    relevant = torch.bincount(task.reference_labels, minlength=highest)[task.query_labels]
    hidden = torch.zeros_like(relevant)
    if int(task.query_ids[0]) >= 0:
        order = task.reference_ids.argsort(stable=True)
        ordered = task.reference_ids[order]
        first = torch.searchsorted(ordered, task.query_ids)
        hidden = torch.searchsorted(ordered, task.query_ids, right=True) - first
        for offset in range(int(hidden.max())):
            itself = order[(first + offset).clamp(max=len(order) - 1)]
            same = (task.reference_labels[itself] == task.query_labels) & (offset < hidden)
            relevant = relevant - same.long()
    return relevant, hidden


def _neighbours(task: _Task, there: Tensor, depth: int, distance: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks (b,) of the queries that are ``there``, and their neighbours (b, depth), themselves among them."""
    wanted = there.nonzero().squeeze(1)
    if task.references is None and 2 * len(wanted) > len(there):  # else symmetry does not pay
        for rows, ranked in ranked_blocks(task.queries, None, depth, distance):
            kept = there[rows]
            yield rows[kept], ranked.indices[kept]
    else:
        references = task.queries if task.references is None else task.references
        queries = task.queries if len(wanted) == len(there) else task.queries[wanted]
        for rows, ranked in ranked_blocks(queries, references, depth, distance):
            yield wanted[rows], ranked.indices


def _per_query(hits: Tensor, others: Tensor, relevant: Tensor, ks: Sequence[int]) -> dict[str, Tensor]:
    """The figures of each query (b,), in fp64.

    ``hits`` (b, depth): the j-th neighbour has the query's label; ``others`` (b, depth): it is not the query itself,
    which takes no place in the ranking; ``relevant`` (b,).
    """
    hits = hits & others
    place = others.cumsum(1)
    counted = (hits & (place <= relevant.unsqueeze(1))).double()
    precision = counted.cumsum(1) / place.clamp(min=1)
    figures = {
        "P@1": (hits & (place == 1)).any(1).double(),
        "P@R": counted.sum(1) / relevant,
        "MAP@R": (precision * counted).sum(1) / relevant,
    }
    for k in ks:
        figures[f"R@{k}"] = (hits & (place <= k)).any(1).double()
    return figures
