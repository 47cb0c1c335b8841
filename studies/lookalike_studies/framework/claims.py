"""Claims of the papers as data, and the rule that turns measurements into a verdict.

A claim is a statement of a paper, the comparisons that it rests on, and a text for what was measured:

    CLAIM = Claim(
        "GSP is ahead of GAP, and max pooling is no better than GAP",
        (Comparison("GSP", ">", "GAP", effect=0.17), Comparison("max", "alike", "GAP", tolerance=0.05)),
        here="GSP {GSP:2}, GAP {GAP:2}, max {max:.3f}; {seeds}",  # see ``SeedValues`` for the formats
    )
    CLAIM.judge({"GSP": [0.5, 0.6], "GAP": [0.3, 0.4], "max": [0.3, 0.41]}, seeds="2 seeds")

How a verdict comes about
-------------------------
Runs are paired by their seed. With n seeds, the mean difference d counts if it is larger than noise and noticeable:

    d > margin = max(least, t s / sqrt(n))       s: standard deviation of the differences
                                                 t: quantile of Student's t, n - 1 degrees of freedom, one-sided 95 %

With two seeds the margin is 6.3 standard errors. A comparison

    holds            if its difference counts; "alike": if no difference counts, and one of ``tolerance`` would have
    fails            if a difference of size ``effect`` can be excluded, d + margin < effect; "alike": if one counts
    is contradicted  if the difference counts in the other direction; "alike": if one counts
    is not tested    otherwise: one seed, NaN, or too much noise to tell

All comparisons hold: "reproduced". None: "not reproduced". Some: "partly". One is not tested: "not tested". Noise makes
values alike, so "alike" comparisons alone do not make "partly" if every claimed difference fails. If a comparison with
``must`` fails and its difference has the wrong sign, the claim is "not reproduced".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isnan, nan
from typing import Any, Literal, NamedTuple

import numpy as np

from lookalike_studies.framework.tables import format_mean

Verdict = Literal["reproduced", "partly", "not reproduced", "not tested"]
Relation = Literal[">", "<", "alike", "within"]
Values = Mapping[str, Any]  # by name: one number per seed, or a constant
CONFIDENCE = 0.95  # one-sided


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its verdict."""

    paper: str  # what the paper says
    here: str  # what was measured here, as a sentence
    verdict: Verdict  # whether the two agree


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim, for example ``Comparison("GSP", ">", "GAP", effect=0.17)``."""

    left: str  # name of the measured values on the left
    # ">" and "<": a difference, by what counts. "alike": no difference that counts. "within": the means differ by at
    # most ``tolerance``, and the noise is smaller than that
    relation: Relation
    right: str | float  # name of the measured values on the right, or a number
    name: str = ""  # how the text calls this comparison; "": left, relation and right
    least: float = 0.0  # differences up to this are none
    # size of difference that must be excluded before the comparison fails; None: it fails if the difference does not
    # count
    effect: float | None = None
    # for "alike", the difference that would matter; for "within", the largest allowed one
    tolerance: float | None = None
    must: bool = False  # if this comparison fails, the claim is not reproduced

    def evidence(self, values: Values) -> Evidence:
        """Compare measured values by name: one number per seed, or a single number that is the same for all seeds."""
        name = self.name or f"{self.left} {self.relation} {self.right}"
        left = values[self.left]
        right = values[self.right] if isinstance(self.right, str) else self.right
        if self.relation == ">":
            return compare(name, left, right, self.least, must=self.must, effect=self.effect)
        if self.relation == "<":
            return compare(name, right, left, self.least, must=self.must, effect=self.effect)
        if self.tolerance is None:
            raise ValueError(f"{name}: {self.relation!r} needs a tolerance")
        difference, noise = compare(name, left, right, self.least)[1:3]
        if self.relation == "alike":
            return Evidence(name, abs(difference), noise, self.tolerance, self.must)
        if not noise < self.tolerance:
            difference = nan
        return Evidence(name, abs(difference), self.tolerance, inf, self.must)


class SeedValues:
    """Numbers of all seeds in the text of a claim.

    >>> values = SeedValues([0.5, 0.7])
    >>> f"{values}, {values:3}, {values:.2f}"  # mean and deviation with 1 digit, with 3 digits; mean
    '0.6 ± 0.1, 0.600 ± 0.141, 0.60'
    """

    def __init__(self, values: Sequence[float] | float) -> None:
        self.values = np.atleast_1d(values)

    def __format__(self, spec: str) -> str:
        if not spec or spec.isdecimal():
            return format_mean(self.values.tolist(), int(spec or 1))
        return format(float(self.values.mean()), spec)


class Requirement(NamedTuple):
    """A claim is tested only if a mean is large enough."""

    name: str  # name of the measured values
    least: float  # smallest allowed mean
    reason: str  # why the claim is not tested otherwise; a text as ``Claim.here``


@dataclass(frozen=True)
class Claim:
    """A statement of a paper and the comparisons that it rests on."""

    paper: str  # what the paper says, with its place
    comparisons: tuple[Comparison, ...]  # if all hold, the claim is reproduced
    # the same in a weaker form: "partly" if only these hold, "not reproduced" only if one of these fails
    weaker: tuple[Comparison, ...] = ()
    reproduced_from: float = -inf  # "partly" if a mean difference is smaller than this, although it counts
    partly_from: float = -inf  # "not reproduced" if a mean difference is smaller than this, although it counts
    here: str = ""  # text about the measurements; ``{name}`` stands for the values of that name, see ``SeedValues``
    requires: tuple[Requirement, ...] = ()  # "not tested" unless all of these are met
    # A single seed is "partly" instead of "not tested" if it agrees with all comparisons
    partly_with_one_seed: bool = False

    def judge(self, values: Values, **texts: str) -> JudgedClaim:
        """Compare measurements with the claim.

        ``values``: by name, one number per seed, or one for all seeds. ``texts``: other words of ``here``. The ``here``
        of the result also says which comparisons are contradicted, and which ones noise hides.
        """
        here = self.describe(values, **texts)
        for requirement in self.requires:
            if not np.mean(values[requirement.name]) >= requirement.least:
                return JudgedClaim(self.paper, f"{here}; {_fill_in(requirement.reason, values, texts)}", "not tested")
        measured = [comparison.evidence(values) for comparison in self.comparisons]
        agrees = all(evidence.difference > 0 for evidence in measured)
        if self.partly_with_one_seed and agrees and isnan(measured[0].margin):
            return JudgedClaim(self.paper, here, "partly")
        if self.weaker:
            weaker = [comparison.evidence(values) for comparison in self.weaker]
            verdict = graded_verdict(measured, weaker)
            if verdict == "not tested":
                untold = [evidence.name for evidence in weaker if evidence.is_measured and evidence.holds is None]
                here += "".join(f"; too coarse to tell {name}" for name in untold)
            return JudgedClaim(self.paper, here, verdict)
        verdict = verdict_from_evidence(measured)
        smallest = min(evidence.difference for evidence in measured)
        if verdict == "reproduced" and smallest < self.partly_from:
            verdict = "not reproduced"
        elif verdict == "reproduced" and smallest < self.reproduced_from:
            verdict = "partly"
        return JudgedClaim(self.paper, here + remarks(measured), verdict)

    def describe(self, values: Values, **texts: str) -> str:
        """Fill measurements into the text ``here``."""
        return _fill_in(self.here, values, texts)

    def not_tested(self, here: str) -> JudgedClaim:
        """Return the claim as "not tested", for the reason that ``here`` gives."""
        return JudgedClaim(self.paper, here, "not tested")


class Evidence(NamedTuple):
    """The measured difference of one comparison."""

    name: str  # of the comparison
    difference: float  # mean difference in the direction of the claim; for "alike", its size
    margin: float  # from where on the difference counts
    tolerance: float | None = None  # for "alike", the difference that would matter; None: a difference is claimed
    must: bool = False  # if this comparison fails, the claim is not reproduced
    # size of difference that must be excluded before the comparison fails; None: see ``Comparison``
    effect: float | None = None

    @property
    def is_measured(self) -> bool:
        """Whether difference and margin are numbers."""
        return not (isnan(self.difference) or isnan(self.margin))

    @property
    def holds(self) -> bool | None:
        """Whether the comparison holds; None: not tested."""
        if not self.is_measured:
            return None
        if self.tolerance is not None:
            if self.is_contradicted:
                return False
            return True if self.margin < self.tolerance else None
        if self.difference > self.margin:
            return True
        if self.effect is not None and not self.excludes(self.effect):
            return None
        return False

    @property
    def is_contradicted(self) -> bool:
        """Whether the difference counts against the comparison; never with NaN."""
        if self.tolerance is None:
            return self.difference < -self.margin
        return self.difference > self.margin

    def excludes(self, effect: float) -> bool:
        """Return whether the true difference is surely smaller than ``effect``."""
        return self.difference + self.margin < effect


def _fill_in(text: str, values: Values, texts: Mapping[str, str]) -> str:
    samples = {name: SeedValues(of_seeds) for name, of_seeds in values.items()}
    return text.format_map({**samples, **texts})


@lru_cache
def t_quantile(freedom: int) -> float:
    """Return the one-sided 95 % quantile of Student's t.

    >>> round(t_quantile(1), 2), round(t_quantile(30), 2)
    (6.31, 1.7)
    """
    from scipy.stats import t

    return float(t.ppf(CONFIDENCE, freedom))


def noise_margin(differences: Sequence[float], least: float = 0.0) -> float:
    """Compute from where on the mean of differences, one per seed, counts; NaN with one seed."""
    count = len(differences)
    if count < 2 or np.isnan(differences).any():
        return nan
    return max(least, t_quantile(count - 1) * float(np.std(differences, ddof=1)) / count**0.5)


def compare(
    name: str,
    larger: Sequence[float] | float,
    smaller: Sequence[float] | float,
    least: float = 0.0,
    *,
    must: bool = False,
    effect: float | None = None,
) -> Evidence:
    """Return the evidence that ``larger`` is larger, seed by seed; see ``Comparison`` for the arguments."""
    differences = np.atleast_1d(np.asarray(larger, dtype=np.float64) - np.asarray(smaller, dtype=np.float64))
    margin = noise_margin(differences.tolist(), least)
    return Evidence(name, float(differences.mean()), margin, must=must, effect=effect)


def is_above(
    larger: Sequence[float], smaller: Sequence[float] | float, least: float = 0.0, effect: float | None = None
) -> bool | None:
    """Return whether ``larger`` is larger, seed by seed, by what counts; None: not tested.

    >>> is_above([0.50, 0.60], [0.40, 0.51]), is_above([0.5, 0.6], [0.4, 0.59]), is_above([0.9], [0.1])
    (True, False, None)
    >>> is_above([0.5, 0.6], [0.4, 0.59], effect=0.1), is_above([0.5, 0.6], [0.5, 0.59], effect=0.1)
    (None, False)
    """
    return compare("", larger, smaller, least, effect=effect).holds


def verdict_from_flags(flags: Sequence[bool | None]) -> Verdict:
    """Return the verdict on comparisons that hold, fail, or were not tested (None)."""
    if not flags or None in flags:
        return "not tested"
    if all(flags):
        return "reproduced"
    return "partly" if any(flags) else "not reproduced"


def verdict_from_evidence(measured: Sequence[Evidence]) -> Verdict:
    """Return the verdict on a claim; the module's docstring has the rule."""
    if not all(evidence.is_measured for evidence in measured):
        return "not tested"
    for evidence in measured:
        if evidence.must and evidence.difference < 0 and evidence.holds is False:
            return "not reproduced"
    differences = [evidence.holds for evidence in measured if evidence.tolerance is None]
    if differences and None not in differences and not any(differences):
        return "not reproduced"
    return verdict_from_flags([evidence.holds for evidence in measured])


