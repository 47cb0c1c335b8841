"""Radii, distances and gaps against values by hand and a slow reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lookalike_studies.ccp_geometry import measures as ccp_geometry_measures
from lookalike_studies.ccp_geometry.measures import Floats, Gap, Labels

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
