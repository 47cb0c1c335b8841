"""Greedy k-centre, and covering radius against plain loops and exhaustive search."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lookalike.geometry import covering_radius, greedy_k_centre


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
        if already or n != 2:
            assert got.indices[bag].tolist() == indices
        else:  # two points are equally far from their mean: rounding decides which is the first
            assert len(set(got.indices[bag].tolist())) == k
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
