"""partial_transport against convex solvers, the linear programme, finite differences and its own constraints."""

import cvxpy
import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lookalike.pooling import transport
from lookalike.pooling.reference import linear_programme, paper_closed_form, paper_iteration
from lookalike.pooling.transport import gate_logits, partial_transport

DOUBLE = torch.float64
shapes = st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 9))
keeps = st.floats(1e-4, 1.0) | st.sampled_from([1e-4, 0.25, 0.5, 0.75, 1.0])
sharpnesses = st.floats(-3, 4).map(lambda power: 10**power)
seeds = st.integers(0, 2**31)


def random_cost(seed: int, shape: tuple[int, ...], dtype: torch.dtype = DOUBLE) -> Tensor:
    return 2 * torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def exact_gate(closeness: list[float], keep: float) -> list[float]:
    """sigmoid(l_j + bias) by bisection with 60 digits: the definition, and nothing else."""
    with mpmath.workdps(60):
        values = [mpmath.mpf(value) for value in closeness]
        low = mpmath.log(keep) - max(values) - 1
        high = mpmath.log(keep) - mpmath.log1p(-mpmath.mpf(keep)) - min(values) + 1
        low, high = min(low, high - 1) - 50, high
        for _ in range(160):
            middle = (low + high) / 2
            mean = sum(1 / (1 + mpmath.exp(-(value + middle))) for value in values) / len(values)
            low, high = (middle, high) if mean < keep else (low, middle)
        return [float(1 / (1 + mpmath.exp(-(value + low)))) for value in values]


@given(seeds, shapes, keeps, sharpnesses)
@settings(max_examples=200, deadline=None)
def test_constraints_hold_in_every_setting(seed: int, shape: tuple[int, ...], keep: float, sharpness: float) -> None:
    cost = random_cost(seed, shape)
    residual, plan, weights = partial_transport(cost, keep, sharpness)
    count = shape[-1]
    torch.testing.assert_close(residual + plan.sum(-2), torch.full_like(residual, 1 / count), atol=1e-14, rtol=1e-12)
    torch.testing.assert_close(plan.sum((-2, -1)), torch.full(shape[:1], keep, dtype=DOUBLE), atol=0, rtol=1e-11)
    torch.testing.assert_close(weights.sum(-1), torch.ones(shape[:1], dtype=DOUBLE), atol=0, rtol=1e-11)
    torch.testing.assert_close((1 / count - residual) / keep, weights, atol=1e-16 / keep, rtol=1e-11)
    assert (residual >= 0).all()
    assert (plan >= 0).all()


@given(seeds, st.integers(1, 8), st.floats(0.01, 0.99) | st.sampled_from([0.25, 0.5]), st.floats(-3, 4))
@settings(max_examples=60, deadline=None)
def test_machine_precision_against_bisection_with_60_digits(seed: int, n: int, keep: float, power: float) -> None:
    cost = random_cost(seed, (1, n))
    sharpness = 10**power
    expected = exact_gate([-sharpness * value for value in cost[0].tolist()], keep)
    got = partial_transport(cost, keep, sharpness).weights * n * keep
    # sharpness * cost is itself rounded, at 2e4 to 2e-12.
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-14 + 4e-16 * sharpness)


@given(seeds, st.floats(0.01, 0.99), st.floats(-3, 4))
@settings(max_examples=40, deadline=None)
def test_single_precision_is_exact_for_the_cost_it_is_given(seed: int, keep: float, power: float) -> None:
    cost = random_cost(seed, (4, 5, 30), torch.float32)
    single = partial_transport(cost, keep, 10**power)
    double = partial_transport(cost.double(), keep, 10**power)
    torch.testing.assert_close(single.weights.double() * 30 * keep, double.weights * 30 * keep, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(single.plan.double(), double.plan, atol=2e-7, rtol=1e-5)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("keep", "sharpness"), [(0.1, 0.5), (0.3, 5.0), (0.5, 20.0), (0.9, 3.0)])
