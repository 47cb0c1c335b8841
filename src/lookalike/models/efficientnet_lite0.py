"""EfficientNet-lite0: inverted residual blocks with ReLU6, a map of 7 x 7 x 1280 for 224 px.

    first stage:  x -> bn(pw(act(bn(dw(x)))))
    the others:   x -> bn(pwl(act(bn(dw(act(bn(pw(x))))))))       + x where the shape stays

``pw`` and ``pwl`` are 1x1 convolutions, ``dw`` is depthwise. Pictures are padded as in TensorFlow ("same"). It is
timm's ``tf_efficientnet_lite0`` with the same names and results. It is built here because it is the default backbone,
and importing timm takes longer than all else that a command does before its work.

Reference: Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019, in the
form of https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite.
"""

from math import sqrt

from torch import Tensor, nn
from torch.nn.functional import pad, relu6

from lookalike.models.lite0_weights import SPEC

NAME = "tf_efficientnet_lite0"
STEM, HEAD = 32, 1280
EXPANSION = 6
EPSILON = 1e-3  # of batch norm, as in TensorFlow
# Blocks, side of the depthwise kernel, stride of the first block, channels.
STAGES = (
    (1, 3, 1, 16),
    (2, 3, 2, 24),
    (2, 5, 2, 40),
    (3, 3, 2, 80),
    (3, 5, 1, 112),
    (4, 5, 2, 192),
    (1, 3, 1, 320),
)


class EfficientNetLite0(nn.Module):
    """Pictures (B, 3, H, W) -> maps (B, 1280, H/32, W/32), rounded up."""

    channels = HEAD
    spec = SPEC
    classifier = "classifier"
    stage_prefixes: tuple[tuple[str, ...], ...] = (
        ("conv_stem", "bn1"),
        *((f"blocks.{stage}.",) for stage in range(len(STAGES) - 1)),
        (f"blocks.{len(STAGES) - 1}.", "conv_head", "bn2"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = SamePadded(3, STEM, 3, stride=2)
        self.bn1 = Norm(STEM)
        self.blocks = nn.Sequential()
        channels_in = STEM
        for stage, (blocks, kernel, stride, channels) in enumerate(STAGES):
            block = InvertedResidual if stage else DepthwiseSeparable
            layers = nn.Sequential(block(channels_in, channels, kernel, stride))
            for _ in range(blocks - 1):
                layers.append(block(channels, channels, kernel, 1))
            self.blocks.append(layers)
            channels_in = channels
        self.conv_head = SamePadded(channels_in, HEAD, 1)
        self.bn2 = Norm(HEAD)
        for module in self.modules():
            if isinstance(module, SamePadded):
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
                nn.init.normal_(module.weight, 0, sqrt(2 / fan_out))

    def forward(self, images: Tensor) -> Tensor:
        """Maps of images (B, 3, H, W)."""
        x = self.blocks(self.bn1(self.conv_stem(images)))
        return self.bn2(self.conv_head(x))


class DepthwiseSeparable(nn.Module):
    """The block of the first stage, without expansion."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv_dw = SamePadded(channels_in, channels_in, kernel, stride, groups=channels_in)
        self.bn1 = Norm(channels_in)
        self.conv_pw = SamePadded(channels_in, channels_out, 1)
        self.bn2 = Norm(channels_out, linear=True)
        self.has_skip = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map of the block."""
        change = self.bn1(self.conv_dw(x))
        change = self.bn2(self.conv_pw(change))
        return change + x if self.has_skip else change


class InvertedResidual(nn.Module):
    """The block of all other stages: expand, filter each channel, project."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = EXPANSION * channels_in
        self.conv_pw = SamePadded(channels_in, wide, 1)
        self.bn1 = Norm(wide)
        self.conv_dw = SamePadded(wide, wide, kernel, stride, groups=wide)
        self.bn2 = Norm(wide)
        self.conv_pwl = SamePadded(wide, channels_out, 1)
        self.bn3 = Norm(channels_out, linear=True)
        self.has_skip = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map of the block."""
        change = self.bn1(self.conv_pw(x))
        change = self.bn2(self.conv_dw(change))
        change = self.bn3(self.conv_pwl(change))
        return change + x if self.has_skip else change


class Norm(nn.BatchNorm2d):
    """Batch norm with TensorFlow's epsilon, and ReLU6 unless ``linear``."""

    def __init__(self, channels: int, linear: bool = False) -> None:
        super().__init__(channels, eps=EPSILON)
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel."""
        x = super().forward(x)
        return x if self.linear else relu6(x, inplace=True)


class SamePadded(nn.Conv2d):
    """A convolution whose output has ceil(side / stride) positions; of an odd margin the larger half is at the end."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        fixed = kernel // 2 if stride == 1 else 0
        super().__init__(channels_in, channels_out, kernel, stride, fixed, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Pad and convolve."""
        if self.stride[0] == 1:
            return super().forward(x)
        margins: list[int] = []
        for side in (x.shape[3], x.shape[2]):
            missing = (-(-side // self.stride[0]) - 1) * self.stride[0] + self.kernel_size[0] - side
            missing = max(missing, 0)
            margins += [missing // 2, missing - missing // 2]
        return super().forward(pad(x, margins))
