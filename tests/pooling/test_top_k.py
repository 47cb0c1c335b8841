"""Top-k by transport against other solvers of the same problem, its limits, and GSP with one prototype."""

from math import exp

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from lookalike.pooling import partial_transport
from lookalike.pooling.top_k import hard_top_k, transport_top_k

some_scores = st.lists(st.floats(-3, 3), min_size=1, max_size=8)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@given(some_scores, st.data(), st.floats(0.01, 100))
@settings(max_examples=40, deadline=None)
def test_an_indicator_of_k_in_all_that_grows_with_the_score(values: list[float], data: st.DataObject, s: float) -> None:
    k = data.draw(st.integers(1, len(values)))
    scores = torch.tensor(values, dtype=torch.float64)
    indicator = transport_top_k(scores, k, s)
    assert float(indicator.sum()) == pytest.approx(k)
    assert (indicator >= 0).all()
    assert (indicator <= 1 + 1e-9).all()
    assert (indicator[scores.argsort()].diff() >= -1e-9).all()
    torch.testing.assert_close(transport_top_k(scores + 5, k, s), indicator, rtol=1e-6, atol=1e-6)


def costs(scores: np.ndarray, cost: str) -> np.ndarray:
    """(2, n): to the points 0 and 1."""
    differences = np.array([0.0, 1.0])[:, None] - scores
    return differences**2 if cost == "squared" else np.abs(differences)


@pytest.mark.parametrize("cost", ["squared", "absolute"])
@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("sharpness", [0.3, 1.5])  # at 5, POT has not converged after 100,000 rounds
def test_against_pot_as_p5_is_written(cost: str, k: int, sharpness: float) -> None:
    ot = pytest.importorskip("ot")
    scores = np.random.default_rng(k).normal(0.5, 1, 7)
    masses = np.array([7 - k, k]) / 7
    plan = ot.sinkhorn(masses, np.full(7, 1 / 7), costs(scores, cost), 1 / sharpness, numItermax=5000, stopThr=1e-15)
    np.testing.assert_allclose(transport_top_k(torch.tensor(scores), k, sharpness, cost=cost), 7 * plan[1], atol=1e-8)


@pytest.mark.parametrize("k", [1, 4, 7])
def test_the_hard_one_solves_the_linear_programme_and_is_the_limit(k: int) -> None:
    scores = np.random.default_rng(k).normal(0.5, 1, 7)
    a_eq = np.vstack([np.kron(np.eye(2), np.ones(7)), np.tile(np.eye(7), 2)])
    masses = np.concatenate([[(7 - k) / 7, k / 7], np.full(7, 1 / 7)])
    exact = linprog(costs(scores, "squared").ravel(), A_eq=a_eq, b_eq=masses, bounds=(0, None)).x[7:] * 7
    hard = hard_top_k(torch.tensor(scores), k)
    np.testing.assert_allclose(hard, exact, atol=1e-9)
    np.testing.assert_allclose(transport_top_k(torch.tensor(scores), k, 1e4), exact, atol=1e-9)
    np.testing.assert_allclose(transport_top_k(torch.tensor(scores), k, 1e-6), np.full(7, k / 7), atol=1e-4)


def test_by_hand() -> None:
    # Two scores and k = 1: sigmoid(2 s x_1 + b) + sigmoid(2 s x_2 + b) = 1 gives b = -s (x_1 + x_2).
    larger = 1 / (1 + exp(-4 * (0.7 - 0.2)))
    torch.testing.assert_close(transport_top_k(torch.tensor([0.7, 0.2]), 1, 4.0), torch.tensor([larger, 1 - larger]))
    assert hard_top_k(torch.tensor([[1.0, 3.0, 3.0, 3.0]]), 2).tolist() == [[0, 1, 1, 0]]  # of equals the first


def test_both_costs_agree_between_0_and_1_and_only_there() -> None:
    inside, outside = torch.rand(20), torch.tensor([1.5, 2.5, 0.5])
    torch.testing.assert_close(transport_top_k(inside, 5, 7.0), transport_top_k(inside, 5, 7.0, cost="absolute"))
    squared, absolute = (transport_top_k(outside, 1, 7.0, cost=cost) for cost in ("squared", "absolute"))
    assert squared[1] > squared[0] + 0.5
    torch.testing.assert_close(absolute[1], absolute[0])  # the papers' cost cannot tell them apart


def test_gsp_with_one_prototype_is_this_operator() -> None:
    cost = torch.rand(4, 1, 10, dtype=torch.float64)
    weights = partial_transport(cost, keep=0.3, sharpness=5.0).weights
    torch.testing.assert_close(transport_top_k(-cost.squeeze(1), 3, 2.5) / 3, weights)


@pytest.mark.parametrize("cost", ["squared", "absolute"])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_by_finite_differences(cost: str, masked: bool) -> None:
    scores = torch.rand(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    sharpness = torch.tensor([3.0, 8.0], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 1, 1, 0], [1, 1, 1, 0, 1, 1]], dtype=torch.bool) if masked else None
    assert torch.autograd.gradcheck(lambda x, s: transport_top_k(x, 2, s, mask, cost=cost), (scores, sharpness))


def test_absent_scores_have_no_part() -> None:
    scores = torch.rand(2, 6, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 1, 1, 0], [1, 1, 1, 0, 1, 1]], dtype=torch.bool)
    spoilt = scores.masked_fill(~mask, torch.nan).requires_grad_()
    for operator in (lambda x, m=None: transport_top_k(x, 3, 5.0, m), lambda x, m=None: hard_top_k(x, 3, m)):
        result = operator(spoilt, mask)
        assert (result[~mask] == 0).all()
        for row in range(2):
            torch.testing.assert_close(result[row, mask[row]], operator(scores[row, mask[row]]))
    transport_top_k(spoilt, 3, 5.0, mask, cost="absolute").square().sum().backward()
    assert (spoilt.grad[~mask] == 0).all()
    assert spoilt.grad.isfinite().all()
    assert (spoilt.grad != 0).any()


def test_everything_is_in_the_top_n_and_half_precision_comes_back_in_fp32() -> None:
    scores = torch.rand(3, 4).bfloat16()
    torch.testing.assert_close(transport_top_k(scores, 4), torch.ones(3, 4))
    assert torch.equal(hard_top_k(scores, 4), torch.ones(3, 4))
    assert transport_top_k(torch.zeros(0, 4), 2).shape == (0, 4)


def test_wrong_input_is_refused() -> None:
    scores = torch.rand(3, 4)
    for operator in (transport_top_k, hard_top_k):
        with pytest.raises(ValueError, match="k must be at most the number of scores, 4, got 5"):
            operator(scores, 5)
        with pytest.raises(ValueError, match="k must be at most the number of present scores, got 2"):
            operator(scores, 2, mask=torch.eye(4, dtype=torch.bool)[:3])
        with pytest.raises(TypeError, match="k must be a whole number"):
            operator(scores, 1.5)
        with pytest.raises(TypeError, match=r"floating point tensor, got torch\.int64"):
            operator(torch.ones(3, dtype=torch.int64), 1)
        with pytest.raises(ValueError, match="at least one"):
            operator(torch.zeros(3, 0), 1)
    with pytest.raises(ValueError, match="cost must be"):
        transport_top_k(scores, 1, cost="cubic")
    with pytest.raises(ValueError, match="sharpness must be"):
        transport_top_k(scores, 1, 0.0)
