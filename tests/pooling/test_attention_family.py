"""What every pooling of the attention family must do, each in training and in eval mode, on the same cases."""

import copy
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from lookalike.pooling import base
from lookalike.pooling.attention import AttentionPool, DelfPool, SimPool
from lookalike.pooling.attention_blocks import CbamPool, GsopPool, SolarPool
from lookalike.pooling.base import Pooling
from lookalike.pooling.feature_weights import SmkPool
from lookalike.pooling.layers import PresentBatchNorm

DIM = 6
CASES: dict[str, Callable[[], Pooling]] = {
    "attention": lambda: AttentionPool(DIM, temperature=0.7),
    "attention, hidden": lambda: AttentionPool(DIM, hidden=5),
    "simpool": lambda: SimPool(DIM),
    "simpool, high power": lambda: SimPool(DIM, power=12),
    "simpool, no power": lambda: SimPool(DIM, power=None),
    "delf": lambda: DelfPool(DIM, hidden=5),
    "delf, as they are": lambda: DelfPool(DIM, hidden=5, unit_features=False),
    "cbam": lambda: CbamPool(DIM, reduction=3, kernel=3),
    "gsop": lambda: GsopPool(DIM, reduced=3),
    "solar": lambda: SolarPool(DIM),
    "smk": lambda: SmkPool(DIM),
}
cases = pytest.mark.parametrize("name", CASES)
modes = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def make(name: str, training: bool, dtype: torch.dtype = torch.float64) -> Pooling:
    """A pooling whose every parameter and running statistic is away from where it starts."""
    torch.manual_seed(7)
    pool = CASES[name]().to(dtype)
    with torch.no_grad():
        for parameter in pool.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    for module in pool.modules():
        if isinstance(module, PresentBatchNorm):
            module.running_mean.normal_(std=0.3)
            module.running_variance.uniform_(0.5, 2)
    return pool.train(training)


def maps(batch: int = 3, height: int = 4, width: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, DIM, height, width, generator=torch.Generator().manual_seed(1), dtype=dtype)


def corner_mask(height: int, width: int) -> Tensor:
    """Of the 4 x 3 maps, all but the upper left corner absent."""
    mask = torch.zeros(3, 4, 3, dtype=torch.bool)
    mask[:, :height, :width] = True
    return mask.flatten(1)


@cases
@modes
def test_shape_weights_and_attributes(name: str, training: bool) -> None:
    pool, mask = make(name, training), corner_mask(3, 2)
    for present in (None, mask):
        result = pool(maps(), present, details=True)
        assert result.vector.shape == (3, DIM)
        assert result.attributes.shape == (3, 0)
        if pool.has_weights:
            torch.testing.assert_close(result.weights.sum(1), torch.ones(3, dtype=torch.float64))
            assert (result.weights >= 0).all()
            assert present is None or (result.weights[~mask] == 0).all()
        else:
            assert result.weights.shape == (3, 0)


@cases
@modes
def test_a_masked_bag_is_the_shortened_bag(name: str, training: bool) -> None:
    masked_pool = make(name, training)
    cropped_pool = copy.deepcopy(masked_pool)
    masked = masked_pool(maps(), corner_mask(3, 2), details=True)
    cropped = cropped_pool(maps()[:, :, :3, :2], details=True)
    torch.testing.assert_close(masked.vector, cropped.vector)
    if masked_pool.has_weights:
        torch.testing.assert_close(masked.weights[corner_mask(3, 2)].view(3, 6), cropped.weights)
    for key, state in masked_pool.state_dict().items():
        torch.testing.assert_close(state, cropped_pool.state_dict()[key], msg=key)


@cases
@modes
def test_bags_of_different_lengths(name: str, training: bool) -> None:
    """Scattered places, which only poolings that do not look at neighbours can do without."""
    pool = make(name, training)
    if pool.needs_map:
        pytest.skip("a scattered mask is no smaller map")
    tokens = maps().flatten(2).mT
    mask = torch.rand(3, 12, generator=torch.Generator().manual_seed(5)) < 0.5
    mask[:, 3] = True
    moved = torch.zeros_like(tokens)
    moved_mask = torch.zeros_like(mask)
    for b in range(3):
        present = int(mask[b].sum())
        moved[b, :present], moved_mask[b, :present] = tokens[b, mask[b]], True
    width = int(moved_mask.sum(1).max())
    expected = copy.deepcopy(pool)(moved[:, :width], moved_mask[:, :width])
    torch.testing.assert_close(pool(tokens, mask), expected)


