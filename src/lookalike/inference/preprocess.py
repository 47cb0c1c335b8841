"""Preprocessing: picture -> crop of bytes -> the numbers that a backbone takes.

    picture   path, PIL image or array        read as an upright RGB picture
    crop      (size, size, 3) uint8           shorter side resized to ``resize_to``, then the middle cut out; or the
                                              whole picture, its longer side then longer (``lookalike.data.cropping``)
    inputs    (B, 3, size, size) float32      (crop - mean) / std, as the ``InputSpec`` says

Only decoding, resizing and cropping happen per picture, in threads or worker processes. Bytes become numbers on the
model's device, channels last in memory.

A large JPEG file is decoded at 1/2, 1/4 or 1/8 of its size, but never below ``Preprocess.decode_side``. Every reader
of files uses that same side, so a file has the same crop wherever it is read. PIL images and arrays keep their pixels.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lookalike._util.checks import check_count
from lookalike.data.cropping import Pixels, crop_picture, stacks
from lookalike.data.files import reading_at_least
from lookalike.data.object_storage import StoredPicture
from lookalike.data.pictures import Pictures
from lookalike.data.reading import as_rgb, read_picture
from lookalike.models.input_spec import InputSpec

if TYPE_CHECKING:
    from torch import Tensor

    from lookalike.data.loading import PictureLoader

Values = TypeVar("Values", NDArray[Any], "Tensor")
BGR = [2, 1, 0]
KINDS = "a picture must be a path, a PIL image or an array of uint8, (H, W), (H, W, 3) or (H, W, 4)"


class Preprocess:
    """Pictures -> the inputs of a backbone, for evaluation.

    Args:
        spec: What the backbone expects.

    Examples:
        >>> Preprocess(InputSpec(size=224))(Image.new("RGB", (640, 480))).shape
        torch.Size([3, 224, 224])
    """

    def __init__(self, spec: InputSpec) -> None:
        self.spec = spec
        self.decode_side = 2 * spec.resize_to  # twice what is needed: a crop of a smaller JPEG looks the same

    def __call__(self, image: Image.Image) -> "Tensor":
        """Prepare one upright RGB picture: (3, size, size) float32."""
        return self.inputs(self.crop(image)[None])[0]

    def crop(self, image: Image.Image) -> Pixels:
        """Resize and crop one upright RGB picture: (size, size, 3) uint8."""
        return crop_picture(self.spec, image)

    def read_crop(self, picture: Any) -> Pixels:
        """Read a path, PIL image or array and crop it: (size, size, 3) uint8."""
        return self.crop(as_image(picture, self.decode_side))

    def inputs(self, crops: "Tensor | Pixels") -> "Tensor":
        """Normalise crops (B, size, size, 3) uint8: (B, 3, size, size) float32, on the same device."""
        return to_inputs(crops, self.spec)

    def reading(self, pictures: Pictures) -> Pictures:
        """The same table, its JPEG files decoded as ``read_crop`` decodes them."""
        return reading_at_least(pictures, self.decode_side)


def to_inputs(pixels: "Tensor | Pixels", spec: InputSpec) -> "Tensor":
    """Normalise pixels in memory as a backbone expects them, without resizing.

    Args:
        pixels: RGB (B, H, W, 3) uint8, an array or a tensor.
        spec: What the backbone expects.

    Returns:
        (B, 3, H, W) float32 on the device of ``pixels``, channels last in memory.

    Raises:
        ValueError: If ``pixels`` have another type or shape.
    """
    import torch

    if isinstance(pixels, np.ndarray):
        pixels = torch.from_numpy(np.ascontiguousarray(pixels))
    _check_pixels(pixels, pixels.dtype == torch.uint8)
    values = pixels.to(torch.float32, copy=True)
    values = _normalise(values, spec, values.new_tensor(spec.mean), values.new_tensor(spec.std))
    return values.permute(0, 3, 1, 2)


def to_arrays(pixels: Pixels, spec: InputSpec) -> NDArray[np.float32]:
    """The same numbers as ``to_inputs``, bit for bit, as an array (B, 3, H, W), without torch."""
    _check_pixels(pixels, pixels.dtype == np.uint8)
    mean, std = np.array(spec.mean, np.float32), np.array(spec.std, np.float32)
    return _normalise(pixels.astype(np.float32), spec, mean, std).transpose(0, 3, 1, 2)


def _check_pixels(pixels: Any, are_bytes: bool) -> None:
    if not are_bytes or pixels.ndim != 4 or pixels.shape[3] != 3:
        raise ValueError(f"pixels must be uint8 (B, H, W, 3), got {pixels.dtype} {tuple(pixels.shape)}")


def _normalise(values: Values, spec: InputSpec, mean: Values, std: Values) -> Values:
    """(values - mean) / std for RGB values (B, H, W, 3) in 0..255, arrays or tensors, in place where possible."""
    if spec.bgr255:
        values = values[..., BGR]
    else:
        values *= 1 / 255
    values -= mean
    values /= std
    return values


def as_list(pictures: Any) -> tuple[list[Any], bool]:
    """One picture or several -> a list, and whether it was one."""
    if isinstance(pictures, (str, Path, Image.Image, StoredPicture)) or getattr(pictures, "ndim", None) in (2, 3):
        return [pictures], True
    if not isinstance(pictures, Iterable):
        raise TypeError(f"{KINDS}, or several of them, got {type(pictures).__name__}")
    return list(pictures), False


def as_image(picture: Any, at_least: int | None = None) -> Image.Image:
    """The upright RGB picture of a path, image, array or ``StoredPicture``; ``at_least`` as in ``read_picture``."""
    if isinstance(picture, (str, Path)):
        return read_picture(picture, at_least=at_least)
    if isinstance(picture, StoredPicture):
        return picture.read(at_least)
    if isinstance(picture, Image.Image):
        return as_rgb(picture)
    array = np.asarray(picture)
    colours = array.shape[2] if array.ndim == 3 else None
    if array.dtype != np.uint8 or not (array.ndim == 2 or colours in (3, 4)):
        raise TypeError(f"{KINDS}, got {array.dtype} of shape {array.shape}")
    if not array.size:
        raise ValueError(f"a picture must have pixels, got an array of shape {array.shape}")
    image = Image.fromarray(array)
    return image if image.mode == "RGB" else as_rgb(image)


def decoded_batches(
    pictures: list[Any], size: int, crop: Callable[[int], Pixels], threads: ThreadPoolExecutor
) -> Iterator[Pixels]:
    """Batches (B, size, size, 3) uint8, where ``crop(i)`` reads picture i; the next one is decoded ahead by threads."""

    def submit(first: int) -> list[Future[Pixels]]:
        numbers = range(first, min(first + size, len(pictures)))
        for i in numbers:
            if isinstance(pictures[i], Image.Image):
                pictures[i].load()  # here, since two threads must not decode the same object
        return [threads.submit(crop, i) for i in numbers]

    ahead = submit(0)
    for first in range(0, len(pictures), size):
        current, ahead = ahead, submit(first + size)
        yield from stacks([future.result() for future in current])


def crop_loader(
    pictures: Pictures, spec: InputSpec, batch_size: int | None = None, workers: int | None = None
) -> "PictureLoader":
    """Crops of a table's pictures, in order, as batches (B, size, size, 3) uint8.

    Args:
        pictures: The table; large JPEG files are decoded at reduced size.
        spec: What the backbone expects.
        batch_size: Pictures in a batch; None chooses by the device.
        workers: Processes that read pictures; None chooses by the machine.
    """
    from lookalike.data.loading import PictureLoader, evaluation_batch, loader_settings

    if batch_size is None:
        batch_size = evaluation_batch()
    check_count("batch_size", batch_size)
    if spec.sees_whole:
        batch_size = 1  # crops differ in shape
    if workers is None and len(pictures) <= batch_size:
        workers = 0  # starting a process takes longer
    return PictureLoader(cast(Any, _CropSet(pictures, spec)), batch_size=batch_size, **loader_settings(workers))


class _CropSet:
    def __init__(self, pictures: Pictures, spec: InputSpec) -> None:
        self.preprocess = Preprocess(spec)
        self.pictures = self.preprocess.reading(pictures)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Pixels:
        return self.preprocess.crop(self.pictures.image(index))