def test_against_an_independent_convex_solver(seed: int, keep: float, sharpness: float) -> None:
    cost = random_cost(seed, (3, 7)).numpy()
    plan, residual = cvxpy.Variable((3, 7)), cvxpy.Variable(7)
    entropy = cvxpy.sum(cvxpy.entr(plan)) + cvxpy.sum(cvxpy.entr(residual))
    objective = cvxpy.sum(cvxpy.multiply(cost, plan)) - entropy / sharpness
    constraints = [residual + cvxpy.sum(plan, axis=0) == 1 / 7, cvxpy.sum(plan) == keep]
    cvxpy.Problem(cvxpy.Minimize(objective), constraints).solve(
        solver=cvxpy.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11
    )
    got = partial_transport(torch.from_numpy(cost), keep, sharpness)
    np.testing.assert_allclose(got.plan.numpy(), plan.value, atol=1e-6)
    np.testing.assert_allclose(got.residual.numpy(), residual.value, atol=1e-6)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("keep", [0.13, 0.37, 0.71])
def test_sharp_limit_is_the_linear_programme(seed: int, keep: float) -> None:
    cost = random_cost(seed, (3, 11))  # random costs have no ties
    residual, plan = linear_programme(cost, keep)
    got = partial_transport(cost, keep, 1e6)
    np.testing.assert_allclose(got.residual.numpy(), residual, atol=1e-7)
    np.testing.assert_allclose(got.plan.numpy(), plan, atol=1e-7)


@pytest.mark.parametrize("iteration", [paper_iteration, paper_closed_form])
@pytest.mark.parametrize(("keep", "sharpness"), [(0.05, 1.0), (0.3, 5.0), (0.6, 2.0)])
def test_equals_the_papers_iteration_where_that_converges(iteration, keep: float, sharpness: float) -> None:  # type: ignore[no-untyped-def]
    cost = random_cost(0, (2, 6, 20)).requires_grad_()
    residual, plan = iteration(cost, keep, sharpness, iterations=5000)
    got = partial_transport(cost, keep, sharpness)
    torch.testing.assert_close(got.residual, residual, atol=1e-12, rtol=0)
    torch.testing.assert_close(got.plan, plan, atol=1e-12, rtol=0)
    onto = torch.randn(2, 20, dtype=DOUBLE), torch.randn(2, 6, 20, dtype=DOUBLE)
    (expected,) = torch.autograd.grad((residual, plan), cost, onto)
    (gradient,) = torch.autograd.grad((got.residual, got.plan), cost, onto)
    torch.testing.assert_close(gradient, expected, atol=1e-10, rtol=0)


@given(seeds, shapes, st.floats(0.02, 0.98), st.floats(0.01, 20.0))
@settings(max_examples=15, deadline=None)
def test_gradients_by_finite_differences(seed: int, shape: tuple[int, ...], keep: float, sharpness: float) -> None:
    cost = random_cost(seed, shape).requires_grad_()
    keeps_, sharps = (torch.tensor(value, dtype=DOUBLE, requires_grad=True) for value in (keep, sharpness))
    torch.autograd.gradcheck(partial_transport, (cost, keeps_, sharps), atol=1e-6, rtol=1e-4)


def test_keep_and_sharpness_per_bag() -> None:
    cost = random_cost(0, (3, 4, 6)).requires_grad_()
    keep = torch.tensor([0.2, 0.5, 1.0], dtype=DOUBLE)
    sharpness = torch.tensor([1.0, 5.0, 30.0], dtype=DOUBLE, requires_grad=True)
    together = partial_transport(cost, keep, sharpness)
    for index in range(3):
        alone = partial_transport(cost[index], keep[index].item(), sharpness[index].item())
        for one, all_ in zip(alone, together, strict=True):
            torch.testing.assert_close(one, all_[index], atol=1e-13, rtol=1e-12)
    keep = torch.tensor([0.2, 0.5, 0.8], dtype=DOUBLE, requires_grad=True)
    torch.autograd.gradcheck(partial_transport, (cost, keep, sharpness))


