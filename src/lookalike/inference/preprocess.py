"""Whatever people call pictures -> batches of numbers, decoded by threads while the model computes.

What ``evaluation_transform`` does to one picture, number for number, with less work: threads only decode, resize and
crop, which Pillow does without holding the others up; bytes become numbers for a whole batch at once, on the model's
device and with the channels last, as bytes come and convolutions like them.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lookalike.data.reading import as_rgb, read_picture
from lookalike.data.transforms import LONGEST
from lookalike.models.input_spec import InputSpec

Pixels = NDArray[np.uint8]  # (size, size, 3)
KINDS = "a picture must be a path, a PIL image or an array of uint8, (H, W), (H, W, 3) or (H, W, 4)"


def listed(pictures: Any) -> tuple[list[Any], bool]:
    """One picture or several -> a list, and whether it was one."""
    alone = isinstance(pictures, (str, Path, Image.Image)) or getattr(pictures, "ndim", None) in (2, 3)
    if not alone and not isinstance(pictures, Iterable):
        raise TypeError(f"{KINDS}, or several of them, got {type(pictures).__name__}")
    return [pictures] if alone else list(pictures), alone


def as_image(picture: Any, at_least: int | None = None) -> Image.Image:
    """The upright picture in RGB; ``at_least`` as for ``read_picture``."""
    if isinstance(picture, (str, Path)):
        return read_picture(picture, at_least=at_least)
    if isinstance(picture, Image.Image):
        return as_rgb(picture)
    array = np.asarray(picture)
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        raise TypeError(f"{KINDS}, got {array.dtype} of shape {array.shape}")
    if not array.size:
        raise ValueError(f"a picture must have pixels, got an array of shape {array.shape}")
    image = Image.fromarray(array)
    return image if image.mode == "RGB" else as_rgb(image)


class Placement(NamedTuple):
    """What ``evaluation_transform`` does to a picture of some size, as (width, height) or (left, top) in pixels."""

    cut_from: tuple[int, int]  # of a picture longer than LONGEST to 1 only the middle is resized
    cut: tuple[int, int]
    resized: tuple[int, int]
    crop_from: tuple[int, int]  # then this is the corner of the size x size that go in


def placement(spec: InputSpec, width: int, height: int) -> Placement:
    """
    >>> placement(InputSpec(size=224, resize=256), 512, 1024)
    Placement(cut_from=(0, 0), cut=(512, 1024), resized=(256, 512), crop_from=(16, 144))
    """
    longest = LONGEST * min(width, height)
    cut_from = (max(0, width - longest) // 2, max(0, height - longest) // 2)
    cut = (min(width, longest), min(height, longest))
    resized = (spec.resize_to * cut[0] // min(cut), spec.resize_to * cut[1] // min(cut))
    return Placement(cut_from, cut, resized, (round((resized[0] - spec.size) / 2), round((resized[1] - spec.size) / 2)))


class Preparation:
    """``evaluation_transform`` in two halves: ``crop``, for each picture, and ``numbers``, for a batch."""

    def __init__(self, spec: InputSpec) -> None:
        self.spec = spec

    def crop(self, image: Image.Image) -> Pixels:
        """The upright RGB picture -> (size, size, 3)."""
        place = placement(self.spec, *image.size)
        if place.cut != image.size:
            image = image.crop(_box(place.cut_from, place.cut))
        if place.resized != image.size:
            image = image.resize(place.resized, Image.Resampling[self.spec.interpolation.upper()])
        return np.asarray(image.crop(_box(place.crop_from, (self.spec.size, self.spec.size))))

    def numbers(self, pixels: Tensor) -> Tensor:
        """uint8 (B, size, size, 3) -> float32 (B, 3, size, size), channels last in memory."""
        values = pixels.permute(0, 3, 1, 2).to(torch.float32)
        values = values.flip(1) if self.spec.bgr255 else values.mul_(1 / 255)
        mean, std = (values.new_tensor(each).view(3, 1, 1) for each in (self.spec.mean, self.spec.std))
        return values.sub_(mean).div_(std)


def _box(corner: tuple[int, int], sides: tuple[int, int]) -> tuple[int, int, int, int]:
    return (*corner, corner[0] + sides[0], corner[1] + sides[1])


def batches(
    pictures: list[Any], size: int, crop: Callable[[int], Pixels], threads: ThreadPoolExecutor
) -> Iterator[Tensor]:
    """uint8 (B, size, size, 3), of which ``crop(i)`` makes the i-th; while one is computed the next is decoded."""

    def decode(first: int) -> list[Future[Pixels]]:
        batch = range(first, min(first + size, len(pictures)))
        for i in batch:
            if isinstance(pictures[i], Image.Image):
                pictures[i].load()  # here: two threads must not decode one picture, should it come twice
        return [threads.submit(crop, i) for i in batch]

    ahead = decode(0)
    for first in range(0, len(pictures), size):
        current, ahead = ahead, decode(first + size)
        yield torch.from_numpy(np.stack([future.result() for future in current]))
