"""BN-Inception and the CIFAR ResNets: counts by hand, shapes, and BN-Inception against a plain list of its layers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, batch_norm, conv2d, max_pool2d

from lookalike.models import create_backbone
from lookalike.models.bn_inception import BNInception

# block: input; 1x1; 3x3 reduce, 3x3; double reduce, double; behind the pooling
TABLE = {
    "3a": (192, 64, 64, 64, 64, 96, 32),
    "3b": (256, 64, 64, 96, 64, 96, 64),
    "3c": (320, 0, 128, 160, 64, 96, 0),
    "4a": (576, 224, 64, 96, 96, 128, 128),
    "4b": (576, 192, 96, 128, 96, 128, 128),
    "4c": (576, 160, 128, 160, 128, 160, 128),
    "4d": (608, 96, 128, 192, 160, 192, 128),
    "4e": (608, 0, 128, 192, 192, 256, 0),
    "5a": (1056, 352, 192, 320, 160, 224, 128),
    "5b": (1024, 352, 192, 320, 192, 224, 128),
}


def test_bn_inception_has_the_parameters_of_the_published_model() -> None:
    def layer(inputs: int, outputs: int, kernel: int) -> int:
        return outputs * (inputs * kernel**2 + 3) if outputs else 0  # weights, bias, scale and shift

    by_hand = layer(3, 64, 7) + layer(64, 64, 1) + layer(64, 192, 3)
    for inputs, direct, narrow, single, thin, double, behind in TABLE.values():
        by_hand += layer(inputs, direct, 1) + layer(inputs, narrow, 1) + layer(narrow, single, 3)
        by_hand += layer(inputs, thin, 1) + layer(thin, double, 3) + layer(double, double, 3) + layer(inputs, behind, 1)
    assert sum(parameter.numel() for parameter in BNInception().parameters()) == by_hand
    assert by_hand + 1024 * 1000 + 1000 == 11_295_240


def published_forward(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """The network written out from the names in its state dict."""

    def layer(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        x = conv2d(x, weight, state[f"{name}.bias"], stride, weight.shape[-1] // 2)
        statistics = [state[f"{name}_bn.{key}"] for key in ("running_mean", "running_var", "weight", "bias")]
        return batch_norm(x, *statistics, eps=1e-5).clamp(min=0)

    x = max_pool2d(layer("conv1_7x7_s2", x, 2), 3, 2, ceil_mode=True)
    x = max_pool2d(layer("conv2_3x3", layer("conv2_3x3_reduce", x)), 3, 2, ceil_mode=True)
    for block in TABLE:
        name, stride = f"inception_{block}", 2 if block in ("3c", "4e") else 1
        single = layer(f"{name}_3x3", layer(f"{name}_3x3_reduce", x), stride)
        double = layer(f"{name}_double_3x3_1", layer(f"{name}_double_3x3_reduce", x))
        double = layer(f"{name}_double_3x3_2", double, stride)
        if stride == 2:
            x = torch.cat([single, double, max_pool2d(x, 3, 2, ceil_mode=True)], 1)
            continue
        pooled = max_pool2d(x, 3, 1, 1) if block == "5b" else avg_pool2d(x, 3, 1, 1, count_include_pad=True)
        x = torch.cat([layer(f"{name}_1x1", x), single, double, layer(f"{name}_pool_proj", pooled)], 1)
    return x


def test_bn_inception_loads_a_published_file_and_computes_what_it_means(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = BNInception().state_dict()
    for name, value in state.items():  # statistics and scales as of a trained network
        if name.endswith(("running_mean", "_bn.bias")):
            value.copy_(0.1 * torch.randn_like(value))
        elif name.endswith(("running_var", "_bn.weight")):
            value.copy_(0.5 + torch.rand_like(value))
    file = {name: value[None] if "_bn." in name and value.dim() == 1 else value for name, value in state.items()}
    file = {name: value for name, value in file.items() if "num_batches" not in name}
    file["last_linear.weight"], file["last_linear.bias"] = torch.zeros(1000, 1024), torch.zeros(1000)
    torch.save(file, tmp_path / "bn_inception.pth")

    backbone = create_backbone("bn_inception", weights=tmp_path / "bn_inception.pth").eval()
    images = 50 * torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        expected = published_forward(state, images)
        torch.testing.assert_close(backbone.maps(images).permute(0, 3, 1, 2), expected, rtol=1e-4, atol=1e-4)
    spec = backbone.spec
    assert (spec.bgr255, spec.mean, spec.std, spec.size, spec.resize_to) == (True, (104, 117, 128), (1, 1, 1), 227, 256)


@pytest.mark.parametrize(("size", "side"), [(224, 7), (227, 7), (240, 8)])
def test_bn_inception_sizes(size: int, side: int) -> None:
    """240 px make a map with an odd side, where the branches would round apart."""
    with torch.no_grad():
        assert BNInception().eval()(torch.zeros(1, 3, size, size)).shape == (1, 1024, side, side)


@pytest.mark.parametrize("name", ["resnet20", "resnetv2-20"])
def test_cifar_resnets(name: str) -> None:
    backbone = create_backbone(name)
    convolutions = 27 * 16 + 6 * 9 * 16**2 + 9 * 16 * 32 + 5 * 9 * 32**2 + 9 * 32 * 64 + 5 * 9 * 64**2
    norms = 2 * (16 + 6 * 16 + 6 * 32 + 6 * 64)  # option A: the shortcuts have no parameters
    if name == "resnetv2-20":  # first norm of a block has the channels of its input; one more behind the last
        norms = 2 * (6 * 16 + (16 + 5 * 32) + (32 + 5 * 64) + 64)
    assert sum(parameter.numel() for parameter in backbone.parameters()) == convolutions + norms
    assert backbone(torch.zeros(2, 3, 32, 32)).shape == (2, 64, 64)
    assert backbone.spec.size == 32


@pytest.mark.parametrize(("name", "blocks", "millions"), [("bottleneck20", 2, 0.57), ("bottleneck29", 3, 0.84)])
def test_bottleneck_networks(name: str, blocks: int, millions: float) -> None:
    """Counted by hand; the paper's 0.86 million of 3 blocks has the classifier of 100 classes."""
    backbone = create_backbone(name).eval()
    convolutions, norms, channels = 27 * 16, 16, 16
    for width, out in ((16, 64), (64, 128), (128, 256)):
        convolutions += channels * out  # the shortcut
        for block in range(blocks):
            convolutions += channels * width + 9 * width * width + width * out
            norms += 2 * width
            if (width, block) != (16, 0):  # the first block has no activation before it
                norms += channels
            channels = out
    norms += channels
    count = sum(parameter.numel() for parameter in backbone.parameters())
    assert count == convolutions + 2 * norms
    assert count / 1e6 == pytest.approx(millions, abs=0.005)
    if blocks == 3:
        assert (count + 256 * 100 + 100) / 1e6 == pytest.approx(0.86, abs=0.005)
    with torch.no_grad():
        assert backbone.maps(torch.zeros(2, 3, 64, 64)).shape == (2, 16, 16, 256)
    spec = backbone.spec
    assert (spec.mean, spec.std, spec.size) == ((0.5, 0.5, 0.5), (1, 1, 1), 32)
    assert not spec.bgr255