@given(seeds, st.floats(0.02, 1.0), st.floats(-2, 4))
@settings(max_examples=40, deadline=None)
def test_masked_bag_equals_the_shortened_one(seed: int, keep: float, power: float) -> None:
    cost = random_cost(seed, (3, 4, 9))
    mask = torch.rand(3, 9, generator=torch.Generator().manual_seed(seed)) > 0.5
    mask[:, 0] = True
    cost[~mask.unsqueeze(1).expand_as(cost)] = torch.nan  # whatever is there must not matter
    cost.requires_grad_()
    masked = partial_transport(cost, keep, 10**power, mask)
    (gradient,) = torch.autograd.grad(sum(part.square().sum() for part in masked), cost)
    for index in range(3):
        there = mask[index]
        short = partial_transport(cost[index][:, there], keep, 10**power)
        for one, all_ in zip(short, masked, strict=True):
            torch.testing.assert_close(all_[index][..., there], one, atol=1e-13, rtol=1e-10)
            assert (all_[index][..., ~there] == 0).all()
        assert (gradient[index][:, ~there] == 0).all()
        assert gradient[index].isfinite().all()


def test_keep_of_one_is_average_pooling() -> None:
    cost = random_cost(0, (2, 3, 7)).requires_grad_()
    for keep in (1, 1.0, torch.tensor(1.0, dtype=DOUBLE)):
        got = partial_transport(cost, keep, 5.0)
        torch.testing.assert_close(got.weights, torch.full((2, 7), 1 / 7, dtype=DOUBLE), atol=1e-15, rtol=0)
        assert got.residual.max() < 1e-15
        (gradient,) = torch.autograd.grad(got.weights.square().sum(), cost)
        assert gradient.abs().max() < 1e-14


def test_hard_selection_has_the_right_gradient_on_keep() -> None:
    """Where every slope underflows: those next to the gate decide, half and half when it stands between two."""
    onto = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], dtype=DOUBLE)
    apart, tied = [0.0, 0.2, 0.4, 0.6, 0.8], [0.0, 0.2, 0.4, 0.4, 0.8]
    for costs, kept, marginal in (
        (apart, 2.5, 4.0),
        (apart, 2.0, (2.0 + 4.0) / 2),
        (tied, 2.5, (4.0 + 8.0) / 2),
        (tied, 2.0, 2.0 / 2 + (4.0 + 8.0) / 4),
    ):
        keep = torch.tensor(kept / 5, dtype=DOUBLE, requires_grad=True)
        moved = 5 * keep * partial_transport(torch.tensor([costs], dtype=DOUBLE), keep, 1e4).weights
        (gradient,) = torch.autograd.grad((moved * onto).sum(), keep)
        torch.testing.assert_close(gradient, torch.tensor(5 * marginal, dtype=DOUBLE), atol=1e-9, rtol=0)


def adversarial_bags(n: int) -> Tensor:
    """Costs (220, n): spread, heavy tails, clustered, tied, one outlier, all equal."""
    generator = torch.Generator().manual_seed(n)

    def rand() -> Tensor:
        return torch.rand(20, n, generator=generator, dtype=DOUBLE)

    clusters, outlier = (rand() * 3).floor(), torch.ones(20, n, dtype=DOUBLE)
    outlier[:, 0] = 0
    spread = [2 * rand(), rand() ** 8, rand() ** 30, rand() ** 0.1, -rand().log(), rand().cumsum(1) / n]
    return torch.cat((*spread, clusters, clusters + 1e-3 * rand(), outlier, 1 - outlier, 0 * outlier))


