"""Poolings inside timm models: the same numbers with the average, and every other thing a timm model can do."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from lookalike import pooling
from lookalike.models.timm_pooling import MapPooling, TokenPooling, replace_pooling
from lookalike.pooling import AveragePool, GeneralizedSumPool, Pooled, Pooling
from lookalike.pooling.base import pooled

SWIN = {"img_size": 64, "window_size": 2, "depths": (1, 1, 1, 1), "embed_dim": 12, "num_heads": (1, 1, 2, 2)}
SMALL = {"depth": 1, "embed_dim": 48, "num_heads": 3}
MAPS: dict[str, tuple[int, dict[str, Any]]] = {
    "resnet10t": (64, {}),
    "convnext_atto": (64, {}),
    "efficientnet_lite0": (64, {}),
    "mobilenetv3_small_050": (64, {}),
    "densenet121": (64, {}),
    "regnetx_002": (64, {}),
    "swin_tiny_patch4_window7_224": (64, SWIN),
}
TOKENS: dict[str, tuple[int, dict[str, Any]]] = {
    "vit_tiny_patch16_224": (64, {"img_size": 64, "depth": 1}),  # pools the class token
    "vit_small_patch14_reg4_dinov2": (28, {"img_size": 28, **SMALL}),  # class token and four registers
    "vit_wee_patch16_reg1_gap_256": (32, {"img_size": 32, "depth": 1}),  # averages, and normalises behind
    "test_vit3": (32, {"img_size": 32}),  # attends, also to a register
    "vit_small_patch16_dinov3": (32, {"img_size": 32, **SMALL}),  # Eva: its hook also gets the prefix
}
every_model = pytest.mark.parametrize("name", [*MAPS, *TOKENS])


def create(name: str, num_classes: int = 3, **settings: Any) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    size, defaults = {**MAPS, **TOKENS}[name]
    model = timm.create_model(name, pretrained=False, num_classes=num_classes, **{**defaults, **settings}).eval()
    return model, torch.randn(2, 3, size, size)


class Twice(Pooling):
    """The average, two times one after the other."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, out_dim=2 * dim)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        del mask
        return pooled(bags.mean(1).repeat(1, 2))