@cases
@modes
def test_absent_places_have_no_influence_and_no_gradient(name: str, training: bool) -> None:
    pool = make(name, training)
    mask = torch.rand(3, 12, generator=torch.Generator().manual_seed(3)) < 0.6
    assert mask.any(1).all()
    features = maps().requires_grad_()
    result = copy.deepcopy(pool)(features, mask, details=True)
    (result.vector.square().sum() + result.weights.square().sum()).backward()
    assert features.grad is not None
    assert (features.grad.flatten(2).mT[~mask] == 0).all()
    assert (features.grad.flatten(2).mT[mask] != 0).any(1).all()
    for junk in (1e4, torch.nan):
        other = maps().flatten(2).mT.masked_fill(~mask.unsqueeze(-1), junk).mT.reshape(3, DIM, 4, 3)
        again = copy.deepcopy(pool)(other, mask, details=True)
        assert torch.equal(result.vector, again.vector)
        assert torch.equal(result.weights, again.weights)


@cases
@modes
@pytest.mark.parametrize("shape", [(0, 4, 3), (1, 1, 1), (2, 1, 1), (0, 1, 1)])
def test_few_bags_and_few_places(name: str, training: bool, shape: tuple[int, int, int]) -> None:
    pool = make(name, training, torch.float32)
    batch, height, width = shape
    for mask in (None, torch.ones(batch, height * width, dtype=torch.bool)):
        features = maps(batch, height, width, torch.float32).requires_grad_()
        result = pool(features, mask, details=True)
        assert result.vector.shape == (batch, DIM)
        result.vector.sum().backward()
        everything = [*result, features.grad, *pool.state_dict().values()]
        everything += [parameter.grad for parameter in pool.parameters()]
        assert all(torch.isfinite(values).all() for values in everything)
        if pool.has_weights and height == 1:
            torch.testing.assert_close(result.weights, torch.ones(batch, 1))


@cases
@modes
@pytest.mark.parametrize("kind", ["zeros", "alike", "large", "tiny", "negative", "one large"])
def test_extreme_features_give_finite_values_and_gradients(name: str, training: bool, kind: str) -> None:
    pool = make(name, training, torch.float32)
    features = maps(dtype=torch.float32)
    features = {
        "zeros": torch.zeros_like(features),
        "alike": features[:, :, :1, :1].expand_as(features).clone(),
        "large": 1e4 * features,
        "tiny": 1e-6 * features,
        "negative": -features.abs(),
        "one large": torch.cat((1e4 * features[:1], features[1:])),
    }[kind].requires_grad_()
    result = pool(features, details=True)
    (result.vector.sum() + (result.weights * torch.arange(result.weights.shape[1])).sum()).backward()
    for values in (*result, features.grad, *(parameter.grad for parameter in pool.parameters())):
        assert torch.isfinite(values).all()
    if pool.has_weights:
        torch.testing.assert_close(result.weights.sum(1), torch.ones(3))


