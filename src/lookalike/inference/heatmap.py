"""Where in a picture a model looks: the weights of its pooling's grid, spread over the pixels of the picture.

A picture is resized by its shorter side and its middle is cut out (``evaluation_transform``); the places of the
grid divide that square evenly. The weight between the centres of two places changes linearly, and beyond the outermost
centres it stays as it is (bilinear interpolation). Each pixel gets the integral of this surface over its part of the
box, so that every place hands out exactly its own weight, however many or few pixels it covers: for place r of k,

    share of the pixel [a, b] = F_r(b) - F_r(a),    F_r(u) = 1/2 + t - t |t| / 2,    t = clip(u - r - 1/2, -1, 1)

with u in places from the edge of the box, along each of the two sides. How far into the picture a local feature of a
deep network really sees is another matter: its receptive field is wider than its place.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.inference.preprocess import placement
from lookalike.models.input_spec import InputSpec


class Box(NamedTuple):
    """A part of a picture in its pixels, from its upper left corner; pixels may be cut."""

    left: float
    top: float
    width: float
    height: float


class Explained(NamedTuple):
    """What a model looked at in one picture."""

    weights: NDArray[np.float32]  # (H, W) of the upright picture, adds up to 1, zero outside of the box
    grid: NDArray[np.float32]  # (rows, columns), the weights of the pooling, adds up to 1
    box: Box  # what the grid covers
    attributes: NDArray[np.float32] | None  # (m,), the share of each prototype, where the pooling has some


def evaluation_box(spec: InputSpec, width: int, height: int) -> Box:
    """What ``evaluation_transform`` leaves of a picture.

    >>> evaluation_box(InputSpec(size=224, resize=256), 512, 1024)
    Box(left=32.0, top=288.0, width=448.0, height=448.0)
    """
    place = placement(spec, width, height)
    scales = [before / after for before, after in zip(place.cut, place.resized, strict=True)]
    start = [
        first + corner * scale for first, corner, scale in zip(place.cut_from, place.crop_from, scales, strict=True)
    ]
    return Box(*start, *(spec.size * scale for scale in scales))


def spread(grid: NDArray[np.float32], box: Box, width: int, height: int) -> NDArray[np.float32]:
    """Weights (rows, columns) over the box -> (height, width), with the same sum."""
    rows = _shares(grid.shape[0], height, box.top, box.height)
    columns = _shares(grid.shape[1], width, box.left, box.width)
    return np.asarray((rows @ grid).astype(np.float32) @ columns.T.astype(np.float32))


def _shares(places: int, pixels: int, start: float, extent: float) -> NDArray[np.float64]:
    """How much of each place goes to each pixel along one side, (pixels, places): columns add up to 1."""
    edges = ((np.arange(pixels + 1) - start) * (places / extent)).clip(0, places)
    offsets = (edges[:, None] - np.arange(-1, places + 1) - 0.5).clip(-1, 1)
    primitive = 0.5 + offsets - offsets * np.abs(offsets) / 2
    primitive[:, 1] += primitive[:, 0]  # beyond the outermost centres the outermost place goes on
    primitive[:, -2] += primitive[:, -1]
    return np.diff(primitive[:, 1:-1], axis=0)
