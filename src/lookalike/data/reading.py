"""Reads a file as an upright RGB picture, or gives the reason why it cannot be read.

Pictures that are not plain RGB are converted:

    EXIF orientation        applied
    transparency            composited onto white (RGBA, LA, palettes and PNGs with a transparent colour)
    CMYK, YCCK              by Pillow, which also undoes the inversion of Adobe's JPEGs
    16-bit greyscale        0..65535 to 0..255; wider integers are stretched from their own range
    floating point          0..1 or 0..255 where all values lie in that range, else stretched; NaN becomes black
    animated                the first frame

Only raster formats that Pillow decodes by itself are tried: some others (EPS) would run programs. HEIC is read with the
package pillow-heif, if it is installed (the extra ``heif``).
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from lookalike.data.pictures import UnreadablePicture

PIXEL_LIMIT = 200_000_000  # larger pictures count as decompression bombs
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
HEIF_SUFFIXES = (".heic", ".heif", ".hif")
READS_HEIF = find_spec("pillow_heif") is not None
SUFFIXES = frozenset(
    [
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff"),
        *(".ppm", ".pgm", ".pbm", ".pnm", ".avif", ".jp2"),
        *(HEIF_SUFFIXES if READS_HEIF else ()),
    ]
)
_HUGE = Lock()
STRIP = 256  # rows of a transparent picture that are composited at a time
VERIFY_BLOCK = 32  # files handed to a thread at a time


def read_picture(
    path: str | Path,
    *,
    at_least: int | None = None,
    pixel_limit: int = PIXEL_LIMIT,
    check: Callable[[BinaryIO], None] | None = None,
) -> Image.Image:
    """Read a picture.

    Args:
        path: The file.
        at_least: Shorter side that is needed. A JPEG of twice that or more is decoded at 1/2, 1/4 or 1/8 of its size,
            which is much faster; other formats are decoded at full size.
        pixel_limit: Pictures with more pixels are refused before they are decoded.
        check: Called with the open file before it is decoded; raises ``UnreadablePicture`` to refuse it.

    Returns:
        The picture: mode RGB, upright.

    Raises:
        UnreadablePicture: If it cannot be read.
    """
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnreadablePicture(str(path), "not a file")
        if status.st_size == 0:
            raise UnreadablePicture(str(path), "empty file (0 bytes)")
        with Path(path).open("rb") as file:
            if check is not None:
                check(file)
                file.seek(0)
            image = open_header(file, str(path))
            width, height = image.size
            if width * height > pixel_limit:
                megapixels = f"{width} x {height} = {width * height / 1e6:.0f} megapixels"
                raise UnreadablePicture(str(path), f"too large: {megapixels}, the limit is {pixel_limit / 1e6:g}")
            if at_least is not None:
                image.draft(None, (at_least, at_least))
            return decode(image)
    except UnreadablePicture:
        raise
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise UnreadablePicture(str(path), _reason(error)) from error


def decode(image: ImageFile.ImageFile) -> Image.Image:
    """Decode an opened picture: mode RGB, upright. A damaged file can raise anything."""
    if image.width * image.height > (Image.MAX_IMAGE_PIXELS or PIXEL_LIMIT):
        with _one_at_a_time():
            image.load()
    else:
        image.load()
    with suppress(Exception):  # broken EXIF data says nothing about the pixels
        ImageOps.exif_transpose(image, in_place=True)
    return _rgb(image)


def as_rgb(image: Image.Image) -> Image.Image:
    """Convert a picture in memory to mode RGB, upright."""
    try:
        upright = ImageOps.exif_transpose(image)
    except Exception:  # broken EXIF data says nothing about the pixels
        upright = image.copy()
    return _rgb(upright)


def verify(path: str | Path, *, pixel_limit: int = PIXEL_LIMIT) -> str | None:
    """Return the reason why a picture cannot be read, or None.

    The file is decoded to its end, because only that finds a truncated file; JPEGs at 1/8 of their size, which still
    reads the whole file.
    """
    try:
        read_picture(path, at_least=1, pixel_limit=pixel_limit)
    except UnreadablePicture as error:
        return error.reason
    return None


def verify_all(
    paths: Sequence[str | Path],
    *,
    pixel_limit: int = PIXEL_LIMIT,
    threads: int | None = None,
    progress: bool = False,
) -> list[str | None]:
    """Run ``verify`` on many files in threads (None: by the number of cores); results are in the order of ``paths``."""
    threads = threads or min(16, 2 * (os.cpu_count() or 1))
    blocks = [paths[start : start + VERIFY_BLOCK] for start in range(0, len(paths), VERIFY_BLOCK)]

    def verify_block(block: Sequence[str | Path]) -> list[str | None]:
        return [verify(path, pixel_limit=pixel_limit) for path in block]

    pool = ThreadPoolExecutor(threads, thread_name_prefix="verify")
    try:
        results: Iterator[str | None] = chain.from_iterable(pool.map(verify_block, blocks))
        if progress:
            from tqdm import tqdm

            results = iter(tqdm(results, total=len(paths), desc="reading pictures", unit="", disable=None))
        return list(results)
    finally:
        pool.shutdown(cancel_futures=True)  # on Ctrl-C, skip the remaining files


def open_header(file: BinaryIO, name: str) -> ImageFile.ImageFile:
    """As ``Image.open`` for ``FORMATS`` and HEIF, but without its process-wide limit on the size of a picture."""
    prefix = file.read(16)
    if prefix == b"version https://":
        raise UnreadablePicture(name, "a Git LFS pointer, not the picture: fetch it with git lfs pull")
    Image.init()
    kinds: tuple[str, ...] = FORMATS
    if READS_HEIF:
        _register_heif()
        kinds = (*FORMATS, "HEIF")
    for kind in kinds:
        factory, accepts = Image.OPEN.get(kind, (None, None))
        if factory is None or accepts is None or accepts(prefix) is not True:
            continue
        file.seek(0)
        try:
            return factory(file, name)
        except (SyntaxError, IndexError, TypeError, KeyError, EOFError, struct.error):  # not of this format after all
            continue
    raise UnidentifiedImageError


@cache
def _register_heif() -> None:
    from pillow_heif import register_heif_opener

    register_heif_opener(thumbnails=False)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Decode huge pictures one at a time, without Pillow's warning."""
    with _HUGE, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        return _grey(_from_integers(np.asarray(image).astype(np.float64)))
    if image.mode == "F":
        return _grey(_from_floats(np.asarray(image).astype(np.float64)))
    if image.has_transparency_data:
        return _on_white(image)
    return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    """Composite strip by strip: the copies of a large picture would take several times its memory."""
    opaque = Image.new("RGB", image.size)
    for top in range(0, image.height, STRIP):
        strip = image.crop((0, top, image.width, min(top + STRIP, image.height))).convert("RGBA")
        white = Image.new("RGBA", strip.size, "white")
        opaque.paste(Image.alpha_composite(white, strip).convert("RGB"), (0, top))
    return opaque


