"""Verdicts on all claims but the proposition, from figures of our choice."""

import numpy as np
import pytest
from lookalike_studies.ccp_geometry import claims as ccp_geometry_claims
from lookalike_studies.ccp_geometry.race import ALTERNATING, ONE, SAMPLES, Course
from small_ccp_race import PARTS, run_with


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ([0.05, 0.051], "reproduced"),
        ([0.3, 0.31], "partly"),
        ([0.05, 0.09], "partly"),  # two seeds: not surely below a tenth
        ([0.8, 0.8], "not reproduced"),
        ([0.8, 0.81], "not reproduced"),
        ([0.3, 0.6], "not tested"),  # less than half, and not surely
        ([0.4, 0.8], "not tested"),  # more than half, and not surely
        ([0.05], "partly"),
        ([0.3], "not tested"),
        ([0.05, np.nan], "not tested"),
    ],
)
def test_verdict_on_collapse(shares: list[float], verdict: str) -> None:
    told = ccp_geometry_claims.collapse_claim({ONE: [run_with(0.9, spread=share) for share in shares]})
    assert told.verdict == verdict
    assert ("one seed" in told.here) == (len(shares) == 1)


@pytest.mark.parametrize(
    ("figures", "radius", "verdict"),
    [
        ((0.95, 0.951), 0.2, "reproduced"),
        ((0.95, 0.92), 0.2, "not tested"),  # too coarse: MAP@R may well rise by a point
        ((0.94, 0.85), 0.3, "not tested"),
        ((0.900, 0.901), 0.2, "partly"),  # a point is excluded
        ((0.95, 0.95), 0.4, "partly"),
        ((0.80, 0.80), 0.4, "not reproduced"),
        ((0.60, 0.59), 0.2, "not reproduced"),  # MAP@R falls
        ((0.90, 0.90), 0.3, "not reproduced"),
        ((0.90 + 1e-9, 0.90 + 1e-9), 0.3 - 1e-9, "not reproduced"),
        ((0.95, np.nan), 0.2, "not tested"),
        ((0.95, 0.951), np.nan, "not tested"),
    ],
)
def test_verdict_on_alternating(figures: tuple[float, float], radius: float, verdict: str) -> None:
    measured = {ONE: [run_with(0.9, own=0.11)] * 2, ALTERNATING: [run_with(figure, radius) for figure in figures]}
    assert ccp_geometry_claims.alternating_claim(measured, "digits").verdict == verdict


def test_a_disc_that_shrinks_has_no_smaller_radius() -> None:
    def shrunk(by: float) -> str:
        after = [run_with(0.95, 0.3 * by, 0.1 * by, by)] * 2
        claim = ccp_geometry_claims.alternating_claim({ONE: [run_with(0.9)] * 2, ALTERNATING: after}, "digits")
        assert "against the distance between classes 0.300 and 0.300" in claim.here
        return claim.verdict

    assert shrunk(0.1) == shrunk(2.0) == "partly"


def test_what_is_contradicted_is_told() -> None:
    measured = {ONE: [run_with(0.9)] * 2, ALTERNATING: [run_with(0.95, 0.4)] * 2}
    told = "; contradicted: the radius falls against the distance between classes"
    assert ccp_geometry_claims.alternating_claim(measured, "d").here.endswith(told)
    measured[ALTERNATING] = [run_with(0.95, own=0.2)] * 2
    assert ccp_geometry_claims.unseen_claim(measured, {ONE: [0.2], ALTERNATING: [0.3]}, "d").here.endswith(told)


def test_a_radius_or_distance_too_coarse_to_tell_leaves_a_claim_open() -> None:
    """MAP@R surely rises: were noise no difference, both claims would be "partly"."""
    one, test = [run_with(0.9)] * 2, {ONE: [0.2], ALTERNATING: [0.3]}
    coarse = {ONE: one, ALTERNATING: [run_with(0.95, radius) for radius in (0.25, 0.33)]}
    assert ccp_geometry_claims.alternating_claim(coarse, "d").verdict == "not tested"
    for after in ([run_with(0.95, own=own) for own in (0.05, 0.13)], [run_with(0.95, distance=d) for d in (1, 1.1)]):
        told = ccp_geometry_claims.unseen_claim({ONE: one, ALTERNATING: after}, test, "d")
        assert told.verdict == "not tested"
        assert told.here.count("0.05 may be there") == 1


@pytest.mark.parametrize(("gain", "noise"), [(0.0, 0.05), (0.02, 0.02), (0.02, 0.05)])
def test_noise_is_not_against_a_claim(gain: float, noise: float) -> None:
    """With what is claimed there, or nothing, two noisy seeds hardly ever say "not reproduced"."""
    chance = np.random.default_rng(3)
    against = 0
    for _ in range(200):
        one, after = (
            [run_with(*(np.array([figure, 0.5, 0.5, 1.0]) + noise * chance.standard_normal(4))) for _ in range(2)]
            for figure in (0.7, 0.7 + gain)
        )
        measured = {ONE: one, ALTERNATING: after}
        alternating = ccp_geometry_claims.alternating_claim(measured, "noise")
        unseen = ccp_geometry_claims.unseen_claim(measured, {ONE: [0.2], ALTERNATING: [0.2]}, "noise")
        against += "not reproduced" in (alternating.verdict, unseen.verdict)
    assert against <= 0.15 * 200


