"""BN-Inception: GoogLeNet with batch normalisation, 224 px -> a map of 7 x 7 x 1024.

Every block sends its input through parallel branches and concatenates their outputs:

    1x1    |    1x1 reduce, 3x3    |    1x1 reduce, 3x3, 3x3    |    3x3 pooling, 1x1

(3c and 4e halve the size: no first branch, nothing behind the pooling.) The layers have the names of the Caffe
model that the published ImageNet weights were converted from, so its state dict loads as it is.

Reference: Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training", ICML 2015.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d, pad, relu

from lookalike.models.input_spec import InputSpec


class Block(NamedTuple):
    """Channels of the branches; ``single`` and ``double`` are (reduced, out), 0 for a missing branch."""

    name: str
    direct: int
    single: tuple[int, int]
    double: tuple[int, int]
    pool: Literal["average", "max"]
    behind_pool: int
    stride: int = 1


BLOCKS = (
    Block("inception_3a", 64, (64, 64), (64, 96), "average", 32),
    Block("inception_3b", 64, (64, 96), (64, 96), "average", 64),
    Block("inception_3c", 0, (128, 160), (64, 96), "max", 0, stride=2),
    Block("inception_4a", 224, (64, 96), (96, 128), "average", 128),
    Block("inception_4b", 192, (96, 128), (96, 128), "average", 128),
    Block("inception_4c", 160, (128, 160), (128, 160), "average", 128),
    Block("inception_4d", 96, (128, 192), (160, 192), "average", 128),
    Block("inception_4e", 0, (128, 192), (192, 256), "max", 0, stride=2),
    Block("inception_5a", 352, (192, 320), (160, 224), "average", 128),
    Block("inception_5b", 352, (192, 320), (192, 224), "max", 128),
)


class BNInception(nn.Module):
    """Pictures (B, 3, H, W), BGR in 0..255 less the mean, -> maps (B, 1024, H/32, W/32)."""

    channels = 1024
    spec = InputSpec(size=227, mean=(104, 117, 128), std=(1, 1, 1), bgr255=True, resize=256)
    classifier = "last_linear"  # in published files, not here
    stage_prefixes: tuple[str, ...] = ("conv1", "conv2", *(block.name for block in BLOCKS))

    def __init__(self) -> None:
        super().__init__()
        self._add("conv1_7x7_s2", 3, 64, 7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        channels = 192
        for block in BLOCKS:
            name, (narrow, single), (thin, double) = block.name, block.single, block.double
            if block.direct:
                self._add(f"{name}_1x1", channels, block.direct, 1)
            self._add(f"{name}_3x3_reduce", channels, narrow, 1)
            self._add(f"{name}_3x3", narrow, single, 3, block.stride)
            self._add(f"{name}_double_3x3_reduce", channels, thin, 1)
            self._add(f"{name}_double_3x3_1", thin, double, 3)
            self._add(f"{name}_double_3x3_2", double, double, 3, block.stride)
            if block.behind_pool:
                self._add(f"{name}_pool_proj", channels, block.behind_pool, 1)
            channels = block.direct + single + double + (block.behind_pool or channels)

    def forward(self, images: Tensor) -> Tensor:
        """Maps of images (B, 3, H, W)."""
        x = self._layer("conv1_7x7_s2", images)
        x = max_pool2d(x, 3, 2, ceil_mode=True)
        x = self._layer("conv2_3x3", self._layer("conv2_3x3_reduce", x))
        x = max_pool2d(x, 3, 2, ceil_mode=True)
        for block in BLOCKS:
            x = self._inception(block, x)
        return x

    def published(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Reshape the weights of an older file, which holds the values of batch norm as (1, C)."""
        expected = self.state_dict()
        reshaped = dict(state)
        for name, value in state.items():
            if name in expected and value.numel() == expected[name].numel():
                reshaped[name] = value.reshape(expected[name].shape)
        return reshaped

    def _add(self, name: str, channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2))
        # Caffe's momentum of 0.9 is the share of the old value, torch's 0.1 the share of the new one.
        self.add_module(f"{name}_bn", nn.BatchNorm2d(channels_out, eps=1e-5, momentum=0.1))

    def _layer(self, name: str, x: Tensor) -> Tensor:
        return relu(self.get_submodule(f"{name}_bn")(self.get_submodule(name)(x)))

    def _inception(self, block: Block, x: Tensor) -> Tensor:
        name = block.name
        branches = []
        if block.direct:
            branches.append(self._layer(f"{name}_1x1", x))
        branches.append(self._layer(f"{name}_3x3", self._layer(f"{name}_3x3_reduce", x)))
        double = self._layer(f"{name}_double_3x3_1", self._layer(f"{name}_double_3x3_reduce", x))
        branches.append(self._layer(f"{name}_double_3x3_2", double))
        pooled = _pool(block, x)
        if block.behind_pool:
            pooled = self._layer(f"{name}_pool_proj", pooled)
        branches.append(pooled)
        return torch.cat(branches, 1)


def _pool(block: Block, x: Tensor) -> Tensor:
    if block.pool == "average":
        return avg_pool2d(x, 3, 1, padding=1)
    if block.stride == 1:
        return max_pool2d(x, 3, 1, padding=1)
    # The convolutions round an odd size up, this pooling rounds it down; zeros, as x is not negative, make them agree.
    return max_pool2d(pad(x, (0, x.shape[-1] % 2, 0, x.shape[-2] % 2)), 3, 2, ceil_mode=True)