def graded_verdict(full: Sequence[Evidence], weaker: Sequence[Evidence]) -> Verdict:
    """Return the verdict on a claim that also has a weaker form."""
    if full and all(evidence.holds for evidence in full):
        return "reproduced"
    if weaker and all(evidence.holds for evidence in weaker):
        return "partly"
    if any(evidence.holds is False for evidence in weaker):
        return "not reproduced"
    return "not tested"


def judge(paper: str, here: str, measured: Sequence[Evidence]) -> JudgedClaim:
    """Judge a claim whose differences were measured in another way than ``Claim.judge`` does."""
    return JudgedClaim(paper, here + remarks(measured), verdict_from_evidence(measured))


def remarks(measured: Sequence[Evidence]) -> str:
    """Say which comparisons are contradicted, and which differences noise may hide."""
    contradicted = [evidence.name for evidence in measured if evidence.is_contradicted]
    text = ""
    if contradicted:
        text = f"; contradicted: {', '.join(contradicted)}"
    for evidence in measured:
        if not evidence.is_measured or evidence.holds is not None:
            continue
        if evidence.tolerance is None:
            text += f"; too coarse for {evidence.name}, where {evidence.effect:g} may be there"
        else:
            text += f"; too coarse for {evidence.name}, where {evidence.tolerance:g} would matter"
    return text
