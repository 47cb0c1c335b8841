import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn

from lookalike import objectives
from lookalike.app import main
from lookalike.data.arrays import table_of_arrays
from lookalike.geometry import clip
from lookalike.objectives import PairObjective
from lookalike.report.look import style
from lookalike.studies import (
    ccp_geometry,
    ccp_geometry_claims,
    ccp_geometry_measures,
    ccp_geometry_plots,
    effects_plots,
)
from lookalike.studies.ccp_geometry_claims import Measured
from lookalike.studies.ccp_geometry_data import drawn_with_unseen_classes, sources, with_shared_classes
from lookalike.studies.ccp_geometry_measures import Floats, Gap, Labels
from lookalike.studies.ccp_geometry_plots import draw_gap, draw_plane, draw_problems, draw_unseen
from lookalike.studies.ccp_geometry_race import ALTERNATING, ONE, SAMPLES, Budget, Course, Part, Parts, map_at_r, solve

CLASSES, EACH = 4, 8


class Flat(nn.Module):
    """A linear map into the unit disc."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return clip(self.map(inputs))


def _part(seed: int) -> Part:
    chance = np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), EACH)
    means = np.random.default_rng(99).normal(size=(CLASSES, 3))
    points = means[labels] + 0.4 * chance.normal(size=(len(labels), 3))
    return Part(torch.from_numpy(points).float(), labels)


PARTS = Parts(_part(0), _part(1), _part(2))
BUDGET = Budget(
    steps=40,
    evaluate_every=2,
    rate=0.02,
    proxies=2,
    pool=4,
    pull=2e-4,
    patience=2,
    batch=8,
    per_class=2,
    weight_decay=0.0,
)


def _solve(kind: str, seed: int = 0) -> tuple[Course, nn.Module]:
    loss = objectives.create("c2", negative_margin=0.5, normalise=False)
    assert isinstance(loss, PairObjective)
    torch.manual_seed(seed)
    model = Flat()
    return solve(kind, model, loss, 2, PARTS, BUDGET, seed, lambda _: None), model


@pytest.fixture(scope="module")
def courses() -> dict[str, list[Course]]:
    return {kind: [_solve(kind)[0]] for kind in (ONE, ALTERNATING, SAMPLES)}


def test_one_problem_stays_and_alternating_ones_change(courses: dict[str, list[Course]]) -> None:
    (one,), (alternating,) = courses[ONE], courses[ALTERNATING]
    assert [each.number for each in one.snapshots] == [1]
    assert one.snapshots[0].following is None
    numbers = [each.number for each in alternating.snapshots]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 2
    for before, after in zip(alternating.snapshots, alternating.snapshots[1:], strict=False):
        assert np.array_equal(before.following, after.began)
        assert before.radius_after is not None
        assert before.radius_before is not None
        assert before.radius_after <= before.radius_before


def test_the_first_problem_is_the_same_until_it_ends(courses: dict[str, list[Course]]) -> None:
    end = courses[ALTERNATING][0].snapshots[0].step
    until = [row for row in courses[ALTERNATING][0].curve if row[0] <= end]
    assert until == [row for row in courses[ONE][0].curve if row[0] <= end]
    assert courses[ALTERNATING][0].curve != courses[ONE][0].curve


def test_every_problem_is_shown_at_its_best(courses: dict[str, list[Course]]) -> None:
    for (course,) in courses.values():
        start = -1
        for each in course.snapshots:
            own = [figure for step, figure in course.curve if start < step <= each.step]
            assert each.figure == max(own)
            assert each.figure == map_at_r(each.plane, PARTS.validation.labels)
            start = each.step
        assert max(figure for _, figure in course.curve) == map_at_r(course.validation, PARTS.validation.labels)


def test_the_model_ends_with_its_best_weights() -> None:
    course, model = _solve(ALTERNATING)
    with torch.no_grad():
        assert np.allclose(course.test, model(PARTS.test.inputs).numpy())
        assert np.allclose(course.validation, model(PARTS.validation.inputs).numpy())


def test_training_helps(courses: dict[str, list[Course]]) -> None:
    for (course,) in courses.values():
        assert max(figure for _, figure in course.curve) > course.curve[0][1] + 0.03


def test_a_course_survives_being_kept(courses: dict[str, list[Course]]) -> None:
    for (course,) in courses.values():
        kept = course.arrays()
        rest = {name: each for name, each in kept.items() if not isinstance(each, np.ndarray)}
        again = Course.of({**kept, **json.loads(json.dumps(rest))})
        assert again.curve == course.curve
        assert [each[:5] for each in again.snapshots] == [tuple(each[:5]) for each in course.snapshots]
        for one, other in zip(again.snapshots, course.snapshots, strict=True):
            for mine, theirs in zip(one[5:], other[5:], strict=True):
                assert (mine is None and theirs is None) or np.array_equal(mine, theirs)


VECTORS: Floats = np.array([[0, 0], [0.4, 0], [0, 1], [0.3, 1]], np.float32)
LABELS: Labels = np.array([0, 0, 1, 1])
ANCHORS: Floats = np.array([[[0.1, 0]], [[0.3, 1]]], np.float32)


def test_measures_by_hand() -> None:
    assert ccp_geometry_measures.radii(VECTORS, LABELS, ANCHORS) == pytest.approx([0.3, 0.3])
    # k = 1: the point nearest to the mean, so the other is 0.4 or 0.3 away; k = 2: 0
    assert ccp_geometry_measures.representative_radius(VECTORS, LABELS) == pytest.approx((0.2 + 0.15) / 2)
    assert ccp_geometry_measures.class_spread(VECTORS, LABELS) == pytest.approx(0.35)
    across = np.mean([np.hypot(0, 1), np.hypot(0.3, 1), np.hypot(0.4, 1), np.hypot(0.1, 1)])
    assert ccp_geometry_measures.inter_class_distance(VECTORS, LABELS) == pytest.approx(across)
    pairs = np.array([[[0, 0], [0, 2], [0, 4]], [[1, 1], [1, 1], [1, 1]]], np.float32)
    assert ccp_geometry_measures.spread(pairs) == pytest.approx((2 + 2 + 4) / 3 / 2)
    assert ccp_geometry_measures.spread(ANCHORS) == 0


def _slow_gap(vectors: Floats, labels: Labels, anchors: Floats, margins: tuple[float, float]) -> Gap:
    def loss(one: Floats, first: int, other: Floats, second: int) -> float:
        distance = float(np.linalg.norm(one - other))
        return max(0.0, distance - margins[0] if first == second else margins[1] - distance)

    def mean_of(one: Floats, first: int) -> float:
        return sum(loss(one, first, v, y) for v, y in zip(vectors, labels, strict=True)) / len(vectors)

    everything = np.mean([mean_of(v, y) for v, y in zip(vectors, labels, strict=True)])
    flat = [(a, label) for label, own in enumerate(anchors) for a in own]
    counts, radius = np.zeros(len(flat)), 0.0
    for v, y in zip(vectors, labels, strict=True):
        far = [float(np.linalg.norm(v - a)) if label == y else np.inf for a, label in flat]
        counts[int(np.argmin(far))] += 1
        radius = max(radius, min(far))
    means = np.array([mean_of(a, label) for a, label in flat])
    return Gap(radius, abs(everything - means.mean()), abs(everything - (counts / len(vectors) * means).sum()))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 3), st.floats(0, 0.3), st.floats(0.4, 1.5))
def test_gap_and_its_bound(seed: int, count: int, positive: float, negative: float) -> None:
    chance = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), 5)
    vectors = chance.uniform(-1, 1, (15, 2)).astype(np.float32)
    sets = [chance.uniform(-1, 1, (3, each, 2)).astype(np.float32) for each in (count, 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ccp_geometry_measures, "CHUNK", 4)
        found = ccp_geometry_measures.gaps(vectors, labels, sets, (positive, negative))
    for each, anchors in zip(found, sets, strict=True):
        assert each == pytest.approx(_slow_gap(vectors, labels, anchors, (positive, negative)), abs=1e-6)
        assert each.weighted <= each.radius + 1e-9


def test_the_printed_gap_may_exceed_the_radius() -> None:
    """Nine pictures in one place and one elsewhere, both of them anchors: covered exactly, but not alike."""
    vectors = np.array([[0.0, 0.0]] * 9 + [[1.0, 0.0]] + [[0.0, 1.0]] * 10, np.float32)
    labels = np.repeat([0, 1], 10)
    anchors = np.array([[[0, 0], [1, 0]], [[0, 1], [0, 1]]], np.float32)
    (found,) = ccp_geometry_measures.gaps(vectors, labels, [anchors], (0.0, 0.5))
    assert found.radius == 0
    assert found.weighted == pytest.approx(0, abs=1e-12)
    assert found.printed == pytest.approx((1 / 20 + 9 / 20) / 4 - 18 / 400)  # among anchors the one counts for half


def test_anchor_sets_are_pictures_and_cover_more_and_more() -> None:
    vectors, labels = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32), np.repeat(np.arange(4), 10)
    found = ccp_geometry_measures.anchor_sets(vectors, labels, (1, 2, 4, 11), 0)
    for sets in found.values():
        assert [each.shape for each in sets] == [(4, 1, 2), (4, 2, 2), (4, 4, 2)]
        for each in sets:
            for label in range(4):
                own = vectors[labels == label]
                assert all((own == anchor).all(1).any() for anchor in each[label])
    covered = [ccp_geometry_measures.radii(vectors, labels, each).max() for each in found["k-centre"]]
    assert covered == sorted(covered, reverse=True)
    assert ccp_geometry_measures.anchor_sets(vectors, labels, (11,), 0) == {"k-centre": [], "random": []}


def _digits(tmp_path: Path) -> tuple[np.ndarray, np.ndarray, Path]:
    labels = np.tile(np.arange(10), 12)
    pixels = np.arange(120, dtype=np.uint8)[:, None, None].repeat(28, 1).repeat(28, 2)
    return pixels, labels, tmp_path


def test_parts_share_classes_but_no_picture(tmp_path: Path) -> None:
    pixels, labels, root = _digits(tmp_path)
    table = table_of_arrays(
        "mnist",
        root,
        tuple("0123456789"),
        {"train": (pixels[:100], labels[:100]), "test": (pixels[100:], labels[100:])},
    )
    parts, names = with_shared_classes(table, 3, train=6, validation=2, test=1)
    assert names == list("0123456789")
    assert [np.bincount(part.labels).tolist() for part in parts] == [[6] * 10, [2] * 10, [1] * 10]
    seen = [{int(value) for value in part.inputs[:, 0, 0, 0]} for part in parts]
    assert [len(each) for each in seen] == [60, 20, 10]
    assert len(set.union(*seen)) == 90
    assert max(seen[2]) >= 100 > max(seen[0] | seen[1])
    assert all(
        int(value) % 10 == label
        for value, label in zip(parts.train.inputs[:, 0, 0, 0], parts.train.labels, strict=True)
    )
    with pytest.raises(ValueError, match=r"validation.*must be less than the 10 training pictures .* '0', got 10"):
        with_shared_classes(table, 3, train=6, validation=10, test=1)


def test_drawn_parts() -> None:
    parts, names = with_shared_classes(None, 3, train=4, validation=2, test=2)
    assert len(names) == 3
    assert [np.bincount(part.labels).tolist() for part in parts] == [[4] * 3, [2] * 3, [2] * 3]
    assert parts.train.inputs.shape == (12, 3, 32, 32)
    unseen = drawn_with_unseen_classes(6, 3)
    assert [len(np.unique(part.labels)) for part in unseen] == [4, 2, 2]


def test_sources_are_one_of_each_kind(tmp_path: Path) -> None:
    assert sources(None) == (None, None)
    drawn = "glyphs(cells=1, size=32, train_classes=4, test_classes=2, per_class=2)"
    shared, unseen = sources(drawn)
    assert shared is None
    assert unseen is not None
    assert len(unseen) == 12
    with pytest.raises(ValueError, match="one too many"):
        sources(f"{drawn}, {drawn}")
    with pytest.raises(ValueError, match="no folder"):
        sources(f"mnist:{tmp_path / 'nowhere'}")


def _folder(root: Path, **classes: str) -> Path:
    """Two pictures of every class, a letter, in each split."""
    for split, letters in classes.items():
        for letter in letters:
            (root / split / letter).mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (8, 8)).save(root / split / letter / f"{number}.png")
    return root


def test_classes_decide_what_a_folder_is_for(tmp_path: Path) -> None:
    same = _folder(tmp_path / "same", train="abc", test="abc")
    apart = _folder(tmp_path / "apart", train="abc", test="de")
    untested = _folder(tmp_path / "untested", train="abc")
    found = [tuple(each is not None for each in sources(str(folder))) for folder in (same, apart, untested)]
    assert found == [(True, False), (False, True), (False, True)]  # the disc, or unseen classes
    assert all(sources(f"{apart}, {same}"))
    with pytest.raises(ValueError, match="same is one too many"):
        sources(f"{same}, {same}")


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"train": "abc", "test": "bcd"}, "folder pictures: 2 of 4 classes are both in train and in test; the disc"),
        ({"train": "abc", "test": "bc"}, "folder pictures: 2 of 3 classes are both in train and in test; the disc"),
        ({"test": "abc"}, "folder pictures has no split 'train'"),
    ],
)
def test_mixed_classes_are_one_line_before_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], classes: dict[str, str], message: str
) -> None:
    folder, out = _folder(tmp_path / "pictures", **classes), tmp_path / "out"
    assert main(["study", "ccp-geometry", "--miniature", "--data", str(folder), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lookalike study: {message}")
    assert said.count("\n") == 1
    assert not out.exists()


def _measured(
    figure: float, radius: float = 0.3, own: float = 0.1, distance: float = 1.0, spread: float = 0.5
) -> Measured:
    return Measured(figure, radius, own, distance, spread)


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
    told = ccp_geometry_claims.collapse_claim({ONE: [_measured(0.9, spread=share) for share in shares]})
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
    measured = {ONE: [_measured(0.9, own=0.11)] * 2, ALTERNATING: [_measured(figure, radius) for figure in figures]}
    assert ccp_geometry_claims.alternating_claim(measured, "digits").verdict == verdict


def test_a_disc_that_shrinks_has_no_smaller_radius() -> None:
    def shrunk(by: float) -> str:
        after = [_measured(0.95, 0.3 * by, 0.1 * by, by)] * 2
        claim = ccp_geometry_claims.alternating_claim({ONE: [_measured(0.9)] * 2, ALTERNATING: after}, "digits")
        assert "against the distance between classes 0.300 and 0.300" in claim.here
        return claim.verdict

    assert shrunk(0.1) == shrunk(2.0) == "partly"


def test_what_is_contradicted_is_told() -> None:
    measured = {ONE: [_measured(0.9)] * 2, ALTERNATING: [_measured(0.95, 0.4)] * 2}
    told = "; contradicted: the radius falls against the distance between classes"
    assert ccp_geometry_claims.alternating_claim(measured, "d").here.endswith(told)
    measured[ALTERNATING] = [_measured(0.95, own=0.2)] * 2
    assert ccp_geometry_claims.unseen_claim(measured, {ONE: [0.2], ALTERNATING: [0.3]}, "d").here.endswith(told)


def test_a_radius_or_distance_too_coarse_to_tell_leaves_a_claim_open() -> None:
    """MAP@R surely rises: were noise no difference, both claims would be "partly"."""
    one, test = [_measured(0.9)] * 2, {ONE: [0.2], ALTERNATING: [0.3]}
    coarse = {ONE: one, ALTERNATING: [_measured(0.95, radius) for radius in (0.25, 0.33)]}
    assert ccp_geometry_claims.alternating_claim(coarse, "d").verdict == "not tested"
    for after in ([_measured(0.95, own=own) for own in (0.05, 0.13)], [_measured(0.95, distance=d) for d in (1, 1.1)]):
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
            [_measured(*(np.array([figure, 0.5, 0.5, 1.0]) + noise * chance.standard_normal(4))) for _ in range(2)]
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
    measured = {ALTERNATING: [*map(_measured, proxies)], SAMPLES: [*map(_measured, samples)]}
    assert ccp_geometry_claims.samples_claim(measured, "digits").verdict == verdict


def test_one_seed_tests_nothing() -> None:
    measured = {ONE: [_measured(0.8)], ALTERNATING: [_measured(0.9, 0.2)], SAMPLES: [_measured(0.91)]}
    told = ccp_geometry_claims.alternating_claim(measured, "digits")
    assert told.verdict == "not tested"
    assert "one seed" in told.here
    test = {ONE: [0.2], ALTERNATING: [0.3]}
    assert ccp_geometry_claims.unseen_claim(measured, test, "birds").verdict == "not tested"


def test_the_same_weights_test_nothing() -> None:
    same = {ONE: [_measured(0.8), _measured(0.9)], ALTERNATING: [_measured(0.8, float("nan")), _measured(0.9)]}
    assert ccp_geometry_claims.alternating_claim(same, "digits").verdict == "not tested"
    test = {ONE: [0.2], ALTERNATING: [0.2]}
    assert ccp_geometry_claims.unseen_claim(same, test, "birds").verdict == "not tested"


RADII = (0.1, 0.2, 0.3, 0.4, 0.5)
RISING, FALLING, MIXED = (0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (1, 2, 0, 4, 3)  # ranks; the last go with the radius by 0.6
WEAK, NONE = (0, 4, 2, 1, 3), (3, 0, 2, 4, 1)  # by 0.3 and -0.1


def _gaps(*orders: tuple[int, ...], weighted: float = 0.5) -> list[list[Gap]]:
    """For each seed, of five sets of anchors."""
    return [[Gap(r, 0.01 * rank, weighted * r) for r, rank in zip(RADII, each, strict=True)] for each in orders]


def _proposition(
    gaps: ccp_geometry_claims.Gaps, figures: tuple[float, ...] = (0.8, 0.8), classes: int = 10
) -> tuple[str, str]:
    measured = {kind: [*map(_measured, figures)] for kind in (ONE, ALTERNATING)}
    told = ccp_geometry_claims.proposition_claim(gaps, measured, classes)
    return told.verdict, told.here


@pytest.mark.parametrize(
    ("orders", "verdict"),
    [
        ((RISING, RISING), "reproduced"),
        ((RISING, RISING, MIXED), "reproduced"),
        ((WEAK, WEAK), "partly"),
        ((NONE, NONE), "not reproduced"),
        ((FALLING, FALLING), "not reproduced"),  # the theorem holds all the same
        ((RISING, NONE), "not tested"),  # too coarse: 0.5 may be there
        ((RISING, FALLING, MIXED), "not tested"),
        ((RISING,), "not tested"),
        ((RISING[:2], RISING[:2]), "not tested"),
    ],
)
def test_verdict_on_the_proposition(orders: tuple[tuple[int, ...], ...], verdict: str) -> None:
    gaps = [[Gap(RADII[i], 0.01 * rank, 0.0) for i, rank in enumerate(each)] for each in orders]
    assert _proposition({("random", ONE): gaps})[0] == verdict


def test_a_seed_has_one_figure_of_the_proposition_however_many_sets() -> None:
    """Twenty nested sets of one seed's vectors are no twenty findings, and ways of choosing them do not mix."""
    many = [[Gap(r, r / 2, 0.0) for r in np.linspace(0.1, 0.5, 20).tolist()]]
    assert _proposition({("random", ONE): many, ("k-centre", ONE): many})[0] == "not tested"
    low, high = (
        _gaps(FALLING, FALLING),
        [[g._replace(radius=g.radius + 1, printed=g.printed + 1) for g in sets] for sets in _gaps(FALLING, FALLING)],
    )
    verdict, here = _proposition({("random", ONE): low, ("k-centre", ONE): high})  # together they rise
    assert verdict == "not reproduced"
    assert "rank correlation of printed gap and radius -1.00 ± 0.00, 2 seeds" in here
    verdict, here = _proposition({("random", ONE): _gaps(RISING, RISING), ("k-centre", ALTERNATING): low})
    assert verdict == "not reproduced"
    assert "0.00 ± 0.00, 2 seeds (random, one problem 1.00; k-centre, alternating -1.00)" in here