def _from_integers(values: NDArray[np.float64]) -> NDArray[np.float64]:
    if values.min() >= 0 and values.max() <= 65535:
        return np.divide(values, 257, out=values)
    return _stretch(values)


def _from_floats(values: NDArray[np.float64]) -> NDArray[np.float64]:
    finite = values[np.isfinite(values)]
    low, high = 0.0, 0.0
    if finite.size:
        low, high = finite.min(), finite.max()
    values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    if low >= 0 and high <= 1:
        return values * 255
    if low >= 0 and high <= 255:
        return values
    return _stretch(values)


def _stretch(values: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = values.min(), values.max()
    if high == low:
        return np.zeros_like(values)
    return (values - low) * (255 / (high - low))


def _grey(values: NDArray[np.float64]) -> Image.Image:
    values = np.rint(values, out=values).clip(0, 255, out=values)  # in place: large pictures fill the memory
    return Image.fromarray(values.astype(np.uint8)).convert("RGB")


def _reason(error: Exception) -> str:
    """An exception of the file system or of a decoder as a short text."""
    if isinstance(error, UnidentifiedImageError):
        return "not a picture in a known format"
    if isinstance(error, Image.DecompressionBombError):  # some decoders apply Pillow's limit
        return f"too large: {error}"
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return "a symbolic link that leads back to itself"
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot be read: {error.strerror}"
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    text = " ".join(str(error).split()) or type(error).__name__
    if "truncated" in text.lower() or isinstance(error, EOFError):
        return f"truncated ({text})"
    return f"damaged ({text})"
