"""Heat maps: the weights of a pooling's grid, spread over the pixels of the picture.

The crop of a picture (``inference.preprocess``) is a square, which the cells of the grid divide evenly. The weight
changes linearly between the centres of two cells and is constant beyond the outermost centres (bilinear
interpolation). Each pixel gets the integral of this surface over its area, so every cell hands out exactly its weight,
however many or few pixels it covers. Along each side, for cell r and u in cells from the edge of the box,

    share of the pixel [a, b] = F_r(b) - F_r(a),    F_r(u) = 1/2 + t - t |t| / 2,    t = clip(u - r - 1/2, -1, 1)

The receptive field of a local feature is wider than its cell; the heat map does not show that.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.data.cropping import crop_geometry
from lookalike.models.input_spec import InputSpec


class Box(NamedTuple):
    """A rectangle in the pixels of a picture, from its upper left corner; may start and end inside a pixel."""

    left: float
    top: float
    width: float
    height: float


class Explained(NamedTuple):
    """Where a model looked in one picture.

    Attributes:
        weights: (H, W) of the upright picture; adds up to 1, zero outside of ``box``.
        grid: (rows, columns), the weights of the pooling; adds up to 1.
        box: The area that the grid covers.
        attributes: (m,), the share of each prototype; None if the pooling has no prototypes.
    """

    weights: NDArray[np.float32]
    grid: NDArray[np.float32]
    box: Box
    attributes: NDArray[np.float32] | None


class CropWeights(NamedTuple):
    """Where a model looked in one crop.

    Attributes:
        grid: As in ``Explained``.
        attributes: As in ``Explained``.
    """

    grid: NDArray[np.float32]
    attributes: NDArray[np.float32] | None


def crop_box(spec: InputSpec, width: int, height: int) -> Box:
    """The area of a picture of ``width`` x ``height`` pixels that a model sees.

    Examples:
        >>> crop_box(InputSpec(size=224, resize=256), 512, 1024)
        Box(left=32.0, top=288.0, width=448.0, height=448.0)
    """
    if spec.sees_whole:
        return Box(0.0, 0.0, float(width), float(height))
    geometry = crop_geometry(spec, width, height)
    across = geometry.cut[0] / geometry.resized[0]  # pixels of the picture for one of the crop
    down = geometry.cut[1] / geometry.resized[1]
    left = geometry.cut_from[0] + geometry.crop_from[0] * across
    top = geometry.cut_from[1] + geometry.crop_from[1] * down
    return Box(left, top, spec.size * across, spec.size * down)


def spread(grid: NDArray[np.float32], box: Box, width: int, height: int) -> NDArray[np.float32]:
    """Spread weights over pixels.

    Args:
        grid: (rows, columns), over ``box``.
        box: In pixels of the picture.
        width: Of the picture.
        height: Of the picture.

    Returns:
        (height, width), with the sum of ``grid`` if the box lies inside the picture.
    """
    inside_rows = _pixels_inside(box.top, box.height, height)
    inside_columns = _pixels_inside(box.left, box.width, width)
    rows = _shares(grid.shape[0], inside_rows, box.top, box.height)
    columns = _shares(grid.shape[1], inside_columns, box.left, box.width)
    weights = np.zeros((height, width), np.float32)
    inside = weights[inside_rows.start : inside_rows.stop, inside_columns.start : inside_columns.stop]
    inside[...] = (rows @ grid).astype(np.float32) @ columns.T.astype(np.float32)
    return weights


def _pixels_inside(start: float, extent: float, pixels: int) -> range:
    """The pixels of one side that a box touches; a long picture has many more."""
    first = min(max(math.floor(start), 0), pixels)
    last = min(max(math.ceil(start + extent), first), pixels)
    return range(first, last)


def _shares(cells: int, pixels: range, start: float, extent: float) -> NDArray[np.float64]:
    """How much of each cell goes to each pixel along one side, (pixels, cells): columns add up to 1."""
    edges = ((np.arange(pixels.start, pixels.stop + 1) - start) * (cells / extent)).clip(0, cells)
    offsets = (edges[:, None] - np.arange(-1, cells + 1) - 0.5).clip(-1, 1)
    primitive = 0.5 + offsets - offsets * np.abs(offsets) / 2
    primitive[:, 1] += primitive[:, 0]  # beyond the outermost centres the outermost cell continues
    primitive[:, -2] += primitive[:, -1]
    return np.diff(primitive[:, 1:-1], axis=0)
