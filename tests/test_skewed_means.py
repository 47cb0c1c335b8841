"""Skewed means against many digits, plain loops and scipy; over pairs against plain loops, in tiles and at once."""

from itertools import combinations, pairwise
from math import inf, log, nan

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lookalike.skewed_means import (
    CLOSEST,
    SkewedMean,
    distances,
    k_skewed_mean,
    log_exp_mean,
    mean_over_others,
    mean_over_pairs,
    power_mean,
    similarities,
)

DOUBLE = torch.float64
KNOBS = [
    -inf,
    -1e6,
    -1e4,
    -30.0,
    -2.0,
    -1.0,
    -1e-3,
    -1e-9,
    -1e-20,
    0.0,
    1e-40,
    1e-12,
    1e-4,
    0.5,
    1.0,
    2.0,
    50.0,
    1e5,
    inf,
]
numbers = st.lists(st.floats(0.01, 10), min_size=1, max_size=8)


def many_digits(values: list[float], knob: float, logarithmic: bool) -> float:
    """The definitions as they stand, in 400 digits: knobs of 1e-40 leave the quotient enough of them."""
    if knob in (inf, -inf):
        return max(values) if knob > 0 else min(values)
    with mpmath.workdps(400):
        exact = [mpmath.mpf(value) for value in values]
        if knob == 0:
            mean = mpmath.fsum(map(mpmath.log, exact) if logarithmic else exact) / len(exact)
            return float(mpmath.exp(mean) if logarithmic else mean)
        terms = [value ** mpmath.mpf(knob) if logarithmic else mpmath.exp(knob * value) for value in exact]
        mean = mpmath.log(mpmath.fsum(terms) / len(exact)) / mpmath.mpf(knob)
        return float(mpmath.exp(mean) if logarithmic else mean)


@pytest.mark.parametrize("knob", KNOBS)
@pytest.mark.parametrize("mean", [log_exp_mean, power_mean])
@pytest.mark.parametrize(("dtype", "tolerance"), [(DOUBLE, 4e-15), (torch.float32, 1e-6)])
def test_every_knob_to_rounding(mean, knob, dtype, tolerance):
    values = torch.rand(3, 7, generator=torch.Generator().manual_seed(0)) + 0.3
    values[1] *= 1e-4
    values[2, 2:] = values[2, 2]
    expected = [many_digits(row, knob, mean is power_mean) for row in values.tolist()]
    actual = mean(values.to(dtype), knob)
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual.tolist(), expected, rtol=tolerance)


def test_special_power_means():
    values = torch.rand(20, generator=torch.Generator().manual_seed(1), dtype=DOUBLE) + 0.1
    assert power_mean(values, -1).item() == pytest.approx(scipy.stats.hmean(values), rel=1e-14)
    assert power_mean(values, 0).item() == pytest.approx(scipy.stats.gmean(values), rel=1e-14)
    assert power_mean(values, 1) == values.mean()
    for knob in (-7.5, -1, 0.3, 2, 11):
        assert power_mean(values, knob).item() == pytest.approx(scipy.stats.pmean(values, knob), rel=1e-14)
    assert log_exp_mean(values, 0) == values.mean()
    assert log_exp_mean(torch.tensor([0.0, 1.0]), 1).item() == pytest.approx(log((1 + np.e) / 2))


def test_slope_at_zero():
    """mean + knob/2 variance: neither the sum nor the quotient may lose the second term."""
    values = torch.tensor([1.0, 2.0, 4.0], dtype=DOUBLE)
    for knob in (1e-7, -1e-7):
        slope = (log_exp_mean(values, knob) - values.mean()) / knob
        assert slope.item() == pytest.approx(values.var(correction=0).item() / 2, rel=1e-6)


@given(numbers, st.lists(st.floats(-1e5, 1e5) | st.sampled_from(KNOBS), min_size=2, max_size=6))
@settings(max_examples=60, deadline=None)
def test_rise_with_the_knob_between_minimum_and_maximum(values, knobs):
    points = torch.tensor(values, dtype=DOUBLE)
    for mean in (log_exp_mean, power_mean):
        means = [mean(points, knob).item() for knob in sorted([-inf, *knobs, inf])]
        assert (means[0], means[-1]) == (min(values), max(values))
        assert all(left <= right + 1e-13 * right for left, right in pairwise(means))


