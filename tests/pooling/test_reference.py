"""The slow solutions, held against arithmetic done by hand, against each other and against the solver."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lookalike.pooling.reference import linear_programme, paper_closed_form, paper_iteration, pool_by
from lookalike.pooling.transport import partial_transport

# Where 2000 rounds are enough for double precision.
CONVERGED = [(0.3, 3.0), (0.1, 5.0), (0.5, 5.0), (0.7, 0.5), (0.2, 10.0)]


@pytest.fixture
def cost() -> Tensor:
    return torch.rand(3, 5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_linear_programme_solves_a_case_worked_by_hand() -> None:
    # 5 features of mass .2 each, .5 to move. Cheapest: .1 (row 0), .4 (row 1), .2 (row 0), .9, .3 (row 1).
    # So features 0 and 2 go whole, feature 4 by half, and the rest stays.
    cost = [[0.1, 0.8, 0.2, 0.9, 0.7], [0.5, 0.4, 0.6, 0.9, 0.3]]
    residual, plan = linear_programme(cost, keep=0.5)
    np.testing.assert_allclose(residual, [0, 0.2, 0, 0.2, 0.1], atol=1e-12)
    np.testing.assert_allclose(plan, [[0.2, 0, 0.2, 0, 0], [0, 0, 0, 0, 0.1]], atol=1e-12)


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.77, 1.0])
def test_linear_programme_meets_its_constraints(cost: Tensor, keep: float) -> None:
    residual, plan = linear_programme(cost[0], keep)
    assert residual.shape == (9,)
    assert plan.shape == (5, 9)
    np.testing.assert_allclose(residual + plan.sum(0), 1 / 9, atol=1e-12)
    np.testing.assert_allclose(plan.sum(), keep, atol=1e-12)
    assert min(residual.min(), plan.min()) >= -1e-12


def test_linear_programme_is_the_limit_of_the_smoothed_problem(cost: Tensor) -> None:
    residual, plan = linear_programme(cost[0], keep=0.4)
    smoothed = partial_transport(cost[0], keep=0.4, sharpness=1e4)
    np.testing.assert_allclose(smoothed.residual, residual, atol=1e-6)
    np.testing.assert_allclose(smoothed.plan, plan, atol=1e-6)


@pytest.mark.parametrize(("keep", "sharpness"), CONVERGED)
def test_the_iterations_and_the_solver_agree_where_converged(cost: Tensor, keep: float, sharpness: float) -> None:
    ours = partial_transport(cost, keep, sharpness)
    for solution in (paper_iteration, paper_closed_form):
        residual, plan = solution(cost, keep, sharpness, iterations=2000)
        torch.testing.assert_close(residual, ours.residual, rtol=0, atol=1e-12)
        torch.testing.assert_close(plan, ours.plan, rtol=0, atol=1e-12)


@pytest.mark.parametrize("iterations", [1, 4])
def test_the_two_iterations_are_the_same_before_convergence(cost: Tensor, iterations: int) -> None:
    residual, plan = paper_iteration(cost, 0.3, 5.0, iterations)
    other_residual, other_plan = paper_closed_form(cost, 0.3, 5.0, iterations)
    assert torch.equal(residual, other_residual)
    assert torch.equal(plan, other_plan)
    torch.testing.assert_close(plan.sum((-2, -1)), torch.full((3,), 0.3, dtype=torch.float64))
    assert ((residual + plan.sum(-2)) * 9 - 1).abs().max() > 1e-3, "converged already: the case is too easy"


def test_one_round_worked_by_hand() -> None:
    # The kernel is ((1, 1/4), (1/2, 1/4)), so a is (3/2, 1/2) and the residuals are 1/2 / (1 + a).
    cost = -torch.tensor([[1.0, 0.25], [0.5, 0.25]], dtype=torch.float64).log() / 2
    residual, plan = paper_iteration(cost, keep=0.3, sharpness=2.0, iterations=1)
    t = 0.3 / (1.5 * 0.2 + 0.5 / 3)
    torch.testing.assert_close(residual, torch.tensor([1 / 5, 1 / 3], dtype=torch.float64))
    torch.testing.assert_close(plan, torch.tensor([[t / 5, t / 12], [t / 10, t / 12]], dtype=torch.float64))


def test_the_closed_form_gradient_is_the_gradient(cost: Tensor) -> None:
    def solve(cost: Tensor) -> tuple[Tensor, Tensor]:
        return paper_closed_form(cost, 0.3, 3.0, iterations=500)

    assert torch.autograd.gradcheck(solve, (cost[0, :3, :5].clone().requires_grad_(),))


@pytest.mark.parametrize(("keep", "sharpness"), CONVERGED)
def test_three_gradients_agree_where_converged(cost: Tensor, keep: float, sharpness: float) -> None:
    generator = torch.Generator().manual_seed(1)
    on_residual = torch.randn(3, 9, dtype=torch.float64, generator=generator)
    on_plan = torch.randn(3, 5, 9, dtype=torch.float64, generator=generator)
    cost.requires_grad_()

    def gradient(residual: Tensor, plan: Tensor) -> Tensor:
        return torch.autograd.grad((residual * on_residual).sum() + (plan * on_plan).sum(), cost)[0]

    ours = gradient(*partial_transport(cost, keep, sharpness)[:2])
    torch.testing.assert_close(gradient(*paper_iteration(cost, keep, sharpness, 500)), ours, rtol=0, atol=1e-9)
    torch.testing.assert_close(gradient(*paper_closed_form(cost, keep, sharpness, 500)), ours, rtol=0, atol=1e-9)


def test_pool_by_selects_what_is_near_a_prototype() -> None:
    # Long features are clipped for the comparison, not in the sum: (3, 0) lies on the prototype (1, 0).
    features = torch.tensor([[[3.0, 0.0], [-1.0, 0.0]], [[0.0, -1.0], [1.0, 0.0]]])
    vector = pool_by(partial_transport, features, torch.tensor([[5.0, 0.0]]), 0.5, 100.0)
    torch.testing.assert_close(vector, torch.tensor([[3.0, 0.0], [1.0, 0.0]]))


def test_pool_by_does_not_stretch_short_features() -> None:
    # On the unit sphere both would lie on the prototype; in the unit ball only the first does.
    features = torch.tensor([[[0.2, 0.0], [3.0, 0.0]]])
    vector = pool_by(partial_transport, features, torch.tensor([[0.2, 0.0]]), 0.5, 100.0)
    torch.testing.assert_close(vector, torch.tensor([[0.2, 0.0]]))


def test_pool_by_is_average_pooling_where_sharpness_is_small() -> None:
    features = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    vector = pool_by(paper_closed_form, features, features[0, :3], 0.3, 1e-5)
    torch.testing.assert_close(vector, features.mean(1), rtol=0, atol=1e-4)


def test_errors_say_what_came() -> None:
    with pytest.raises(ValueError, match=r"keep must be in \(0, 1\], got 1.3"):
        linear_programme([[0.0]], keep=1.3)
    with pytest.raises(ValueError, match=r"got \(3,\)"):
        linear_programme([0.0, 1.0, 2.0], keep=0.3)
    with pytest.raises(ValueError, match="iterations must be at least 1, got 0"):
        paper_iteration(torch.zeros(1, 1), 0.3, 5.0, iterations=0)
    with pytest.raises(ValueError, match="sharpness"):
        paper_closed_form(torch.zeros(1, 1), 0.3, -5.0)
