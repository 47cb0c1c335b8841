"""Drawn pictures of the demo, in memory: one cell of 2 x 2 shows the letter, three show symbols."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookalike.data.pictures import Pictures


class Shots(NamedTuple):
    """Pictures in memory.

    Attributes:
        pixels: (n, S, S, 3), uint8.
        labels: Classes (n,), counted from 0.
        cells: Number of the cell that shows the letter (n,), row by row.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    cells: NDArray[np.int64]

    def of_classes(self, first: int, end: int) -> "Shots":
        """Select classes from ``first`` up to, not including, ``end``; labels count from 0 again."""
        chosen = (self.labels >= first) & (self.labels < end)
        return Shots(self.pixels[chosen], self.labels[chosen] - first, self.cells[chosen])

    def every(self, step: int) -> "Shots":
        """Select every ``step``-th picture."""
        return Shots(self.pixels[::step], self.labels[::step], self.cells[::step])


def draw(pictures: Pictures, first: int, end: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw pictures ``first`` to ``end`` (exclusive) of a drawn data set: pixels (n, S, S, 3) and true cells (n,)."""
    reader: Any = pictures.reader
    origins = pictures.origins[first:end].tolist()
    pixels = np.stack([reader.draw(origin) for origin in origins])
    cells = np.array([reader.cell_of(origin) for origin in origins], dtype=np.int64)
    return pixels, cells


def in_cell(cells: NDArray[np.int64], positions: int) -> Tensor:
    """Mark which of N positions of a square map lie in the given cells (B,) of 2 x 2: a mask (B, N)."""
    side = round(positions**0.5)
    rows, columns = np.divmod(np.arange(positions), side)
    cell_of_position = 2 * (rows * 2 // side) + columns * 2 // side
    return torch.from_numpy(cell_of_position[None, :] == cells[:, None])
