"""ResNets for small pictures, in both forms: ResNet-20 gives a map of 8 x 8 x 64 for 32 px.

A 3x3 stem of 16 channels, then three stages of three blocks (one in ResNet-8) of two 3x3 convolutions with 16, 32 and
64 channels, the second and third halving the size. Where the shape changes, the shortcut takes every second pixel and
fills the new channels with zeros (the paper's option A: no parameters; 0.27 million in all).

    first form:  x -> relu(x + bn(conv(relu(bn(conv(x))))))          second: x -> x + conv(relu(bn(conv(relu(bn(x))))))

References: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016 (section 4.2), and
"Identity Mappings in Deep Residual Networks", ECCV 2016.
"""

from dataclasses import replace

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from lookalike.models.input_spec import InputSpec

WIDTHS = (16, 32, 64)


class CifarResNet(nn.Module):
    """Pictures (B, 3, H, W) -> maps (B, 64, H/4, W/4).

    Args:
        preactivate: The second form.
        blocks: Per stage; the depth is 6 blocks + 2.
        half: The stem takes every second pixel only, so that 64 px are as fast as 32.
    """

    channels = WIDTHS[-1]
    # The means and deviations of CIFAR-100's training pictures.
    spec = InputSpec(size=32, mean=(0.507, 0.487, 0.441), std=(0.267, 0.256, 0.276), resize=32)
    classifier = "fc"
    stage_prefixes: tuple[tuple[str, ...], ...] = (
        ("stem", "stem_norm"),
        ("stage1",),
        ("stage2",),
        ("stage3", "last_norm"),
    )

    def __init__(self, preactivate: bool = False, blocks: int = 3, half: bool = False) -> None:
        super().__init__()
        self.preactivate = preactivate
        stride = 1
        if half:
            stride = 2
            self.spec = replace(CifarResNet.spec, size=64, resize=64)
        self.stem = _convolution(3, WIDTHS[0], stride)
        stem_norm: nn.Module = nn.BatchNorm2d(WIDTHS[0])
        last_norm: nn.Module = nn.Identity()
        block: type[Block] | type[PreactivatedBlock] = Block
        if preactivate:
            stem_norm = nn.Identity()
            last_norm = nn.BatchNorm2d(WIDTHS[2])
            block = PreactivatedBlock
        self.stem_norm = stem_norm
        self.stage1 = _stage(block, WIDTHS[0], WIDTHS[0], blocks, stride=1)
        self.stage2 = _stage(block, WIDTHS[0], WIDTHS[1], blocks, stride=2)
        self.stage3 = _stage(block, WIDTHS[1], WIDTHS[2], blocks, stride=2)
        self.last_norm = last_norm
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Maps of images (B, 3, H, W)."""
        x = self.stem(images)
        if not self.preactivate:
            x = relu(self.stem_norm(x))
        x = self.stage3(self.stage2(self.stage1(x)))
        if self.preactivate:
            x = relu(self.last_norm(x))
        return x


class Block(nn.Module):
    """Two convolutions, each normalised, and relu after the sum."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _convolution(channels_in, channels_out, stride), nn.BatchNorm2d(channels_out)
        self.conv2, self.norm2 = _convolution(channels_out, channels_out), nn.BatchNorm2d(channels_out)
        self.stride, self.new_channels = stride, channels_out - channels_in

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map of the block."""
        change = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        return relu(_shortcut(x, self.stride, self.new_channels) + change)


class PreactivatedBlock(nn.Module):
    """Pre-activation block: batch norm and ReLU before each convolution, nothing after the sum."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(channels_in), _convolution(channels_in, channels_out, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(channels_out), _convolution(channels_out, channels_out)
        self.stride, self.new_channels = stride, channels_out - channels_in

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map of the block."""
        change = self.conv2(relu(self.norm2(self.conv1(relu(self.norm1(x))))))
        return _shortcut(x, self.stride, self.new_channels) + change


def _shortcut(x: Tensor, stride: int, new_channels: int) -> Tensor:
    if stride == 1 and new_channels == 0:
        return x
    before = new_channels // 2
    return pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, before, new_channels - before))


def _convolution(channels_in: int, channels_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)


def _stage(
    block: type[Block] | type[PreactivatedBlock], channels_in: int, channels_out: int, blocks: int, stride: int
) -> nn.Module:
    stage = nn.Sequential(block(channels_in, channels_out, stride))
    for _ in range(blocks - 1):
        stage.append(block(channels_out, channels_out, 1))
    return stage
