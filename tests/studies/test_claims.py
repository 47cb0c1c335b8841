"""The rules by which claims are judged, and every study's rules on pure noise: two seeds, nothing to be seen."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pytest
from lookalike_studies.ccp_geometry import claims as ccp
from lookalike_studies.ccp_geometry.measures import Gap
from lookalike_studies.ccp_geometry.race import ALTERNATING, ONE
from lookalike_studies.effects import claims as effects_claims
from lookalike_studies.effects.axis import axes, load_axis
from lookalike_studies.effects.measured import Measured
from lookalike_studies.framework.claims import (
    Claim,
    Comparison,
    Evidence,
    JudgedClaim,
    Requirement,
    compare,
    is_above,
    judge,
    noise_margin,
    t_quantile,
    verdict_from_evidence,
    verdict_from_flags,
)
from lookalike_studies.localisation import claims as localisation_findings
from lookalike_studies.localisation.masks import Located
from lookalike_studies.tokens.claims import GAIN, GAP, GSP, judge_hulls
from lookalike_studies.zero_shot_prediction.claims import judge_gains

from lookalike.experiments.published import published

DRAWS = 300
NAN = float("nan")
HOLDS, OPEN, AGAINST, UNKNOWN = (Evidence("it", lead, 1.0) for lead in (2.0, 0.5, -2.0, NAN))
NOISY, EXCLUDED = (Evidence("it", lead, 1.0, effect=1.2) for lead in (0.5, 0.1))  # 1.2 may be there, or may not
ALIKE, APART, COARSE = Evidence("same", 0.5, 1.0, 2.0), Evidence("same", 1.5, 1.0, 2.0), Evidence("same", 0.5, 1.0, 0.7)


def test_quantiles_of_the_tables() -> None:
    assert [round(t_quantile(n), 3) for n in (1, 2, 3, 10, 1000)] == [6.314, 2.920, 2.353, 1.812, 1.646]


@pytest.mark.parametrize(
    ("one", "other", "least", "expected"),
    [
        ([2.0, 2.1], 0.0, 0.0, True),
        ([1.0, 2.0], 0.0, 0.0, False),  # three standard errors
        ([2.0, 2.1], [1.95, 2.05], 0.1, False),  # sure, and too little
        ([1e-9, 1e-9], 0.0, 0.01, False),
        ([-2.0, -2.1], 0.0, 0.0, False),
        ([1.0, 1.0], 1.0, 0.0, False),
        ([5.0], 0.0, 0.0, None),
        ([5.0, NAN], 0.0, 0.0, None),
        ([5.0, 5.0], NAN, 0.0, None),
    ],
)
def test_above(one: list[float], other: list[float] | float, least: float, expected: bool | None) -> None:
    assert is_above(one, other, least) is expected


def test_above_is_the_t_test() -> None:
    from scipy.stats import ttest_1samp

    chance = np.random.default_rng(0)
    for count in (2, 3, 5) * 30:
        differences = chance.normal(1, 1, count)
        p = ttest_1samp(differences, 0, alternative="greater").pvalue
        assert is_above(differences.tolist(), 0.0) == (p < 0.05)
    assert noise_margin([1.0, 3.0]) == pytest.approx(6.314, abs=1e-3)


def test_what_is_claimed_is_found_missed_or_left_open() -> None:
    """With the claimed difference there, two or three noisy seeds must not exclude it; with none, they must not find
    it, and enough of them must exclude it."""
    chance = np.random.default_rng(1)

    def holds(true: float, count: int) -> Counter[bool | None]:
        draws = true + chance.standard_normal((2000, count))
        return Counter(is_above(each.tolist(), 0.0, effect=4.0) for each in draws)

    for count in (2, 3, 5):
        assert holds(4.0, count)[False] <= 0.06 * 2000
        assert holds(0.0, count)[True] <= 0.06 * 2000
    assert holds(4.0, 3)[True] >= 0.9 * 2000
    assert holds(0.0, 5)[False] >= 0.9 * 2000


def test_parts() -> None:
    parts = (HOLDS, OPEN, AGAINST, UNKNOWN, ALIKE, APART, COARSE)
    assert [part.holds for part in parts] == [True, False, False, None, True, False, None]
    assert [part.is_contradicted for part in parts] == [False, False, True, False, False, True, False]
    assert Evidence("", 0.5, NAN).holds is Evidence("", NAN, 1.0, 2.0).holds is None


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([HOLDS, HOLDS], "reproduced"),
        ([HOLDS, OPEN], "partly"),
        ([HOLDS, AGAINST], "partly"),
        ([OPEN, AGAINST], "not reproduced"),
        ([HOLDS, ALIKE], "reproduced"),
        ([HOLDS, APART], "partly"),
        ([HOLDS, COARSE], "not tested"),
        ([OPEN, ALIKE], "not reproduced"),  # which noise would give
        ([AGAINST, COARSE], "not reproduced"),
        ([ALIKE], "reproduced"),
        ([APART], "not reproduced"),
        ([COARSE], "not tested"),
        ([HOLDS, UNKNOWN], "not tested"),
        ([UNKNOWN, AGAINST], "not tested"),
        ([HOLDS, Evidence("figure", -0.1, 1.0, must=True)], "not reproduced"),
        ([HOLDS, Evidence("figure", 0.1, 1.0, must=True)], "partly"),
        ([NOISY], "not tested"),
        ([EXCLUDED], "not reproduced"),
        ([HOLDS, NOISY], "not tested"),
        ([HOLDS, EXCLUDED], "partly"),
        ([Evidence("it", -2.0, 1.0, effect=1.2)], "not reproduced"),
        ([HOLDS, Evidence("figure", -0.1, 1.0, must=True, effect=0.5)], "not tested"),
        ([], "not tested"),
    ],
)
def test_verdicts(parts: list[Evidence], expected: str) -> None:
    assert verdict_from_evidence(parts) == expected
    assert verdict_from_evidence(parts[::-1]) == expected


def test_plain_verdicts_and_words() -> None:
    assert [verdict_from_flags(each) for each in ([True], [True, False], [False], [True, None], [])] == [
        *("reproduced", "partly", "not reproduced", "not tested", "not tested")
    ]
    assert judge("p", "h", [HOLDS, AGAINST, APART]).here == "h; contradicted: it, same"
    assert judge("p", "h", [HOLDS, COARSE]).here == "h; too coarse for same, where 0.7 would matter"
    assert judge("p", "h", [NOISY]).here == "h; too coarse for it, where 1.2 may be there"
    assert judge("p", "h", [HOLDS]) == JudgedClaim("p", "h", "reproduced")


Rule = Callable[[np.random.Generator], str]


@lru_cache
def _of_effects(axis: str, spread: float) -> list[Counter[str]]:
    """By claim of the axis, how often each verdict comes."""
    own, chance = load_axis(axis), np.random.default_rng(7)
    points = own.points("all")
    found: list[list[str]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(effects_claims, "published", lru_cache(published))  # reads a file
        for _ in range(DRAWS):
            luck = 5 * chance.standard_normal(2)
            figures = 20 + spread * chance.standard_normal((len(points), 2)) + luck
            found.append([claim.verdict for claim in effects_claims.judge_axis(Measured(own, points, figures))])
    return [Counter(of) for of in zip(*found, strict=True)]


def _runs(chance: np.random.Generator, spread: float, seeds: int = 2) -> list[ccp.Measured]:
    return [
        ccp.Measured(*(middle + size * spread * chance.standard_normal() for middle, size in zip(*CCP, strict=True)))
        for _ in range(seeds)
    ]


CCP = ((0.7, 0.5, 0.4, 1.0, 0.5), (0.1, 0.1, 0.1, 0.1, 0.1))


def _alternating(spread: float, chance: np.random.Generator) -> str:
    measured = {kind: _runs(chance, spread) for kind in (ONE, ALTERNATING)}
    return ccp.alternating_claim(measured, "noise").verdict


def _unseen(spread: float, chance: np.random.Generator) -> str:
    measured = {kind: _runs(chance, spread) for kind in (ONE, ALTERNATING)}
    return ccp.unseen_claim(measured, {ONE: [0.1], ALTERNATING: [0.1]}, "noise").verdict


def _proposition(chance: np.random.Generator) -> str:
    """Two seeds, two kinds of runs and two ways of choosing six sets of anchors."""
    gaps: ccp.Gaps = {
        (way, kind): [[Gap(r, p, 0.0) for r, p in chance.random((6, 2)).tolist()] for _ in range(2)]
        for way in ("k-centre", "random")
        for kind in (ONE, ALTERNATING)
    }
    return ccp.proposition_claim(gaps, {kind: _runs(chance, 0.0) for kind in (ONE, ALTERNATING)}, classes=10).verdict


def _gain(spread: float, chance: np.random.Generator) -> str:
    gains = (spread * chance.standard_normal(2)).tolist()
    return replace(GAIN, here="").judge({GSP: gains, GAP: [0.0, 0.0]}).verdict


def _hulls(chance: np.random.Generator) -> str:
    gap, gsp = np.abs(10 * chance.standard_normal((2, 2))).tolist()  # percent
    return judge_hulls({GAP: gap, GSP: gsp, "pairs with GAP": [0.0], "pairs with GSP": [0.0]}, "").verdict


def _prediction(spread: float, chance: np.random.Generator) -> str:
    l2, cosine = (spread * chance.standard_normal((2, 2))).tolist()
    return judge_gains({"L2": l2, "cosine": cosine}).verdict


def _selects(number: int, chance: np.random.Generator) -> str:
    names = ("average pooling", "CroW", "DeLF", "GSP", "GSP, learnt share", "attention")
    cell = localisation_findings.CELL
    places = {
        name: [Located(*({cell: 0.25 + 0.05 * chance.standard_normal()} for _ in range(2))) for _ in range(2)]
        for name in names
    }
    return localisation_findings.claims(places, {cell: 0.25}, is_drawn=True)[number].verdict


DIFFERENCES = {  # claims of a difference, by axis
    **{"keep": [0], "sharpness-prototypes": [0, 1, 2, 3], "prototypes": [0, 1], "embedding-size": [1, 2]},
    **{"lambda-proxies": [0, 1], "pool-proxies": [0], "alternating": [0, 1, 2], "batch-size": [0], "zero-shot": [0]},
    **{"factorial": [0, 1, 2, 3], "poolings": [0, 2]},
}
ALIKE_CLAIMS = {"iterations": [0, 1], "embedding-size": [0], "pool-proxies": [1], "batch-size": [1], "poolings": [1, 3]}
DIRECTIONAL: dict[str, Rule] = {
    **{f"alternating {spread}": partial(_alternating, spread) for spread in (0.1, 1.0)},
    **{f"unseen {spread}": partial(_unseen, spread) for spread in (0.1, 1.0)},
    "proposition": _proposition,
    **{f"gain {spread}": partial(_gain, spread) for spread in (8.0, 80.0)},
    "hulls": _hulls,
    **{f"prediction {spread}": partial(_prediction, spread) for spread in (8.0, 40.0)},
    **{f"localisation {number}": partial(_selects, number) for number in range(7)},
}


def _check_noise(found: Counter[str]) -> None:
    """A part holds in 5 of 100 by chance; of two or three parts any may make "partly"."""
    assert found["reproduced"] <= 0.1 * DRAWS
    assert found["partly"] <= 0.15 * DRAWS
    assert found["reproduced"] + found["partly"] <= 0.17 * DRAWS


@pytest.mark.parametrize("spread", [0.15, 2.0])
@pytest.mark.parametrize(("axis", "number"), [(axis, n) for axis, numbers in DIFFERENCES.items() for n in numbers])
def test_noise_shows_no_effect(axis: str, number: int, spread: float) -> None:
    _check_noise(_of_effects(axis, spread)[number])


@pytest.mark.parametrize("name", DIRECTIONAL)
def test_noise_shows_no_difference(name: str) -> None:
    chance = np.random.default_rng(7)
    _check_noise(Counter(DIRECTIONAL[name](chance) for _ in range(DRAWS)))


@pytest.mark.parametrize(("axis", "number"), [(axis, n) for axis, numbers in ALIKE_CLAIMS.items() for n in numbers])
def test_being_alike_is_not_shown_by_noise_that_would_hide_a_difference(axis: str, number: int) -> None:
    loud, quiet = (_of_effects(axis, spread)[number] for spread in (2.0, 0.05))
    assert loud["reproduced"] + loud["partly"] <= 0.05 * DRAWS
    assert loud["not tested"] >= 0.8 * DRAWS
    assert quiet["reproduced"] >= 0.85 * DRAWS  # nothing differs, and half a point would have been seen


@pytest.mark.parametrize("axis", axes())
@pytest.mark.parametrize("blocks", [1, 2])
def test_what_is_missing_is_not_tested(axis: str, blocks: int) -> None:
    """One seed, or every model of the second failed; and in no case does a missing point make "partly"."""
    own = load_axis(axis)
    points = own.points("all")
    figures = 20 + np.random.default_rng(0).standard_normal((len(points), blocks))
    figures[:, 1:] = NAN
    assert {claim.verdict for claim in effects_claims.judge_axis(Measured(own, points, figures))} == {"not tested"}


@pytest.mark.parametrize("axis", axes())
def test_a_missing_point_is_never_partly(axis: str) -> None:
    own = load_axis(axis)
    points = own.points("all")
    known = 20 + 3 * np.random.default_rng(0).standard_normal((len(points), 1)) + np.array([[0.0, 0.01, 0.02]])
    rule = effects_claims.judge_axis
    before = [claim.verdict for claim in rule(Measured(own, points, known))]
    for missing in range(len(points)):
        figures = known.copy()
        figures[missing, 1] = NAN
        after = [claim.verdict for claim in rule(Measured(own, points, figures))]
        assert all(a in (b, "not tested") for a, b in zip(after, before, strict=False))


def test_paired_takes_the_seeds_together() -> None:
    part = compare("", [10.0, 20.0, 30.0], [9.0, 19.1, 28.9])
    assert part.difference == pytest.approx(1.0)
    assert part.holds


VALUES = {"GSP": [0.50, 0.60, 0.55], "GAP": [0.30, 0.41, 0.35], "max": [0.30, 0.40, 0.355], "chance": 0.25}


@pytest.mark.parametrize(
    ("comparison", "holds"),
    [
        (Comparison("GSP", ">", "GAP"), True),
        (Comparison("GAP", "<", "GSP"), True),
        (Comparison("GAP", ">", "GSP"), False),
        (Comparison("GSP", ">", 0.25), True),
        (Comparison("GSP", ">", "chance", least=0.5), False),
        (Comparison("GSP", ">", "chance", least=0.5, effect=1.0), False),
        (Comparison("GSP", ">", "chance", least=0.5, effect=0.5), None),
        (Comparison("max", "alike", "GAP", tolerance=0.05), True),
        (Comparison("max", "alike", "GAP", tolerance=0.001), None),
        (Comparison("GSP", "alike", "GAP", tolerance=0.05), False),
        (Comparison("GSP", "within", 0.5, tolerance=0.1), True),
        (Comparison("GSP", "within", 0.4, tolerance=0.1), False),
        (Comparison("GSP", "within", 0.5, tolerance=0.06), None),
    ],
)
def test_comparisons(comparison: Comparison, holds: bool | None) -> None:
    assert comparison.evidence(VALUES).holds is holds


def test_alike_needs_a_tolerance() -> None:
    with pytest.raises(ValueError, match="GSP alike GAP: 'alike' needs a tolerance"):
        Comparison("GSP", "alike", "GAP").evidence(VALUES)


@pytest.mark.parametrize(
    ("reproduced_from", "partly_from", "expected"),
    [(0.0, 0.0, "reproduced"), (0.19, 0.0, "reproduced"), (0.3, 0.0, "partly"), (0.5, 0.3, "not reproduced")],
)
def test_a_claim_may_ask_for_a_size(reproduced_from: float, partly_from: float, expected: str) -> None:
    comparison = Comparison("GSP", ">", "GAP", effect=0.1)
    claim = Claim("p", (comparison,), reproduced_from=reproduced_from, partly_from=partly_from, here="h")
    assert claim.judge(VALUES) == JudgedClaim("p", "h", expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.01, 0.02, 0.01], "reproduced"),
        ([0.3, 0.31, 0.3], "partly"),
        ([0.9, 0.91, 0.9], "not reproduced"),
        ([0.4, 0.6, 0.49], "not tested"),
        ([0.01], "not tested"),
    ],
)
def test_a_claim_with_a_weaker_form(values: list[float], expected: str) -> None:
    full = Comparison("spread", "<", 0.1, effect=0.0)
    half = Comparison("spread", "<", 0.5, name="less than half", effect=0.0)
    claim = Claim("p", (full,), weaker=(half,), here="h")
    judged = claim.judge({"spread": values})
    assert judged.verdict == expected
    coarse = expected == "not tested" and len(values) > 1
    assert judged.here == ("h; too coarse to tell less than half" if coarse else "h")


def test_the_text_has_the_measurements() -> None:
    claim = Claim("p", (), here="{what}: {a} and {a:2}, mean {a:.3f}, {b:+g} of {c}")
    assert (
        claim.describe({"a": [1.0, 2.0], "b": 3.0}, what="A", c="C")
        == "A: 1.5 ± 0.7 and 1.50 ± 0.71, mean 1.500, +3 of C"
    )


@pytest.mark.parametrize(
    ("values", "learnt", "expected"),
    [
        ([0.4], 0.9, "partly"),
        ([-0.4], 0.9, "not tested"),
        ([np.nan], 0.9, "not tested"),
        ([0.4, np.nan], 0.9, "not tested"),
        ([0.4, 0.41], 0.9, "reproduced"),
        ([0.4, 0.41], 0.89, "not tested"),
        ([0.4, 0.41], np.nan, "not tested"),
    ],
)
def test_one_seed_and_requirements(values: list[float], learnt: float, expected: str) -> None:
    claim = Claim(
        "p",
        (Comparison("gain", ">", 0.0, effect=0.1),),
        here="h",
        requires=(Requirement("learnt", 0.9, "only {learnt:.2f}"),),
        partly_with_one_seed=True,
    )
    judged = claim.judge({"gain": values, "learnt": learnt})
    assert judged.verdict == expected
    assert judged.here == ("h" if learnt == 0.9 else f"h; only {learnt:.2f}")