def test_the_proposition_needs_the_theorem_and_training() -> None:
    rising: ccp_geometry_claims.Gaps = {("random", ONE): _gaps(RISING, RISING)}
    assert _proposition(rising)[0] == "reproduced"
    verdict, here = _proposition(rising, (0.8, 0.2))
    assert verdict == "not tested"
    assert here.endswith("; a run has a MAP@R of 20.0%, less than 55%: more steps are needed")
    assert _proposition(rising, (0.8, np.nan))[0] == "not tested"
    assert _proposition(rising, (0.7, 0.7), classes=2)[0] == "not tested"  # half of that is chance
    broken: ccp_geometry_claims.Gaps = {("random", ONE): _gaps(RISING, RISING, weighted=1.1)}
    verdict, here = _proposition(broken)
    assert verdict == "not reproduced"
    assert here.startswith("0 of 10 sets of anchors have a weighted gap of at most the radius")
    unknown: ccp_geometry_claims.Gaps = {("random", ONE): [[*_gaps(RISING)[0], Gap(0.1, float("nan"), 0.0)]] * 2}
    assert _proposition(unknown)[0] == "not tested"


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
    after = [_measured(figure, own=own, distance=distance)] * 2
    test = {ONE: [0.2], ALTERNATING: [0.3]}
    told = ccp_geometry_claims.unseen_claim({ONE: [_measured(0.2)] * 2, ALTERNATING: after}, test, "birds")
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


