import json
from itertools import permutations, product
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lookalike_studies.centres import claims as claims
from lookalike_studies.centres import sphere as centres_sphere
from lookalike_studies.centres import study as centres
from lookalike_studies.centres.sphere import BEST_KNOWN, Arrangement, Array

from lookalike.cli import main

GOLDEN = (1 + 5**0.5) / 2
TRIBONACCI = 1.8392867552141612


def _unit(points: list[tuple[float, ...]]) -> Array:
    array = np.array(points)
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def _snub_cube() -> Array:
    found = []
    for order in permutations(range(3)):
        even = order in ((0, 1, 2), (1, 2, 0), (2, 0, 1))
        for signs in product((1, -1), repeat=3):
            if (signs.count(1) % 2 == 0) == even:
                values = np.array([1, 1 / TRIBONACCI, TRIBONACCI]) * signs
                found.append(tuple(values[list(order)]))
    return _unit(found)


SOLIDS = {
    4: _unit([(1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)]),
    6: np.concatenate([np.eye(3), -np.eye(3)]),
    12: _unit([tuple(np.roll((0, a, b * GOLDEN), k)) for a in (1, -1) for b in (1, -1) for k in range(3)]),
}


@pytest.mark.parametrize("count", SOLIDS)
def test_the_best_known_are_the_solids(count: int) -> None:
    measured = centres_sphere.measure(SOLIDS[count])
    assert measured.least_angle == pytest.approx(BEST_KNOWN[count][0], abs=1e-6)
    assert measured.energy == pytest.approx(BEST_KNOWN[count][1], abs=1e-8)
    assert measured.nearest_angle == pytest.approx(measured.least_angle)
    assert measured.places == count


def test_tammes_of_24_is_the_snub_cube() -> None:
    cube = _snub_cube()
    assert len(cube) == 24
    assert centres_sphere.measure(cube).least_angle == pytest.approx(BEST_KNOWN[24][0], abs=1e-6)
    assert centres_sphere.measure(cube).energy > BEST_KNOWN[24][1]  # Thomson's is another


@pytest.mark.parametrize("name", ["nearest", "E_2", "E_0", "UniformFace", "R1 as printed", "mean distance"])
def test_what_pushes_the_near_finds_the_tetrahedron(name: str) -> None:
    chosen = centres_sphere.regularisers(4, (), 32.0)[name]
    rested, angles = centres_sphere.settle(centres_sphere.by_chance(4, 3, 0), chosen, 120, 0.1)
    assert centres_sphere.measure(rested).least_angle == pytest.approx(BEST_KNOWN[4][0], abs=1.0)
    assert len(angles) == 121
    assert angles[0] == pytest.approx(centres_sphere.measure(centres_sphere.by_chance(4, 3, 0).numpy()).least_angle)
    assert angles[-1] == pytest.approx(centres_sphere.measure(rested).least_angle)


def test_a_knob_above_two_piles_them_up_on_two_poles() -> None:
    chosen = centres_sphere.regularisers(6, (4.0,), 32.0)["knob 4"]
    rested, _ = centres_sphere.settle(centres_sphere.by_chance(6, 3, 1), chosen, 200, 0.1)
    found = centres_sphere.places(rested)
    assert [count for _, count in found] == [3, 3]
    assert found[0][0] @ found[1][0] == pytest.approx(-1, abs=1e-3)


def test_what_adam_forgets_lets_energies_out_of_a_crowd() -> None:
    def rest(memory: float) -> float:
        start, energy = centres_sphere.crowd(6, 20.0, 0), {"preset": "mhe-2"}
        return float(centres_sphere.settle(start, energy, 200, 0.1, memory=memory)[1][-1])

    assert rest(0.9) == pytest.approx(BEST_KNOWN[6][0], abs=1)
    assert rest(0.999) < 80


def test_farthest_moves_one_pair_only() -> None:
    start = centres_sphere.by_chance(8, 3, 0)
    rested, _ = centres_sphere.settle(start, {"preset": "farthest"}, 1, 0.01)
    moved = np.abs(rested - start.numpy()).max(1) > 1e-9
    assert moved.sum() == 2


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 9))
def test_the_mean_squared_distance_knows_the_mean_alone(seed: int, count: int) -> None:
    points = centres_sphere.by_chance(count, 3, seed).numpy()
    squares = np.square(centres_sphere.pairwise_distances(points)).mean()
    assert squares == pytest.approx(2 * count / (count - 1) * (1 - np.square(points.mean(0)).sum()), abs=1e-12)


