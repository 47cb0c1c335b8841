"""Pairs of vectors: products that propose neighbours, a bound on their error, and differences in fp64 that decide.

Before products, vectors are moved and rescaled (L2) or normalised in fp64 (cosine), so that offset and scale cost no
digits. Scores are minus half the squared distance, for the cosine between unit vectors, which is cosine - 1.

With unit roundoff u, a product of D numbers in any order is wrong by at most (D + 8) u |q| |r|, with the roundings of
its inputs. Products of small whole numbers are exact.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from lookalike.retrieval.candidates import Ranked
from lookalike.retrieval.scaling import choose_centre, choose_exponent

UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
INPUT_UNIT = {"highest": 0.0, "high": 2.0**-11, "medium": 2.0**-8}  # by torch.get_float32_matmul_precision()
UNDERFLOW = {torch.float32: 2.0**-100, torch.float64: 2.0**-900}
ROUNDINGS = 8  # of inputs, squares and their sum
SMALLEST_SQUARE = 1e-250  # squares up to this, and from its inverse, may have lost digits
CHUNK = 2**20  # numbers that are converted to fp64 at a time
PAIRS_CHUNK = 2**17  # the same for pairs, which stay in the cache
DENSE = 32  # unless a 1 / DENSE of all references is uncertain, uncertain pairs are measured one by one

IsHit = Callable[[Tensor, Tensor], Tensor]  # queries (b,) and references (b, c) -> bool (b, c)


class Pairs:
    """Queries and references that are to be compared.

    Args:
        queries: Vectors (n, D), fp32 or fp64.
        references: Vectors (r, D) of the same dtype. None: the queries.
        cosine: Compare directions; a vector of zeros has the cosine 0 with every vector.

    Attributes:
        dtype: Of the scores, as ``restore`` returns them.
    """

    def __init__(self, queries: Tensor, references: Tensor | None, cosine: bool) -> None:
        self.queries = queries
        self.references = queries if references is None else references
        self.cosine = cosine
        self.dtype = queries.dtype
        self._centre: Tensor | None = None
        self._exponent = 0
        self._whole_range = math.inf  # largest |q| |r| of whole numbers
        self._prepared: dict[torch.dtype, tuple[Tensor, Tensor]] = {}
        self._lengths: tuple[Tensor, Tensor] | None = None
        if cosine:
            self._has_zeros = not bool(self.queries.any(1).all() & self.references.any(1).all())
        else:
            self._choose_centre_and_scale()

    def _choose_centre_and_scale(self) -> None:
        both = [self.references] if self.is_symmetric else [self.references, self.queries]
        largest = max(float(torch.stack(vectors.aminmax()).abs().max()) for vectors in both)
        if all(_are_whole(vectors) for vectors in both):
            self._whole_range = largest * largest * self.references.shape[1]
            if self._whole_range < 1 / UNIT[torch.float64] / 4:
                return
        self._exponent = choose_exponent(largest)
        if self._exponent:
            self.dtype = torch.float64
        self._centre = choose_centre((chunk.double() for chunk in _chunks(self.references)), self._exponent)

    @property
    def is_symmetric(self) -> bool:
        """Whether the references are the queries."""
        return self.queries is self.references

    def prepared(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return queries and references as they enter products, computed once."""
        if dtype not in self._prepared:
            references = self._prepare(self.references, dtype)
            queries = references if self.is_symmetric else self._prepare(self.queries, dtype)
            self._prepared[dtype] = queries, references
        return self._prepared[dtype]

    def _prepare(self, vectors: Tensor, dtype: torch.dtype) -> Tensor:
        if not self.cosine and self._centre is None and self._exponent == 0:
            return vectors.to(dtype)
        prepared = torch.empty_like(vectors, dtype=dtype, memory_format=torch.contiguous_format)
        for chunk, target in zip(_chunks(vectors), _chunks(prepared), strict=True):
            values = chunk.double()
            if self.cosine:
                values = unit_vectors(values)
            else:
                if self._centre is not None:
                    values = values - self._centre
                values = values * 2.0**-self._exponent
            target.copy_(values)
        return prepared

    def distinguishing(self, references: Tensor) -> Tensor:
        """Return references (m,) as vectors (m, D) that are equal only if their scores are equal for any query."""
        vectors = self.references[references]
        if self.cosine:
            return unit_vectors(vectors.double())
        return vectors

    def measure(self, queries: Tensor, references: Tensor) -> Tensor:
        """Compute the scores (m,) of pairs of queries (m,) and references (m,) from their differences, in fp64."""
        scores = torch.empty(len(queries), dtype=torch.float64, device=queries.device)
        size = max(1, PAIRS_CHUNK // self.references.shape[1])
        for start in range(0, len(queries), size):
            some = slice(start, start + size)
            rows = self.queries[queries[some]].double()
            columns = self.references[references[some]].double()
            if self.cosine:
                rows, columns = unit_vectors(rows), unit_vectors(columns)
                half_squares = (rows - columns).square_().sum(1) / 2
                if self._has_zeros:
                    half_squares[~(rows.any(1) & columns.any(1))] = 1.0
            else:
                half_squares = ((rows - columns) * 2.0**-self._exponent).square_().sum(1) / 2
            scores[some] = -half_squares
        return scores

    def errors(self, queries: Tensor, references: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Bound the error of scores from products.

        Args:
            queries: Queries (b,).
            references: References (b, c).
            dtype: In which products are computed.

        Returns:
            Bounds for these pairs, (b, c) or (1, 1), and for any pair of each query, (b, 1) or (1, 1).
        """
        unit = UNIT[dtype]
        input_unit = 0.0
        if dtype == torch.float32:
            input_unit = INPUT_UNIT[torch.get_float32_matmul_precision()]
        if input_unit == 0 and 4 * self._whole_range * unit < 1:
            none = torch.zeros(1, 1, dtype=torch.float64, device=queries.device)
            return none, none
        dim = self.references.shape[1]
        of_product = dim * unit + 2 * input_unit
        if self.cosine:
            bound = torch.full((1, 1), of_product + ROUNDINGS * unit, dtype=torch.float64, device=queries.device)
            return bound, bound
        query_lengths, reference_lengths = self._prepared_lengths(dtype)
        q = query_lengths[queries].unsqueeze(1)
        bounds = []
        for r in (reference_lengths[references], reference_lengths.max()):
            bounds.append(of_product * q * r + ROUNDINGS * unit * (q + r).square() + UNDERFLOW[dtype])
        return bounds[0], bounds[1]

    def _prepared_lengths(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if self._lengths is None:
            queries, references = self.prepared(dtype)
            reference_lengths = (2 * half_squares(references)).sqrt()
            query_lengths = reference_lengths
            if not self.is_symmetric:
                query_lengths = (2 * half_squares(queries)).sqrt()
            self._lengths = query_lengths, reference_lengths
        return self._lengths

    def restore(self, ranked: Ranked) -> Ranked:
        """Return cosines, or minus half the squared distances, of vectors as they were given."""
        scores = ranked.scores
        if self.cosine:
            scores = scores + 1
        elif self._exponent:
            scores = scores * 2.0**self._exponent * 2.0**self._exponent
        return Ranked(scores.to(self.dtype), ranked.indices)


def refine(
    pairs: Pairs, rows: Tensor, proposed: Ranked, k: int, dtype: torch.dtype, is_hit: IsHit | None = None
) -> tuple[Ranked, Tensor]:
    """Put proposed neighbours into the order of their exact scores.

    Only those are measured whose order the error of products leaves open. With ``is_hit``, an open order among hits
    or among others is left as it is.

    Args:
        pairs: The vectors.
        rows: Queries (b,).
        proposed: Their best references (b, c) by products, best first, with the scores of ``Pairs`` in fp64.
        k: Number of neighbours, at most c.
        dtype: In which the products were computed.
        is_hit: Tells which references count as hits.

    Returns:
        The k best, and whether (b,) no reference beyond the c can belong to them or change their order.
    """
    scores, indices = proposed
    errors, largest_error = pairs.errors(rows, indices, dtype)
    if not bool(largest_error.any()):  # equal scores are in order already
        return Ranked(scores[:, :k], indices[:, :k]), torch.ones_like(rows, dtype=torch.bool)
    bound_of_others = (scores[:, -1:] + largest_error).squeeze(1)
    lower = scores - errors
    hits = None
    close = scores[:, :-1] - scores[:, 1:] <= 2 * errors.amax(1, keepdim=True)
    if is_hit is not None:
        hits = is_hit(rows, indices)
        close &= hits[:, :-1] != hits[:, 1:]
    complete = torch.ones_like(rows, dtype=torch.bool)
    open_rows = close.any(1).nonzero().squeeze(1)
    if len(open_rows):
        if hits is not None:
            hits = hits[open_rows]
        uncertain = _uncertain(lower[open_rows], (scores + errors)[open_rows], k, hits)
        if dtype == torch.float32:  # if there are many, products in fp64 are faster
            too_many = uncertain.sum(1) > max(64, len(pairs.references) // DENSE)
            complete[open_rows[too_many]] = False
            uncertain &= ~too_many.unsqueeze(1)
        row, column = uncertain.nonzero(as_tuple=True)
        row = open_rows[row]
        scores, indices = scores.clone(), indices.clone()
        scores[row, column] = lower[row, column] = pairs.measure(rows[row], indices[row, column])
        order = best_first(scores[open_rows], indices[open_rows])
        for values in (scores, lower, indices):
            values[open_rows] = values[open_rows].gather(1, order)
    if scores.shape[1] < len(pairs.references):
        complete &= lower[:, :k].amin(1) > bound_of_others
    return Ranked(scores[:, :k], indices[:, :k]), complete


def _uncertain(lower: Tensor, upper: Tensor, k: int, hits: Tensor | None) -> Tensor:
    """Find neighbours whose order is open.

    Args:
        lower: Lower bounds of their scores (b, c), best first.
        upper: Upper bounds (b, c).
        k: How many neighbours count.
        hits: (b, c); only the order of a hit and another one counts. None: any order counts.

    Returns:
        (b, c) bool.
    """
    if hits is None:
        uncertain = _could_swap(lower, upper, torch.zeros_like(lower, dtype=torch.bool))
    else:
        uncertain = hits & _could_swap(lower, upper, hits) | ~hits & _could_swap(lower, upper, ~hits)
    return uncertain & (upper >= lower[:, :k].amin(1, keepdim=True))


def _could_swap(lower: Tensor, upper: Tensor, ignored: Tensor) -> Tensor:
    """(b, c): whether bounds overlap with those of another neighbour that is not ignored."""
    lowest_before = lower.masked_fill(ignored, torch.inf).cummin(1).values[:, :-1]
    highest_after = upper.masked_fill(ignored, -torch.inf).flip(1).cummax(1).values.flip(1)[:, 1:]
    overlaps = torch.zeros_like(ignored)
    overlaps[:, 1:] |= lowest_before <= upper[:, 1:]
    overlaps[:, :-1] |= highest_after >= lower[:, :-1]
    return overlaps


def best_first(scores: Tensor, indices: Tensor) -> Tensor:
    """Return the order (b, c) of scores (b, c) from the largest down, of equal ones by rising index."""
    order = _sorted_order(scores)
    sorted_scores, sorted_indices = scores.gather(1, order), indices.gather(1, order)
    is_tie = sorted_scores[:, 1:] == sorted_scores[:, :-1]
    wrong = (is_tie & (sorted_indices[:, 1:] < sorted_indices[:, :-1])).any(1)
    if bool(wrong.any()):
        by_index = indices[wrong].argsort(1)
        by_score = _sorted_order(scores[wrong].gather(1, by_index))
        order[wrong] = by_index.gather(1, by_score)
    return order


def _sorted_order(scores: Tensor) -> Tensor:
    if scores.is_cpu:  # for nearly sorted rows numpy takes a fraction of torch's time
        return torch.from_numpy(np.argsort(-scores.numpy(), axis=1, kind="stable"))
    return scores.argsort(dim=1, descending=True, stable=True)


def unit_vectors(vectors: Tensor) -> Tensor:
    """Normalise fp64 vectors (n, D) of any scale; zeros stay zeros."""
    squares = vectors.square().sum(1, keepdim=True)
    if not bool(((squares > SMALLEST_SQUARE) & (squares < 1 / SMALLEST_SQUARE)).all()):
        largest = vectors.abs().amax(1, keepdim=True)
        vectors = vectors / torch.where(largest > 0, largest, 1.0)
        squares = vectors.square().sum(1, keepdim=True)
        squares = torch.where(squares > 0, squares, 1.0)
    return vectors / squares.sqrt_()


def half_squares(vectors: Tensor) -> Tensor:
    """(n, D) -> (n,) in fp64: half the squared lengths."""
    parts = [chunk.double().square().sum(1) / 2 for chunk in _chunks(vectors)]
    return torch.cat(parts)


def _are_whole(vectors: Tensor) -> bool:
    if bool((vectors[:1] != vectors[:1].round()).any()):  # mostly enough
        return False
    return bool((vectors == vectors.round()).all())


def _chunks(vectors: Tensor) -> Iterator[Tensor]:
    return iter(vectors.split(max(1, CHUNK // vectors.shape[1])))