def test_figures_have_all_that_there_is(courses: dict[str, list[Course]]) -> None:
    labels, names = PARTS.validation.labels, list("abcd")
    shown = draw_plane(courses, labels, names, BUDGET.proxies)
    assert sum(bool(axis.get_title()) for axis in shown.axes) == 1 + min(5, len(courses[ALTERNATING][0].snapshots))
    curves, cover, pool = draw_problems(courses, labels, BUDGET.proxies).axes
    assert len(cover.get_lines()) == 3
    assert len(pool.get_lines()) == 4
    assert curves.get_xlabel() == "steps"
    gaps = ccp_geometry.all_gaps(courses, PARTS, ccp_geometry.STUDY.chosen("miniature"))
    assert [len(gaps["proxies", kind][0]) for kind in (ONE, ALTERNATING)] == [
        *(1, len(courses[ALTERNATING][0].snapshots))
    ]
    assert draw_gap(gaps).axes[0].get_ylabel() == "loss gap"
    measured = {kind: [_measured(0.5)] for kind in (ONE, ALTERNATING)}
    unseen = draw_unseen({kind: courses[kind] for kind in measured}, labels, measured)
    assert "MAP@R 50.0" in unseen.axes[1].get_title()


def test_gaps_are_of_every_seed(courses: dict[str, list[Course]]) -> None:
    settings = ccp_geometry.STUDY.chosen("miniature", {"seeds": [0, 1]})
    both = {kind: [courses[kind][0], _solve(kind, seed=1)[0]] for kind in (ONE, ALTERNATING)}
    gaps = ccp_geometry.all_gaps(both, PARTS, settings)
    assert set(gaps) == {(way, kind) for way in ("k-centre", "random", "proxies") for kind in (ONE, ALTERNATING)}
    for (way, kind), runs in gaps.items():
        counts = [len(run.snapshots) if way == "proxies" else 4 for run in both[kind]]  # 1, 2, 4 and 8 anchors
        assert [len(sets) for sets in runs] == counts


