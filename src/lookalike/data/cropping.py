"""Cuts the region that a model sees out of a picture, without torch.

The shorter side is resized to ``resize_to``, then the middle ``size`` x ``size`` is cut out.
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
LONGEST = 10  # of a picture longer than this to 1 only the middle is used


class CropSettings(Protocol):
    """The three properties of an ``InputSpec`` that decide the crop."""

    @property
    def size(self) -> int:
        """Side of the crop in pixels."""
        ...

    @property
    def resize_to(self) -> int:
        """Shorter side of the picture before the crop."""
        ...

    @property
    def interpolation(self) -> str:
        """Name of the resampling filter."""
        ...


class CropSize(NamedTuple):
    """The settings of a crop without the rest of the ``InputSpec``, which needs torch."""

    size: int
    resize_to: int
    interpolation: str


class CropGeometry(NamedTuple):
    """How a picture is cut and resized; pairs are (width, height) or (left, top) in pixels."""

    cut_from: tuple[int, int]  # of a picture longer than LONGEST to 1 only the middle is resized
    cut: tuple[int, int]
    resized: tuple[int, int]
    crop_from: tuple[int, int]  # corner of the size x size crop in the resized picture


class Region(NamedTuple):
    """A region of a picture, in fractions of its width and height."""

    left: float = 0.0
    top: float = 0.0
    width: float = 1.0
    height: float = 1.0

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole picture."""
        return tuple(self) == (0, 0, 1, 1)

    def of(self, picture: Image.Image) -> Image.Image:
        """Cut the region out of a picture; it has at least one pixel."""
        if self.is_whole:
            return picture
        left, top, width, height = self.pixels(picture.width, picture.height)
        return picture.crop((left, top, left + width, top + height))

    def pixels(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Convert to whole pixels of a picture of ``width`` x ``height``: left, top, width and height."""
        left = min(round(self.left * width), width - 1)
        top = min(round(self.top * height), height - 1)
        right = min(max(round((self.left + self.width) * width), left + 1), width)
        bottom = min(max(round((self.top + self.height) * height), top + 1), height)
        return left, top, right - left, bottom - top

    def side_for(self, side: int) -> int:
        """Return the shorter side that a picture needs for this region to have ``side`` pixels."""
        return round(side / min(self.width, self.height))


def crop_geometry(spec: CropSettings, width: int, height: int) -> CropGeometry:
    """How a picture of ``width`` x ``height`` pixels becomes the crop of ``spec``.

    Examples:
        >>> crop_geometry(CropSize(224, 256, "bilinear"), 512, 1024)
        CropGeometry(cut_from=(0, 0), cut=(512, 1024), resized=(256, 512), crop_from=(16, 144))
    """
    longest = LONGEST * min(width, height)
    cut_from = (max(0, width - longest) // 2, max(0, height - longest) // 2)
    cut = (min(width, longest), min(height, longest))
    shorter = min(cut)
    resized = (spec.resize_to * cut[0] // shorter, spec.resize_to * cut[1] // shorter)
    crop_from = (round((resized[0] - spec.size) / 2), round((resized[1] - spec.size) / 2))
    return CropGeometry(cut_from, cut, resized, crop_from)


def crop_picture(spec: CropSettings, image: Image.Image) -> Pixels:
    """Resize and crop one upright RGB picture: (size, size, 3) uint8."""
    geometry = crop_geometry(spec, *image.size)
    if geometry.cut != image.size:
        image = image.crop(_corners(geometry.cut_from, geometry.cut))
    if geometry.resized != image.size:
        image = image.resize(geometry.resized, Image.Resampling[spec.interpolation.upper()])
    return np.array(image.crop(_corners(geometry.crop_from, (spec.size, spec.size))))


def _corners(corner: tuple[int, int], sides: tuple[int, int]) -> tuple[int, int, int, int]:
    return (*corner, corner[0] + sides[0], corner[1] + sides[1])