@pytest.mark.parametrize(
    ("proxies", "samples", "verdict"),
    [
        ([0.95, 0.95], [0.96, 0.961], "reproduced"),
        ([0.95, 0.95], [0.99, 0.99], "partly"),
        ([0.90, 0.90], [0.99, 0.99], "not reproduced"),
        ([0.99, 0.99], [0.91, 0.91], "reproduced"),  # better is nearly as well
        ([0.90, 0.99], [0.96, 0.96], "not tested"),  # too coarse
        ([0.83, 0.93], [0.96, 0.96], "not tested"),  # 8 points behind, and not surely more than 5
        ([0.92, 0.93], [0.96, 0.96], "not tested"),  # 3.5 points, and not surely less
        ([0.87, 0.871], [0.96, 0.96], "not reproduced"),
        ([0.10, 0.10], [0.11, 0.11], "not tested"),  # chance
        ([0.95], [0.96], "not tested"),
        ([0.95, np.nan], [0.96, 0.96], "not tested"),
        ([0.95, 0.95], [0.96, np.nan], "not tested"),
    ],
)
def test_verdict_on_samples(proxies: list[float], samples: list[float], verdict: str) -> None:
    measured = {ALTERNATING: [*map(run_with, proxies)], SAMPLES: [*map(run_with, samples)]}
    assert ccp_geometry_claims.samples_claim(measured, "digits").verdict == verdict


def test_one_seed_tests_nothing() -> None:
    measured = {ONE: [run_with(0.8)], ALTERNATING: [run_with(0.9, 0.2)], SAMPLES: [run_with(0.91)]}
    told = ccp_geometry_claims.alternating_claim(measured, "digits")
    assert told.verdict == "not tested"
    assert "one seed" in told.here
    test = {ONE: [0.2], ALTERNATING: [0.3]}
    assert ccp_geometry_claims.unseen_claim(measured, test, "birds").verdict == "not tested"


def test_the_same_weights_test_nothing() -> None:
    same = {ONE: [run_with(0.8), run_with(0.9)], ALTERNATING: [run_with(0.8, float("nan")), run_with(0.9)]}
    assert ccp_geometry_claims.alternating_claim(same, "digits").verdict == "not tested"
    test = {ONE: [0.2], ALTERNATING: [0.2]}
    assert ccp_geometry_claims.unseen_claim(same, test, "birds").verdict == "not tested"


@pytest.mark.parametrize(
    ("figure", "own", "distance", "verdict"),
    [
        (0.3, 0.05, 1.1, "reproduced"),
        (0.3, 0.15, 1.1, "partly"),
        (0.3, 0.11, 1.1, "partly"),  # the radius grows as the distance does, so it does not fall
        (0.1, 0.15, 0.9, "not reproduced"),
        (0.2 + 1e-9, 0.1 - 1e-9, 1 + 1e-9, "not reproduced"),
        (0.05, 0.2, 1 + 1e-6, "not reproduced"),
        (0.19, 0.05, 1.1, "not reproduced"),  # MAP@R falls
        (0.3, np.nan, 1.1, "not tested"),
    ],
)
def test_verdict_on_unseen_classes(figure: float, own: float, distance: float, verdict: str) -> None:
    after = [run_with(figure, own=own, distance=distance)] * 2
    test = {ONE: [0.2], ALTERNATING: [0.3]}
    told = ccp_geometry_claims.unseen_claim({ONE: [run_with(0.2)] * 2, ALTERNATING: after}, test, "birds")
    assert told.verdict == verdict


def test_diversity_needs_a_second_problem(courses: dict[str, list[Course]]) -> None:
    single = {ONE: courses[ONE], ALTERNATING: courses[ONE]}
    assert ccp_geometry_claims.diversity_claim(single, PARTS).verdict == "not tested"
    course = courses[ALTERNATING][0]
    wide = [each._replace(converged=each.converged * 100) for each in course.snapshots]
    thin = [each._replace(converged=each.converged * 0) for each in course.snapshots]
    told = ccp_geometry_claims.diversity_claim(  # one seed far more, one none
        {
            ONE: courses[ONE] * 2,
            ALTERNATING: [course._replace(snapshots=wide), course._replace(snapshots=thin)],
        },
        PARTS,
    )
    assert told.verdict == "not tested"
    assert told.here.endswith("too coarse to tell that they are farther apart")
    for snapshots, of_one, of_two in ((wide, "partly", "reproduced"), (thin, "not tested", "not reproduced")):
        for seeds, verdict in ((1, of_one), (2, of_two)):
            runs = {ONE: courses[ONE] * seeds, ALTERNATING: [course._replace(snapshots=snapshots)] * seeds}
            told = ccp_geometry_claims.diversity_claim(runs, PARTS)
            assert told.verdict == verdict
            assert ("one seed" in told.here) == (seeds == 1)


def test_a_first_problem_that_ends_early_is_told(courses: dict[str, list[Course]]) -> None:
    course = courses[ALTERNATING][0]
    first = course.snapshots[0]
    poor = course._replace(snapshots=[first._replace(figure=0.1), *course.snapshots[1:]])
    good = course._replace(snapshots=[first._replace(figure=1.0), *course.snapshots[1:]])
    (note,) = ccp_geometry_claims.early_note({**courses, ALTERNATING: [poor]})
    assert f"ended at step {first.step}, with a MAP@R of 10.0" in note
    assert ccp_geometry_claims.early_note({**courses, ALTERNATING: [good]}) == []
