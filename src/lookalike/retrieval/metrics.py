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
from torch.nn.functional import normalize

from lookalike.checks import check_count

BLOCK_SCORES = 2**25  # scores in memory at once: 128 MB, and a few temporaries of that size


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
    if distance not in ("cosine", "l2"):
        raise ValueError(f"distance must be 'cosine' or 'l2', got {distance!r}")
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

    depth = min(len(task.references), max(int(relevant.max()), *ks, 1) + int(hidden.max()))
    for rows, hits in _ranked_hits(task, there.nonzero().squeeze(1), depth, distance):
        for name, values in _per_query(hits, relevant[rows], ks).items():
            figures[name] += values.sum().item()
    return {**{name: total / evaluated for name, total in figures.items()}, "queries": evaluated, "left_out": left_out}


class _Task(NamedTuple):
    """Everything as tensors on one device. Ids that cannot match are -1 (queries) and -2 (references)."""

    queries: Tensor  # (n, D)
    references: Tensor  # (r, D)
    query_labels: Tensor  # (n,) int64
    reference_labels: Tensor  # (r,) int64
    query_ids: Tensor  # (n,) int64
    reference_ids: Tensor  # (r,) int64


def _read(
    queries: Any, query_labels: Any, references: Any, reference_labels: Any, query_ids: Any, reference_ids: Any
) -> _Task:
    query_vectors = _vectors("queries", queries)
    if references is None:
        if reference_labels is not None or reference_ids is not None:
            raise ValueError("reference_labels and reference_ids come with references, which were not given")
        reference_vectors, reference_labels = query_vectors, query_labels
        query_ids = np.arange(len(query_vectors)) if query_ids is None else query_ids
        reference_ids = query_ids
    else:
        reference_vectors = _vectors("references", references).to(query_vectors)
        if reference_vectors.shape[1] != query_vectors.shape[1]:
            shapes = f"{tuple(query_vectors.shape)} and {tuple(reference_vectors.shape)}"
            raise ValueError(f"queries and references must have vectors of one size, got {shapes}")
        if (query_ids is None) != (reference_ids is None):
            raise ValueError("query_ids and reference_ids come together, got only one of them")
    device = query_vectors.device
    labels = _codes("labels", query_labels, len(query_vectors), reference_labels, len(reference_vectors), device)
    if query_ids is None:
        ids = labels[0].new_full(labels[0].shape, -1), labels[1].new_full(labels[1].shape, -2)
    else:
        ids = _codes("ids", query_ids, len(query_vectors), reference_ids, len(reference_vectors), device)
    return _Task(query_vectors, reference_vectors, *labels, *ids)


def _vectors(name: str, values: Any) -> Tensor:
    vectors = values.detach() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    if vectors.dim() != 2 or 0 in vectors.shape:
        raise ValueError(f"{name} must have the shape (at least one, dimensions), got {tuple(vectors.shape)}")
    vectors = vectors if vectors.dtype == torch.float64 else vectors.float()
    if not bool(vectors.isfinite().all()):
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return vectors


def _codes(name: str, first: Any, n: int, second: Any, r: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Labels or ids of queries and references, of any kind, as integers that are equal where they are."""
    both = []
    for values, count, whose in ((first, n, "query"), (second, r, "reference")):
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        if array.shape != (count,):
            raise ValueError(f"{whose}_{name} must have the shape ({count},), got {array.shape}")
        both.append(array)
    if both[0].dtype.kind != both[1].dtype.kind and {both[0].dtype.kind, both[1].dtype.kind} - set("iu"):
        raise TypeError(f"query and reference {name} must be of one kind, got {both[0].dtype} and {both[1].dtype}")
    codes = np.unique(np.concatenate(both), return_inverse=True)[1].astype(np.int64)
    return torch.from_numpy(codes[:n]).to(device), torch.from_numpy(codes[n:]).to(device)


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


def _ranked_hits(task: _Task, rows: Tensor, depth: int, distance: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of queries (b,), and whether the j-th neighbour of each has its label (b, depth)."""
    if distance == "cosine":
        queries, references = normalize(task.queries), normalize(task.references)
        offset = references.new_zeros(())
    else:
        queries, references = task.queries, task.references
        offset = references.square().sum(1) / 2  # -||q - r||^2 / 2 = q.r - ||r||^2 / 2 + a constant of the query
    for block in rows.split(max(1, BLOCK_SCORES // len(references))):
        scores = torch.mm(queries[block], references.T).sub_(offset)
        if int(task.query_ids[0]) >= 0:
            scores.masked_fill_(task.query_ids[block].unsqueeze(1) == task.reference_ids, -torch.inf)
        neighbours = _first(scores, depth)
        yield block, task.reference_labels[neighbours] == task.query_labels[block].unsqueeze(1)


def _first(scores: Tensor, depth: int) -> Tensor:
    """Indices (b, depth) of the largest scores, of equal ones the lowest index first, as topk does not promise."""
    values, indices = scores.topk(depth)
    indices, order = indices.sort(1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    indices = indices.gather(1, order)
    cut_tie = (scores >= values[:, -1:]).sum(1) > depth  # equal scores on both sides of the last place
    if bool(cut_tie.any()):
        indices[cut_tie] = scores[cut_tie].sort(dim=1, descending=True, stable=True).indices[:, :depth]
    return indices


def _per_query(hits: Tensor, relevant: Tensor, ks: Sequence[int]) -> dict[str, Tensor]:
    """hits (b, depth), relevant (b,) -> the figures of each query (b,), in float64."""
    hits = hits.double()
    place = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    counted = hits * (place <= relevant.unsqueeze(1))
    precision = counted.cumsum(1) / place
    figures = {
        "P@1": hits[:, 0],
        "P@R": counted.sum(1) / relevant,
        "MAP@R": (precision * counted).sum(1) / relevant,
    }
    for k in ks:
        figures[f"R@{k}"] = hits[:, :k].amax(1)
    return figures