@given(numbers, st.data())
@settings(max_examples=40, deadline=None)
def test_k_skewed(values, data):
    k = data.draw(st.integers(1, len(values)))
    points = torch.tensor(values, dtype=DOUBLE)
    assert k_skewed_mean(points, k).item() == pytest.approx(sum(sorted(values)[-k:]) / k)
    assert k_skewed_mean(points, -k).item() == pytest.approx(sum(sorted(values)[:k]) / k)
    falling = [k_skewed_mean(points, k).item() for k in range(1, len(values) + 1)]
    assert falling == pytest.approx(sorted(falling, reverse=True))
    assert (falling[0], falling[-1]) == (max(values), pytest.approx(np.mean(values)))


MEANS = [
    *(SkewedMean("power", knob) for knob in (-inf, -2, 0, 0.5, 1, 3, inf)),
    *(SkewedMean("log-exp", knob) for knob in (-inf, -3, 0, 1e-8, 4, inf)),
    *(SkewedMean("k", knob) for knob in (-3, 2)),
]


@pytest.mark.parametrize("mean", MEANS, ids=str)
def test_gradients(mean):
    values = torch.rand(3, 5, generator=torch.Generator().manual_seed(2), dtype=DOUBLE) + 0.2
    mask = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    values.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: mean(x, 0), values)
    assert torch.autograd.gradcheck(lambda x: mean(x, weights=mask), values)
    assert torch.autograd.gradgradcheck(lambda x: mean(x, weights=mask), values)
    (gradient,) = torch.autograd.grad(mean(values, weights=mask).sum(), values)
    assert (gradient[~mask] == 0).all()


@pytest.mark.parametrize("mean", MEANS, ids=str)
def test_masks_leave_out_whatever_there_is(mean):
    values = torch.tensor([[3.0, 1.0, nan], [-inf, 1.0, 3.0], [nan, nan, inf]], requires_grad=True)
    mask = torch.tensor([[True, True, False], [False, True, True], [False, False, False]])
    means = mean(values, weights=mask)
    bare = mean if mean.kind != "k" else SkewedMean("k", max(-2, mean.knob))
    assert means.tolist() == pytest.approx([*[bare(torch.tensor([3.0, 1.0])).item()] * 2, 0])
    means.sum().backward()
    assert values.grad.isfinite().all()
    assert (values.grad[~mask] == 0).all()


@pytest.mark.parametrize("knob", KNOBS)
@pytest.mark.parametrize("mean", [log_exp_mean, power_mean])
def test_weights_count_repetitions_and_parts_have_the_mean_of_the_whole(mean, knob):
    values = torch.rand(9, generator=torch.Generator().manual_seed(3), dtype=DOUBLE) + 0.1
    times = torch.tensor([1, 2, 3, 1, 0, 5, 1, 1, 2])
    whole = mean(values.repeat_interleave(times), knob)
    torch.testing.assert_close(mean(values, knob, weights=times), whole, rtol=1e-14, atol=0)
    parts = torch.stack([mean(part, knob) for part in values.repeat_interleave(times).split([3, 1, 12])])
    torch.testing.assert_close(mean(parts, knob, weights=torch.tensor([3, 1, 12])), whole, rtol=1e-14, atol=0)


def test_one_among_very_many():
    """1 - 1e-9 is 1 in fp32, and its logarithm would be gone."""
    value = log_exp_mean(torch.tensor([1.0, 0.0]), 1e3, weights=torch.tensor([1.0, 1e9]))
    assert value.item() == pytest.approx(1 - log(1e9) / 1e3, rel=1e-6)


@pytest.mark.parametrize("knob", KNOBS)
def test_zeros_among_the_values_of_a_power_mean(knob):
    values = torch.tensor([0.0, 2.0, 0.0, 1.0], requires_grad=True)
    mean = power_mean(values, knob)
    mean.backward()
    assert values.grad.isfinite().all()
    if knob <= 0:
        assert mean == 0
    elif knob < 1e-3:
        assert mean < 1e-30  # 0.5^(1/knob)
    else:
        assert mean.item() == pytest.approx(many_digits([0, 2, 0, 1], knob, True), rel=1e-5)
    assert power_mean(torch.zeros(3), knob) == 0
    if knob == 1:
        assert values.grad.tolist() == [0.25] * 4


