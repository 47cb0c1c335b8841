"""The nearest references of every query, exactly: all pairs are compared, a block of them at a time.

The score of a pair is -||q - r||^2 / 2 = q.r - ||q||^2 / 2 - ||r||^2 / 2, or for the cosine, the vectors being
normalised, q.r. It is symmetric: where the references are the queries, each block is computed once and serves the
queries of its rows and, turned, those of its columns.

Equal references must tie, and a matrix product gives equal rows the same sums only if it happens to add in the same
order. So equal references are found beforehand, and one of them is compared for all.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lookalike._util.checks import check_count
from lookalike.retrieval.candidates import Candidates, Ranked, places
from lookalike.retrieval.inputs import as_vectors

BLOCK = 768  # queries and references of a block on the CPU: 2 MB of scores that stay in the cache
BLOCK_GPU = 4096
HELD = 2**25  # candidates in memory at once, 256 MB, beyond which symmetry is not used
WIDE = 1e15  # sums of squares of larger numbers may leave the range of fp32
ROW_SCORES = 2**23  # scores in memory at once where whole rows are selected from; temporaries are a few times that


def neighbours(queries: Any, references: Any = None, k: int = 10, *, distance: str = "cosine") -> Ranked:
    """The ``k`` nearest references of every query, best first: ``.scores`` (n, k) and ``.indices`` (n, k).

    ``queries`` (n, D) and ``references`` (r, D) are numpy arrays or tensors, on any device. Without references the
    queries are compared with each other, and each is among its own neighbours. The score is the cosine, or for
    ``distance="l2"`` minus half the squared distance; of equal scores the lower index comes first.

    >>> neighbours([[0.0], [1.0], [3.0]], k=2, distance="l2").indices.tolist()
    [[0, 1], [1, 0], [2, 1]]
    """
    check_distance(distance)
    check_count("k", k)
    query_vectors = as_vectors("queries", queries)
    reference_vectors = None if references is None else as_vectors("references", references, like=query_vectors)
    count = len(query_vectors if reference_vectors is None else reference_vectors)
    if k > count:
        raise ValueError(f"k must be at most the number of references, {count}, got {k}")
    found = list(ranked_blocks(query_vectors, reference_vectors, k, distance))
    order = torch.cat([rows for rows, _ in found]).argsort()
    scores, indices = zip(*(ranked for _, ranked in found), strict=True)
    return Ranked(torch.cat(scores)[order], torch.cat(indices)[order])


def check_distance(distance: str) -> None:
    if distance not in ("cosine", "l2"):
        raise ValueError(f"distance must be 'cosine' or 'l2', got {distance!r}")


def ranked_blocks(queries: Tensor, references: Tensor | None, k: int, distance: str) -> Iterator[tuple[Tensor, Ranked]]:
    """Some of the queries (b,) and their neighbours, until all had their turn; None: the queries are the references."""
    cosine = distance == "cosine"
    if any(
        float(torch.stack(vectors.aminmax()).abs().max()) > WIDE
        for vectors in (queries, references)
        if vectors is not None
    ):
        queries, references = queries.double(), None if references is None else references.double()
    queries = normalize(queries) if cosine else queries
    references = queries if references is None else normalize(references) if cosine else references
    owner = _first_equal(references)
    if queries.dtype == torch.float64 or places(k) >= len(references):
        yield from _from_whole_rows(queries, references, owner, k, cosine)
        return
    size = BLOCK if queries.is_cpu else BLOCK_GPU
    columns = _blocks(references, owner, size, cosine)
    if queries is references and len(queries) * places(k) <= HELD:
        yield from _symmetric(columns, k)
    else:
        each = torch.arange(len(queries), device=queries.device)
        yield from _one_sided(_blocks(queries, each, size, cosine), columns, k)


class _Block(NamedTuple):
    """Different vectors, and which of the given ones they stand for."""

    place: slice  # among all different vectors
    vectors: Tensor  # (c, D)
    half_squares: Tensor | None  # (c,), None for the cosine
    members: Tensor  # (at least c,) indices as given
    spread: Tensor | None  # (members,) which of the vectors each member equals; None: one each

    def of_members(self, scores: Tensor) -> Tensor:
        """(any, c) -> (any, members)"""
        return scores if self.spread is None else scores.index_select(1, self.spread)


def _blocks(vectors: Tensor, owner: Tensor, size: int, cosine: bool) -> list[_Block]:
    """``owner`` (n,): the first vector that equals this one."""
    own = torch.arange(len(vectors), device=vectors.device)
    members = owner.argsort(stable=True)
    firsts = (owner == own).nonzero().squeeze(1)
    ends = torch.searchsorted(owner[members], firsts, right=True).tolist()
    blocks = []
    for start in range(0, len(firsts), size):
        chosen = firsts[start : start + size]
        inside = members[ends[start - 1] if start else 0 : ends[min(start + size, len(firsts)) - 1]]
        repeated = len(inside) > len(chosen)
        block = vectors[chosen] if len(firsts) < len(vectors) else vectors[start : start + size]
        blocks.append(
            _Block(
                slice(start, start + len(chosen)),
                block,
                None if cosine else _half_squares(block),
                inside,
                torch.searchsorted(chosen, owner[inside]) if repeated else None,
            )
        )
    return blocks


def _symmetric(blocks: list[_Block], k: int) -> Iterator[tuple[Tensor, Ranked]]:
    candidates = Candidates(blocks[-1].place.stop, k, blocks[0].vectors.device)
    for rows in blocks:  # first, as files mostly come class by class, and the best candidates then lie here
        candidates.offer(rows.place, rows.of_members(_scores(rows, rows)), rows.members)
    for i, rows in enumerate(blocks):
        for columns in blocks[i + 1 :]:
            scores = _scores(rows, columns)
            candidates.offer(rows.place, columns.of_members(scores), columns.members)
            candidates.offer(columns.place, rows.of_members(scores.T), rows.members)
        ranked = candidates.ranked(rows.place)
        yield rows.members, ranked if rows.spread is None else Ranked(*(part[rows.spread] for part in ranked))


def _one_sided(queries: list[_Block], references: list[_Block], k: int) -> Iterator[tuple[Tensor, Ranked]]:
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


def _from_whole_rows(
    queries: Tensor, references: Tensor, owner: Tensor, k: int, cosine: bool
) -> Iterator[tuple[Tensor, Ranked]]:
    """For fp64, which the keys of Candidates cannot hold, and for k of the order of all references."""
    for rows in torch.arange(len(queries), device=queries.device).split(max(1, ROW_SCORES // len(references))):
        scores = _products(queries[rows], references)
        if not cosine:
            scores.sub_(_half_squares(references)).sub_(_half_squares(queries[rows]).unsqueeze(1))
        yield rows, _first(scores[:, owner], k)


def _first(scores: Tensor, k: int) -> Ranked:
    """The k largest of each row; of equal ones the lowest index first, as topk does not promise."""
    values, indices = scores.topk(k)
    indices, order = indices.sort(1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    indices = indices.gather(1, order)
    cut_tie = (scores >= values[:, -1:]).sum(1) > k  # equal scores on both sides of the last place
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

    Only those have to be compared whose bits have the same sum, exact in integers, over some dimensions and over all.
    """
    owner = torch.arange(len(vectors), device=vectors.device)
    suspects = owner
    for step in (max(1, vectors.shape[1] // 16), 1):
        numbers = vectors[:, ::step] if len(suspects) == len(vectors) else vectors[suspects, ::step]
        numbers = numbers.clone(memory_format=torch.contiguous_format).add_(0.0)  # -0.0 becomes 0.0
        sums = numbers.view(torch.int32).sum(1, dtype=torch.int32)
        _, which, counts = sums.unique(return_inverse=True, return_counts=True)
        suspects = suspects[counts[which] > 1]
    if len(suspects):
        distinct, which = (vectors[suspects] + 0.0).unique(dim=0, return_inverse=True)
        first = torch.full((len(distinct),), len(vectors), device=vectors.device)
        owner[suspects] = first.scatter_reduce(0, which, suspects, "amin")[which]
    return owner
