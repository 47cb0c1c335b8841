"""Exact nearest neighbours: all pairs are compared, one block at a time.

The score of a pair is -||q - r||^2 / 2 = q.r - ||q||^2 / 2 - ||r||^2 / 2. For the cosine the vectors are normalised
and the score is q.r. It is symmetric: if the references are the queries, each block is computed once and serves the
queries of its rows and, transposed, those of its columns.

Equal references must tie, but a matrix product gives equal rows equal sums only if it adds in the same order. So equal
references are found beforehand, and one of them is compared for all.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lookalike._util.checks import check_count
from lookalike.retrieval.candidates import Candidates, Ranked, slots_per_query
from lookalike.retrieval.inputs import as_vectors

BLOCK = 768  # queries and references per block on the CPU: 2 MB of scores, which fit into the cache
BLOCK_GPU = 4096
MOST_SLOTS = 2**25  # candidates in memory, 256 MB; symmetry is not used beyond
LARGEST_FP32 = 1e15  # sums of squares of larger numbers may overflow in fp32
ROW_SCORES = 2**23  # scores in memory when full rows are compared; temporaries take a few times that

Blocks = Iterator[tuple[Tensor, Ranked]]  # queries (b,) and their neighbours, until every query was yielded once


def neighbours(queries: Any, references: Any = None, k: int = 10, *, distance: str = "cosine") -> Ranked:
    """Find the nearest references of every query.

    Args:
        queries: Vectors (n, D), numpy array or tensor on any device.
        references: Vectors (r, D). None compares the queries with each other; each is then its own neighbour, too.
        k: Number of neighbours.
        distance: "cosine" or "l2".

    Returns:
        ``scores`` (n, k) and ``indices`` (n, k), best first. The score is the cosine, or minus half the squared
        distance for "l2". Of equal scores the lower index comes first.

    Raises:
        ValueError: If shapes or values are wrong, or if there are fewer than ``k`` references.

    >>> neighbours([[0.0], [1.0], [3.0]], k=2, distance="l2").indices.tolist()
    [[0, 1], [1, 0], [2, 1]]
    """
    check_distance(distance)
    check_count("k", k)
    query_vectors = as_vectors("queries", queries)
    reference_vectors = None
    count = len(query_vectors)
    if references is not None:
        reference_vectors = as_vectors("references", references, like=query_vectors)
        count = len(reference_vectors)
    if k > count:
        raise ValueError(f"k must be at most the number of references, {count}, got {k}")
    rows, scores, indices = [], [], []
    for block_rows, ranked in ranked_blocks(query_vectors, reference_vectors, k, distance):
        rows.append(block_rows)
        scores.append(ranked.scores)
        indices.append(ranked.indices)
    order = torch.cat(rows).argsort()
    return Ranked(torch.cat(scores)[order], torch.cat(indices)[order])


def check_distance(distance: str) -> None:
    """Check the name of a distance.

    Raises:
        ValueError: If it is neither "cosine" nor "l2".
    """
    if distance not in ("cosine", "l2"):
        raise ValueError(f"distance must be 'cosine' or 'l2', got {distance!r}")


def ranked_blocks(queries: Tensor, references: Tensor | None, k: int, distance: str) -> Blocks:
    """Find the nearest references block by block.

    Args:
        queries: Vectors (n, D), fp32 or fp64.
        references: Vectors (r, D) of the same dtype. None: the queries.
        k: Number of neighbours, at most r.
        distance: "cosine" or "l2".

    Yields:
        Queries (b,) and their neighbours (b, k), until every query was yielded once.
    """
    cosine = distance == "cosine"
    largest = _largest_entry(queries)
    if references is not None:
        largest = max(largest, _largest_entry(references))
    queries = _prepare(queries, cosine, double=largest > LARGEST_FP32)
    if references is None:
        references = queries
    else:
        references = _prepare(references, cosine, double=largest > LARGEST_FP32)
    owner = _first_equal(references)
    if queries.dtype == torch.float64 or slots_per_query(k) >= len(references):
        yield from _full_rows(queries, references, owner, k, cosine)
        return
    size = BLOCK if queries.is_cpu else BLOCK_GPU
    columns = _blocks(references, owner, size, cosine)
    if queries is references and len(queries) * slots_per_query(k) <= MOST_SLOTS:
        yield from _symmetric(columns, k)
    else:
        all_different = torch.arange(len(queries), device=queries.device)
        yield from _one_sided(_blocks(queries, all_different, size, cosine), columns, k)


def _largest_entry(vectors: Tensor) -> float:
    return float(torch.stack(vectors.aminmax()).abs().max())


def _prepare(vectors: Tensor, cosine: bool, double: bool) -> Tensor:
    if double:
        vectors = vectors.double()
    if cosine:
        vectors = normalize(vectors)
    return vectors


class _Block(NamedTuple):
    """Distinct vectors, and the given vectors that equal them."""

    position: slice  # among all distinct vectors
    vectors: Tensor  # (c, D)
    half_squares: Tensor | None  # (c,), None for the cosine
    members: Tensor  # (m,), m >= c: indices as given
    member_rows: Tensor | None  # (m,): the row of ``vectors`` that each member equals; None if m = c

    def of_members(self, scores: Tensor) -> Tensor:
        """(any, c) -> (any, m)"""
        if self.member_rows is None:
            return scores
        return scores.index_select(1, self.member_rows)


def _blocks(vectors: Tensor, owner: Tensor, size: int, cosine: bool) -> list[_Block]:
    """Split vectors (n, D) into blocks; ``owner`` (n,) is the first vector that equals this one."""
    members = owner.argsort(stable=True)
    firsts = (owner == torch.arange(len(vectors), device=vectors.device)).nonzero().squeeze(1)
    ends = torch.searchsorted(owner[members], firsts, right=True).tolist()
    blocks = []
    members_start = 0
    for start in range(0, len(firsts), size):
        chosen = firsts[start : start + size]
        members_end = ends[start + len(chosen) - 1]
        block_members = members[members_start:members_end]
        members_start = members_end
        if len(firsts) < len(vectors):
            block_vectors = vectors[chosen]
        else:
            block_vectors = vectors[start : start + size]
        half_squares = None
        if not cosine:
            half_squares = _half_squares(block_vectors)
        member_rows = None
        if len(block_members) > len(chosen):
            member_rows = torch.searchsorted(chosen, owner[block_members])
        position = slice(start, start + len(chosen))
        blocks.append(_Block(position, block_vectors, half_squares, block_members, member_rows))
    return blocks


def _symmetric(blocks: list[_Block], k: int) -> Blocks:
    candidates = Candidates(blocks[-1].position.stop, k, blocks[0].vectors.device)
    for rows in blocks:  # the diagonal first: files mostly come class by class, so the best candidates are here
        candidates.offer(rows.position, rows.of_members(_scores(rows, rows)), rows.members)
    for i, rows in enumerate(blocks):
        for columns in blocks[i + 1 :]:
            scores = _scores(rows, columns)
            candidates.offer(rows.position, columns.of_members(scores), columns.members)
            candidates.offer(columns.position, rows.of_members(scores.T), rows.members)
        ranked = candidates.ranked(rows.position)
        if rows.member_rows is not None:
            ranked = Ranked(ranked.scores[rows.member_rows], ranked.indices[rows.member_rows])
        yield rows.members, ranked


def _one_sided(queries: list[_Block], references: list[_Block], k: int) -> Blocks:
    for rows in queries:
        candidates = Candidates(len(rows.members), k, rows.vectors.device)
        for columns in references:
            candidates.offer(slice(None), columns.of_members(_scores(rows, columns)), columns.members)
        yield rows.members, candidates.ranked(slice(None))


def _scores(rows: _Block, columns: _Block) -> Tensor:
    scores = _products(rows.vectors, columns.vectors)
    if rows.half_squares is not None and columns.half_squares is not None:
        scores.sub_(columns.half_squares).sub_(rows.half_squares.unsqueeze(1))
    return scores


def _full_rows(queries: Tensor, references: Tensor, owner: Tensor, k: int, cosine: bool) -> Blocks:
    """For fp64, which the keys of ``Candidates`` cannot hold, and for k close to the number of references."""
    for rows in torch.arange(len(queries), device=queries.device).split(max(1, ROW_SCORES // len(references))):
        scores = _products(queries[rows], references)
        if not cosine:
            scores.sub_(_half_squares(references)).sub_(_half_squares(queries[rows]).unsqueeze(1))
        yield rows, _top_k(scores[:, owner], k)


def _top_k(scores: Tensor, k: int) -> Ranked:
    """The k largest of each row; of equal ones the lowest index first, which topk does not guarantee."""
    values, indices = scores.topk(k)
    indices, order = indices.sort(1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    indices = indices.gather(1, order)
    cut_tie = (scores >= values[:, -1:]).sum(1) > k  # equal scores on both sides of rank k
    if bool(cut_tie.any()):
        indices[cut_tie] = scores[cut_tie].sort(dim=1, descending=True, stable=True).indices[:, :k]
    return Ranked(values, indices)


def _products(rows: Tensor, columns: Tensor) -> Tensor:
    with torch.autocast(rows.device.type, enabled=False):
        return torch.mm(rows, columns.T)


def _half_squares(vectors: Tensor) -> Tensor:
    return vectors.square().sum(1) / 2


def _first_equal(vectors: Tensor) -> Tensor:
    """(n, D) -> (n,): the index of the first vector that equals this one, mostly its own.

    Only vectors whose bits have the same integer sum, over some dimensions and then over all, need to be compared.
    """
    owner = torch.arange(len(vectors), device=vectors.device)
    suspects = owner
    for step in (max(1, vectors.shape[1] // 16), 1):
        if len(suspects) == len(vectors):
            values = vectors[:, ::step]
        else:
            values = vectors[suspects, ::step]
        values = values.clone(memory_format=torch.contiguous_format).add_(0.0)  # -0.0 becomes 0.0
        sums = values.view(torch.int32).sum(1, dtype=torch.int32)
        _, groups, counts = sums.unique(return_inverse=True, return_counts=True)
        suspects = suspects[counts[groups] > 1]
    if len(suspects):
        distinct, groups = (vectors[suspects] + 0.0).unique(dim=0, return_inverse=True)
        first = torch.full((len(distinct),), len(vectors), device=vectors.device)
        owner[suspects] = first.scatter_reduce(0, groups, suspects, "amin")[groups]
    return owner
