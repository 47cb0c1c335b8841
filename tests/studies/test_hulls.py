"""Convex hulls in the plane: areas and intersections."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lookalike_studies.framework.hulls import convex_hull, hull_intersection, polygon_area


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