def test_bottleneck_network_against_its_layers_written_out() -> None:
    torch.manual_seed(0)
    network = create_backbone("bottleneck20").eval().network
    state = network.state_dict()
    for key, value in state.items():  # statistics and scales as of a trained network
        if "norm" in key and value.is_floating_point():
            value.copy_(0.5 + torch.rand_like(value))

    def act(name: str, x: Tensor) -> Tensor:
        statistics = [state[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")]
        return batch_norm(x, *statistics, eps=1e-5).clamp(min=0)

    images = torch.randn(2, 3, 64, 64)
    x = act("stem_norm", conv2d(images, state["stem.weight"], padding=1))
    for stage in (1, 2, 3):
        for block in (0, 1):
            name = f"stage{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            change = x if (stage, block) == (1, 0) else act(f"{name}.norm1", x)
            change = conv2d(change, state[f"{name}.conv1.weight"], stride=stride)
            change = conv2d(act(f"{name}.norm2", change), state[f"{name}.conv2.weight"], padding=1)
            change = conv2d(act(f"{name}.norm3", change), state[f"{name}.conv3.weight"])
            if block == 0:
                x = conv2d(x, state[f"{name}.shortcut.weight"], stride=stride)
            x = x + change
    with torch.no_grad():
        torch.testing.assert_close(network(images), act("last_norm", x), rtol=1e-4, atol=1e-5)


def test_the_shortcut_takes_every_second_pixel_and_pads_channels_with_zeros() -> None:
    network = create_backbone("resnetv2-20").network
    block = network.stage2[0]
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.randn(1, 16, 4, 4)
    out = block(x)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()