def test_colours_of_kinds_are_those_of_effects(courses: dict[str, list[Course]]) -> None:
    colours = [ccp_geometry_plots.STYLES[kind].colour for kind in (ONE, ALTERNATING, SAMPLES)]
    assert colours == ["#F0E442", "#009E73", "#CC79A7"]
    assert colours[1] == effects_plots.OF_METHODS["ccp"]
    assert len({ccp_geometry_plots.STYLES[kind].marker for kind in courses}) == 3
    _, cover, _ = draw_problems(courses, PARTS.validation.labels, BUDGET.proxies).axes
    used = {line.get_markerfacecolor() for line in cover.get_lines()} | {line.get_color() for line in cover.get_lines()}
    assert used == {*colours, "#8a6d00"}  # the line of the yellow markers
    assert not used & {style(name).colour for name in ("gsp", "attention", "average")}


@pytest.mark.parametrize("widest", [0.4, 0.9, 30.0])
def test_ticks_of_the_gap_are_few_and_plain(widest: float) -> None:
    drawn = draw_gap({("random", ONE): [[Gap(0.3, 0.02, 0.002), Gap(widest, 0.3, 0.2)]]})
    drawn.draw_without_rendering()
    for panel in drawn.axes:
        low, high = panel.get_xlim()
        told = [each.get_text() for each in panel.get_xticklabels() if low <= each.get_position()[0] <= high]
        assert 1 <= len(told) <= 6
        assert all(float(each) in (0.1, 0.2, 0.5, 1, 2, 5, 10) for each in told)
        assert not [each.get_text() for each in panel.get_xticklabels(minor=True) if each.get_text()]


def test_as_it_is_typed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    argv = ["study", "ccp-geometry", "--miniature", "--out", str(out)]
    assert main([*argv, "--set", "rates=0.003, letters=4, batch=8, per_class=2"]) == 0
    for name in ("plane", "problems", "gap", "unseen"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in (out / f"{name}.svg").read_bytes()
    numbers = json.loads((out / "numbers.json").read_text())
    assert len(numbers["claims"]) == 6
    assert numbers["rate"] == 0.003
    assert set(numbers["unseen"][ONE][0]) == {"figure", "own_radius", "distance"}
    assert set(numbers["plane"]) == {ONE, ALTERNATING, SAMPLES}
    assert "mnist" in (out / "index.html").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("pool=3", "pool must be at least 4, got 3"),
        ("batch=30", "batch must be a multiple of per_class 4, got 30"),
        ("letters=7", "letters must be at least 8, got 7"),
        ("unseen_letters=9", "unseen_letters must be at least 12, got 9"),
        ("margins=[0.1]", "margins must be two numbers"),
        ("rates=[]", "rates must not be empty"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: str, message: str) -> None:
    assert main(["study", "ccp-geometry", "--miniature", "--out", str(tmp_path / "out"), "--set", changes]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lookalike study: {message}")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
