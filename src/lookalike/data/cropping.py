"""Cuts the region that a model sees out of a picture, without torch.

Centre crop: the shorter side is resized to ``resize_to``, then the middle ``size`` x ``size`` is cut out.

Whole picture (with ``cells``, the number of local features along ``size``): the shorter side is resized to ``size``,
the longer one in proportion to a whole number of cells. Squares of ``size`` x ``size`` that overlap as little as needed
go through the backbone; each cell of the picture takes its local feature from the square in which it is most central.
So every place counts once. What this gains and costs: docs/how-to/search.md, "The whole picture".
"""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
LONGEST = 10  # of a picture longer than this to 1 only the middle is used


class CropSettings(Protocol):
    """The properties of an ``InputSpec`` that decide the crop."""

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

    @property
    def cells(self) -> int | None:
        """Local features along ``size`` if the whole picture is seen; None for the centre crop."""
        ...


class CropSize(NamedTuple):
    """The settings of a crop without the rest of the ``InputSpec``, which needs torch."""

    size: int
    resize_to: int
    interpolation: str
    cells: int | None = None


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


class Tile(NamedTuple):
    """A square of a picture that is seen whole, along its longer side.

    Attributes:
        start: Where it starts, in pixels of the resized picture.
        first: The first of its cells that counts.
        last: The cell after the last one that counts.
    """

    start: int
    first: int
    last: int


def whole_size(spec: CropSettings, width: int, height: int) -> tuple[int, int]:
    """Width and height to which a picture is resized if it is seen whole.

    Examples:
        >>> whole_size(CropSize(224, 256, "bilinear", 7), 512, 1024), whole_size(CropSize(224, 256, "", 7), 640, 480)
        ((224, 448), (288, 224))
    """
    cells = spec.cells or 1
    elongation = min(max(width, height) / min(width, height), LONGEST)
    longer = round(round(cells * elongation) * spec.size / cells)
    if width >= height:
        return longer, spec.size
    return spec.size, longer


def tiles(spec: CropSettings, length: int) -> list[Tile]:
    """Divide the longer side of a resized picture into squares.

    Examples:
        >>> tiles(CropSize(224, 256, "bilinear", 7), 288)
        [Tile(start=0, first=0, last=5), Tile(start=64, first=3, last=7)]
    """
    cells = spec.cells or 1
    all_cells = round(length * cells / spec.size)
    count = -(-all_cells // cells)
    starts = [0]
    for i in range(1, count):
        starts.append(round(i * (all_cells - cells) / (count - 1)))
    result = []
    covered = 0
    for start, following in zip(starts, [*starts[1:], all_cells], strict=True):
        end = start + cells
        if following < all_cells:
            end = (following + end + 1) // 2  # the middle of the overlap
        first_pixel = min(round(start * spec.size / cells), length - spec.size)
        result.append(Tile(first_pixel, covered - start, end - start))
        covered = end
    return result


class Square(NamedTuple):
    """A square of crops that are seen whole, as indices.

    Attributes:
        pixels: Its part of the crops (B, H, W, 3).
        cells: The part of its local features (B, H', W', C) that counts.
    """

    pixels: tuple[slice, ...]
    cells: tuple[slice, ...]


def squares(spec: CropSettings, height: int, width: int) -> tuple[int, list[Square]]:
    """Divide crops of ``height`` x ``width`` into squares.

    Returns:
        The axis along which the features of the squares are joined, and the squares.
    """
    axis = 2 if width > height else 1
    before = (slice(None),) * axis
    parts = []
    for tile in tiles(spec, max(height, width)):
        pixels, cells = slice(tile.start, tile.start + spec.size), slice(tile.first, tile.last)
        parts.append(Square((*before, pixels), (*before, cells)))
    return axis, parts


def stacks(crops: list[Pixels]) -> Iterator[Pixels]:
    """Stack crops in order; where the shape changes a new stack begins."""
    for _, group in groupby(crops, key=np.shape):
        yield np.stack(list(group))


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
    """Resize and crop one upright RGB picture.

    Returns:
        (size, size, 3) uint8; if the picture is seen whole, its longer side is longer.
    """
    if spec.cells:
        return np.array(image.resize(whole_size(spec, *image.size), Image.Resampling[spec.interpolation.upper()]))
    geometry = crop_geometry(spec, *image.size)
    if geometry.cut != image.size:
        image = image.crop(_corners(geometry.cut_from, geometry.cut))
    if geometry.resized != image.size:
        image = image.resize(geometry.resized, Image.Resampling[spec.interpolation.upper()])
    return np.array(image.crop(_corners(geometry.crop_from, (spec.size, spec.size))))


def _corners(corner: tuple[int, int], sides: tuple[int, int]) -> tuple[int, int, int, int]:
    return (*corner, corner[0] + sides[0], corner[1] + sides[1])
