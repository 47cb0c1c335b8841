"""Exact nearest neighbours: all pairs are compared, one block at a time.

The score of a pair is -||q - r||^2 / 2 = q.r - ||q||^2 / 2 - ||r||^2 / 2. For the cosine the vectors are normalised
and the score is q.r. It is symmetric: if the references are the queries, each block is computed once and serves the
queries of its rows and, transposed, those of its columns.

Products round, so they only propose a few more than k neighbours. Where their error bound leaves the order open, pairs
are measured again in fp64 (``exact.py``). Where it leaves open which references belong to the k, the query is compared
with all of them in fp64. So the result is that of fp64, at any offset and scale. On processors that multiply bf16,
products in bf16 leave out most references before (``screening.py``).

Equal references must tie, but a matrix product gives equal rows equal sums only if it adds in the same order. So equal
references are found beforehand, and one of them is compared for all.
"""

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lookalike._util.checks import check_count
from lookalike.retrieval import exact
from lookalike.retrieval.candidates import Candidates, Ranked, slots_per_query
from lookalike.retrieval.exact import IsHit, Pairs, refine
from lookalike.retrieval.inputs import as_vectors
from lookalike.retrieval.screening import Screen, screening_pays

BLOCK = 768  # queries and references per block on the CPU: 2 MB of scores, which fit into the cache
BLOCK_GPU = 4096
MOST_SLOTS = 2**25  # candidates in memory, 256 MB; symmetry is not used beyond
MORE = 4  # candidates in addition to the k
MORE_SCREENED = 24  # candidates in addition to 2 k where products in bf16 propose them
ROW_SCORES = 2**23  # scores in memory when full rows are compared; temporaries take a few times that

Blocks = Iterator[tuple[Tensor, Ranked]]  # queries (b,) and their neighbours, until every query was yielded once


