"""Greedy k-centre, covering radius and hulls against plain loops, exhaustive search and scipy."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lookalike.geometry import convex_hull, covering_radius, greedy_k_centre, hull_intersection, polygon_area


def plain_loops(points: list[list[float]], k: int, chosen: list[list[float]]) -> tuple[list[int], list[float]]:
    def distance(a: list[float], b: list[float]) -> float:
        return sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5

    indices: list[int] = []
    radii: list[float] = []
    for _ in range(k):
        centres = chosen + [points[index] for index in indices]
        free = [index for index in range(len(points)) if index not in indices]
        if centres:
            best = max(free, key=lambda index: (min(distance(points[index], c) for c in centres), -index))
        else:
            mean = [sum(column) / len(points) for column in zip(*points, strict=True)]
            best = min(free, key=lambda index: (distance(points[index], mean), index))
        indices.append(best)
        centres = chosen + [points[index] for index in indices]
        radii.append(max(min(distance(point, c) for c in centres) for point in points))
    return indices, radii


@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 4), st.integers(0, 3), st.data())
@settings(max_examples=100, deadline=None)
def test_against_plain_loops(seed: int, n: int, dim: int, already: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(2, n, dim, generator=generator, dtype=torch.float64)
    chosen = torch.randn(2, already, dim, generator=generator, dtype=torch.float64) if already else None
    got = greedy_k_centre(points, k, chosen)
    for bag in range(2):
        before = [] if chosen is None else chosen[bag].tolist()
        indices, radii = plain_loops(points[bag].tolist(), k, before)
        assert got.indices[bag].tolist() == indices
        assert got.radii[bag].tolist() == pytest.approx(radii, abs=1e-12)
        centres = points[bag, indices] if chosen is None else torch.cat((chosen[bag], points[bag, indices]))
        assert covering_radius(points[bag], centres).item() == pytest.approx(radii[-1], abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_at_most_twice_the_best_radius(seed: int) -> None:
    points = torch.randn(9, 2, generator=torch.Generator().manual_seed(seed))
    best = min(covering_radius(points, points[list(some)]).item() for some in combinations(range(9), 3))
    assert best <= greedy_k_centre(points, 3).radii[-1].item() <= 2 * best


def test_ties_and_duplicates_are_taken_in_order_without_repetition() -> None:
    same = torch.ones(5, 2)
    assert greedy_k_centre(same, 5).indices.tolist() == [0, 1, 2, 3, 4]
    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert greedy_k_centre(square, 4).indices.tolist() == [0, 3, 1, 2]
    assert greedy_k_centre(square, 4).radii[-1] == 0


POINTS = torch.randn(4, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((POINTS, 5), ValueError, "k must be at most the number of points, 4, got 5"),
        ((POINTS, 0), ValueError, "k must be at least 1, got 0"),
        ((POINTS, 1.5), TypeError, "k must be a whole number"),
        ((POINTS.long(), 1), TypeError, "floating point"),
        ((POINTS[0], 1), ValueError, "points must have the shape"),
        ((POINTS, 1, torch.randn(1, 3)), ValueError, "chosen must match points"),
    ],
)
def test_bad_input_is_refused(arguments: tuple[Tensor, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        greedy_k_centre(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="centres must have 2 dimensions"):
        covering_radius(POINTS, torch.randn(1, 3))


@given(st.integers(0, 2**31), st.integers(3, 60), st.integers(-3, 3))
@settings(max_examples=60, deadline=None)
def test_hull_against_scipy(seed: int, n: int, scale: int) -> None:
    from scipy.spatial import ConvexHull

    points = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 10.0**scale
    hull, reference = convex_hull(points), ConvexHull(points.numpy())
    assert sorted(map(tuple, hull.tolist())) == sorted(map(tuple, points[reference.vertices].tolist()))
    assert polygon_area(hull) == pytest.approx(reference.volume, rel=1e-9)  # the volume of a plane hull is its area


def test_hull_of_points_without_an_inside() -> None:
    assert convex_hull(torch.ones(4, 2)).tolist() == [[1, 1]]
    on_a_line = torch.tensor([[1.0, 2.0], [3.0, 6.0], [0.0, 0.0], [2.0, 4.0]])
    assert convex_hull(on_a_line).tolist() == [[0, 0], [3, 6]]
    assert polygon_area(convex_hull(on_a_line)) == 0
    square = convex_hull(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.0], [1.0, 1.0], [0.0, 1.0], [0.4, 0.6]]))
    assert square.tolist() == [[0, 0], [1, 0], [1, 1], [0, 1]]
    assert len(hull_intersection(square, convex_hull(on_a_line))) == 0


def test_a_small_polygon_far_away_keeps_its_area() -> None:
    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    assert polygon_area(square * 2.0**-10 + 2.0**20) == 2.0**-20


@given(st.integers(0, 2**31), st.floats(0, 3))
@settings(max_examples=30, deadline=None)
def test_intersection_holds_what_both_hulls_hold(seed: int, apart: float) -> None:
    """Against a count of points on a fine grid that lie in both, by half planes."""
    generator = torch.Generator().manual_seed(seed)
    one = convex_hull(torch.rand(8, 2, generator=generator, dtype=torch.float64))
    shift = torch.tensor([apart, apart / 2], dtype=torch.float64)
    other = convex_hull(torch.rand(8, 2, generator=generator, dtype=torch.float64) + shift)
    side = (np.arange(400) + 0.5) / 400
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    inside = np.ones(len(grid), dtype=bool)
    for corners in (one.numpy(), other.numpy()):
        for a, b in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            inside &= (b[0] - a[0]) * (grid[:, 1] - a[1]) - (b[1] - a[1]) * (grid[:, 0] - a[0]) >= 0
    common = polygon_area(hull_intersection(one, other))
    assert common == pytest.approx(inside.mean(), abs=4e-3)
    assert common == pytest.approx(polygon_area(hull_intersection(other, one)), abs=1e-12)


def test_intersections_by_hand() -> None:
    square = convex_hull(torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0]]))
    assert polygon_area(hull_intersection(square, square)) == 4
    assert polygon_area(hull_intersection(square, square + 1)) == 1
    assert polygon_area(hull_intersection(square, square / 2)) == 1  # one inside the other
    assert polygon_area(hull_intersection(square, square + 2)) == 0  # a common corner
    assert polygon_area(hull_intersection(square, square + 5)) == 0
    with pytest.raises(ValueError, match=r"points must have the shape \(n, 2\)"):
        convex_hull(torch.randn(4, 3))
