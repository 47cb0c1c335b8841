"""The k best references of every query, kept while blocks of scores pass by: no row of scores is ever whole.

A candidate is one 64-bit key: the bits of its fp32 score, turned so that they sort as integers do, above the bits of
its index, turned around. Then the larger key is the better candidate, of equal scores the lower index; no two keys are
equal, and selecting and sorting need no second array.

Of a block only the scores above the k-th best so far are looked at. Their number falls as 1 / (blocks seen), so that
nearly all of the time goes into the scores themselves.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

INDEX_BITS = 32
HIGHEST_INDEX = 2**INDEX_BITS - 1
SPARE = 64  # places for candidates in addition, so that few neighbours are not sorted out after every block


class Ranked(NamedTuple):
    """Neighbours of some queries, best first; of equal scores the lower index first."""

    scores: Tensor  # (b, k)
    indices: Tensor  # (b, k) int64


class Candidates:
    """For each of ``queries`` queries the ``k`` best references so far, and newer ones that may replace them."""

    def __init__(self, queries: int, k: int, device: torch.device) -> None:
        self.k = k
        self._nothing = _keys(torch.tensor(-torch.inf, device=device), torch.tensor(HIGHEST_INDEX, device=device))
        self._held = self._nothing.repeat(queries, places(k))
        self._taken = torch.zeros(queries, dtype=torch.int64, device=device)  # how many of the places
        self._bar = torch.full((queries,), -torch.inf, device=device)  # no score up to this is among the k best

    def offer(self, queries: slice, scores: Tensor, indices: Tensor) -> None:
        """``scores`` (b, c) of these queries with the references ``indices`` (c,)."""
        if self._place(queries, scores, indices):
            return
        # Too many newcomers, as in the first block: make room and raise the bar to the k-th best of this block.
        held, bar = self._held[queries], self._bar[queries]
        if int(self._taken[queries].max()) > self.k:
            self._keep_best(queries, held)
        if scores.shape[1] >= self.k:
            torch.maximum(bar, _just_below(_kth_largest(scores, self.k)), out=bar)
        if not self._place(queries, scores, indices):  # ties without end: let all be candidates
            self._keep_best(queries, torch.cat((held, _keys(scores, indices)), 1))

    def _place(self, queries: slice, scores: Tensor, indices: Tensor) -> bool:
        """Put the scores above the bar into free places; False, and nothing done, if these do not suffice."""
        held, taken = self._held[queries], self._taken[queries]
        places_each = held.shape[1]
        found = _above(scores, self._bar[queries])
        if len(found) > len(held) * (places_each - self.k):
            return False
        row, column, value = _by_row(scores, found)
        new = torch.bincount(row, minlength=len(held))
        most = int((taken + new).max())
        if most > places_each:
            return False
        # A row's newcomers follow each other in the list; so they do in its places.
        first_place = torch.arange(len(held), device=row.device) * places_each + taken
        shift = (first_place - new.cumsum(0) + new).index_select(0, row)
        place = torch.arange(len(row), device=row.device) + shift
        held.view(-1).scatter_(0, place, _keys(value, indices.index_select(0, column)))
        taken += new
        if most > (self.k + places_each) // 2:
            self._keep_best(queries, held[:, :most])
        return True

    def _keep_best(self, queries: slice, keys: Tensor) -> None:
        """Of ``keys`` (b, at least k), and raise the bar to the last of them."""
        best = _largest(keys, self.k)
        self._held[queries, : self.k] = best
        self._held[queries, self.k :] = self._nothing
        self._taken[queries] = self.k
        self._bar[queries] = _just_below(_scores(best.amin(1)))

    def ranked(self, queries: slice) -> Ranked:
        keys = _sorted(_largest(self._held[queries], self.k))
        return Ranked(_scores(keys), HIGHEST_INDEX - (keys & HIGHEST_INDEX))


def places(k: int) -> int:
    """How many candidates are held for one query."""
    return 5 * k + SPARE


def _keys(scores: Tensor, indices: Tensor) -> Tensor:
    bits = (scores + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # of negative numbers the larger bits are the smaller number
    return (ordered.long() << INDEX_BITS) + (HIGHEST_INDEX - indices)


def _scores(keys: Tensor) -> Tensor:
    ordered = (keys >> INDEX_BITS).int()
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)


def _just_below(scores: Tensor) -> Tensor:
    """A bar that equal scores pass: one of a lower index may come later."""
    return scores.nextafter(scores.new_tensor(-torch.inf))


def _on_cpu(tensor: Tensor) -> bool:
    """There numpy compares, finds, selects and sorts several times faster than torch."""
    return tensor.is_cpu


def _above(scores: Tensor, bar: Tensor) -> Tensor:
    """Where in memory the scores (b, c) are above their row's bar (b,): positions, ascending."""
    block, bars = (scores, bar.unsqueeze(1)) if scores.is_contiguous() else (scores.T, bar.unsqueeze(0))
    if _on_cpu(block):
        return torch.from_numpy(np.flatnonzero(block.numpy() > bars.numpy()))
    return (block > bars).flatten().nonzero().squeeze(1)


def _by_row(scores: Tensor, found: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and value of the scores (b, c) at these positions in memory, by ascending row."""
    if scores.is_contiguous():
        return found // scores.shape[1], found % scores.shape[1], scores.view(-1).index_select(0, found)
    row = found % scores.shape[0]
    if _on_cpu(row):
        order = torch.from_numpy(np.argsort(row.numpy().astype(np.uint16), kind="stable"))
    else:
        order = row.argsort(stable=True)
    found = found.index_select(0, order)
    return row.index_select(0, order), found // scores.shape[0], scores.T.view(-1).index_select(0, found)


def _kth_largest(scores: Tensor, k: int) -> Tensor:
    """(b, c) -> (b,)"""
    if _on_cpu(scores):
        return torch.from_numpy(np.partition(scores.numpy(), -k, axis=1)[:, -k])
    return scores.topk(k, sorted=False).values.amin(1)


def _largest(keys: Tensor, k: int) -> Tensor:
    """The k largest of each row (b, at least k) -> (b, k), in no order."""
    if _on_cpu(keys):
        return torch.from_numpy(np.partition(keys.numpy(), -k, axis=1)[:, -k:])
    return keys.topk(k, sorted=False).values


def _sorted(keys: Tensor) -> Tensor:
    """Each row from the largest to the smallest."""
    if _on_cpu(keys):
        return torch.from_numpy(np.sort(keys.numpy(), axis=1)).flip(1)
    return keys.sort(dim=1, descending=True).values
