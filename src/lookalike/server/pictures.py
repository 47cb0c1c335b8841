"""Bytes from a stranger -> an upright RGB picture; a picture -> a JPEG that holds its pixels and nothing else.

The kind of a picture is what its bytes say, never its name, and one of those that ``lookalike.data.reading`` reads. Its
pixels are counted before they are decoded. Whatever else was in the file, EXIF with its place and time, comments,
profiles, thumbnails, is left behind.
"""

from io import BytesIO
from typing import NamedTuple

from PIL import Image

from lookalike.data.reading import FORMATS, as_rgb
from lookalike.server.errors import ApiError, invalid
from lookalike.server.limits import MOST_SCANS

QUALITY = 90  # of JPEGs that are sent or kept
SMALLEST = 1e-4  # of a picture's side that a crop may be


class Crop(NamedTuple):
    """A part of a picture, in fractions of its width and height."""

    left: float = 0.0
    top: float = 0.0
    width: float = 1.0
    height: float = 1.0

    @classmethod
    def read(cls, text: str | None) -> "Crop":
        """
        >>> Crop.read("0.25, 0, 0.5, 1")
        Crop(left=0.25, top=0.0, width=0.5, height=1.0)
        """
        if text is None or not text.strip():
            return cls()
        expected = "crop must be left,top,width,height as fractions of the picture, 0.25,0,0.5,1 say"
        try:
            crop = cls(*map(float, text.split(",")))
        except (TypeError, ValueError):
            raise invalid(expected) from None
        inside = (
            crop.left >= 0 and crop.top >= 0 and crop.left + crop.width <= 1.001 and crop.top + crop.height <= 1.001
        )
        if not (inside and crop.width >= SMALLEST and crop.height >= SMALLEST):  # NaN is not inside
            raise invalid(f"{expected}; it must lie inside of the picture")
        return crop

    @property
    def is_whole(self) -> bool:
        return self == Crop()

    def of(self, picture: Image.Image) -> Image.Image:
        """At least one pixel of it."""
        if self.is_whole:
            return picture
        left, top, width, height = self.pixels(picture.width, picture.height)
        return picture.crop((left, top, left + width, top + height))

    def pixels(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Left, top, width and height in whole pixels."""
        left = min(round(self.left * width), width - 1)
        top = min(round(self.top * height), height - 1)
        right = min(max(round((self.left + self.width) * width), left + 1), width)
        bottom = min(max(round((self.top + self.height) * height), top + 1), height)
        return left, top, right - left, bottom - top

    def side_for(self, side: int) -> int:
        """The shorter side a picture must have, so that this part of it has ``side``."""
        return round(side / min(self.width, self.height))


def open_picture(data: bytes, *, pixels: int, at_least: int | None = None) -> Image.Image:
    """The picture in ``data``, of at most ``pixels``; JPEGs may come smaller, their shorter side ``at_least`` long."""
    not_one = "the upload is not a picture in a known format (JPEG, PNG, WebP, GIF, BMP, TIFF, ...)"
    too_many = ApiError(413, "too_many_pixels", f"a picture must have at most {pixels / 1e6:g} million pixels")
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise too_many from None
    except Exception:  # a made-up file can make a decoder raise anything
        raise ApiError(415, "not_a_picture", not_one) from None
    if image.width * image.height > pixels:
        raise too_many
    if image.format == "JPEG" and data.count(b"\xff\xda") > MOST_SCANS:
        raise ApiError(415, "not_a_picture", f"a JPEG must have at most {MOST_SCANS} scans")
    try:
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        image.load()
        return as_rgb(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise too_many from None
    except Exception:
        raise ApiError(415, "not_a_picture", "the picture is damaged or not complete") from None


def as_jpeg(picture: Image.Image, *, side: int | None = None) -> bytes:
    """Shrunk to ``side`` if it is longer; pixels and nothing else."""
    plain = Image.frombytes("RGB", picture.size, picture.tobytes())  # a new one, which knows nothing but pixels
    if side is not None and max(plain.size) > side:
        plain.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    file = BytesIO()
    plain.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
