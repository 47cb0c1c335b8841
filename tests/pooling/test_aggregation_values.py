"""The aggregating poolings against their published formulas in plain loops, by hand, and against other libraries."""

from collections.abc import Callable
from math import log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

from lookalike.geometry import clip
from lookalike.models.embedder import Head
from lookalike.pooling import _POOLINGS, GeneralizedSumPool
from lookalike.pooling.bilinear import BilinearPool, CompactBilinearPool, signed_root
from lookalike.pooling.per_channel import GeneralizedMeanPool
from lookalike.pooling.per_prototype import NetVladPool, OptimalTransportPool, sinkhorn
from lookalike.pooling.with_gsp import GemWithGsp, MaxWithGsp, WeightedMaxWithGsp

seeds = st.integers(0, 2**31)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def random_bags(seed: int, batch: int = 2, places: int = 5, dim: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    bags = torch.randn(batch, places, dim, generator=generator, dtype=torch.float64)
    mask = torch.rand(batch, places, generator=generator) < 0.6
    mask[:, 0] |= ~mask.any(1)
    return bags, mask


def present(bags: Tensor, mask: Tensor, row: int, masked: bool) -> np.ndarray:
    return (bags[row][mask[row]] if masked else bags[row]).numpy()


# NetVLAD


@given(seeds, st.booleans(), st.booleans())
@settings(max_examples=15, deadline=None)
def test_netvlad_in_loops(seed: int, masked: bool, normalised: bool) -> None:
    bags, mask = random_bags(seed)
    torch.manual_seed(seed)
    pool = NetVladPool(3, 4, normalise_features=normalised).double()
    state = {name: value.numpy() for name, value in pool.state_dict().items()}
    result = pool(bags, mask if masked else None, details=True)
    for row in range(2):
        features = present(bags, mask, row, masked)
        blocks, histogram = [np.zeros(3) for _ in range(4)], np.zeros(4)
        for feature in features:
            feature = feature / np.linalg.norm(feature) if normalised else feature
            scores = [state["assignment.weight"][k] @ feature + state["assignment.bias"][k] for k in range(4)]
            shares = np.exp(np.array(scores) - max(scores))
            shares /= shares.sum()
            for k in range(4):
                blocks[k] += shares[k] * (feature - state["centres"][k])
                histogram[k] += shares[k] / len(features)
        # The smallest block of all decides how much the authors' floor of 1e-12 shows.
        blocks = [block / np.sqrt(block @ block + len(features) ** 2 * 1e-12) for block in blocks]
        expected = np.concatenate(blocks) / np.linalg.norm(np.concatenate(blocks))
        np.testing.assert_allclose(result.vector[row].detach(), expected, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(result.attributes[row].detach(), histogram, rtol=1e-7, atol=1e-12)


def test_netvlad_by_hand() -> None:
    pool = NetVladPool(2, 2, normalise_features=False)
    with torch.no_grad():
        pool.centres.copy_(torch.tensor([[0.0, 0.0], [10.0, 0.0]]))
        pool.assignment.weight.copy_(2 * pool.centres)
        pool.assignment.bias.copy_(torch.tensor([0.0, -100.0]))  # every feature to its nearest centre
    result = pool(torch.tensor([[[3.0, 4.0], [10.0, -2.0], [6.0, 0.0], [6.0, 1.0]]]), details=True)
    # (3, 4) / 5 and, of the three near the second centre, (0, -2) + (-4, 0) + (-4, 1) = (-8, -1).
    expected = torch.tensor([[0.6, 0.8, -8 / sqrt(65), -1 / sqrt(65)]]) / sqrt(2)
    torch.testing.assert_close(result.vector, expected)
    torch.testing.assert_close(result.attributes, torch.tensor([[0.25, 0.75]]))


@pytest.mark.parametrize("normalised", [True, False])
def test_netvlad_starts_as_its_authors_define(normalised: bool) -> None:
    pool = NetVladPool(4, 6, normalise_features=normalised).double()
    before = [(id(value), value.data_ptr()) for value in pool.parameters()]
    features = 3 * torch.randn(50, 4, dtype=torch.float64)
    pool.init_from(features)
    assert before == [(id(value), value.data_ptr()) for value in pool.parameters()]
    points = features / features.norm(dim=1, keepdim=True) if normalised else features
    nearest_point = torch.cdist(pool.centres, points).min(1)
    assert (nearest_point.values < 1e-5).all()  # chosen among them,
    assert len(set(nearest_point.indices.tolist())) == 6  # each once
    shares = pool.assignment(points).log_softmax(1).detach().sort(1, descending=True).values
    assert float((shares[:, 0] - shares[:, 1]).mean()) == pytest.approx(log(100))
    squares = torch.cdist(points, pool.centres.detach()).square()
    alpha = float((shares[:, 0] - shares[:, 1])[0] / (squares.sort(1).values[0, 1] - squares.sort(1).values[0, 0]))
    torch.testing.assert_close(pool.assignment(points).softmax(1), (-alpha * squares).softmax(1))


@pytest.mark.parametrize("kind", [NetVladPool, OptimalTransportPool])
def test_init_from_takes_maps_tokens_and_masks_and_refuses_the_impossible(kind: type) -> None:
    pool = kind(4, 3)
    tokens = torch.randn(2, 6, 4)
    mask = torch.zeros(2, 6, dtype=torch.bool)
    mask[0, 1] = mask[1, 2] = mask[1, 5] = True
    states = []
    maps = tokens.mT.unflatten(2, (2, 3))
    for features, where in ((tokens[mask], None), (tokens, mask), (maps, mask)):
        pool.init_from(features, where)
        states.append({name: value.clone() for name, value in pool.state_dict().items()})
    for state in states[1:]:
        assert all(torch.equal(state[name], states[0][name]) for name in state)
    with pytest.raises(ValueError, match="3 prototypes need at least as many features, got 2"):
        pool.init_from(torch.randn(2, 4))
    with pytest.raises(ValueError, match="finite"):
        pool.init_from(torch.full((5, 4), torch.nan))
    with pytest.raises(ValueError, match="must differ"):
        NetVladPool(4, 3).init_from(torch.ones(5, 4))


# Optimal transport aggregation


def slow_sinkhorn(cost: np.ndarray, sharpness: float, iterations: int) -> np.ndarray:
    """In the linear domain, cost (m, n)."""
    m, n = cost.shape
    kernel = np.exp(-sharpness * cost)
    u, v = np.ones(m), np.ones(n)
    for _ in range(iterations):
        for j in range(n):
            v[j] = 1 / n / sum(kernel[i, j] * u[i] for i in range(m))
        for i in range(m):
            u[i] = 1 / m / sum(kernel[i, j] * v[j] for j in range(n))
    return u[:, None] * kernel * v[None, :]


@given(seeds, st.booleans(), st.sampled_from(["dot", "distance"]), st.integers(1, 12))
@settings(max_examples=15, deadline=None)
def test_otp_in_loops(seed: int, masked: bool, cost: str, iterations: int) -> None:
    bags, mask = random_bags(seed)
    torch.manual_seed(seed)
    pool = OptimalTransportPool(3, 4, sharpness=3.0, iterations=iterations, cost=cost).double()
    prototypes = pool.prototypes.detach().numpy()
    result = pool(bags, mask if masked else None)
    for row in range(2):
        features = present(bags, mask, row, masked)
        costs = np.empty((4, len(features)))
        for i, prototype in enumerate(prototypes):
            for j, feature in enumerate(features):
                w, f = (u / max(1, np.linalg.norm(u)) for u in (prototype, feature))
                costs[i, j] = -prototype @ feature if cost == "dot" else np.linalg.norm(w - f)
        plan = slow_sinkhorn(costs, 3.0, iterations)
        expected = np.concatenate([2 * sum(plan[i, j] * f for j, f in enumerate(features)) for i in range(4)])
        np.testing.assert_allclose(result[row].detach(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sharpness", [0.5, 10.0, 30.0])
def test_sinkhorn_against_pot(sharpness: float) -> None:
    ot = pytest.importorskip("ot")
    generator = torch.Generator().manual_seed(0)
    cost = torch.rand(3, 4, 7, generator=generator, dtype=torch.float64)
    plans = sinkhorn(cost, sharpness, iterations=400)
    for row, plan in enumerate(plans):
        expected = ot.sinkhorn(
            np.full(4, 1 / 4), np.full(7, 1 / 7), cost[row].numpy(), 1 / sharpness, numItermax=20000, stopThr=1e-14
        )
        np.testing.assert_allclose(plan, expected, atol=1e-9)


def test_sinkhorn_tends_to_the_linear_programme() -> None:
    cost = torch.rand(1, 3, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rows, columns = np.kron(np.eye(3), np.ones(6)), np.tile(np.eye(6), 3)
    masses = np.concatenate([np.full(3, 1 / 3), np.full(6, 1 / 6)])
    exact = linprog(cost.numpy().ravel(), A_eq=np.vstack([rows, columns]), b_eq=masses, bounds=(0, None))
    plan = sinkhorn(cost, 200.0, iterations=400)
    assert float((plan * cost).sum()) == pytest.approx(exact.fun, abs=1e-3)
    np.testing.assert_allclose(plan[0].sum(1), np.full(3, 1 / 3))


def test_otp_by_hand() -> None:
    pool = OptimalTransportPool(2, 2, sharpness=100.0)
    with torch.no_grad():
        pool.prototypes.copy_(torch.eye(2))
    # Each prototype takes the feature that points its way: half of it, times sqrt(2).
    vector = pool(torch.tensor([[[0.1, 2.0], [3.0, 0.2]]]))
    torch.testing.assert_close(vector, torch.tensor([[3.0, 0.2, 0.1, 2.0]]) / sqrt(2))


def test_otp_leaves_nothing_out() -> None:
    """(B.1) of the GSP paper: the blocks add up to the average, but for a factor; without sharpness each is it."""
    bags, _ = random_bags(1, dim=4)
    pool = OptimalTransportPool(4, 3, iterations=50, sharpness=1.0).double()
    torch.testing.assert_close(pool(bags).unflatten(1, (3, 4)).sum(1), sqrt(3) * bags.mean(1))
    flat = OptimalTransportPool(4, 3, sharpness=1e-9).double()
    torch.testing.assert_close(flat(bags), (bags.mean(1) / sqrt(3)).repeat(1, 3))


# Bilinear and compact bilinear


@given(seeds, st.booleans())
@settings(max_examples=15, deadline=None)
def test_bilinear_in_loops_and_inner_products_as_of_the_whole_matrix(seed: int, masked: bool) -> None:
    bags, mask = random_bags(seed, dim=3)
    vectors = BilinearPool(3)(bags, mask if masked else None)
    whole = []
    for row in range(2):
        features = present(bags, mask, row, masked)
        matrix = np.zeros((3, 3))
        for feature in features:
            for a in range(3):
                for b in range(3):
                    matrix[a, b] += feature[a] * feature[b] / len(features)
        matrix = np.sign(matrix) * np.sqrt(np.abs(matrix))
        matrix /= np.sqrt((matrix**2).sum())
        whole.append(matrix)
        factors = [1 if a == b else sqrt(2) for a in range(3) for b in range(a, 3)]
        triangle = [matrix[a, b] for a in range(3) for b in range(a, 3)]
        np.testing.assert_allclose(vectors[row], np.multiply(factors, triangle), atol=1e-4)
    assert float(vectors[0] @ vectors[1]) == pytest.approx((whole[0] * whole[1]).sum(), abs=1e-4)


def test_bilinear_by_hand() -> None:
    # Outer products (1, -2, 4) and (9, 0, 0): mean (5, -1, 2), roots of norm sqrt(5 + 2 * 1 + 2) = 3.
    vector = BilinearPool(2)(torch.tensor([[[1.0, -2.0], [3.0, 0.0]]], dtype=torch.float64))
    expected = torch.tensor([[sqrt(5), -sqrt(2), sqrt(2)]], dtype=torch.float64) / 3
    torch.testing.assert_close(vector, expected, rtol=1e-7, atol=1e-7)


def test_the_signed_root_has_a_finite_gradient_at_zero() -> None:
    x = torch.tensor([0.0, 1e-20, -1e-20, 4.0, -4.0], dtype=torch.float64, requires_grad=True)
    signed_root(x).sum().backward()
    expected = torch.tensor([1e4, 1e4, 1e4, 0.25, 0.25], dtype=torch.float64)
    torch.testing.assert_close(x.grad, expected, rtol=1e-6, atol=0)


def count_sketch(values: np.ndarray, buckets: Tensor, signs: Tensor, size: int) -> np.ndarray:
    sketch = np.zeros(size)
    for value, bucket, sign in zip(values, buckets.tolist(), signs.tolist(), strict=True):
        sketch[bucket] += sign * value
    return sketch


@given(seeds, st.booleans(), st.sampled_from([1, 4, 7]))
@settings(max_examples=15, deadline=None)
def test_compact_bilinear_by_circular_convolution(seed: int, masked: bool, size: int) -> None:
    bags, mask = random_bags(seed, dim=4)
    pool = CompactBilinearPool(4, out_dim=size, seed=seed)
    sketches = pool.sketch(bags.masked_fill(~mask.unsqueeze(-1), 0), mask) if masked else pool.sketch(bags)
    np.testing.assert_allclose(pool._sketch_products(bags), pool._sketch_by_fft(bags), atol=1e-12)
    vectors = pool(bags, mask if masked else None)
    for row in range(2):
        features = present(bags, mask, row, masked)
        expected = np.zeros(size)
        for feature in features:
            first, second = (count_sketch(feature, pool.buckets[i], pool.signs[i], size) for i in range(2))
            for k in range(size):
                expected[k] += sum(first[i] * second[(k - i) % size] for i in range(size)) / len(features)
        np.testing.assert_allclose(sketches[row], expected, atol=1e-12)
        root = expected / np.sqrt(np.abs(expected) + 1e-8)
        norm = np.linalg.norm(root)
        if norm > 1e-3:
            np.testing.assert_allclose(vectors[row], root / norm, atol=1e-6)


def test_inner_products_of_sketches_have_the_mean_of_the_polynomial_kernel() -> None:
    """Over 1000 seeds, within four standard errors; these must be small for that to say anything."""
    pair, _ = random_bags(5, batch=1, places=2, dim=6)
    products = []
    for seed in range(1000):
        sketch = CompactBilinearPool(6, out_dim=64, seed=seed).sketch(pair.transpose(0, 1))
        products.append(sketch @ sketch.T)
    estimates = torch.stack(products)
    kernel = (pair[0] @ pair[0].T).square()
    errors = estimates.std(0) / sqrt(len(estimates))
    assert ((estimates.mean(0) - kernel).abs() < 4 * errors).all()
    assert (errors < kernel.amax() / 50).all()


def test_hashes_travel_with_the_state() -> None:
    bags, _ = random_bags(0, dim=6)
    one, other = CompactBilinearPool(6, 32, seed=1), CompactBilinearPool(6, 32, seed=2)
    assert not torch.equal(one(bags), other(bags))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(bags), other(bags))
    assert torch.equal(one(bags), CompactBilinearPool(6, 32, seed=1)(bags))
    assert set(one.state_dict()) == {"buckets", "signs"}
    assert not BilinearPool(6).state_dict()


# With generalized sum pooling


@pytest.mark.parametrize("kind", [MaxWithGsp, GemWithGsp, WeightedMaxWithGsp])
@pytest.mark.parametrize("masked", [False, True])
def test_with_gsp_in_a_head_is_the_formula(kind: type, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_POOLINGS, "tested", kind)
    chosen = {"num_prototypes": 4, "keep": 0.4, "sharpness": 3.0}
    head = Head(channels=7, dim=5, pooling="tested", pooling_settings=chosen, normalise="none").double()
    bags, mask = random_bags(3, batch=2, places=6, dim=7)
    bags, where = bags.abs() + 0.1, mask if masked else None
    result = head(bags, where, details=True)
    weight = head.projection.weight.detach()
    gsp = GeneralizedSumPool(5, **chosen).double()
    gsp.prototypes.data.copy_(head.pooling.gsp.prototypes.data)
    selected = gsp(bags @ weight.T, where, details=True)
    torch.testing.assert_close(result.attributes, selected.attributes)
    for row in range(2):
        places = [j for j in range(6) if mask[row, j] or not masked]
        if kind is MaxWithGsp:
            largest = torch.stack([max(bags[row, j, d] for j in places) for d in range(7)])
            expected = weight @ largest + selected.vector[row]
        else:
            weighted = [len(places) * selected.weights[row, j] * bags[row, j] for j in places]
            if kind is GemWithGsp:
                expected = weight @ (sum(x**3 for x in weighted) / len(places)) ** (1 / 3)
            else:
                expected = weight @ torch.stack([max(x[d] for x in weighted) for d in range(7)])
        torch.testing.assert_close(result.vector[row], expected)
        torch.testing.assert_close(head(bags, where)[row], expected)
    assert result.weights.shape == (2, 6)
    torch.testing.assert_close(result.weights.sum(1), torch.ones(2, dtype=torch.float64))


def test_max_with_gsp_by_hand() -> None:
    # keep = 1 is the average: (2, 1) + (3, 2). The first channel is won by one place, the second by the other.
    result = MaxWithGsp(2, 3, keep=1.0)(torch.tensor([[[1.0, 2.0], [3.0, 0.0]]]), details=True)
    torch.testing.assert_close(result.vector, torch.tensor([[5.0, 3.0]]))
    torch.testing.assert_close(result.weights, torch.tensor([[0.5, 0.5]]))


def test_weights_of_max_with_gsp_count_the_channels_of_the_backbone() -> None:
    pool = MaxWithGsp(2, 3, keep=1.0)
    backbone = torch.tensor([[[5.0, 5.0, 5.0, 0.0], [0.0, 0.0, 0.0, 5.0]]])
    result = pool(torch.zeros(1, 2, 2), details=True, backbone=backbone, project=lambda x: x[:, :2])
    torch.testing.assert_close(result.weights, torch.tensor([[0.625, 0.375]]))  # means of 3/4 and 1/4 with 1/2


def test_uniform_weights_leave_gem_as_it_is() -> None:
    tokens = torch.rand(3, 6, 4)
    mask = torch.tensor([[True] * 4 + [False] * 2] * 3)
    pool = GemWithGsp(4, 3, keep=1.0)
    torch.testing.assert_close(pool(tokens), GeneralizedMeanPool(4)(tokens))
    torch.testing.assert_close(pool(tokens, mask), GeneralizedMeanPool(4)(tokens, mask))


PLAIN: dict[type, Callable[[Tensor], Tensor]] = {
    MaxWithGsp: lambda tokens: tokens.amax(1) + tokens.mean(1),
    GemWithGsp: lambda tokens: GeneralizedMeanPool(4)(tokens),
    WeightedMaxWithGsp: lambda tokens: tokens.amax(1),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_gsp_waits_for_its_start_inside(kind: type) -> None:
    pool = kind(4, 3, init="k-centre", memory=6, learn_keep=True, learn_sharpness=True)
    tokens = torch.rand(4, 5, 4)
    assert not pool.ready
    waiting = pool(tokens)
    torch.testing.assert_close(waiting, PLAIN[kind](tokens))
    waiting.sum().backward()
    assert all(parameter.grad is not None for parameter in pool.parameters())
    assert pool.num_prototypes == 3
    pool(torch.rand(4, 5, 4))
    assert pool.ready
    other = kind(4, 3, init="k-centre", memory=6)
    other.init_from(tokens)
    assert other.ready
    assert torch.cdist(other.gsp.prototypes, clip(tokens.flatten(0, 1))).amin(1).max() < 1e-5  # chosen among them


def test_backbone_and_projection_go_together() -> None:
    pool = MaxWithGsp(4, 3)
    with pytest.raises(ValueError, match="go together"):
        pool(torch.rand(1, 2, 4), backbone=torch.rand(1, 2, 7))
    with pytest.raises(ValueError, match=r"backbone must have the places \(1, 2\), got \(1, 3\)"):
        pool(torch.rand(1, 2, 4), backbone=torch.rand(1, 3, 7), project=torch.nn.Linear(7, 4))
