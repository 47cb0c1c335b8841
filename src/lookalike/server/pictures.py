"""Uploaded bytes -> an upright RGB picture; a picture -> a JPEG with its pixels and nothing else.

The format is what the bytes say, never the file name. Pixels are counted before they are decoded. EXIF with place and
time, comments, profiles and thumbnails are dropped. Preprocessing for the model is ``lookalike.inference``'s.
"""

from io import BytesIO
from typing import NamedTuple

from PIL import Image

from lookalike.data.reading import FORMATS, as_rgb
from lookalike.server import png
from lookalike.server.errors import ApiError, invalid
from lookalike.server.limits import LONGEST_UPLOAD_SIDE, MOST_ELONGATED, MOST_SCANS
from lookalike.server.numbers import decimal

JPEG_QUALITY = 90
SMALLEST_CROP = 1e-4  # fraction of a side
ROUNDING = 1.001  # fractions with few digits may add up to slightly more than 1
BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)


class Crop(NamedTuple):
    """A region of a picture, in fractions of its width and height."""

    left: float = 0.0
    top: float = 0.0
    width: float = 1.0
    height: float = 1.0

    @classmethod
    def read(cls, text: str | None) -> "Crop":
        """Parse the field ``crop`` of a form.

        Args:
            text: ``left,top,width,height``; empty or None means the whole picture.

        Returns:
            The region.

        Raises:
            ApiError: 422 if it is malformed or outside of the picture.

        >>> Crop.read("0.25, 0, 0.5, 1")
        Crop(left=0.25, top=0.0, width=0.5, height=1.0)
        """
        if text is None or not text.strip():
            return cls()
        expected = "crop must be left,top,width,height as fractions of the picture, for example 0.25,0,0.5,1; "
        expected += "it must lie inside the picture"
        try:
            crop = cls(*map(decimal, text.split(",")))
        except (TypeError, ValueError):
            raise invalid(expected) from None
        starts_inside = crop.left >= 0 and crop.top >= 0
        ends_inside = crop.left + crop.width <= ROUNDING and crop.top + crop.height <= ROUNDING
        large_enough = crop.width >= SMALLEST_CROP and crop.height >= SMALLEST_CROP
        if not (starts_inside and ends_inside and large_enough):  # all are False for NaN
            raise invalid(expected)
        return crop

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole picture."""
        return self == Crop()

    def of(self, picture: Image.Image) -> Image.Image:
        """Cut the region out of a picture; it has at least one pixel."""
        if self.is_whole:
            return picture
        left, top, width, height = self.pixels(picture.width, picture.height)
        return picture.crop((left, top, left + width, top + height))

    def pixels(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Convert to pixels.

        Args:
            width: Width of the picture.
            height: Height of the picture.

        Returns:
            Left, top, width and height in whole pixels.
        """
        left = min(round(self.left * width), width - 1)
        top = min(round(self.top * height), height - 1)
        right = min(max(round((self.left + self.width) * width), left + 1), width)
        bottom = min(max(round((self.top + self.height) * height), top + 1), height)
        return left, top, right - left, bottom - top

    def side_for(self, side: int) -> int:
        """Return the shorter side that a picture needs for this region to have ``side`` pixels."""
        return round(side / min(self.width, self.height))


def open_picture(data: bytes, *, pixels: int, at_least: int | None = None) -> Image.Image:
    """Decode an uploaded picture.

    Args:
        data: The bytes of the file.
        pixels: Largest number of pixels.
        at_least: A JPEG may be decoded smaller as long as its shorter side has this length. None decodes in full.

    Returns:
        The upright RGB picture.

    Raises:
        ApiError: 413 for too many pixels or too long a side, 415 if it is no picture or damaged.
    """
    too_many = ApiError(413, "too_many_pixels", f"a picture must have at most {pixels / 1e6:g} million pixels")
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except BOMBS:
        raise too_many from None
    except Exception:  # a crafted file can make a decoder raise anything
        raise _not_a_picture("the upload is not a picture (supported: JPEG, PNG, WebP, GIF, BMP, TIFF, ...)") from None
    if image.width * image.height > pixels:
        raise too_many
    _check_sides(image.width, image.height)
    if image.format == "JPEG" and data.count(b"\xff\xda") > MOST_SCANS:
        raise _not_a_picture(f"a JPEG must have at most {MOST_SCANS} scans")
    try:
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        image.load()
        if image.format == "PNG" and _may_lack_rows(image) and not png.is_complete(data):
            raise ValueError("rows are missing")
        return as_rgb(image)
    except BOMBS:
        raise too_many from None
    except Exception:
        raise _not_a_picture("the picture is damaged or incomplete") from None


def as_jpeg(picture: Image.Image, *, side: int | None = None) -> bytes:
    """Encode a picture without metadata.

    Args:
        picture: The RGB picture.
        side: Longest side of the result. None keeps the size.

    Returns:
        The bytes of a JPEG.
    """
    plain = Image.frombytes("RGB", picture.size, picture.tobytes())  # a copy without metadata
    if side is not None and max(plain.size) > side:
        plain.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    file = BytesIO()
    plain.save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()


def _check_sides(width: int, height: int) -> None:
    longer, shorter = max(width, height), min(width, height)
    if longer > LONGEST_UPLOAD_SIDE:
        raise ApiError(413, "too_long", f"a picture must have at most {LONGEST_UPLOAD_SIDE:,} pixels per side")
    if longer > MOST_ELONGATED * shorter:
        message = f"the longer side of a picture must be at most {MOST_ELONGATED} times the shorter one"
        raise ApiError(413, "too_long", message)


def _may_lack_rows(image: Image.Image) -> bool:
    """Whether the last row is all zero, as Pillow leaves it if it is missing. Interlaced rows come in another order."""
    last_row = image.crop((0, image.height - 1, image.width, image.height))
    return bool(image.info.get("interlace")) or not any(last_row.tobytes())


def _not_a_picture(message: str) -> ApiError:
    return ApiError(415, "not_a_picture", message)
