"""The pooling layer against the obvious composition of its parts, in every shape, dtype and extreme setting."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

import lookalike
from lookalike.pooling import GeneralizedSumPool, Pooled, kernel, partial_transport
from lookalike.pooling.gsp import KEEP_RANGE, SHARPNESS_RANGE

DOUBLE = torch.float64
seeds = st.integers(0, 2**31)


def clip(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1)


def by_hand(pool: GeneralizedSumPool, tokens: Tensor, mask: Tensor | None = None) -> Pooled:
    """Direct differences instead of a matrix product, autograd instead of the fused kernel."""
    prototypes = pool.prototypes.to(tokens.dtype)
    cost = (clip(prototypes)[None, :, None] - clip(tokens / pool.radius)[:, None]).norm(dim=-1)
    moved = partial_transport(cost, pool.keep, pool.sharpness, mask)
    weights = moved.residual / (1 - pool.keep) if pool.background else moved.weights
    return Pooled((weights.unsqueeze(1) @ tokens).squeeze(1), weights, moved.plan.sum(-1) / pool.keep)


def make(
    seed: int, bags: int = 3, n: int = 7, dim: int = 4, m: int = 5, **settings
) -> tuple[GeneralizedSumPool, Tensor]:  # type: ignore[no-untyped-def]
    torch.manual_seed(seed)
    pool = GeneralizedSumPool(dim, m, **settings).double()
    with torch.no_grad():
        pool.prototypes.copy_(torch.randn(m, dim))  # some of them outside of the unit ball
    return pool, torch.randn(bags, n, dim, dtype=DOUBLE)


@given(
    seeds,
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 6), st.integers(1, 6)),
    st.floats(0.01, 0.99),
    st.floats(0.01, 30.0),
    st.sampled_from([0.5, 1.0, 20.0]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_values_and_gradients_equal_the_obvious_composition(
    seed: int,
    shape: tuple[int, ...],
    keep: float,
    sharpness: float,
    radius: float,
    background: bool,
    learnt: bool,
    masked: bool,
) -> None:
    learn = {"learn_keep": learnt, "learn_sharpness": learnt}
    pool, tokens = make(seed, *shape, keep=keep, sharpness=sharpness, radius=radius, background=background, **learn)
    tokens.requires_grad_()
    mask = None
    if masked:
        mask = torch.rand(tokens.shape[:2]) > 0.4
        mask[:, 0] = True
    inputs = [tokens, *pool.parameters()]
    expected, got, lean = by_hand(pool, tokens, mask), pool(tokens, mask, details=True), pool(tokens, mask)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(lean, got.vector)
    onto = [torch.randn_like(part) for part in got]
    torch.testing.assert_close(
        torch.autograd.grad(got, inputs, onto), torch.autograd.grad(expected, inputs, onto), atol=1e-6, rtol=1e-5
    )
    expected_vector = by_hand(pool, tokens, mask).vector
    torch.testing.assert_close(
        torch.autograd.grad(lean, inputs, onto[0]),
        torch.autograd.grad(expected_vector, inputs, onto[0]),
        atol=1e-6,
        rtol=1e-5,
    )


@pytest.mark.parametrize("details", [False, True])
def test_the_radius_is_the_unit_of_length(details: bool) -> None:
    """Features and radius may grow together, also while the prototypes wait for their start and when they do."""
    tokens = torch.randn(4, 6, 8, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    pools = [GeneralizedSumPool(8, 3, init="k-centre", memory=8, radius=radius).double() for radius in (1.0, 50.0)]
    pools[1].load_state_dict(pools[0].state_dict())
    for _ in range(3):
        one, other = pools[0](tokens, details=details), pools[1](50 * tokens, details=details)
        one, other = (one.vector, other.vector) if details else (one, other)
        torch.testing.assert_close(other, 50 * one)
    assert pools[1].ready
    torch.testing.assert_close(pools[0].prototypes, pools[1].prototypes)
    pools[0].init_from(tokens)
    pools[1].init_from(50 * tokens)
    torch.testing.assert_close(pools[0].prototypes, pools[1].prototypes)


def test_features_far_inside_the_radius_are_chosen_by_a_linear_score() -> None:
    torch.manual_seed(0)
    pool = GeneralizedSumPool(8, 1, keep=0.3, sharpness=3e4, radius=1e4).double()
    with torch.no_grad():
        pool.prototypes.copy_(normalize(torch.randn(1, 8, dtype=DOUBLE)))
    tokens = torch.randn(5, 20, 8, dtype=DOUBLE)
    linear = partial_transport(-(pool.prototypes @ tokens.mT), 0.3, 3.0)
    torch.testing.assert_close(pool.explain(tokens).weights, linear.weights, atol=1e-3, rtol=0)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("details", [False, True])
def test_gradcheck(background: bool, details: bool) -> None:
    pool, tokens = make(0, background=background, learn_keep=True, learn_sharpness=True)
    tokens.requires_grad_()
    names = [name for name, _ in pool.named_parameters()]

    def function(tokens: Tensor, *parameters: Tensor) -> Tensor | Pooled:
        return torch.func.functional_call(
            pool, dict(zip(names, parameters, strict=True)), (tokens,), {"details": details}
        )

    assert torch.autograd.gradcheck(function, (tokens, *pool.parameters()))


@pytest.mark.parametrize("n", [1, 2, 49, 10_000])
@pytest.mark.parametrize("m", [1, 64, 1024])
@pytest.mark.parametrize("sharpness", [1e-3, 5.0, 50.0, 1e4])
@pytest.mark.parametrize("kind", ["random", "identical", "equal to prototypes"])
def test_single_precision_in_the_extremes(n: int, m: int, sharpness: float, kind: str) -> None:
    """Finite everywhere, and within 1e-3 of double precision in n * keep * weight."""
    dim = 8
    shares = (0.3,) if n * m > 1e6 else (1e-4, 0.3, 0.5, 1.0)  # the largest take a second each
    for seed, keep in enumerate(shares):
        torch.manual_seed(seed)
        pool = GeneralizedSumPool(dim, m, keep, sharpness)
        if kind == "random":
            tokens = torch.randn(1, n, dim)
        elif kind == "identical":
            tokens = torch.randn(1, 1, dim).repeat(1, n, 1)
        else:
            tokens = pool.prototypes.detach()[torch.randint(m, (1, n))]
        tokens.requires_grad_()
        pooled = pool(tokens, details=True)
        gradients = torch.autograd.grad(
            sum(part.sin().sum() for part in pooled), (tokens, pool.prototypes), allow_unused=True
        )
        lean = torch.autograd.grad(pool(tokens).sin().sum(), (tokens, pool.prototypes))
        for tensor in (*pooled, *gradients, *lean):
            assert tensor.isfinite().all()
        double = copy.deepcopy(pool).double()
        with torch.no_grad():
            exact = double(tokens.double(), details=True)
        assert ((pooled.weights - exact.weights) * n * keep).abs().max() < 1e-3
        # 10,000 equal terms, added up one by one in fp32, drift by 1e-4.
        torch.testing.assert_close(pooled.weights.sum(1), torch.ones(1), atol=1e-6, rtol=0)
        torch.testing.assert_close(pooled.attributes.sum(1), torch.ones(1), atol=2e-6 + 2e-8 * n, rtol=0)


@given(seeds, st.integers(1, 600), st.floats(0.05, 0.95))
@settings(max_examples=30, deadline=None)
def test_fp32_distances_are_good_enough_up_to_the_limit(seed: int, dim: int, keep: float) -> None:
    """The worst case of the expanded square: features on the prototypes, others anywhere."""
    torch.manual_seed(seed)
    pool = GeneralizedSumPool(dim, 30, keep, sharpness=lookalike.pooling.gsp.FP32_SHARPNESS)
    assert not pool._needs_exact_distances()
    with torch.no_grad():
        pool.prototypes.copy_(normalize(torch.randn(30, dim)) * 3)
    tokens = pool.prototypes.detach()[torch.randint(30, (4, 40))] * torch.rand(4, 40, 1)
    tokens[:, :20] = pool.prototypes.detach()[torch.randint(30, (4, 20))]
    weights = pool.explain(tokens).weights
    exact = by_hand(pool.double(), tokens.double()).weights
    errors = (weights - exact) * 40 * keep
    assert errors.abs().max() < 2e-3
    assert errors.square().mean().sqrt() < 5e-4


def test_rounded_matrix_products_do_not_reach_the_distances() -> None:
    pool = GeneralizedSumPool(16, 4)
    assert not pool._needs_exact_distances()
    torch.set_float32_matmul_precision("medium")
    try:
        assert pool._needs_exact_distances()
    finally:
        torch.set_float32_matmul_precision("highest")
    assert not pool._needs_exact_distances()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert pool._needs_exact_distances()
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert not pool._needs_exact_distances()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sharpness", [5.0, 1e4])
def test_half_precision_is_computed_in_single(dtype: torch.dtype, sharpness: float) -> None:
    torch.manual_seed(0)
    pool = GeneralizedSumPool(32, 8, sharpness=sharpness)
    tokens = torch.randn(4, 20, 32).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pooled = pool(tokens, details=True)
        pooled.vector.float().square().sum().backward()
    assert pooled.vector.dtype == dtype
    assert pooled.weights.dtype == pooled.attributes.dtype == torch.float32
    exact = by_hand(copy.deepcopy(pool).double(), tokens.detach().double())
    assert ((pooled.weights - exact.weights) * 20 * 0.3).abs().max() < 1e-3
    resolution = torch.finfo(dtype).eps
    torch.testing.assert_close(pooled.vector.double(), exact.vector, atol=resolution, rtol=resolution)
    single = tokens.detach().float().requires_grad_()
    pool(single).to(dtype).float().square().sum().backward()
    torch.testing.assert_close(tokens.grad, single.grad.to(dtype), atol=4 * resolution, rtol=4 * resolution)


def test_maps_tokens_channels_last_and_strided_agree() -> None:
    torch.manual_seed(0)
    pool = GeneralizedSumPool(16, 6)
    maps = torch.randn(3, 16, 4, 5)
    expected = pool(maps.flatten(2).transpose(1, 2).contiguous(), details=True)
    strided = torch.randn(3, 16, 8, 5)[:, :, ::2]
    strided.copy_(maps)
    for same in (maps, maps.contiguous(memory_format=torch.channels_last), strided):
        same = same.detach().requires_grad_()
        pooled = pool(same, details=True)
        for one, other in zip(pooled, expected, strict=True):
            torch.testing.assert_close(one, other)
        (gradient,) = torch.autograd.grad(pooled.vector.sin().sum(), same)
        assert gradient.shape == same.shape
        assert gradient.abs().sum() > 0


def test_blocks_of_bags_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, tokens = make(0, bags=10, learn_sharpness=True)
    tokens.requires_grad_()
    inputs = [tokens, *pool.parameters()]
    results = []
    for limit in (1, 100, 2**30):
        monkeypatch.setattr(kernel, "CPU_BLOCK", limit)
        pooled = pool(tokens, details=True)
        gradients = torch.autograd.grad(sum(part.sin().sum() for part in pooled), inputs)
        results.append((*pooled, *gradients))
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, atol=1e-12, rtol=1e-12)


def test_keep_of_one_is_average_pooling_exactly() -> None:
    torch.manual_seed(0)
    pool = GeneralizedSumPool(16, 6, keep=1)
    tokens = torch.randn(3, 20, 16, requires_grad=True)
    assert torch.equal(pool(tokens), tokens.mean(1))
    pooled = pool(tokens, details=True)
    torch.testing.assert_close(pooled.weights, torch.full((3, 20), 1 / 20))
    torch.testing.assert_close(pooled.vector, tokens.mean(1))
    pool(tokens).sum().backward()
    assert (pool.prototypes.grad == 0).all()  # zero, not None: every parameter takes part, as DDP wants it


def test_permutation_moves_the_weights_along() -> None:
    pool, tokens = make(0, n=12)
    order = torch.randperm(12)
    straight, shuffled = pool(tokens, details=True), pool(tokens[:, order], details=True)
    torch.testing.assert_close(shuffled.vector, straight.vector)
    torch.testing.assert_close(shuffled.weights, straight.weights[:, order])
    torch.testing.assert_close(shuffled.attributes, straight.attributes)


def test_masked_bag_equals_the_shortened_one() -> None:
    pool, tokens = make(0, bags=2, n=9)
    mask = torch.tensor([[1, 0, 1, 1, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    tokens[~mask] = torch.nan
    tokens.requires_grad_()
    pooled = pool(tokens, mask, details=True)
    (gradient,) = torch.autograd.grad(sum(part.sin().sum() for part in pooled), tokens)
    assert (pooled.weights[~mask] == 0).all()
    assert (gradient[~mask] == 0).all()
    assert gradient.isfinite().all()
    for bag in range(2):
        short = pool(tokens[bag : bag + 1, mask[bag]], details=True)
        torch.testing.assert_close(pooled.vector[bag], short.vector[0])
        torch.testing.assert_close(pooled.weights[bag, mask[bag]], short.weights[0])
        torch.testing.assert_close(pooled.attributes[bag], short.attributes[0])


def test_empty_batch() -> None:
    pool = GeneralizedSumPool(16, 6)
    tokens = torch.randn(0, 20, 16, requires_grad=True)
    pooled = pool(tokens, details=True)
    assert [tuple(part.shape) for part in pooled] == [(0, 16), (0, 20), (0, 6)]
    pool(tokens).sum().backward()
    assert tokens.grad is not None
    assert (pool.prototypes.grad == 0).all()


def test_a_bag_that_is_not_a_number_leaves_the_others_alone() -> None:
    pool, tokens = make(0)
    expected = pool(tokens)
    tokens[1, 2] = torch.nan
    got = pool(tokens)
    assert got[1].isnan().all()
    torch.testing.assert_close(got[[0, 2]], expected[[0, 2]])


def test_on_the_edge_of_the_ball_rounding_does_not_decide_the_gradient() -> None:
    """Clipping has a kink at norm 1, where prototypes chosen from clipped data lie: the edge counts as inside."""
    torch.manual_seed(0)
    pool, tokens = GeneralizedSumPool(16, 12), torch.randn(3, 20, 16)
    edge = normalize(torch.randn(12, 16, dtype=DOUBLE))
    gradients = []
    for radius in (1 - 3e-7, 1, 1 + 3e-7):
        with torch.no_grad():
            pool.prototypes.copy_(radius * edge)
        gradients += torch.autograd.grad(pool(tokens).sin().sum(), pool.prototypes)
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], atol=1e-5, rtol=1e-4)


def test_explain_is_for_people() -> None:
    pool = GeneralizedSumPool(16, 6).train()
    maps = torch.randn(2, 16, 3, 3, requires_grad=True)
    seen = pool.explain(maps)
    assert pool.training
    assert not any(part.requires_grad for part in seen)
    torch.testing.assert_close(seen.weights, pool(maps, details=True).weights)


def test_learnt_settings_move_and_stay_inside_their_bounds() -> None:
    torch.manual_seed(0)
    pool = GeneralizedSumPool(8, 4, keep=0.3, sharpness=5.0, learn_keep=True, learn_sharpness=True)
    assert pool.keep.item() == pytest.approx(0.3, rel=1e-5)
    assert pool.sharpness.item() == pytest.approx(5.0, rel=1e-5)
    optimiser = torch.optim.SGD(pool.parameters(), lr=1e6)
    for sign in (1, -1):
        for _ in range(3):
            optimiser.zero_grad()
            (sign * pool(torch.randn(4, 10, 8)).square().sum()).backward()
            optimiser.step()
            assert KEEP_RANGE[0] * 0.999 <= pool.keep.item() <= 1
            assert SHARPNESS_RANGE[0] * 0.999 <= pool.sharpness.item() <= SHARPNESS_RANGE[1] * 1.001
            assert pool(torch.randn(4, 10, 8)).isfinite().all()
    assert abs(pool.keep.item() - 0.3) > 0.01


def test_second_derivatives_are_refused() -> None:
    pool, tokens = make(0)
    tokens.requires_grad_()
    for target in (tokens, pool.prototypes):
        (gradient,) = torch.autograd.grad(pool(tokens).sum(), target, create_graph=True)
        with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
            torch.autograd.grad(gradient.square().sum(), pool.prototypes)


def test_copies_and_pickles() -> None:
    pool = GeneralizedSumPool(8, 4, init="k-centre", memory=16)
    tokens = torch.randn(2, 5, 8)
    for twin in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):
        twin.load_state_dict(pool.state_dict())
        assert torch.equal(twin.eval()(tokens), pool.eval()(tokens))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"keep": 1.3}, ValueError, r"keep must be in \(0, 1\], got 1.3"),
        ({"keep": 0}, ValueError, "keep"),
        ({"keep": True}, TypeError, "keep"),
        ({"sharpness": -1.0}, ValueError, "sharpness must be finite and above 0, got -1.0"),
        ({"sharpness": None}, TypeError, "sharpness"),
        ({"radius": 0.0}, ValueError, "radius must be finite and above 0, got 0.0"),
        ({"num_prototypes": 0}, ValueError, "num_prototypes must be at least 1, got 0"),
        ({"num_prototypes": 2.5}, TypeError, "num_prototypes must be a whole number, got 2.5"),
        ({"dim": 0}, ValueError, "dim must be at least 1"),
        ({"background": True, "keep": 1.0}, ValueError, "background"),
        ({"init": "kmeans"}, ValueError, "init must be one of random, k-centre, k-centre-released, got 'kmeans'"),
        (
            {"init": "k-centre", "memory": 10},
            ValueError,
            "at least 64 averages for 64 prototypes, got 10",
        ),
        ({"init": "k-centre", "delay": -1}, ValueError, "delay must be at least 0, got -1"),
        ({"learn_keep": True, "keep": 1.0}, ValueError, "learnable keep must start inside"),
        ({"learn_sharpness": True, "sharpness": 1e5}, ValueError, "learnable sharpness must start inside"),
    ],
)
def test_bad_settings_are_refused(settings: dict, error: type[Exception], message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(error, match=message):
        GeneralizedSumPool(**{"dim": 16, **settings})


@pytest.mark.parametrize(
    ("features", "mask", "error", "message"),
    [
        (torch.randn(2, 16), None, ValueError, r"maps \(B, D, H, W\) or tokens \(B, N, D\), got \(2, 16\)"),
        (torch.randn(2, 5, 8), None, ValueError, r"D = 16, got \(2, 5, 8\)"),
        (torch.randn(2, 8, 3, 3), None, ValueError, r"D = 16, got \(2, 8, 3, 3\)"),
        (torch.randn(2, 0, 16), None, ValueError, "at least one feature"),
        (torch.ones(2, 5, 16, dtype=torch.int64), None, TypeError, "floating point, got torch.int64"),
        ([[1.0]], None, TypeError, "must be a tensor, got list"),
        (torch.full((2, 5, 16), torch.nan), None, ValueError, "finite"),
        (torch.randn(2, 5, 16), torch.ones(2, 4, dtype=torch.bool), ValueError, r"shape \(2, 5\), got \(2, 4\)"),
        (torch.randn(2, 5, 16), torch.ones(2, 5), TypeError, "bool tensor"),
        (torch.randn(2, 5, 16), torch.zeros(2, 5, dtype=torch.bool), ValueError, "at least one present feature"),
    ],
)
def test_bad_features_are_refused(features: Tensor, mask: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        GeneralizedSumPool(16, 4, check_finite=True)(features, mask)


def test_registry() -> None:
    assert "gsp" in lookalike.pooling.names()
    pool = lookalike.pooling.create("gsp", dim=16, keep=0.2)
    assert isinstance(pool, GeneralizedSumPool)
    assert pool.keep == 0.2
    with pytest.raises(
        ValueError,
        match=r"no pooling is called 'gps' \(did you mean 'gsp'\?\); there are: attention, average, .* weldon",
    ):
        lookalike.pooling.create("gps", dim=16)
