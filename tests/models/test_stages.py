"""A cut backbone: both sections together are the whole network, in values and in gradients."""

import pytest
import torch

from lookalike.models import create_backbone, train_last_stages
from lookalike.models.backbone import in_eval_mode
from lookalike.models.stages import StageCut

NETWORKS = ["efficientnet_lite0", "resnet18", "resnet20", "bottleneck20", "mobilenetv3_small_050", "convnext_atto"]


def pictures(size: int, count: int = 3) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", [*NETWORKS, "vit_tiny_patch16_224"])
def test_both_sections_are_the_whole_network(name: str, count: int) -> None:
    backbone = create_backbone(name, weights="none")
    size = 224 if name.startswith("vit") else 64
    train_last_stages(backbone, count)
    cut = StageCut(backbone, count, size)
    images = pictures(size)
    names = [key for key, parameter in backbone.named_parameters() if parameter.requires_grad]
    trained = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    with in_eval_mode(backbone):
        stored = cut.frozen.maps(images)
        assert not stored.requires_grad
        expected, got = backbone.maps(images), cut.maps(stored)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(cut.tokens(stored), got.flatten(1, 2))
        one, other = (torch.autograd.grad(maps.square().mean(), trained) for maps in (expected, got))
    for key, whole, section in zip(names, one, other, strict=True):
        torch.testing.assert_close(section, whole, rtol=1e-3, atol=1e-4 * float(whole.abs().max()), msg=key)


def test_batch_norm_of_the_last_stages_learns_and_the_rest_does_not() -> None:
    backbone = create_backbone("resnet18", weights="none")
    train_last_stages(backbone, 1)
    cut = StageCut(backbone, 1, 64)
    stored = cut.frozen.maps(pictures(64))
    before = {name: value.clone() for name, value in backbone.named_buffers()}
    backbone.train()
    cut.maps(stored)
    changed = {name for name, value in backbone.named_buffers() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith("network.layer4.") for name in changed)


def test_a_cut_leaves_the_network_as_it_was() -> None:
    backbone = create_backbone("resnet20", weights="none").eval()
    images = pictures(32)
    expected, names = backbone(images), list(backbone.state_dict())
    cut = StageCut(backbone, 1, 32)
    with pytest.raises(RuntimeError):
        cut.maps(torch.zeros(1, 5, 7, 7))
    assert torch.equal(backbone(images), expected)
    assert list(backbone.state_dict()) == names
    assert not any("forward" in vars(module) for module in backbone.modules())


def test_networks_with_other_paths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^hrnet_w18_small cannot be cut before .*: other paths lead past it$"):
        StageCut(create_backbone("hrnet_w18_small", weights="none"), 1, 64)


def test_nothing_to_cut_off() -> None:
    with pytest.raises(ValueError, match=r"^all stages of resnet20 train$"):
        StageCut(create_backbone("resnet20", weights="none"), 4, 32)
