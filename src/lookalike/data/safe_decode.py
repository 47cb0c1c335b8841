"""Decodes pictures from strangers: checks the header first, then decodes, crops and encodes.

This runs in the processes of ``lookalike.data.decode_worker`` and needs Pillow and numpy only. A header is cheap. It
says how many pixels follow, and the file itself says how many passes a decoder makes over them. Their product is
checked before anything is decoded.
"""

from io import BytesIO
from typing import NamedTuple

from PIL import Image, ImageFile, TiffImagePlugin

from lookalike.data import png
from lookalike.data.cropping import CropSize, Pixels, Region, crop_picture
from lookalike.data.reading import PIXEL_LIMIT, decode, open_header

LONGEST_UPLOAD_SIDE = 32_768  # pixels per side of an untrusted picture
MOST_ELONGATED = 200  # its longer side, in shorter sides
MOST_SCANS = 200  # per progressive JPEG; a small file with thousands of scans would decode for an hour
PILLOW_MAX_PIXELS = 89_478_485  # above this, Pillow warns or refuses by itself
JPEG_QUALITY = 90
MOST_PASSES = 20  # over the largest allowed picture; a smaller one may have more scans, up to Bounds.scans
SECONDS_PER_MEGAPIXEL = {"PNG": 0.03, "WEBP": 0.03, "AVIF": 0.05, "HEIF": 0.1, "JPEG2000": 0.3}  # measured, rounded up
SECONDS_OF_OTHERS = 0.01
QUICK_SECONDS = 0.4
QUICK_BYTES = 40_000_000
COEFFICIENT_BYTES = 6  # per pixel of a JPEG with several scans, which needs all coefficients at once
MOST_HEADER_READS = 20_000  # of a file; a header of millions of tiny pieces would take seconds
MOST_READS = 100_000
STRIP_TAGS = (TiffImagePlugin.STRIPOFFSETS, TiffImagePlugin.TILEOFFSETS)


class Refused(Exception):  # noqa: N818 - names the event
    """The picture is not accepted.

    Args:
        status: HTTP status code.
        code: A stable word for programs.
        message: One line for people.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(status, code, message)
        self.status = status
        self.code = code
        self.message = message


class Costly(Exception):  # noqa: N818 - names the state
    """Decoding would take longer, or more memory, than a quick job may.

    Args:
        decoded_bytes: Memory of the decoded picture.
    """

    def __init__(self, decoded_bytes: int) -> None:
        super().__init__(decoded_bytes)
        self.decoded_bytes = decoded_bytes


class Bounds(NamedTuple):
    """Bounds of an uploaded picture, checked before it is decoded.

    Attributes:
        pixels: Largest number of pixels.
        side: Largest number of pixels per side.
        elongation: Longer side, in shorter sides.
        scans: Largest number of scans of a JPEG.
    """

    pixels: int
    side: int
    elongation: int
    scans: int


class Job(NamedTuple):
    """One picture to decode, and the results that are needed.

    Attributes:
        bounds: Bounds of an upload; None for a file of the index.
        at_least: A JPEG may be decoded smaller as long as its shorter side has this length. None decodes in full.
        crop: If given, the pixels for the model are computed.
        region: The part of the picture to crop.
        jpeg_side: If given, the picture is encoded as a JPEG with at most this longer side.
        full_jpeg: Encode the picture as decoded in full, regardless of ``at_least``.
        quick: Raise ``Costly`` instead of decoding a picture that takes long.
    """

    bounds: Bounds | None = None
    at_least: int | None = None
    crop: CropSize | None = None
    region: Region = Region()
    jpeg_side: int | None = None
    full_jpeg: bool = False
    quick: bool = False


class Decoded(NamedTuple):
    """The result of a job.

    Attributes:
        size: Width and height of the upright picture as it was decoded.
        pixels: (size, size, 3) uint8 for the model, if the job asked for them.
        jpeg: The encoded picture, if the job asked for it.
    """

    size: tuple[int, int]
    pixels: Pixels | None
    jpeg: bytes | None


class _CountedFile(BytesIO):
    """A file in memory that may be read a limited number of times, however small the pieces."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reads_left = MOST_HEADER_READS

    def read(self, size: int | None = -1) -> bytes:
        self.reads_left -= 1
        if self.reads_left < 0:
            raise Refused(415, "not_a_picture", "the file consists of too many pieces")
        return super().read(size)


def run(job: Job, data: bytes) -> Decoded:
    """Decode one picture.

    Args:
        job: The job.
        data: The bytes of the file.

    Returns:
        The results.

    Raises:
        Refused: If the picture is not accepted.
        Costly: If the job is quick and the picture is not.
    """
    picture, is_reduced = _open(job, data, job.at_least)
    size = picture.size
    pixels = None
    if job.crop is not None:
        pixels = crop_picture(job.crop, job.region.of(picture))
    jpeg = None
    if job.jpeg_side is not None:
        if job.full_jpeg and is_reduced:
            picture, _ = _open(job, data, None)
        jpeg = as_jpeg(picture, side=job.jpeg_side)
    return Decoded(size, pixels, jpeg)


