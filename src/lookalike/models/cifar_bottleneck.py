"""Pre-activation ResNets of bottleneck blocks for small pictures: a map of 16 x 16 x 256 for 64 px.

A 3x3 stem of 16 channels, then three stages with 64, 128 and 256 channels at the output of each block; the second and
third halve the size. A last batch norm and ReLU follow. With 2 blocks per stage the network has 20 layers and 0.57
million parameters, with 3 blocks 29 layers and 0.84 million.

    block:     x -> shortcut(x) + conv1x1(act(conv3x3(act(conv1x1(act(x))))))          act(x) = relu(bn(x))
    shortcut:  1x1 convolution in the first block of a stage, else x

The first block needs no activation: the stem has one. The 3x3 convolution has 16 channels in the first stage, else as
many as the input of the stage. Convolutions have no bias.

References: He, Zhang, Ren and Sun, "Identity Mappings in Deep Residual Networks", ECCV 2016. Gürbüz, Şener and Alatan
("Generalized Sum Pooling for Metric Learning", ICCV 2023) use it for the CIFAR collage.
"""

from torch import Tensor, nn
from torch.nn.functional import relu

from lookalike.models.input_spec import InputSpec

STEM = 16
WIDTHS = ((16, 64), (64, 128), (128, 256))  # of each stage: the 3x3 convolution, the output


class CifarBottleneck(nn.Module):
    """Pictures (B, 3, H, W) -> maps (B, 256, H/4, W/4).

    Args:
        blocks: Per stage; the depth is 9 blocks + 2.
    """

    channels = WIDTHS[-1][-1]
    spec = InputSpec(size=32, mean=(0.5, 0.5, 0.5), std=(1, 1, 1), resize=32)  # pixels / 255 - 0.5
    classifier = "fc"
    stage_prefixes: tuple[tuple[str, ...], ...] = (
        ("stem", "stem_norm"),
        ("stage1",),
        ("stage2",),
        ("stage3", "last_norm"),
    )

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, STEM, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(STEM)
        stages = []
        channels = STEM
        for number, (width, channels_out) in enumerate(WIDTHS):
            is_first = number == 0
            stage = nn.Sequential(
                Bottleneck(channels, width, channels_out, 1 if is_first else 2, activate=not is_first)
            )
            for _ in range(blocks - 1):
                stage.append(Bottleneck(channels_out, width, channels_out))
            stages.append(stage)
            channels = channels_out
        self.stage1, self.stage2, self.stage3 = stages
        self.last_norm = nn.BatchNorm2d(channels)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Maps of images (B, 3, H, W)."""
        x = relu(self.stem_norm(self.stem(images)))
        x = self.stage3(self.stage2(self.stage1(x)))
        return relu(self.last_norm(x))


class Bottleneck(nn.Module):
    """Three convolutions, 1x1, 3x3 and 1x1, each behind batch norm and ReLU; nothing after the sum.

    Args:
        channels_in: Of the input.
        width: Of the 3x3 convolution.
        channels_out: Of the output.
        stride: Of the first convolution and of the shortcut.
        activate: Batch norm and ReLU before the first convolution; the shortcut takes the input without them.
    """

    def __init__(self, channels_in: int, width: int, channels_out: int, stride: int = 1, activate: bool = True) -> None:
        super().__init__()
        self.activate = activate
        self.norm1: nn.Module = nn.Identity()
        if activate:
            self.norm1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, width, 1, stride, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels_out, 1, bias=False)
        self.shortcut: nn.Module = nn.Identity()
        if channels_in != channels_out:
            self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map of the block."""
        change = x
        if self.activate:
            change = relu(self.norm1(x))
        change = self.conv2(relu(self.norm2(self.conv1(change))))
        change = self.conv3(relu(self.norm3(change)))
        return self.shortcut(x) + change
