"""Augmentation for training: a PIL picture -> the numbers (3, size, size) that a backbone takes.

The shorter side is resized to ``spec.resize_to``, then a random crop is resized to ``size`` and flipped. At 227 pixels
that is 256 and 227, as in Musgrave, Belongie and Lim, "A Metric Learning Reality Check", ECCV 2020. The resize comes
first, so the cost of a picture does not depend on its size. For evaluation see ``lookalike.inference.preprocess``.

Random numbers come from torch's global generator; ``lookalike.data.loading`` seeds it for each picture.

torchvision is imported where it is used: it loads torch's compiler, which takes seconds.
"""

from collections.abc import Callable
from math import log
from typing import Any, Literal, get_args

import torch
from PIL import Image
from torch import Tensor, nn

from lookalike.data.cropping import LONGEST
from lookalike.models.input_spec import InputSpec

Transform = Callable[[Image.Image], Tensor]
Crop = Literal["area", "wide", "pixels", "none"]

AREA = (0.16, 1.0)  # share of the resized picture that a crop covers
SHARES = {"area": AREA, "wide": (0.08, 1.0)}
LEAST_SIDE = 40 / 256  # of a crop by side lengths: 40 pixels in a picture whose shorter side has 256
ATTEMPTS = 10  # to draw a crop that fits
RATIO = (3 / 4, 4 / 3)


def training_transform(spec: InputSpec, *, crop: Crop = "area", flip: bool = True, erase: float = 0.0) -> Transform:
    """Make the augmentation for training.

    Args:
        spec: Input of the backbone.
        crop: "area" covers .16 to 1 of the picture's area (the authors' code), "wide" .08 to 1 (torchvision's
            default). "pixels" has sides of 40 to 256 pixels if ``resize_to`` is 256, else in proportion (the papers'
            text). All have an aspect of 3/4 to 4/3. "none" resizes the picture to a square, for small pictures.
        flip: Mirror half of the pictures.
        erase: Share of the pictures in which a rectangle of 2 to 33 % of the area becomes the mean colour.

    Returns:
        A function: picture -> (3, size, size) float32.

    Raises:
        ValueError: If ``crop`` is unknown.
    """
    if crop not in get_args(Crop):
        raise ValueError(f"crop must be 'area', 'wide', 'pixels' or 'none', got {crop!r}")
    from torchvision.transforms import v2

    steps: list[nn.Module] = []
    if crop == "none":
        steps += [_resize(spec, [spec.size, spec.size])]
    else:
        mode = _interpolation(spec)
        steps += [_CutLongSide(), _resize(spec, [spec.resize_to])]
        if crop == "pixels":
            steps += [_CropBySides(spec.resize_to), _resize(spec, [spec.size, spec.size])]
        else:
            share = SHARES[crop]
            steps += [v2.RandomResizedCrop(spec.size, scale=share, ratio=RATIO, interpolation=mode, antialias=True)]
    if flip:
        steps += [v2.RandomHorizontalFlip()]
    steps += _numbers(spec)
    if erase:
        steps += [v2.RandomErasing(erase)]
    return v2.Compose(steps)


class _CutLongSide(nn.Module):
    """Cut a picture longer than 10 to 1 down to its middle: resized by its shorter side it could fill the memory.

    The centre crop does not see the ends; nor does a crop of .16 of the area, which fits into nothing longer than 8.4.
    """

    def forward(self, picture: Image.Image) -> Image.Image:
        width, height = picture.size
        longest = LONGEST * min(width, height)
        if max(width, height) <= longest:
            return picture
        left, top = max(0, width - longest) // 2, max(0, height - longest) // 2
        return picture.crop((left, top, left + min(width, longest), top + min(height, longest)))


class _CropBySides(nn.Module):
    """Cut a random rectangle whose sides are both between 40/256 and 256/256 of the shorter side of the picture.

    The width is uniform, the aspect log-uniform; a rectangle that does not fit is drawn again. The largest square is
    the last resort.
    """

    def __init__(self, shorter_side: int) -> None:
        super().__init__()
        self.least, self.most = max(1, round(LEAST_SIDE * shorter_side)), shorter_side

    def forward(self, picture: Image.Image) -> Image.Image:
        width = height = min(self.most, *picture.size)
        for _ in range(ATTEMPTS):
            drawn_width = int(torch.randint(self.least, self.most + 1, ()))
            aspect = torch.empty(()).uniform_(log(RATIO[0]), log(RATIO[1])).exp()
            drawn_height = round(drawn_width / float(aspect))
            if self.least <= drawn_height <= self.most:
                width, height = drawn_width, drawn_height
                break
        left = int(torch.randint(picture.width - width + 1, ()))
        top = int(torch.randint(picture.height - height + 1, ()))
        return picture.crop((left, top, left + width, top + height))


class _ReverseChannels(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.flip(0)


def _numbers(spec: InputSpec) -> list[nn.Module]:
    """PIL picture in RGB -> (pixels - mean) / std."""
    from torchvision.transforms import v2

    steps: list[nn.Module] = [v2.PILToTensor()]
    if spec.bgr255:
        steps += [_ReverseChannels()]
    return [
        *steps,
        v2.ToDtype(torch.float32, scale=not spec.bgr255),
        v2.Normalize(list(spec.mean), list(spec.std), inplace=True),
    ]


def _resize(spec: InputSpec, size: list[int]) -> Any:
    from torchvision.transforms import v2

    return v2.Resize(size, interpolation=_interpolation(spec), antialias=True)


def _interpolation(spec: InputSpec) -> Any:
    from torchvision.transforms import InterpolationMode

    return InterpolationMode(spec.interpolation)