def neighbours(queries: Any, references: Any = None, k: int = 10, *, distance: str = "cosine") -> Ranked:
    """Find the nearest references of every query.

    Args:
        queries: Vectors (n, D), numpy array or tensor on any device.
        references: Vectors (r, D). None compares the queries with each other; each is then its own neighbour, too.
        k: Number of neighbours.
        distance: "cosine" or "l2". A vector of zeros has the cosine 0 with every vector.

    Returns:
        ``scores`` (n, k) and ``indices`` (n, k), best first. The score is the cosine, or minus half the squared
        distance for "l2". The order is that of fp64; of equal scores the lower index comes first.

    Raises:
        ValueError: If shapes or values are wrong, or if there are fewer than ``k`` references.

    Examples:
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


def ranked_blocks(
    queries: Tensor, references: Tensor | None, k: int, distance: str, is_hit: IsHit | None = None
) -> Blocks:
    """Find the nearest references block by block.

    Args:
        queries: Vectors (n, D), fp32 or fp64.
        references: Vectors (r, D). None: the queries.
        k: Number of neighbours, at most r.
        distance: "cosine" or "l2".
        is_hit: Tells hits from other references, if nothing but their order is needed. This saves time.

    Yields:
        Queries (b,) and their neighbours (b, k), until every query was yielded once.
    """
    if references is not None and references.dtype != queries.dtype:
        queries, references = queries.double(), references.double()
    pairs = Pairs(queries, references, distance == "cosine")
    candidates = min(k + MORE, len(pairs.references))
    if queries.dtype == torch.float64 or slots_per_query(candidates) >= len(pairs.references):
        all_queries = torch.arange(len(queries), device=queries.device)
        yield from _full_rows(pairs, _first_equal(pairs, torch.float64), all_queries, k, is_hit)
        return
    owner = _first_equal(pairs, torch.float32)
    open_rows = torch.arange(len(queries), device=queries.device)
    if screening_pays(pairs, candidates):
        open_rows = yield from _screened(pairs, owner, k, is_hit)
    if not len(open_rows):
        return
    for positions, proposed in _proposals(pairs, owner, open_rows, candidates):
        rows = open_rows[positions]
        ranked, complete = _refine_products(pairs, rows, proposed, k, is_hit)
        if bool(complete.all()):
            yield rows, pairs.restore(ranked)
            continue
        yield rows[complete], pairs.restore(Ranked(ranked.scores[complete], ranked.indices[complete]))
        yield from _full_rows(pairs, owner, rows[~complete], k, is_hit)


def _refine_products(
    pairs: Pairs, rows: Tensor, proposed: Ranked, k: int, is_hit: IsHit | None
) -> tuple[Ranked, Tensor]:
    """``refine`` for references proposed by products in fp32."""
    scores = proposed.scores.double()
    if pairs.cosine:
        scores -= 1
    return refine(pairs, rows, Ranked(scores, proposed.indices), k, torch.float32, is_hit)


def _screened(
    pairs: Pairs, owner: Tensor, k: int, is_hit: IsHit | None
) -> Generator[tuple[Tensor, Ranked], None, Tensor]:
    """Yield the queries that products in bf16 decide, with their neighbours, and return the others (m,)."""
    screen = Screen(pairs)
    is_open = torch.ones(len(screen.queries), dtype=torch.bool)
    width = min(2 * k + MORE_SCREENED, len(screen.references))
    for rows, proposed in _best_products(screen.queries, screen.references, owner, width, pairs.cosine):
        screened, complete = screen.neighbours(rows, proposed, k)
        ranked, is_final = _refine_products(pairs, rows, screened, k, is_hit)
        complete &= is_final
        is_open[rows[complete]] = False
        yield rows[complete], pairs.restore(Ranked(ranked.scores[complete], ranked.indices[complete]))
        if 2 * int(complete.sum()) < len(rows):  # neighbours too close together: the rest would be in vain
            break
    return is_open.nonzero().squeeze(1)


def _proposals(pairs: Pairs, owner: Tensor, rows: Tensor, k: int) -> Blocks:
    """Positions among the ``rows`` (m,) of queries, and their k best references by products in fp32."""
    queries, references = pairs.prepared(torch.float32)
    if len(rows) < len(queries):
        queries = queries[rows]
    yield from _best_products(queries, references, owner, k, pairs.cosine)


def _best_products(queries: Tensor, references: Tensor, owner: Tensor, k: int, cosine: bool) -> Blocks:
    size = BLOCK if queries.is_cpu else BLOCK_GPU
    columns = _blocks(references, owner, size, cosine)
    if queries is references and len(queries) * slots_per_query(k) <= MOST_SLOTS:
        yield from _symmetric(columns, k)
    else:
        all_different = torch.arange(len(queries), device=queries.device)
        yield from _one_sided(_blocks(queries, all_different, size, cosine), columns, k)


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
            half_squares = exact.half_squares(block_vectors).to(vectors.dtype)
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


def _full_rows(pairs: Pairs, owner: Tensor, rows: Tensor, k: int, is_hit: IsHit | None) -> Blocks:
    """Compare some queries with all references in fp64, which the keys of ``Candidates`` cannot hold."""
    queries, references = pairs.prepared(torch.float64)
    everything = torch.arange(len(references), device=rows.device).unsqueeze(0)
    half_squares = exact.half_squares(references)
    for some in rows.split(max(1, ROW_SCORES // len(references))):
        scores = _products(queries[some], references)
        if pairs.cosine:
            scores.sub_(1)
        else:
            scores.sub_(half_squares).sub_(exact.half_squares(queries[some]).unsqueeze(1))
        scores = scores[:, owner]
        errors, _ = pairs.errors(some, everything, torch.float64)
        if bool(errors.any()):
            least = (scores - errors).topk(k).values[:, -1:]
            is_contender = scores + errors >= least
            contenders = 2 ** is_contender.sum(1).log2().ceil().long()  # rounded up, so that few numbers occur
            scores.masked_fill_(~is_contender, -torch.inf)
        else:
            contenders = torch.full_like(some, k)
        for count in contenders.unique().tolist():
            same_count = contenders == count
            proposed = _top_k(scores[same_count], min(count, len(references)))
            ranked, _ = refine(pairs, some[same_count], proposed, k, torch.float64, is_hit)
            yield some[same_count], pairs.restore(ranked)


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
        products = torch.mm(rows, columns.T)
    return products.float() if products.dtype == torch.bfloat16 else products


def _first_equal(pairs: Pairs, dtype: torch.dtype) -> Tensor:
    """(r,): the index of the first reference that equals this one, mostly its own.

    Only vectors whose bits have the same integer sum, over some dimensions and then over all, need to be compared.
    """
    _, vectors = pairs.prepared(dtype)
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
        distinct, groups = (pairs.distinguishing(suspects) + 0.0).unique(dim=0, return_inverse=True)
        first = torch.full((len(distinct),), len(vectors), device=vectors.device)
        owner[suspects] = first.scatter_reduce(0, groups, suspects, "amin")[groups]
    return owner
