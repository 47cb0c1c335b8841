"""The k best references of every query, updated while blocks of scores pass by.

No full row of scores is ever in memory. A candidate is one 64-bit key: the bits of its fp32 score, transformed so that
they sort as integers, above the inverted bits of its index. The larger key is the better candidate; of equal scores
the lower index wins. No two keys are equal, so selecting and sorting need no second array.

Of a block only the scores above the k-th best so far are looked at. Their number falls as 1 / (blocks seen), so nearly
all of the time is spent on the scores themselves.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

INDEX_BITS = 32
HIGHEST_INDEX = 2**INDEX_BITS - 1
SPARE = 64  # extra slots, so that a small k does not cause a selection after every block


class Ranked(NamedTuple):
    """Neighbours of some queries, best first; of equal scores the lower index first."""

    scores: Tensor  # (b, k)
    indices: Tensor  # (b, k) int64


class Candidates:
    """The best references so far of each query, and newer ones that may replace them.

    Args:
        queries: Number of queries.
        k: Number of references per query.
        device: Where the scores are.
    """

    def __init__(self, queries: int, k: int, device: torch.device) -> None:
        self.k = k
        self._empty = _keys(torch.tensor(-torch.inf, device=device), torch.tensor(HIGHEST_INDEX, device=device))
        self._slots = self._empty.repeat(queries, slots_per_query(k))
        self._used = torch.zeros(queries, dtype=torch.int64, device=device)  # number of used slots
        self._threshold = torch.full((queries,), -torch.inf, device=device)  # scores up to this are not among the best

    def offer(self, queries: slice, scores: Tensor, indices: Tensor) -> None:
        """Consider a block of scores.

        Args:
            queries: The queries of its rows.
            scores: Scores (b, c).
            indices: The references (c,) of its columns.
        """
        if self._insert(queries, scores, indices):
            return
        # Too many new candidates, as in the first block. Free the slots, then use the block's own k-th best score.
        slots, threshold = self._slots[queries], self._threshold[queries]
        if int(self._used[queries].max()) > self.k:
            self._keep_best(queries, slots)
        if scores.shape[1] >= self.k:
            torch.maximum(threshold, _just_below(_kth_largest(scores, self.k)), out=threshold)
        if not self._insert(queries, scores, indices):  # very many ties: consider all scores
            self._keep_best(queries, torch.cat((slots, _keys(scores, indices)), 1))

    def _insert(self, queries: slice, scores: Tensor, indices: Tensor) -> bool:
        """Put the scores above the threshold into free slots; return False, unchanged, if there are too few slots."""
        slots, used = self._slots[queries], self._used[queries]
        num_slots = slots.shape[1]
        positions = _above(scores, self._threshold[queries])
        if len(positions) > len(slots) * (num_slots - self.k):
            return False
        row, column, value = _by_row(scores, positions)
        new = torch.bincount(row, minlength=len(slots))
        most_used = int((used + new).max())
        if most_used > num_slots:
            return False
        # The new candidates of a row are consecutive in the list, and so are their slots.
        first_slot = torch.arange(len(slots), device=row.device) * num_slots + used
        shift = (first_slot - new.cumsum(0) + new).index_select(0, row)
        slot = torch.arange(len(row), device=row.device) + shift
        slots.view(-1).scatter_(0, slot, _keys(value, indices.index_select(0, column)))
        used += new
        if most_used > (self.k + num_slots) // 2:
            self._keep_best(queries, slots[:, :most_used])
        return True

    def _keep_best(self, queries: slice, keys: Tensor) -> None:
        """Keep the k best of ``keys`` (b, at least k), and raise the threshold to the worst of them."""
        best = _largest(keys, self.k)
        self._slots[queries, : self.k] = best
        self._slots[queries, self.k :] = self._empty
        self._used[queries] = self.k
        self._threshold[queries] = _just_below(_scores(best.amin(1)))

    def ranked(self, queries: slice) -> Ranked:
        """Return the k best references of these queries."""
        keys = _sorted(_largest(self._slots[queries], self.k))
        return Ranked(_scores(keys), HIGHEST_INDEX - (keys & HIGHEST_INDEX))


def slots_per_query(k: int) -> int:
    """Return how many candidates are held for one query."""
    return 5 * k + SPARE


def _keys(scores: Tensor, indices: Tensor) -> Tensor:
    bits = (scores + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # for negative numbers, larger bits mean a smaller number
    return (ordered.long() << INDEX_BITS) + (HIGHEST_INDEX - indices)


def _scores(keys: Tensor) -> Tensor:
    ordered = (keys >> INDEX_BITS).int()
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)


def _just_below(scores: Tensor) -> Tensor:
    """Lower a threshold so that equal scores pass it: one with a lower index may come later."""
    return scores.nextafter(scores.new_tensor(-torch.inf))


def _use_numpy(tensor: Tensor) -> bool:
    """On the CPU, numpy compares, selects and sorts several times faster than torch."""
    return tensor.is_cpu


def _above(scores: Tensor, threshold: Tensor) -> Tensor:
    """Positions in memory, ascending, where scores (b, c) are above their row's threshold (b,)."""
    if scores.is_contiguous():
        block, bounds = scores, threshold.unsqueeze(1)
    else:
        block, bounds = scores.T, threshold.unsqueeze(0)
    if _use_numpy(block):
        return torch.from_numpy(np.flatnonzero(block.numpy() > bounds.numpy()))
    return (block > bounds).flatten().nonzero().squeeze(1)


def _by_row(scores: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and value of the scores (b, c) at these positions in memory, by ascending row."""
    if scores.is_contiguous():
        columns = scores.shape[1]
        return positions // columns, positions % columns, scores.view(-1).index_select(0, positions)
    row = positions % scores.shape[0]
    if _use_numpy(row):
        order = torch.from_numpy(np.argsort(row.numpy().astype(np.uint16), kind="stable"))
    else:
        order = row.argsort(stable=True)
    positions = positions.index_select(0, order)
    return row.index_select(0, order), positions // scores.shape[0], scores.T.view(-1).index_select(0, positions)


def _kth_largest(scores: Tensor, k: int) -> Tensor:
    """(b, c) -> (b,)"""
    if _use_numpy(scores):
        return torch.from_numpy(np.partition(scores.numpy(), -k, axis=1)[:, -k])
    return scores.topk(k, sorted=False).values.amin(1)


def _largest(keys: Tensor, k: int) -> Tensor:
    """The k largest of each row (b, at least k) -> (b, k), in no order."""
    if _use_numpy(keys):
        return torch.from_numpy(np.partition(keys.numpy(), -k, axis=1)[:, -k:])
    return keys.topk(k, sorted=False).values


def _sorted(keys: Tensor) -> Tensor:
    """Each row from the largest to the smallest."""
    if _use_numpy(keys):
        return torch.from_numpy(np.sort(keys.numpy(), axis=1)).flip(1)
    return keys.sort(dim=1, descending=True).values
