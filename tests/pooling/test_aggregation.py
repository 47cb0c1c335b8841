"""What holds for every pooling that aggregates by prototypes or products: one list of cases, one set of properties."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lookalike.models.embedder import Head
from lookalike.pooling import _POOLINGS, Pooling
from lookalike.pooling.bilinear import BilinearPool, CompactBilinearPool
from lookalike.pooling.per_prototype import NetVladPool, OptimalTransportPool
from lookalike.pooling.with_gsp import GemWithGsp, MaxWithGsp, WeightedMaxWithGsp

DIM = 5
CASES: dict[str, Callable[[], Pooling]] = {
    "netvlad": lambda: NetVladPool(DIM, 3),
    "netvlad, raw features": lambda: NetVladPool(DIM, 3, normalise_features=False),
    "netvlad, one centre": lambda: NetVladPool(DIM, 1),
    "otp": lambda: OptimalTransportPool(DIM, 3),
    "otp by distance": lambda: OptimalTransportPool(DIM, 3, cost="distance", sharpness=2.0),
    "bilinear": lambda: BilinearPool(DIM),
    "compact-bilinear": lambda: CompactBilinearPool(DIM, out_dim=16),
    "compact-bilinear, odd": lambda: CompactBilinearPool(DIM, out_dim=7, seed=1),
    "max+gsp": lambda: MaxWithGsp(DIM, 3, learn_keep=True, learn_sharpness=True),
    "gem+gsp": lambda: GemWithGsp(DIM, 3, learn_keep=True, learn_sharpness=True),
    "weighted-max+gsp": lambda: WeightedMaxWithGsp(DIM, 3, learn_keep=True, learn_sharpness=True),
}


@pytest.fixture(params=CASES)
def pool(request: pytest.FixtureRequest) -> Pooling:
    torch.manual_seed(0)
    return CASES[request.param]()


def bags_of(batch: int = 3, places: int = 6, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    """Positive features, as after a ReLU, which GeM asks for, of norms on both sides of 1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, places, DIM, generator=generator, dtype=dtype) + 0.05


def some_mask() -> Tensor:
    return torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 0, 1, 0, 0], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)


def test_a_masked_bag_equals_the_shortened_bag(pool: Pooling) -> None:
    bags, mask = bags_of(), some_mask()
    bags[~mask] = torch.nan  # whatever stands there
    result = pool(bags, mask, details=True)
    for row, present in enumerate(mask):
        alone = pool(bags[row : row + 1, present], details=True)
        torch.testing.assert_close(result.vector[row], alone.vector[0], rtol=1e-9, atol=1e-12)
        if pool.has_attributes:
            torch.testing.assert_close(result.attributes[row], alone.attributes[0], rtol=1e-9, atol=1e-12)
        if pool.has_weights:
            torch.testing.assert_close(result.weights[row, present], alone.weights[0], rtol=1e-9, atol=1e-12)
            assert (result.weights[row, ~present] == 0).all()


def test_masked_places_get_exactly_no_gradient(pool: Pooling) -> None:
    bags, mask = bags_of().requires_grad_(), some_mask()
    result = pool(bags, mask, details=True)
    (result.vector.square().sum() * 3 + result.vector.sum() + result.attributes.square().sum()).backward()
    assert (bags.grad[~mask] == 0).all()
    assert (bags.grad[0, mask[0]] != 0).any()


def test_shares_sum_to_one_and_are_there_as_promised(pool: Pooling) -> None:
    result = pool(bags_of(), some_mask(), details=True)
    for shares, promised in ((result.weights, pool.has_weights), (result.attributes, pool.has_attributes)):
        assert (shares.shape[1] > 0) == promised
        if promised:
            assert (shares >= 0).all()
            torch.testing.assert_close(shares.sum(1), torch.ones(3, dtype=torch.float64))
    if not pool.has_weights:
        with pytest.raises(ValueError, match="does not weigh places"):
            pool.explain(bags_of())


def test_sizes(pool: Pooling) -> None:
    assert pool(bags_of()).shape == (3, pool.out_dim)
    assert pool(bags_of(places=1)).shape == (3, pool.out_dim)
    assert pool(bags_of(batch=0)).shape == (0, pool.out_dim)
    assert pool(bags_of(batch=0), torch.ones(0, 6, dtype=torch.bool)).shape == (0, pool.out_dim)
    assert f"dim={DIM}" in repr(pool)


def test_maps_are_tokens_in_any_layout_and_order_of_places_does_not_matter(pool: Pooling) -> None:
    tokens = bags_of()
    vector = pool(tokens)
    maps = tokens.mT.unflatten(2, (2, 3))
    torch.testing.assert_close(pool(maps), vector)
    torch.testing.assert_close(pool(maps.contiguous(memory_format=torch.channels_last)), vector)
    torch.testing.assert_close(pool(tokens[:, torch.tensor([3, 0, 5, 1, 4, 2])]), vector)


def test_half_precision_is_computed_in_fp32_also_under_autocast(pool: Pooling) -> None:
    half = bags_of(dtype=torch.float32).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        result = pool(half, details=True)
    assert result.vector.dtype == torch.bfloat16
    expected = pool(half.float(), details=True)
    assert torch.equal(result.vector, expected.vector.bfloat16())
    assert torch.equal(result.attributes, expected.attributes)