@pytest.mark.parametrize("n", [1, 2, 3, 10, 49, 150])
def test_a_fixed_number_of_steps_suffices(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver of GPUs and traced graphs: no look at the data, the same steps for all, with two to spare."""
    monkeypatch.setattr(transport, "_is_eager_cpu", lambda _: False)
    monkeypatch.setattr(transport, "STEPS_WHEN_NARROW", transport.STEPS_WHEN_NARROW - 2)
    for sharpness in (1e-3, 0.5, 5.0, 20.0, 50.0, 100.0, 1e3, 1e4):
        for keep in (1e-4, 0.01, 0.05, 0.25, 0.5, 0.7, 0.99, 0.9999):
            x = gate_logits(-sharpness * adversarial_bags(n), keep, n, None, 1e-8)
            assert (x.sigmoid().mean(-1) - keep).abs().max() < 1e-14, (sharpness, keep)


def test_both_solvers_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = random_cost(0, (20, 4, 30))
    for sharpness in (0.1, 5.0, 50.0, 1e4):
        plain = partial_transport(cost, 0.3, sharpness)
        with monkeypatch.context() as patch:
            patch.setattr(transport, "_is_eager_cpu", lambda _: False)
            guarded = partial_transport(cost, 0.3, sharpness)
        torch.testing.assert_close(plain.weights, guarded.weights, atol=1e-14, rtol=1e-12)


def test_no_batch_many_batches_and_an_empty_one() -> None:
    cost = random_cost(0, (2, 3, 4, 5))
    together = partial_transport(cost, 0.3, 5.0)
    assert together.plan.shape == (2, 3, 4, 5)
    torch.testing.assert_close(partial_transport(cost[1, 2], 0.3, 5.0).plan, together.plan[1, 2])
    assert partial_transport(cost[:0], 0.3, 5.0).weights.shape == (0, 3, 5)


def test_half_precision_is_computed_in_single() -> None:
    cost = random_cost(0, (2, 4, 9), torch.float32).bfloat16()
    got = partial_transport(cost, 0.3, 50.0)
    assert got.weights.dtype == torch.float32
    torch.testing.assert_close(got.weights, partial_transport(cost.float(), 0.3, 50.0).weights)


def test_second_derivatives_are_refused() -> None:
    cost = random_cost(0, (2, 3, 5)).requires_grad_()
    (gradient,) = torch.autograd.grad(partial_transport(cost, 0.3, 5.0).weights[0, 0], cost, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        gradient.square().sum().backward()
    (gradient,) = torch.autograd.grad(partial_transport(cost, 0.3, 5.0).weights[0, 0], cost, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(gradient.sum(), cost)


GOOD = torch.rand(2, 3, 5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((GOOD, 1.3, 5.0), ValueError, r"keep must be in \(0, 1\], got 1.3"),
        ((GOOD, 0.0, 5.0), ValueError, r"keep must be in \(0, 1\], got 0.0"),
        ((GOOD, float("nan"), 5.0), ValueError, "keep"),
        ((GOOD, "0.3", 5.0), TypeError, "keep must be a number or a tensor, got str"),
        ((GOOD, torch.tensor(1.3), 5.0), ValueError, "keep"),
        ((GOOD, 0.3, 0.0), ValueError, "sharpness must be finite and above 0, got 0.0"),
        ((GOOD, 0.3, float("inf")), ValueError, "sharpness"),
        ((GOOD, 0.3, torch.tensor(-1.0)), ValueError, "sharpness"),
        ((GOOD[0, 0], 0.3, 5.0), ValueError, r"got \(5,\)"),
        ((GOOD[..., :0], 0.3, 5.0), ValueError, "at least one"),
        ((GOOD.long(), 0.3, 5.0), TypeError, "floating"),
        (([[1.0]], 0.3, 5.0), TypeError, "cost must be a tensor, got list"),
        ((GOOD, 0.3, 5.0, torch.ones(2, 4, dtype=torch.bool)), ValueError, r"mask must have the shape \(2, 5\)"),
        ((GOOD, 0.3, 5.0, torch.ones(2, 5)), TypeError, "mask must be a bool tensor"),
        ((GOOD, 0.3, 5.0, torch.zeros(2, 5, dtype=torch.bool)), ValueError, "at least one present feature"),
    ],
)
def test_bad_input_is_refused(arguments: tuple, error: type[Exception], message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(error, match=message):
        partial_transport(*arguments)