def test_places_by_hand() -> None:
    near = np.radians(0.5)
    points = np.array([[1.0, 0, 0], [0, 1, 0], [np.cos(near), np.sin(near), 0], [0, 0, 1], [0, 1, 0]])
    assert [count for _, count in centres_sphere.places(points)] == [2, 2, 1]


def test_a_crowd_stays_near_its_pole() -> None:
    crowd = centres_sphere.crowd(200, 20.0, 3).numpy()
    assert np.linalg.norm(crowd, axis=1) == pytest.approx(np.ones(200))
    assert np.degrees(np.arccos(crowd[:, 2])).max() <= 20
    assert np.degrees(np.arccos(crowd[:, 2])).max() > 15


def test_equalities_against_plain_sums() -> None:
    points = centres_sphere.by_chance(7, 3, 0).numpy()
    found = centres_sphere.equalities(points)
    d = [float(np.linalg.norm(points[i] - points[j])) for i in range(7) for j in range(7) if i != j]
    assert found["E_0 = -pairs log M_0"] == pytest.approx((-sum(np.log(d)),) * 2)
    assert found["E_1 = pairs / M_-1"] == pytest.approx((sum(1 / x for x in d),) * 2)
    assert found["E_2 = pairs / M_-2^2"] == pytest.approx((sum(1 / x**2 for x in d),) * 2)
    face = found["UniformFace = (10) at lambda -1, the mean distance"]
    assert face == pytest.approx((np.mean([1 / (1 + x) for x in d]), np.mean(d)))


@pytest.mark.parametrize("sharpness", [0.5, 8.0])
def test_the_push_of_r1_by_autograd(sharpness: float) -> None:
    points = centres_sphere.by_chance(9, 3, 2)
    distances = torch.cdist(points, points).requires_grad_()
    hidden = torch.diag(torch.full((9,), -inf, dtype=torch.float64))
    (sharpness * (1 - distances.square() / 2) + hidden).logsumexp(1).mean().backward()
    assert distances.grad is not None
    above = torch.ones(9, 9, dtype=torch.bool).triu(1)
    push = -(distances.grad + distances.grad.T)[above]
    pairs = distances.detach()[above]
    expected = push[pairs > np.median(pairs.numpy())].sum() / push.sum()
    assert centres_sphere.push_on_the_farther_half(points.numpy(), sharpness) == pytest.approx(float(expected))


def test_names_lead_from_nearest_to_farthest() -> None:
    names = list(centres_sphere.regularisers(5, (-32.0, 2.0, 4.0), 8.0))
    assert names[0] == "nearest"
    assert names[-1] == "farthest"
    assert [centres_sphere.knob_name(knob) for knob in (-inf, -2, 0, 1, 4, inf)] == [
        *("nearest", "E_2", "E_0", "mean distance", "knob 4", "farthest")
    ]


def _settings(**changes: object) -> centres.Centres:
    return centres.STUDY.load_settings("miniature", changes)


def _runs(*angles: float) -> list[Arrangement]:
    return [Arrangement(angle, angle, 1.0, 50.0, 12) for angle in angles]


def _found(energy: float, farthest: float, seeds: int = 2) -> claims.Measurements:
    names = centres_sphere.regularisers(12, (4.0,), 8.0)
    far = ("knob 4", "farthest", "the N farthest pairs")
    return {12: {name: _runs(*seeds * [farthest if name in far else energy]) for name in names}}


@pytest.mark.parametrize(
    ("reached", "crowded", "verdict"),
    [(63.0, 37.0, "not reproduced"), (63.0, 33.0, "partly"), (63.0, 20.0, "reproduced"), (30.0, 37.0, "reproduced")],
)
def test_verdict_on_energies(reached: float, crowded: float, verdict: str) -> None:
    rest = {name: [1.0, crowded] for name in centres_sphere.ENERGIES}
    found, still = _found(reached, 0), {12: 0.1, 32: 0.1}
    assert claims.energies_claim(found, rest, _settings(steps=400), still).verdict == verdict
    short = claims.energies_claim(found, rest, _settings(), still)  # four steps
    assert short.verdict == "not tested"
    assert short.here.endswith("; 4 steps are too few to be stuck")
    growing = claims.energies_claim(found, rest, _settings(steps=400), {12: 0.1, 32: 2.0})
    assert growing.verdict == (verdict if verdict == "not reproduced" else "not tested")
    unknown = {**rest, "E_1": [np.nan, 37.0]}
    assert claims.energies_claim(found, unknown, _settings(steps=400), still).verdict == "not tested"