class NeedsMap(AveragePool):
    needs_map = True

    def _pool_map(self, bags: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> Pooled:
        assert grid[0] * grid[1] == bags.shape[1]
        return self._pool(bags, mask)


class SeesBoth(AveragePool):
    sees_both = True


@pytest.fixture(autouse=True)
def _more_poolings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in {"twice": Twice, "needs map": NeedsMap, "sees both": SeesBoth}.items():
        monkeypatch.setitem(pooling._POOLINGS, name, kind)


@torch.no_grad()
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("num_classes", [0, 3])
@pytest.mark.parametrize(("ours", "theirs"), [("average", "avg"), ("max", "max")])
def test_maps_are_pooled_as_timm_pools_them(name: str, num_classes: int, ours: str, theirs: str) -> None:
    if theirs == "max" and name.startswith("swin"):
        pytest.skip("timm's Swin has no other pooling than the average")
    model, images = create(name, num_classes, global_pool=theirs)
    features = model.forward_features(images)
    expected = model(images), model.forward_head(features), model.forward_head(features, pre_logits=True)
    assert replace_pooling(model, ours) is model
    assert sum(isinstance(part, MapPooling) for part in model.modules()) == 1
    got = model(images), model.forward_head(features), model.forward_head(features, pre_logits=True)
    for answer, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(answer, wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.parametrize(("ours", "theirs"), [("average", "avg"), ("max", "max")])
def test_patches_alone_are_pooled(name: str, ours: str, theirs: str) -> None:
    model, images = create(name)
    # The same weights in a model that pools by itself, with the norm where this one has it.
    behind = not isinstance(model.fc_norm, nn.Identity)
    settings = {} if "dinov3" in name else {"fc_norm": behind, "pool_include_prefix": False}
    same, _ = create(name, global_pool=theirs, **settings)
    same.load_state_dict(model.state_dict(), strict=False)
    assert not torch.allclose(same(images), model(images)) or model.global_pool == theirs
    assert replace_pooling(model, ours) is model
    assert isinstance(model.attn_pool, TokenPooling)
    torch.testing.assert_close(model(images), same(images))
    features = model.forward_features(images)
    torch.testing.assert_close(model.forward_head(features, pre_logits=True), same.forward_head(features, True))
    noisy = features.clone()
    noisy[:, : model.num_prefix_tokens] += 100
    torch.testing.assert_close(model.forward_head(noisy), model.forward_head(features))


@every_model
def test_gsp_trains_with_the_model(name: str) -> None:
    model, images = create(name)
    replace_pooling(model, "gsp", num_prototypes=4, keep=0.5)
    pool = next(part for part in model.modules() if isinstance(part, GeneralizedSumPool))
    assert not pool.training
    model.train()
    assert pool.training
    model.eval()
    with torch.no_grad():
        pool.prototypes.mul_(3)
    model(images).square().sum().backward()
    assert pool.prototypes.grad is not None
    assert pool.prototypes.grad.any()
    other, _ = create(name)
    replace_pooling(other, "gsp", num_prototypes=4, keep=0.5).load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(other(images), model(images))


@torch.no_grad()
@pytest.mark.parametrize("name", ["resnet10t", "swin_tiny_patch4_window7_224", "vit_small_patch16_dinov3"])
def test_poolings_that_need_a_map_get_one(name: str) -> None:
    model, images = create(name)
    expected = model(images)
    torch.testing.assert_close(replace_pooling(model, "needs map")(images), expected)


@torch.no_grad()
@pytest.mark.parametrize("name", ["resnet10t", "swin_tiny_patch4_window7_224", "vit_tiny_patch16_224"])
def test_vectors_of_another_size(name: str) -> None:
    model, images = create(name)
    before = model(images)
    with pytest.raises(ValueError, match="create the model with num_classes=0"):
        replace_pooling(model, "twice")
    assert torch.equal(model(images), before)  # and nothing has changed
    model, images = create(name, num_classes=0)
    assert replace_pooling(model, "twice")(images).shape == (2, 2 * model.num_features)
    assert model.head_hidden_size == 2 * model.num_features
    norm_behind, _ = create("convnext_atto", num_classes=0)
    with pytest.raises(ValueError, match="take 320: use an Embedder"):
        replace_pooling(norm_behind, "twice")


@torch.no_grad()
@pytest.mark.parametrize("name", ["resnet10t", "swin_tiny_patch4_window7_224", "vit_small_patch16_dinov3"])
def test_again_and_in_other_precisions(name: str) -> None:
    model, images = create(name)
    once = replace_pooling(model, "average")(images)
    replace_pooling(replace_pooling(model, "gsp"), "average")
    assert torch.equal(model(images), once)
    double = replace_pooling(model.double(), "gsp")
    assert double(images.double()).dtype == torch.float64
    assert all(parameter.dtype == torch.float64 for parameter in double.parameters())
    half, _ = create(name)
    assert replace_pooling(half.bfloat16(), "gsp")(images.bfloat16()).dtype == torch.bfloat16


@torch.no_grad()
def test_channels_are_those_that_reach_the_pooling() -> None:
    """Of this one the head widens the maps before it pools them: num_features is 128."""
    model = timm.create_model("efficientvit_b0", num_classes=3).eval()
    images = torch.randn(1, 3, 64, 64)
    expected = model(images)
    torch.testing.assert_close(replace_pooling(model, "average")(images), expected, rtol=1e-4, atol=1e-5)
    assert model.head.global_pool.pooling.dim == 1024 != model.num_features


def test_what_cannot_be_done_is_said() -> None:
    model, _ = create("resnet10t")
    with pytest.raises(ValueError, match="no pooling is called 'gps'"):
        replace_pooling(model, "gps")
    with pytest.raises(ValueError, match="gsp has no setting 'kept'"):
        replace_pooling(model, "gsp", kept=0.3)
    with pytest.raises(ValueError, match="use it in an Embedder"):
        replace_pooling(model, "sees both")
    with pytest.raises(ValueError, match="leave global_pool at its default"):
        replace_pooling(timm.create_model("resnet10t", num_classes=0, global_pool=""), "gsp")
    distilled = timm.create_model("deit_tiny_distilled_patch16_224", depth=1)
    for other in (nn.Linear(2, 2), distilled, timm.create_model("levit_128s")):
        with pytest.raises(TypeError, match=f"SelectAdaptivePool2d .* got {type(other).__name__}"):
            replace_pooling(other, "gsp")
