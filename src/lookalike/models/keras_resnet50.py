"""ResNet-50 as Keras has it: timm's resnet50 with three differences, and the names of Keras' weights.

The first 1x1 convolution of a stage has the stride of 2 (timm and torchvision: the 3x3 one), the convolutions have a
bias, and batch norm has an epsilon of 1.001e-5. Inputs are BGR in 0..255 less the mean of ImageNet.

    first names    conv1, bn_conv1, res2a_branch2a, bn2a_branch2a, ..., res2a_branch1 (shortcut), bn2a_branch1
    later names    conv1_conv, conv1_bn, conv2_block1_1_conv, conv2_block1_1_bn, ..., conv2_block1_0_conv (shortcut)
    here           conv1, bn1, layer1.0.conv1, layer1.0.bn1, ..., layer1.0.downsample.0, layer1.0.downsample.1
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lookalike.models.input_spec import InputSpec

NAME = "resnet50-keras"
SPEC = InputSpec(size=224, mean=(103.939, 116.779, 123.68), std=(1, 1, 1), bgr255=True, resize=256)
EPSILON = 1.001e-5
FIRST_NAMES = re.compile(r"(?P<kind>res|bn)(?P<stage>[2-5])(?P<block>[a-f])_branch(?P<branch>1|2[abc])")
LATER_NAMES = re.compile(r"conv(?P<stage>[2-5])_block(?P<block>\d)_(?P<branch>[0-3])_(?P<kind>conv|bn)")
CLASSIFIERS = ("fc1000", "probs", "predictions")
# The last word of a name, in all versions of Keras; "running_std" was a variance.
VALUES = {
    "kernel": "weight",
    "W": "weight",
    "bias": "bias",
    "b": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "running_mean": "running_mean",
    "moving_variance": "running_var",
    "running_std": "running_var",
}


def create_network() -> nn.Module:
    """Create the network without its classifier, with random weights."""
    import timm

    network: Any = timm.create_model("resnet50", num_classes=0)
    for stage in (network.layer2, network.layer3, network.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.bias = nn.Parameter(torch.zeros(module.out_channels))
        elif isinstance(module, nn.BatchNorm2d):
            module.eps = EPSILON
    network.spec = SPEC
    return network


def has_keras_names(state: Mapping[str, Tensor]) -> bool:
    """Whether weights have the names of one of Keras' versions of ResNet-50."""
    layers = {name.partition("/")[0] for name in state}
    return not layers.isdisjoint({"res5c_branch2c", "conv5_block3_3_conv"})


def to_timm_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of Keras, and bring kernels (H, W, in, out) into torch's order.

    Raises:
        ValueError: If ResNet-50 has no such layer or value.
    """
    renamed = {}
    for name, value in state.items():
        layer = name.partition("/")[0]
        if layer in CLASSIFIERS:
            continue
        kind = name.rpartition("/")[2].partition(":")[0].removeprefix(f"{layer}_")
        kind = re.sub(r"_\d+$", "", kind)  # TensorFlow counts variables of the same name
        if kind not in VALUES:
            raise ValueError(f"ResNet-50 of Keras has no value {name!r}")
        if value.dim() == 4:
            value = value.permute(3, 2, 0, 1).contiguous()
        renamed[f"{_rename(layer)}.{VALUES[kind]}"] = value
    return renamed


def _rename(layer: str) -> str:
    if layer in ("conv1", "conv1_conv"):
        return "conv1"
    if layer in ("bn_conv1", "conv1_bn"):
        return "bn1"
    if match := FIRST_NAMES.fullmatch(layer):
        block = ord(match["block"]) - ord("a")
        branch = ("1", "2a", "2b", "2c").index(match["branch"])
    elif match := LATER_NAMES.fullmatch(layer):
        block = int(match["block"]) - 1
        branch = int(match["branch"])
    else:
        raise ValueError(f"ResNet-50 of Keras has no layer {layer!r}")
    is_norm = match["kind"] == "bn"
    path = f"layer{int(match['stage']) - 1}.{block}"
    if branch == 0:
        return f"{path}.downsample.{int(is_norm)}"
    return f"{path}.{'bn' if is_norm else 'conv'}{branch}"