def test_late_growth_by_hand() -> None:
    angles = np.array([[0.0, 1, 2, 3, 4, 5, 6, 7, 10], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
    assert claims.late_growth(angles) == pytest.approx(3)
    assert [claims.is_too_short(steps, 0.1) for steps in (4, 94, 95, 400)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("farthest", "verdict"),
    [(64.0, "reproduced"), (40.0, "partly"), (9.0 + 1e-6, "not reproduced"), (3.0, "not reproduced")],
)
def test_verdict_on_pushing_the_farthest(farthest: float, verdict: str) -> None:
    def said(seeds: int, **changes: object) -> str:
        start = {12: _runs(*seeds * [9.0])}
        return claims.farthest_claim(_found(63.0, farthest, seeds), start, _settings(**changes)).verdict

    assert said(2, steps=400) == verdict
    assert said(1, steps=400) == said(2) == "not tested"


def test_verdict_on_equalities() -> None:
    def said(energy: float, face: float) -> str:
        return claims.equalities_claim({"E_1 = x": (energy, 2.0), "UniformFace = y": (face, 2.0)}).verdict

    assert (said(2.0, 2.0), said(2.0, 1.0), said(1.0, 1.0)) == ("reproduced", "partly", "not reproduced")


def test_verdict_on_r1_and_sizes() -> None:
    assert claims.crowding_claim(0.6, _found(63, 1)).verdict == "reproduced"
    assert claims.crowding_claim(0.1, _found(63, 1)).verdict == "not reproduced"
    assert claims.crowding_claim(np.nan, _found(63, 1)).verdict == "not tested"
    chosen = _settings(sizes=[64, 128, 256], size_steps=150)
    assert claims.sizes_claim({"E_1": [80.0, 90.0, 90.5]}, _settings(sizes=[64, 128, 256])).verdict == "not tested"
    told = claims.sizes_claim({"E_1": [80.0, 90.0, 90.5]}, chosen)
    assert told.verdict == "not tested"  # recall is what the text speaks of
    assert "90.0 at 128" in told.here
    assert claims.sizes_claim({"E_1": [80.0]}, _settings(sizes=[64])).verdict == "not tested"
    assert claims.rising_claim(np.array([0.5, 1.0, 1.9])).verdict == "reproduced"


def test_simplex() -> None:
    assert centres_sphere.simplex_angle(4) == pytest.approx(BEST_KNOWN[4][0])
    assert centres_sphere.simplex_angle(3) == pytest.approx(120)


def test_as_it_is_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert (
        main(["study", "centres", "--miniature", "--out", str(out), "--set", "counts=12, seeds=0, sizes=[4, 8]"]) == 0
    )
    for name in ("spheres", "knobs", "crowd", "sizes"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in (out / f"{name}.svg").read_bytes()
    numbers = json.loads((out / "numbers.json").read_text())
    assert len(numbers["claims"]) == 6
    assert [claim["verdict"] for claim in numbers["claims"][:2]] == ["not tested"] * 2  # four steps
    assert numbers["claims"][2]["verdict"] == "partly"  # an identity: no steps needed
    assert len(numbers["arrangements"]["12"]["E_1"]) == 1
    assert "Tammes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("counts=[12, 13]", "every one of counts must be of 4, 6, 12, 24, 32, for which the best is known, got 13"),
        ("shown=6", "shown must be one of counts 4, 12, got 6"),
        ("rate=0", "rate must be finite and above 0, got 0.0"),
        ("knobs=[.inf]", "every one of knobs must be finite"),
        ("seeds=[]", "seeds must name at least one"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: str, message: str) -> None:
    assert main(["study", "centres", "--miniature", "--out", str(tmp_path / "out"), "--set", changes]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lookalike study: {message}")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