@pytest.mark.parametrize("kind", ["zero", "alike", "large", "tiny", "negative"])
@pytest.mark.parametrize("places", [1, 6])
def test_extreme_features_keep_values_and_gradients_finite(pool: Pooling, kind: str, places: int) -> None:
    bags = bags_of(places=places, dtype=torch.float32)
    values = {
        "zero": torch.zeros_like(bags),
        "alike": bags[:1, :1].expand_as(bags).clone(),
        "large": (bags - 0.5) * 1e4,
        "tiny": bags * 1e-6,
        "negative": -bags,
    }
    features = values[kind].requires_grad_()
    result = pool(features, details=True)
    assert result.vector.isfinite().all()
    (result.vector * torch.linspace(-1, 1, result.vector.shape[1])).sum().backward()
    assert features.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in pool.parameters())


@pytest.mark.parametrize("name", [name for name in CASES if "bilinear" not in name])
def test_a_feature_on_a_prototype_is_nothing_special(name: str) -> None:
    pool = CASES[name]()
    part = getattr(pool, "gsp", pool)
    prototypes = part.centres if isinstance(part, NetVladPool) else part.prototypes
    features = prototypes.detach()[None].repeat(2, 2, 1).requires_grad_()
    vector = pool(features)
    (vector * torch.linspace(-1, 1, vector.shape[1])).sum().backward()
    assert vector.isfinite().all()
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_by_finite_differences(pool: Pooling, masked: bool) -> None:
    pool = pool.double()
    names, parameters = zip(*pool.named_parameters(), strict=True) if list(pool.parameters()) else ((), ())
    mask = some_mask()[:2] if masked else None

    def function(bags: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        result = torch.func.functional_call(
            pool, dict(zip(names, values, strict=True)), (bags, mask), {"details": True}
        )
        return tuple(part for part in result if part.requires_grad)

    values = [parameter.detach().clone().requires_grad_() for parameter in parameters]
    bags = bags_of(2, 6 if masked else 3).requires_grad_()
    assert torch.autograd.gradcheck(function, (bags, *values), atol=1e-6, rtol=1e-4, fast_mode=masked)


def test_every_parameter_takes_part_in_every_step(pool: Pooling) -> None:
    pool(bags_of(dtype=torch.float32).requires_grad_()).sum().backward()
    assert all(parameter.grad is not None for parameter in pool.parameters())


def test_wrong_input_is_refused(pool: Pooling) -> None:
    with pytest.raises(ValueError, match=f"D = {DIM}"):
        pool(torch.zeros(1, 2, DIM + 1))
    with pytest.raises(ValueError, match="at least one present feature"):
        pool(torch.zeros(1, 2, DIM), torch.zeros(1, 2, dtype=torch.bool))


@pytest.mark.parametrize("kind", [NetVladPool, OptimalTransportPool])
@pytest.mark.parametrize(("count", "local", "size"), [(8, 16, 128), (64, 128, 8192)])
def test_both_published_sizes_in_a_head(
    kind: type[Pooling], count: int, local: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_POOLINGS, "tested", kind)
    head = Head(channels=24, dim=size, pooling="tested", pooling_settings={"num_prototypes": count})
    assert head.projection is not None
    assert head.projection.weight.shape == (local, 24)
    assert head.pooling.dim == local
    vectors = head(torch.rand(2, 9, 24))
    assert vectors.shape == (2, size)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))
    if count == 8:  # by default
        assert Head(24, 128, "tested").pooling.num_prototypes == 8
    with pytest.raises(ValueError, match="num_prototypes must divide the size of the embedding, 128"):
        Head(24, 128, "tested", {"num_prototypes": 7})


@pytest.mark.parametrize(
    ("pool", "count"),
    [
        (lambda: NetVladPool(16, 8), 2 * 8 * 16 + 8),  # centres, 1x1 convolution, its bias
        (lambda: NetVladPool(128, 64), 2 * 64 * 128 + 64),
        (lambda: OptimalTransportPool(16, 8), 8 * 16),
        (lambda: OptimalTransportPool(128, 64), 64 * 128),
        (lambda: BilinearPool(16), 0),
        (lambda: CompactBilinearPool(16), 0),
        (lambda: MaxWithGsp(128, 64), 64 * 128),
        (lambda: GemWithGsp(128, 64), 64 * 128 + 1),  # one power
        (lambda: GemWithGsp(8, 4, learn_keep=True, learn_sharpness=True), 4 * 8 + 1 + 2),
    ],
)
def test_how_many_parameters(pool: Callable[[], nn.Module], count: int) -> None:
    assert sum(parameter.numel() for parameter in pool().parameters()) == count


@pytest.mark.parametrize(
    ("kind", "settings", "error", "message"),
    [
        (NetVladPool, {"num_prototypes": 0}, ValueError, "num_prototypes must be at least 1, got 0"),
        (NetVladPool, {"num_prototypes": 2.5}, TypeError, "num_prototypes must be a whole number"),
        (OptimalTransportPool, {"sharpness": 0}, ValueError, "sharpness must be finite and above 0, got 0"),
        (OptimalTransportPool, {"iterations": 0}, ValueError, "iterations must be at least 1, got 0"),
        (OptimalTransportPool, {"cost": "cosine"}, ValueError, "cost must be 'dot' or 'distance', got 'cosine'"),
        (CompactBilinearPool, {"out_dim": 0}, ValueError, "out_dim must be at least 1, got 0"),
        (CompactBilinearPool, {"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        (MaxWithGsp, {"keep": 1.5}, ValueError, "keep must be in"),
    ],
)
def test_wrong_settings_are_refused(
    kind: type[Pooling], settings: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kind(4, **settings)