def open_picture(data: bytes, bounds: Bounds, at_least: int | None = None) -> Image.Image:
    """Decode an uploaded picture: upright, RGB. Bounds and errors as in ``run``."""
    return _open(Job(bounds=bounds), data, at_least)[0]


def as_jpeg(picture: Image.Image, *, side: int | None = None) -> bytes:
    """Encode a picture without metadata.

    Args:
        picture: The RGB picture. It is reduced in place.
        side: Longest side of the result. None keeps the size.

    Returns:
        The bytes of a JPEG.
    """
    picture.info = {}
    if side is not None and max(picture.size) > side:
        picture.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    plain = Image.frombytes("RGB", picture.size, picture.tobytes())  # a copy without metadata
    file = BytesIO()
    plain.save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()


def _open(job: Job, data: bytes, at_least: int | None) -> tuple[Image.Image, bool]:
    """Decode ``data``; also return whether the picture was decoded smaller than it is."""
    file = _CountedFile(data)
    try:
        image = open_header(file, "upload")
    except (Refused, MemoryError):
        raise
    except Exception:  # a crafted file can make a decoder raise anything
        if job.bounds is None:
            raise _gone() from None
        raise _not_a_picture("the upload is not a picture (supported: JPEG, PNG, WebP, GIF, BMP, TIFF, ...)") from None
    full_size = image.size
    scans = _count_scans(image, data)
    _check_header(image, scans, job.bounds)
    file.reads_left = MOST_READS
    try:
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        is_reduced = image.size != full_size
        if job.quick:
            _require_quick(image, full_size, scans)
        kind = image.format
        was_interlaced = bool(image.info.get("interlace"))
        if kind == "PNG" and job.bounds is not None:
            image.load()
            if (was_interlaced or _last_row_is_empty(image)) and not png.is_complete(data):
                raise ValueError("rows are missing")
        return decode(image), is_reduced
    except (Costly, Refused, MemoryError):
        raise
    except Exception:
        if job.bounds is None:
            raise _gone() from None
        raise _not_a_picture("the picture is damaged or incomplete") from None


def _check_header(image: ImageFile.ImageFile, scans: int, bounds: Bounds | None) -> None:
    longer, shorter = max(image.size), min(image.size)
    if bounds is None:
        if longer * shorter > PIXEL_LIMIT:
            raise _gone()
        return
    if longer * shorter > bounds.pixels:
        message = f"a picture must have at most {bounds.pixels / 1e6:g} million pixels"
        raise Refused(413, "too_many_pixels", message)
    if longer > bounds.side:
        raise Refused(413, "too_long", f"a picture must have at most {bounds.side:,} pixels per side")
    if longer > bounds.elongation * shorter:
        message = f"the longer side of a picture must be at most {bounds.elongation} times the shorter one"
        raise Refused(413, "too_long", message)
    if scans > bounds.scans or scans * longer * shorter > MOST_PASSES * bounds.pixels:
        raise _not_a_picture(f"a JPEG must have at most {bounds.scans} scans, and {MOST_PASSES} if it is large")


def _count_scans(image: ImageFile.ImageFile, data: bytes) -> int:
    """Count the passes over a JPEG by content: it may be called MPO, or be inside a TIFF. Other formats have one."""
    if data.startswith(b"\xff\xd8"):
        return max(1, data.count(b"\xff\xda"))
    if isinstance(image, TiffImagePlugin.TiffImageFile) and image.info.get("compression") in ("jpeg", "tiff_jpeg"):
        strips = 1
        for tag in STRIP_TAGS:
            strips = max(strips, len(image.tag_v2.get(tag, ())))
        return max(1, data.count(b"\xff\xda") - strips + 1)  # every strip has a scan of its own
    return 1


def _require_quick(image: ImageFile.ImageFile, full_size: tuple[int, int], scans: int) -> None:
    """Raise ``Costly`` if the estimate of time or memory is too high."""
    full_pixels = full_size[0] * full_size[1]
    seconds = SECONDS_PER_MEGAPIXEL.get(image.format or "", SECONDS_OF_OTHERS) * scans * full_pixels / 1e6
    bytes_per_pixel = 4
    if image.mode.startswith(("I", "F")):  # converted in double precision
        bytes_per_pixel = 16
    needed_bytes = bytes_per_pixel * image.width * image.height
    if scans > 1:
        needed_bytes += COEFFICIENT_BYTES * full_pixels
    if seconds > QUICK_SECONDS or needed_bytes > QUICK_BYTES:
        raise Costly(needed_bytes)


def _last_row_is_empty(image: Image.Image) -> bool:
    """Whether the last row is all zero, as Pillow leaves it if it is missing."""
    last_row = image.crop((0, image.height - 1, image.width, image.height))
    return not any(last_row.tobytes())


def _not_a_picture(message: str) -> Refused:
    return Refused(415, "not_a_picture", message)


def _gone() -> Refused:
    return Refused(410, "gone", "the picture of this item is missing or cannot be read")