@cases
@modes
def test_gradients(name: str, training: bool) -> None:
    """Of vector and weights, to the features and to every parameter, against differences."""
    pool = make(name, training)
    names = [key for key, _ in pool.named_parameters()]
    features = maps(2, 1, 3).requires_grad_()
    mask = torch.tensor([[True, False, True], [True, True, True]])

    def run(features: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        result = torch.func.functional_call(
            pool, dict(zip(names, values, strict=True)), (features, mask), {"details": True}
        )
        return (result.vector, result.weights) if pool.has_weights else (result.vector,)

    parameters = [parameter.detach().clone().requires_grad_() for parameter in pool.parameters()]
    assert torch.autograd.gradcheck(run, (features, *parameters), fast_mode=False)


@cases
def test_every_parameter_takes_part_in_training(name: str) -> None:
    pool = CASES[name]()
    pool(maps(dtype=torch.float32).requires_grad_()).square().sum().backward()
    assert all(parameter.grad is not None for parameter in pool.parameters())


@cases
@modes
def test_layouts_and_tokens(name: str, training: bool) -> None:
    pool = make(name, training)
    features = maps(height=4, width=4)
    expected = copy.deepcopy(pool)(features)
    wide = torch.zeros(3, DIM, 4, 8, dtype=torch.float64)
    wide[..., ::2] = features
    for other in (
        features.to(memory_format=torch.channels_last),
        wide[..., ::2],
        features.flatten(2).mT,
        features.flatten(2).mT.contiguous(),
    ):
        torch.testing.assert_close(copy.deepcopy(pool)(other), expected)


@cases
@modes
def test_the_order_of_places_matters_to_those_alone_that_need_the_map(name: str, training: bool) -> None:
    pool = make(name, training)
    tokens = maps(height=4, width=4).flatten(2).mT
    order = torch.randperm(16, generator=torch.Generator().manual_seed(2))
    difference = copy.deepcopy(pool)(tokens[:, order]) - copy.deepcopy(pool)(tokens)
    assert (difference.abs().max() > 1e-3) == pool.needs_map
    assert pool.needs_map or difference.abs().max() < 1e-9


@cases
def test_precision(name: str) -> None:
    """bf16 features are computed with in fp32; fp64 ones in fp64, whatever the parameters are."""
    pool = make(name, False, torch.float32)
    rounded = maps(dtype=torch.float32).bfloat16()
    result = pool(rounded, details=True)
    assert result.vector.dtype == torch.bfloat16
    assert result.weights.dtype == torch.float32
    torch.testing.assert_close(result.vector, pool(rounded.float()).bfloat16(), rtol=0, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(pool(rounded.float()), pool(rounded.float(), details=True).vector)
        torch.testing.assert_close(pool(rounded).float(), result.vector.float(), rtol=0, atol=0)
    doubled = copy.deepcopy(pool).double()
    torch.testing.assert_close(pool(maps()), doubled(maps()), rtol=1e-12, atol=1e-12)
    halved = copy.deepcopy(pool).bfloat16()
    torch.testing.assert_close(halved(rounded), copy.deepcopy(halved).float()(rounded), rtol=0, atol=0)
    halved.train()(rounded.requires_grad_()).sum().backward()
    assert all(parameter.grad.dtype == torch.bfloat16 for parameter in (rounded, *halved.parameters()))


@cases
@modes
def test_nothing_looks_at_values_or_names_a_device(name: str, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on the device "meta" have no values: a branch on one, or a tensor made elsewhere, is an error."""
    monkeypatch.setattr(base, "without_autocast", lambda _: nullcontext())  # autocast has no such device
    pool = make(name, training, torch.float32).to("meta")
    for mask in (None, corner_mask(3, 2).to("meta")):
        features = maps(dtype=torch.float32).to("meta").requires_grad_()
        vector = pool(features, mask)
        assert vector.shape == (3, DIM)
        vector.sum().backward()


@cases
def test_state_goes_from_one_to_another(name: str) -> None:
    pool, other = make(name, True), CASES[name]().double()
    pool(maps())
    other.load_state_dict(pool.state_dict())
    assert torch.equal(pool.eval()(maps()), other.eval()(maps()))


@cases
def test_explain_leaves_no_trace(name: str) -> None:
    pool = make(name, True)
    before = copy.deepcopy(pool.state_dict())
    if pool.has_weights:
        expected = copy.deepcopy(pool).eval()(maps(), details=True)
        assert torch.equal(pool.explain(maps()).weights, expected.weights)
    else:
        with pytest.raises(ValueError, match="does not weigh places"):
            pool.explain(maps())
    assert all(torch.equal(before[key], state) for key, state in pool.state_dict().items())
    assert all(module.training for module in pool.modules())


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (AttentionPool, {"hidden": 0}, "hidden must be at least 1, got 0"),
        (AttentionPool, {"temperature": 0}, "temperature must be finite and above 0, got 0"),
        (SimPool, {"power": -1.0}, "power must be finite and above 0, got -1.0"),
        (DelfPool, {"hidden": 0}, "hidden must be at least 1, got 0"),
        (CbamPool, {"reduction": 0}, "reduction must be at least 1, got 0"),
        (CbamPool, {"kernel": 4}, "kernel must be odd, so that it has a middle, got 4"),
        (GsopPool, {"reduced": 0}, "reduced must be at least 1, got 0"),
        (SolarPool, {"reduction": 0}, "reduction must be at least 1, got 0"),
        (SolarPool, {"power": 0.0}, "power must be finite and above"),
        (SmkPool, {"window": 2}, "window must be odd, so that it has a middle, got 2"),
    ],
)
def test_wrong_settings_are_refused(kind: type[Pooling], settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(4, **settings)
    shown = repr(kind(4))
    assert all(f"{setting}=" in shown for setting in settings)


@pytest.mark.parametrize("count", [2, 7])
def test_the_batch_norm_is_that_of_torch_on_the_present_rows(count: int) -> None:
    torch.manual_seed(0)
    ours, theirs = PresentBatchNorm(3, momentum=0.3).double(), nn.BatchNorm1d(3, momentum=0.3).double()
    with torch.no_grad():
        theirs.weight.copy_(ours.weight.normal_())
        theirs.bias.copy_(ours.bias.normal_())
    for _ in range(3):
        values = 2 * torch.randn(3, 4, 3, dtype=torch.float64) + 1
        mask = torch.zeros(12, dtype=torch.bool)
        mask[torch.randperm(12)[:count]] = True
        mask = mask.view(3, 4)
        torch.testing.assert_close(ours(values, mask)[mask], theirs(values[mask]))
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_variance, theirs.running_var)
    torch.testing.assert_close(ours(values), theirs(values.flatten(0, 1)).view_as(values))
    torch.testing.assert_close(ours.eval()(values), theirs.eval()(values.flatten(0, 1)).view_as(values))


def test_a_batch_of_one_row_is_normalised_by_what_was_seen_before() -> None:
    norm = PresentBatchNorm(2)
    norm.running_mean.fill_(1.0)
    norm.running_variance.fill_(4.0)
    torch.testing.assert_close(norm(torch.tensor([[3.0, 1.0]])), torch.tensor([[1.0, 0.0]]), rtol=1e-5, atol=1e-6)
    assert norm.running_mean.tolist() == [1.0, 1.0]
    assert norm.running_variance.tolist() == [4.0, 4.0]
