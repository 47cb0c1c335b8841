"""Masks of objects in pictures, and how much of a pooling's weight lies inside them.

share      share of the weight inside the mask, the weights spread bilinearly over the pixels
pointing   whether the largest weight of a picture lies inside (Zhang et al., "Top-down Neural Attention by
           Excitation Backprop", ECCV 2016); if several pixels share the maximum, the share of them inside
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import interpolate

from lookalike.data.glyphs import GlyphReader, _turned

Masks = NDArray[np.bool_]
Weights = NDArray[np.float32]
SAME = 1e-5  # of the largest weight: smaller differences are rounding


class Located(NamedTuple):
    """Share and pointing of one model, by mask: means over the test pictures."""

    share: dict[str, float]
    pointing: dict[str, float]


def letter_mask(reader: GlyphReader, index: int) -> Masks:
    """Draw the letter of a picture alone, as the reader draws it; return the mask of its ink (size, size)."""
    letter, random, true_cell = reader._begin(index)
    placements = random.random((reader.cells**2, 7)).tolist()
    side = reader.size // reader.cells
    ink = Image.new("L", (reader.size, reader.size))
    corner = (side * (true_cell % reader.cells), side * (true_cell // reader.cells))
    ink.paste(_turned(letter, side, *placements[true_cell][1:]), corner)
    return np.asarray(ink) > 127


def box_of(mask: Masks) -> Masks:
    """Compute the bounding box of each mask (n, H, W)."""
    rows, columns = _filled(np.asarray(mask.any(2))), _filled(np.asarray(mask.any(1)))
    return np.asarray(rows[:, :, None] & columns[:, None, :])


def _filled(lines: Masks) -> Masks:
    """Fill between the first and the last True of each line (n, L)."""
    return np.asarray((lines.cumsum(1) > 0) & (lines[:, ::-1].cumsum(1) > 0)[:, ::-1])


def cell_masks(cells: NDArray[np.int64], grid: int, side: int) -> Masks:
    """Create masks (n, side, side) of the true cells (n,) of ``grid`` x ``grid``."""
    index = np.arange(side) * grid // side
    return np.asarray(grid * index[:, None] + index[None, :] == cells[:, None, None])


def spread(weights: Weights, side: int) -> Weights:
    """Spread weights (n, N) of a square map bilinearly over pixels: (n, side, side), each adding up to 1."""
    grid = round(weights.shape[1] ** 0.5)
    maps = torch.from_numpy(weights).view(len(weights), 1, grid, grid).double()
    pixels = interpolate(maps, size=(side, side), mode="bilinear", align_corners=False).squeeze(1)
    return np.asarray((pixels / pixels.sum((1, 2), keepdim=True)).numpy())


def located(weights: Weights, masks: dict[str, Masks]) -> Located:
    """Measure how much of the pooling weights (n, N) lies inside masks (n, H, W)."""
    pixels = spread(weights, next(iter(masks.values())).shape[1])
    highest = pixels >= pixels.max((1, 2), keepdims=True) * (1 - SAME)
    share, pointing = {}, {}
    for name, mask in masks.items():
        share[name] = float((pixels * mask).sum((1, 2)).mean())
        hits = (highest & mask).sum((1, 2)) / highest.sum((1, 2))
        pointing[name] = float(hits.mean())
    return Located(share, pointing)
