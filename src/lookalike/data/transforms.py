"""Augmentation for training: a PIL picture -> the numbers (3, size, size) that a backbone takes.

The shorter side is resized to ``spec.resize_to``, then a random crop is resized to ``size`` and flipped. At 227 pixels
that is 256 and 227, as in Musgrave, Belongie and Lim, "A Metric Learning Reality Check", ECCV 2020. The resize comes
first, so the cost of a picture does not depend on its size. For evaluation see ``lookalike.inference.preprocess``.

Random numbers come from torch's global generator; ``lookalike.data.loading`` seeds it for each picture.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode, v2

from lookalike.data.cropping import LONGEST
from lookalike.models.input_spec import InputSpec

Transform = Callable[[Image.Image], Tensor]
Crop = Literal["area", "wide", "pixels", "none"]

AREA = (0.16, 1.0)  # share of the resized picture that a crop covers
PIXELS = ((40 / 256) ** 2, 1.0)  # the same for the papers' text: sides of 40 to 256 pixels in a picture of 256
SHARES = {"area": AREA, "wide": (0.08, 1.0), "pixels": PIXELS}
RATIO = (3 / 4, 4 / 3)


def training_transform(spec: InputSpec, *, crop: Crop = "area", flip: bool = True, erase: float = 0.0) -> Transform:
    """Make the augmentation for training.

    Args:
        spec: Input of the backbone.
        crop: "area" covers .16 to 1 of the picture's area (the authors' code), "wide" .08 to 1 (torchvision's
            default), "pixels" (40/256)^2 to 1 (the papers' text), with an aspect of 3/4 to 4/3; "none" resizes the
            picture to a square, for small pictures.
        flip: Mirror half of the pictures.
        erase: Share of the pictures in which a rectangle of 2 to 33 % of the area becomes the mean colour.

    Returns:
        A function: picture -> (3, size, size) float32.

    Raises:
        ValueError: If ``crop`` is unknown.
    """
    if crop not in get_args(Crop):
        raise ValueError(f"crop must be 'area', 'wide', 'pixels' or 'none', got {crop!r}")
    steps: list[nn.Module] = []
    if crop == "none":
        steps += [_resize(spec, [spec.size, spec.size])]
    else:
        mode = _interpolation(spec)
        steps += [_CutLongSide(), _resize(spec, [spec.resize_to])]
        steps += [v2.RandomResizedCrop(spec.size, scale=SHARES[crop], ratio=RATIO, interpolation=mode, antialias=True)]
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


class _ReverseChannels(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.flip(0)


def _numbers(spec: InputSpec) -> list[nn.Module]:
    """PIL picture in RGB -> (pixels - mean) / std."""
    steps: list[nn.Module] = [v2.PILToTensor()]
    if spec.bgr255:
        steps += [_ReverseChannels()]
    return [
        *steps,
        v2.ToDtype(torch.float32, scale=not spec.bgr255),
        v2.Normalize(list(spec.mean), list(spec.std), inplace=True),
    ]


def _resize(spec: InputSpec, size: list[int]) -> Any:
    return v2.Resize(size, interpolation=_interpolation(spec), antialias=True)


def _interpolation(spec: InputSpec) -> InterpolationMode:
    return InterpolationMode(spec.interpolation)
