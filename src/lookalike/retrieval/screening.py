"""Screening: products in bf16, with a bound on their error, leave out references that cannot be neighbours.

Where the processor multiplies bf16, such products take a fourth of the time of fp32. They are wrong by up to about
0.006 of |q| |r|, so they do not rank neighbours. But a reference whose product is more than two errors below that of
the k-th best has k better ones for certain. The few others are multiplied again in fp32.

With unit vectors q and r, their roundings q' and r', and their product p of D numbers in bf16:

    |q.r - p| <= |q - q'| + |q'| |r - r'| + D 2^-23 |q'| |r'| + 2^-8 |p|

The last term allows for products that are cut off and not rounded, as oneDNN does. If a product in fp32 ever shows a
larger error, the query is not decided here.
"""

from typing import Any

import torch
from torch import Tensor

from lookalike.retrieval.candidates import Ranked
from lookalike.retrieval.exact import PAIRS_CHUNK, ROUNDINGS, UNIT, Pairs, best_first

COARSE_UNIT = 2.0**-8  # of bf16, cut off
FEATURES = ("avx512_bf16", "amx_bf16")  # of processors that multiply bf16
PAYS = 100  # references per neighbour from which screening takes less time than products in fp32


class Screen:
    """Vectors rounded to bf16, and the error of their products.

    Args:
        pairs: Queries and references, to be compared by the cosine.

    Attributes:
        queries: (n, D) bf16.
        references: (r, D) bf16.
    """

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        queries, references = pairs.prepared(torch.float32)
        self.queries, query_errors = _rounded(queries)
        self.references, reference_errors = self.queries, query_errors
        if not pairs.is_symmetric:
            self.references, reference_errors = _rounded(references)
        largest = float(reference_errors.max())
        of_sums = (2 * queries.shape[1] + ROUNDINGS) * UNIT[torch.float32] * (1 + largest)
        self._input_errors = query_errors + (1 + query_errors) * (largest + of_sums)

    def errors(self, rows: Tensor, products: Tensor) -> Tensor:
        """Bound the error (b, c) of products (b, c) of queries (b,)."""
        return self._input_errors[rows].unsqueeze(1) + 1.01 * COARSE_UNIT * products.abs()

    def neighbours(self, rows: Tensor, proposed: Ranked, k: int) -> tuple[Ranked, Tensor]:
        """Find what may belong to the k best, and its cosines in fp32.

        Args:
            rows: Queries (b,).
            proposed: Their best references (b, c) by products in bf16, best first.
            k: Number of neighbours, at most c.

        Returns:
            Best first, at least k; -inf fills the rows. And whether (b,) no reference beyond the c can be among the k.
        """
        scores, indices = proposed
        errors = self.errors(rows, scores)
        may_belong = scores + errors >= (scores - errors)[:, :k].amin(1, keepdim=True)
        complete = ~may_belong[:, -1] | (scores.shape[1] == len(self.references))
        may_belong &= complete.unsqueeze(1)
        width = max(k, int(may_belong.sum(1).max()))
        scores, indices, may_belong = scores[:, :width], indices[:, :width], may_belong[:, :width]
        row, column = may_belong.nonzero(as_tuple=True)
        cosines = torch.full_like(scores, -torch.inf)
        cosines[row, column] = self._cosines(rows[row], indices[row, column])
        complete &= (((cosines - scores).abs() <= errors[:, :width]) | ~may_belong).all(1)
        order = best_first(cosines, indices)
        return Ranked(cosines.gather(1, order), indices.gather(1, order)), complete

    def _cosines(self, queries: Tensor, references: Tensor) -> Tensor:
        """The products (m,) in fp32 of pairs of queries (m,) and references (m,)."""
        all_queries, all_references = self.pairs.prepared(torch.float32)
        cosines = torch.empty(len(queries))
        size = max(1, PAIRS_CHUNK // all_queries.shape[1])
        for start in range(0, len(queries), size):
            some = slice(start, start + size)
            left, right = all_queries[queries[some]], all_references[references[some]]
            torch.sum(left.mul_(right), 1, out=cosines[some])
        return cosines


def screening_pays(pairs: Pairs, k: int) -> bool:
    """Return whether k neighbours are found faster by screening: by the cosine on a CPU that multiplies bf16."""
    if not pairs.cosine or not pairs.queries.is_cpu or pairs.queries.dtype != torch.float32:
        return False
    return PAYS * k <= len(pairs.references) and _multiplies_bf16()


def _multiplies_bf16() -> bool:
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return torch.backends.mkldnn.is_available() and any(capabilities.get(feature) for feature in FEATURES)


def _rounded(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (n, D) in bf16, and the lengths (n,) of what they lost, rounded up."""
    rounded = vectors.bfloat16()
    lost = torch.cat([(some - coarse).norm(dim=1) for some, coarse in _chunks(vectors, rounded)])
    return rounded, lost * 1.001 + 1e-30


def _chunks(*vectors: Tensor) -> "zip[tuple[Tensor, ...]]":
    return zip(*(some.split(4096) for some in vectors), strict=True)
