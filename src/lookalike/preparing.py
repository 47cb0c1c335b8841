"""Whatever people call pictures -> batches of numbers, decoded by threads while the model computes.

What ``evaluation_transform`` does to one picture, number for number, with less work: threads only decode, resize and
crop, which Pillow does without holding the others up; bytes become numbers for a whole batch at once, on the model's
device and with the channels last, as bytes come and convolutions like them.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from lookalike.data.reading import as_rgb, read_picture
from lookalike.data.transforms import evaluation_transform
from lookalike.input_spec import InputSpec

Pixels = NDArray[np.uint8]  # (size, size, 3)


def listed(pictures: Any) -> tuple[list[Any], bool]:
    """One picture or several -> a list, and whether it was one."""
    alone = isinstance(pictures, (str, Path, Image.Image)) or getattr(pictures, "ndim", None) in (2, 3)
    return [pictures] if alone else list(pictures), alone


def as_image(picture: Any, at_least: int | None = None) -> Image.Image:
    """The upright picture in RGB; ``at_least`` as for ``read_picture``."""
    if isinstance(picture, (str, Path)):
        return read_picture(picture, at_least=at_least)
    if isinstance(picture, Image.Image):
        return as_rgb(picture)
    array = np.asarray(picture)
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        raise TypeError(
            "a picture must be a path, a PIL image or an array of uint8, (H, W), (H, W, 3) or (H, W, 4), "
            f"got {array.dtype} of shape {array.shape}"
        )
    return as_rgb(Image.fromarray(array))


class Preparation:
    """``evaluation_transform`` in two halves: ``crop``, for each picture, and ``numbers``, for a batch."""

    def __init__(self, spec: InputSpec) -> None:
        self.spec = spec
        steps = list(evaluation_transform(spec).transforms)  # type: ignore[attr-defined]  # it is a Compose
        self._crop = v2.Compose(steps[: [type(step) for step in steps].index(v2.PILToTensor)])

    def crop(self, image: Image.Image) -> Pixels:
        """The upright RGB picture -> (size, size, 3)."""
        return np.asarray(self._crop(image))

    def numbers(self, pixels: Tensor) -> Tensor:
        """uint8 (B, size, size, 3) -> float32 (B, 3, size, size), channels last in memory."""
        values = pixels.permute(0, 3, 1, 2).to(torch.float32)
        values = values.flip(1) if self.spec.bgr255 else values.mul_(1 / 255)
        mean, std = (values.new_tensor(each).view(3, 1, 1) for each in (self.spec.mean, self.spec.std))
        return values.sub_(mean).div_(std)


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