@pytest.mark.parametrize("knob", KNOBS)
@pytest.mark.parametrize("mean", [log_exp_mean, power_mean])
def test_equal_values_share_the_gradient(mean, knob):
    values = torch.full((4,), 0.7, requires_grad=True)
    mean(values, knob).backward()
    assert values.grad.tolist() == pytest.approx([0.25] * 4, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype):
    values = torch.rand(1000, generator=torch.Generator().manual_seed(4)).to(dtype) + 0.5
    for mean in (SkewedMean("power", -40), SkewedMean("log-exp", 40), SkewedMean("k", 3)):
        assert mean(values).dtype == torch.float32
        assert mean(values) == mean(values.float())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: SkewedMean("median"), ValueError, "kind must be one of power, log-exp, k, got 'median'"),
        (lambda: SkewedMean("k", 0.5), ValueError, "must be a whole number other than 0, got 0.5"),
        (lambda: SkewedMean("k", inf), ValueError, "must be a whole number other than 0, got inf"),
        (lambda: SkewedMean("power", nan), ValueError, "the knob must be a number or -inf or inf, got nan"),
        (lambda: log_exp_mean(torch.ones(3), "1"), TypeError, "the knob must be a number, got '1'"),
        (lambda: log_exp_mean(torch.ones(3, dtype=int), 1), TypeError, "floating point tensor, got torch.int64"),
        (lambda: power_mean(torch.ones(2, 0), 1), ValueError, r"at least one value along dimension -1, got .*\(2, 0\)"),
        (lambda: power_mean(torch.tensor([1.0, -1.0]), 2), ValueError, "at least 0, got a negative one"),
        (lambda: k_skewed_mean(torch.ones(3), 4), ValueError, r"k must lie in -3..-1 or 1..3 for 3 values, got 4"),
        (lambda: k_skewed_mean(torch.ones(3), 0), ValueError, "got 0"),
        (lambda: k_skewed_mean(torch.ones(3), 1.0), TypeError, "k must be a whole number, got 1.0"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def random_points(count: int = 9, dim: int = 4, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(5), dtype=dtype)


@pytest.mark.parametrize("at_once", [1, 4, 1000])
@pytest.mark.parametrize("mean", MEANS, ids=str)
def test_pairs_in_tiles_and_at_once_are_plain_loops(mean, at_once):
    present = torch.tensor([1, 1, 0, 1, 1, 1, 0, 1, 1]).bool()
    for chosen, mask in ((range(9), None), ([0, 1, 3, 4, 5, 7, 8], present)):
        points = random_points().requires_grad_()
        plain = torch.stack([(points[i] - points[j]).norm() for i, j in combinations(chosen, 2)])
        expected = mean(plain)
        actual = mean_over_pairs(points, distances, mean, present=mask, at_once=at_once)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
        gradients = [torch.autograd.grad(value, points)[0] for value in (actual, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("at_once", [1, 4, 1000])
@pytest.mark.parametrize("knob", [-inf, -2, 0, 5, inf])
def test_others_in_tiles_and_at_once_are_plain_loops(knob, at_once):
    mean = SkewedMean("log-exp", knob)
    for chosen, mask in ((range(6), None), ([0, 1, 4, 5], torch.tensor([1, 1, 0, 0, 1, 1]).bool())):
        points = random_points(6).requires_grad_()
        rows = [[points[i] @ points[j] for j in chosen if j != i] for i in range(6)]
        expected = torch.stack([mean(torch.stack(row)) for row in rows])
        actual = mean_over_others(points, similarities, mean, present=mask, at_once=at_once)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
        gradients = [torch.autograd.grad(value.square().sum(), points)[0] for value in (actual, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mean", [SkewedMean("power", -2), SkewedMean("log-exp", 4), SkewedMean("k", 2)], ids=str)
def test_tiles_have_second_derivatives(mean):
    points = random_points(4, 2).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: mean_over_pairs(x, distances, mean, at_once=2), points)


def test_autocast_changes_nothing_forward_or_backward():
    points = random_points(9, 4, torch.float32).requires_grad_()
    mean = SkewedMean("log-exp", 5.0)

    def value_and_gradient():
        value = mean_over_others(points, similarities, mean, at_once=4).sum()
        return value, torch.autograd.grad(value, points)[0]

    plain = value_and_gradient()
    with torch.autocast("cpu", torch.bfloat16):
        cast = value_and_gradient()
    assert torch.equal(cast[0], plain[0])
    assert torch.equal(cast[1], plain[1])


def test_tiles_keep_nothing_for_the_backward_pass():
    points = random_points(200, 3).requires_grad_()

    def kept_bytes(at_once: int) -> int:
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda kept: kept):
            mean_over_pairs(points, distances, SkewedMean("power", -1), at_once=at_once)
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
        return sum(storages.values())

    tiles = 20 * 21 / 2
    assert kept_bytes(10) < 2 * points.nbytes + 100 * tiles
    assert kept_bytes(1000) > 8 * 200**2


def test_no_pairs():
    for present in (torch.tensor([True]), torch.tensor([False])):
        points = torch.randn(1, 3, requires_grad=True)
        for mean in MEANS:
            value = mean_over_pairs(points, distances, mean, present=present)
            value.backward()
            assert value == 0
            assert (points.grad == 0).all()


def test_close_points_in_single_precision():
    """The expanded square in fp32 would be wrong in the first digit here."""
    first = torch.nn.functional.normalize(random_points(5, 64, torch.float32))
    second = first + 1e-5 * random_points(1, 64, torch.float32)
    expected = (first.double() - second.double()).norm(dim=1)
    torch.testing.assert_close(distances(first, second).diagonal().double(), expected, rtol=1e-4, atol=0)
    assert distances(first, first).diagonal().tolist() == pytest.approx([CLOSEST] * 5)
    assert distances(first, first, squared=True).diagonal().tolist() == pytest.approx([CLOSEST**2] * 5)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("knob", [-inf, -1e4, -2.0, -1.0, 0.0, 1.0, 1e4, inf])
@pytest.mark.parametrize("kind", ["power", "log-exp"])
def test_coinciding_points_have_finite_gradients(kind, knob, dtype):
    points = random_points(6, 4, dtype)
    points[3] = points[4] = points[0]
    points.requires_grad_()
    value = mean_over_pairs(points, distances, SkewedMean(kind, knob))
    value.backward()
    assert value.isfinite()
    assert points.grad.isfinite().all()
    if knob == -inf or (kind == "power" and knob <= -1):
        assert value < 1e-4


def metric_values(matrix: torch.Tensor, differences: torch.Tensor) -> torch.Tensor:
    """Return (x_i - x)^T M (x_i - x) for differences (n, d)."""
    return ((differences @ matrix) * differences).sum(1)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("kind", "knob", "sign"),
    [
        *[("log-exp", knob, 1) for knob in (0.1, 1.0, 5.0, 50.0, inf)],
        *[("log-exp", -knob, -1) for knob in (0.1, 1.0, 5.0, 50.0, inf)],
        *[("power", knob, 1) for knob in (1.0, 1.5, 4.0, inf)],
        *[("power", knob, -1) for knob in (0.5, -0.5, -1.0, -4.0, -inf)],
    ],
)
def test_means_of_squared_distances_are_convex_in_the_metric(kind: str, knob: float, sign: int, seed: int) -> None:
    """Property 1 (4): b(knob) and -b(-knob) are convex in M for a knob above 0.

    It holds for the log-exp mean. The power mean is convex from knob 1 on only, and concave below.
    """
    generator = torch.Generator().manual_seed(seed)
    differences = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    roots = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    one, other = roots @ roots.mT  # positive semidefinite
    mean = SkewedMean(kind, knob)
    for share in (0.25, 0.5, 0.9):
        between = mean(metric_values(share * one + (1 - share) * other, differences))
        chord = share * mean(metric_values(one, differences)) + (1 - share) * mean(metric_values(other, differences))
        assert sign * (chord - between) >= -1e-9


def test_the_power_mean_below_1_is_not_convex_in_the_metric() -> None:
    """Property 1 (4) fails there: two metrics that see one difference each."""
    differences = torch.eye(2, dtype=torch.float64)
    one, other = torch.diag(torch.tensor([1.0, 0.0])).double(), torch.diag(torch.tensor([0.0, 1.0])).double()
    mean = SkewedMean("power", 0.5)
    ends = (mean(metric_values(one, differences)) + mean(metric_values(other, differences))) / 2
    assert mean(metric_values((one + other) / 2, differences)) > ends + 0.1
