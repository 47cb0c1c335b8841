"""Powers, ridge regression, extremes, CroW and sums: the published formulas in loops, then what all of them share."""

from collections.abc import Callable
from math import exp, log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lookalike.pooling import AveragePool, GeneralizedSumPool, MaxPool, Pooling
from lookalike.pooling.feature_weights import CrossDimensionalPool, GeneralizedMaxPool
from lookalike.pooling.per_channel import AveragePlusMaxPool, GeneralizedMeanPool, LogSumExpPool, SumOfTwo, WeldonPool

Reference = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # features (n, D) of one bag -> vector, weights


def gem(powers_of: Callable[[int], list[float]]) -> Reference:
    def pool(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        vector, weights = np.zeros(x.shape[1]), np.zeros(len(x))
        for d, p in enumerate(powers_of(x.shape[1])):
            powers = [max(value, 1e-6) ** p for value in x[:, d]]
            vector[d] = (sum(powers) / len(powers)) ** (1 / p)
            for j, value in enumerate(powers):
                weights[j] += value / sum(powers) / x.shape[1]
        return vector, weights

    return pool


def lse(r: float) -> Reference:
    def pool(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        vector, weights = np.zeros(x.shape[1]), np.zeros(len(x))
        for d in range(x.shape[1]):
            terms = [exp(r * value) for value in x[:, d]]
            vector[d] = log(sum(terms) / len(terms)) / r
            for j, value in enumerate(terms):
                weights[j] += value / sum(terms) / x.shape[1]
        return vector, weights

    return pool


def generalized_max(ridge: float) -> Reference:
    def pool(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # As least squares in more rows, by QR: neither of the two normal equations that the module chooses from.
        rows = np.concatenate([x, sqrt(ridge) * np.eye(x.shape[1])])
        vector = np.linalg.lstsq(rows, np.r_[np.ones(len(x)), np.zeros(x.shape[1])], rcond=None)[0]
        alpha = np.abs(1 - x @ vector) / ridge
        return vector, alpha / alpha.sum()

    return pool


def weldon(largest: int, smallest: int, sums: bool = False) -> Reference:
    def pool(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        vector, weights = np.zeros(x.shape[1]), np.zeros(len(x))
        for d in range(x.shape[1]):
            order = sorted(range(len(x)), key=lambda j: x[j, d])
            sides = [order[::-1][:largest]] + ([order[:smallest]] if smallest else [])
            for side in sides:
                for j in side:
                    vector[d] += x[j, d] / (1 if sums else len(side))
                    weights[j] += 1 / len(side) / len(sides) / x.shape[1]
        return vector, weights

    return pool


def crow(a: float, b: float) -> Reference:
    def pool(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = np.maximum(x, 0)
        sums = x.sum(1)
        if not sums.any():
            return np.zeros(x.shape[1]), np.full(len(x), 1 / len(x))
        places = (sums / (sums**a).sum() ** (1 / a)) ** (1 / b)
        shares = [np.count_nonzero(x[:, d]) / len(x) for d in range(x.shape[1])]
        channels = [log(sum(shares) / share) if share else 0.0 for share in shares]
        return np.array(channels) * (places @ x), places / places.sum()

    return pool


def average_and_max(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    wins = [np.mean(x.argmax(0) == j) for j in range(len(x))]
    return x.mean(0) + x.max(0), (1 / len(x) + np.array(wins)) / 2


def per_channel(dim: int) -> Pooling:
    pool = GeneralizedMeanPool(dim, shared=False)
    with torch.no_grad():
        pool.power.copy_(1.5 + torch.arange(dim))
    return pool


CASES: dict[str, tuple[Callable[[int], Pooling], Reference]] = {
    "gem": (GeneralizedMeanPool, gem(lambda dim: [3.0] * dim)),
    "gem, one power for each channel": (per_channel, gem(lambda dim: [1.5 + d for d in range(dim)])),
    "gem, fixed": (lambda dim: GeneralizedMeanPool(dim, 0.5, learn=False), gem(lambda dim: [0.5] * dim)),
    "lse": (LogSumExpPool, lse(10.0)),
    "lse, learnt": (lambda dim: LogSumExpPool(dim, 0.75, learn=True), lse(0.75)),
    "gemax": (GeneralizedMaxPool, generalized_max(1.0)),
    "gemax, small ridge": (lambda dim: GeneralizedMaxPool(dim, 1e-2), generalized_max(1e-2)),
    "weldon": (WeldonPool, weldon(3, 3)),
    "weldon, uneven": (lambda dim: WeldonPool(dim, largest=1, smallest=2), weldon(1, 2)),
    "weldon, sums": (lambda dim: WeldonPool(dim, sums=True), weldon(3, 3, sums=True)),
    "weldon, largest only": (lambda dim: WeldonPool(dim, largest=2, smallest=0), weldon(2, 0)),
    "crow": (CrossDimensionalPool, crow(2.0, 2.0)),
    "crow, other powers": (lambda dim: CrossDimensionalPool(dim, norm=3.0, root=1.5), crow(3.0, 1.5)),
    "average+max": (AveragePlusMaxPool, average_and_max),
}
every_pooling = pytest.mark.parametrize("name", list(CASES))


def features(*shape: int, seed: int = 0) -> Tensor:
    """Positive and negative, with zeros among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x * (torch.rand(shape, generator=generator) < 0.8)


def some_mask(batch: int, places: int, seed: int = 0) -> Tensor:
    mask = torch.rand(batch, places, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask[:, 0] |= ~mask.any(1)
    return mask


@every_pooling
@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 5), st.booleans())
@settings(max_examples=10, deadline=None)
def test_equals_the_published_formula(name: str, seed: int, places: int, dim: int, masked: bool) -> None:
    build, reference = CASES[name]
    bags, mask = features(3, places, dim, seed=seed), some_mask(3, places, seed)
    result = build(dim).double()(bags, mask if masked else None, details=True)
    for b in range(3):
        present = np.flatnonzero(mask[b].numpy()) if masked else np.arange(places)
        vector, weights = reference(bags[b].numpy()[present])
        np.testing.assert_allclose(result.vector[b].detach(), vector, rtol=1e-6, atol=1e-9)
        spread = np.zeros(places)
        spread[present] = weights
        tied = any(len(np.unique(channel)) < len(present) for channel in bags[b].numpy()[present].T)
        if not (tied and name.startswith(("weldon", "average+max"))):  # which of equal features it takes is left open
            np.testing.assert_allclose(result.weights[b].detach(), spread, rtol=1e-6, atol=1e-9)
    assert result.attributes.shape == (3, 0)


def test_values_worked_out_by_hand() -> None:
    bag = torch.tensor([[[1.0, 0.0], [2.0, 2.0], [2.0, 1.0]]])
    # (1 + 8 + 8) / 3 and (0 + 8 + 1) / 3, third roots
    torch.testing.assert_close(GeneralizedMeanPool(2)(bag), torch.tensor([[(17 / 3) ** (1 / 3), 3 ** (1 / 3)]]))
    # r = log 2: 2^1, 2^2, 2^2 have the mean 10/3, and 2^0, 2^2, 2^1 the mean 7/3
    expected = torch.tensor([[log(10 / 3) / log(2), log(7 / 3) / log(2)]])
    torch.testing.assert_close(LogSumExpPool(2, sharpness=log(2))(bag), expected)
    # X^T X + I = [[10, 6], [6, 6]] with the inverse [[6, -6], [-6, 10]] / 24, and X^T 1 = (5, 3)
    torch.testing.assert_close(GeneralizedMaxPool(2)(bag), torch.tensor([[12 / 24, 0.0]]))
    # the two largest are (2, 2) and (2, 1), the smallest 1 and 0
    torch.testing.assert_close(WeldonPool(2, largest=2, smallest=1)(bag), torch.tensor([[3.0, 1.5]]))
    # S = (1, 4, 3), norm sqrt(26); the second channel is there in 2 of 3 places: Q = 1, 2/3
    s = [sqrt(value / sqrt(26)) for value in (1, 4, 3)]
    expected = torch.tensor([[log(5 / 3) * (s[0] + 2 * s[1] + 2 * s[2]), log(5 / 2) * (2 * s[1] + s[2])]])
    torch.testing.assert_close(CrossDimensionalPool(2)(bag), expected)
    torch.testing.assert_close(AveragePlusMaxPool(2)(bag), torch.tensor([[5 / 3 + 2, 1.0 + 2]]))


def test_limits_are_the_mean_and_the_maximum() -> None:
    bags = features(4, 6, 3).abs().float() + 0.1
    mean, largest = AveragePool(3)(bags), MaxPool(3)(bags)
    torch.testing.assert_close(GeneralizedMeanPool(3, power=1.0)(bags), mean)
    torch.testing.assert_close(GeneralizedMeanPool(3, power=1e5)(bags), largest, rtol=1e-3, atol=0)
    torch.testing.assert_close(LogSumExpPool(3, sharpness=0.011)(bags), mean, rtol=0.02, atol=0)
    torch.testing.assert_close(LogSumExpPool(3, sharpness=1e5)(bags), largest, rtol=1e-3, atol=0)
    direction = torch.nn.functional.normalize
    torch.testing.assert_close(direction(GeneralizedMaxPool(3, ridge=1e6)(bags)), direction(mean), rtol=1e-3, atol=0)
    torch.testing.assert_close(WeldonPool(3, largest=6, smallest=6)(bags), 2 * mean)


def test_generalized_max_is_matched_alike_by_frequent_and_rare() -> None:
    bag = torch.tensor([[[1.0, 0.0]] * 9 + [[0.6, 0.8]]])
    vector = GeneralizedMaxPool(2, ridge=1e-3)(bag)
    torch.testing.assert_close(bag[0] @ vector[0], torch.ones(10), rtol=0, atol=2e-3)
    sums = bag[0] @ bag[0].sum(0)
    assert sums[0] > 1.4 * sums[-1]  # the plain sum sides with the frequent


def test_generalized_max_takes_the_same_way_by_either_system() -> None:
    bags, mask = features(2, 5, 5, seed=3), some_mask(2, 5, seed=3)
    tall = torch.cat([bags, torch.full((2, 1, 5), 7.0, dtype=torch.float64)], dim=1)  # a sixth place: the primal
    dual = GeneralizedMaxPool(5)(bags, mask, details=True)
    primal = GeneralizedMaxPool(5)(tall, torch.cat([mask, torch.zeros(2, 1, dtype=torch.bool)], 1), details=True)
    torch.testing.assert_close(dual.vector, primal.vector)
    torch.testing.assert_close(dual.weights, primal.weights[:, :5])
    assert not primal.weights[:, 5].any()


def test_what_is_learnt() -> None:
    counts = {"gem": 1, "gem, one power for each channel": 4, "lse, learnt": 1}
    for name, (build, _) in CASES.items():
        assert sum(p.numel() for p in build(4).parameters()) == counts.get(name, 0), name
    pool, bags = GeneralizedMeanPool(2), features(1, 5, 2)
    with torch.no_grad():
        pool.power.fill_(0.0)  # an optimiser may step over the edge
    torch.testing.assert_close(pool(bags), GeneralizedMeanPool(2, power=0.010001)(bags), rtol=1e-2, atol=0)


@every_pooling
def test_a_masked_bag_is_the_shortened_bag(name: str) -> None:
    pool = CASES[name][0](4).double()
    bags = features(1, 7, 4)
    mask = torch.tensor([[True, False, True, True, False, True, False]])
    short = pool(bags[:, mask[0]], details=True)
    noisy = bags.masked_fill(~mask.unsqueeze(-1), 1e6).requires_grad_()
    full = pool(noisy, mask, details=True)
    torch.testing.assert_close(full.vector, short.vector)
    torch.testing.assert_close(full.weights[mask], short.weights[0])
    assert not full.weights[~mask].any()
    (full.vector.sum() + full.weights.square().sum()).backward()
    assert noisy.grad is not None
    assert not noisy.grad[~mask].any()
    assert noisy.grad[mask].any()


@every_pooling
def test_maps_tokens_orders_and_precisions(name: str) -> None:
    pool = CASES[name][0](4)
    tokens = features(2, 6, 4).float()
    maps = tokens.transpose(1, 2).unflatten(2, (2, 3))
    vector = pool(tokens)
    assert vector.shape == (2, pool.out_dim) == (2, 4)
    torch.testing.assert_close(pool(maps.contiguous()), vector)
    torch.testing.assert_close(pool(maps.contiguous(memory_format=torch.channels_last)), vector)
    order = torch.randperm(6)
    torch.testing.assert_close(pool(tokens[:, order]), vector)
    torch.testing.assert_close(pool(tokens[:, order], details=True).weights.sum(1), torch.ones(2))
    half = pool(tokens.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half, pool(tokens.bfloat16().float()).bfloat16())
    assert pool(tokens[:0]).shape == (0, 4)
    assert pool(tokens[:0], some_mask(1, 6)[:0]).shape == (0, 4)
    assert pool(tokens[:, :1]).isfinite().all()
    assert "dim=4" in repr(pool)


@every_pooling
@pytest.mark.parametrize("value", [0.0, 1.0, 1e4, -1e4, 1e-6, 1e-30])
@pytest.mark.parametrize("alike", [True, False])
def test_extreme_features_stay_finite(name: str, value: float, alike: bool) -> None:
    pool = CASES[name][0](4)
    bags = torch.full((2, 9, 4), value)
    if not alike:
        bags = bags * features(2, 9, 4).float()
    for mask in (None, some_mask(2, 9)):
        given_bags = bags.clone().requires_grad_()
        result = pool(given_bags, mask, details=True)
        (result.vector.sum() + result.weights.square().sum()).backward()
        gradients = [given_bags.grad, *(parameter.grad for parameter in pool.parameters())]
        assert all(tensor.isfinite().all() for tensor in (result.vector, result.weights, *gradients))
        torch.testing.assert_close(result.weights.detach().sum(1), torch.ones(2))


@every_pooling
@pytest.mark.parametrize(("places", "dim"), [(5, 3), (2, 4), (1, 2)])
def test_gradients_are_exact(name: str, places: int, dim: int) -> None:
    pool = CASES[name][0](dim).double()
    bags = torch.randn(2, places, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)  # no ties
    mask = some_mask(2, places, seed=2)
    for present in (None, mask):

        def run(x: Tensor, *_: Tensor, present: Tensor | None = present) -> tuple[Tensor, Tensor]:
            result = pool(x, present, details=True)
            return result.vector, result.weights

        assert torch.autograd.gradcheck(run, (bags.clone().requires_grad_(), *pool.parameters()))


def test_generalized_max_survives_what_breaks_fp32() -> None:
    """With features of norm 1e4 and ridge 1 the condition number is 1e10."""
    bags = 1e4 * (1 + 1e-3 * features(1, 9, 4).float())
    vector, _ = generalized_max(1.0)(bags[0].double().numpy())
    np.testing.assert_allclose(GeneralizedMaxPool(4)(bags)[0], vector, rtol=1e-3)
    for places in (3, 9):  # equal features beside which a ridge of 1 is lost in fp64 as well: the dual and the primal
        huge = torch.full((1, places, 4), 1e12)
        torch.testing.assert_close(
            GeneralizedMaxPool(4)(huge) * huge[:, 0], torch.full((1, 4), 0.25), rtol=0.05, atol=0
        )


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="power must be"):
        GeneralizedMeanPool(4, power=0.0)
    with pytest.raises(ValueError, match="sharpness must be"):
        LogSumExpPool(4, sharpness=-1.0)
    with pytest.raises(ValueError, match="ridge must be"):
        GeneralizedMaxPool(4, ridge=0.0)
    with pytest.raises(ValueError, match="largest must be"):
        WeldonPool(4, largest=0)
    with pytest.raises(ValueError, match="root must be"):
        CrossDimensionalPool(4, root=0.0)
    with pytest.raises(ValueError, match="4 -> 4 and 5 -> 5"):
        SumOfTwo(AveragePool(4), MaxPool(5))
    with pytest.raises(TypeError, match="GeneralizedSumPool"):
        SumOfTwo(AveragePool(4), GeneralizedSumPool(4))
