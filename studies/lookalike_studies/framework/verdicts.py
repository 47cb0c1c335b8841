"""When a difference counts, and what is said of a claim with several parts.

Runs are paired by their seed. A difference d of n seeds counts if it exceeds what chance allows and what anybody would
notice,

    mean d > max(least, t s / sqrt(n)),      s: standard deviation of d,  t: Student's quantile of n - 1, one-sided 95 %

which with two seeds is 6.3 standard errors: two of them come by chance in 15 of 100. With one seed, or with NaN,
nothing is tested; nor where the seeds differ so much that a difference of the claimed size may be there and not count:
noise is neither for a claim nor against it. Of a claim, a part

    holds            if its difference is as claimed and counts; if it says "alike", if none counts and one of a stated
                     size would have
    does not         if a difference of the claimed size can be excluded, mean d + that margin being less; if it says
                     "alike", if one counts
    is contradicted  if the difference counts the other way; if it says "alike", if there is one

and all hold: "reproduced"; none: "not reproduced"; else "partly", and the text tells what is contradicted, and what
could not have been seen. Being alike is what noise gives, so beside parts that claim a difference it does not make
"partly" alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import isnan
from typing import NamedTuple

import numpy as np

from lookalike_studies.framework.study import Claim, Verdict

CONFIDENCE = 0.95  # one-sided


class Part(NamedTuple):
    """One difference that a claim speaks of.

    name: what it says. lead: in the direction of the claim; of a part that says "alike", how far from it, below 0 only
    where it may well be. margin: from which on that counts. matters: of a part that says "alike", the difference that
    would matter. must: whether the claim is lost without this part, whatever else holds. claimed: the size of
    difference that must be excluded before the part is said not to hold; None: that it does not count is enough.
    """

    name: str
    lead: float
    margin: float
    matters: float | None = None
    must: bool = False
    claimed: float | None = None

    @property
    def is_known(self) -> bool:
        return not (isnan(self.lead) or isnan(self.margin))

    @property
    def holds(self) -> bool | None:
        """None: nobody knows, or a difference that matters could not have been seen."""
        if not self.is_known:
            return None
        if self.matters is None:
            if self.lead > self.margin:
                return True
            return None if self.claimed is not None and self.lead + self.margin >= self.claimed else False
        if self.is_contradicted:
            return False
        return True if self.margin < self.matters else None

    @property
    def is_contradicted(self) -> bool:
        """Never of NaN."""
        return self.lead < -self.margin if self.matters is None else self.lead > self.margin


@lru_cache
def quantile(freedom: int) -> float:
    """Of Student's t.

    >>> round(quantile(1), 2), round(quantile(30), 2)
    (6.31, 1.7)
    """
    from scipy.stats import t

    return float(t.ppf(CONFIDENCE, freedom))


def chance_margin(differences: Sequence[float], least: float = 0.0) -> float:
    """From which on the mean of differences, one for each seed, counts; NaN with one seed."""
    count = len(differences)
    if count < 2 or np.isnan(differences).any():
        return float("nan")
    return max(least, quantile(count - 1) * float(np.std(differences, ddof=1)) / count**0.5)


def paired(
    name: str,
    one: Sequence[float],
    other: Sequence[float] | float,
    least: float = 0.0,
    *,
    must: bool = False,
    claimed: float | None = None,
) -> Part:
    """The part which says that ``one`` is larger, seed by seed."""
    differences = np.asarray(one, dtype=np.float64) - np.asarray(other, dtype=np.float64)
    margin = chance_margin(differences.tolist(), least)
    return Part(name, float(differences.mean()), margin, must=must, claimed=claimed)


def above(
    one: Sequence[float], other: Sequence[float] | float, least: float = 0.0, claimed: float | None = None
) -> bool | None:
    """Whether ``one`` is larger, seed by seed, by what counts; None with one seed or NaN, or if nobody can tell.

    >>> above([0.50, 0.60], [0.40, 0.51]), above([0.5, 0.6], [0.4, 0.59]), above([0.9], [0.1])
    (True, False, None)
    >>> above([0.5, 0.6], [0.4, 0.59], claimed=0.1), above([0.5, 0.6], [0.5, 0.59], claimed=0.1)
    (None, False)
    """
    return paired("", one, other, least, claimed=claimed).holds


def verdict(parts: Sequence[bool | None]) -> Verdict:
    """None: that part could not be tested."""
    if not parts or any(part is None for part in parts):
        return "not tested"
    return "reproduced" if all(parts) else "partly" if any(parts) else "not reproduced"


def verdict_of(parts: Sequence[Part]) -> Verdict:
    if not all(part.is_known for part in parts):
        return "not tested"
    differences = [part.holds for part in parts if part.matters is None]
    if any(part.must and part.lead < 0 and part.holds is False for part in parts):
        return "not reproduced"
    if differences and None not in differences and not any(differences):
        return "not reproduced"
    return verdict([part.holds for part in parts])


def judged(paper: str, here: str, parts: Sequence[Part]) -> Claim:
    """The claim with its verdict; the text tells what is contradicted, and what could not have been seen."""
    return Claim(paper, here + remarks(parts), verdict_of(parts))


def remarks(parts: Sequence[Part]) -> str:
    against = [part.name for part in parts if part.is_contradicted]
    said = f"; contradicted: {', '.join(against)}" if against else ""
    for part in parts:
        if part.is_known and part.holds is None:
            size = f"{part.claimed:g} may be there" if part.matters is None else f"{part.matters:g} would matter"
            said += f"; too coarse for {part.name}, where {size}"
    return said
