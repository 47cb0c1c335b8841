"""The coordinates that a search structure computes in."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.index.items import Vectors
from lookalike.retrieval.scaling import choose_centre, choose_exponent

ROWS = 4096  # converted at a time


class Frame(NamedTuple):
    """The coordinates of a structure: unit vectors for the cosine; for L2 such that fp32 keeps the digits that matter.

    Attributes:
        distance: "cosine" or "l2".
        centre: Subtracted from L2 vectors that are far from zero, (D,).
        exponent: L2 vectors are divided by this power of 2, so that squares neither overflow nor vanish.
    """

    distance: str
    centre: NDArray[np.float64] | None = None
    exponent: int = 0

    @classmethod
    def choose(cls, distance: str, read: Callable[[], Iterable[Vectors]]) -> "Frame":
        """Choose the frame for vectors.

        Args:
            distance: "cosine" or "l2".
            read: Returns the vectors in blocks (b, D); called up to twice, and not at all for the cosine.
        """
        if distance == "cosine":
            return cls(distance)
        largest = 0.0
        has_vectors = False
        for block in read():
            if len(block):
                has_vectors = True
                largest = max(largest, float(np.abs(block).max()))
        if not has_vectors:
            return cls(distance)
        exponent = choose_exponent(largest)
        return cls(distance, choose_centre((block.astype(np.float64) for block in read()), exponent), exponent)

    @property
    def is_plain(self) -> bool:
        """Whether L2 vectors stay as they are."""
        return self.centre is None and self.exponent == 0

    def apply(self, vectors: Vectors) -> Vectors:
        """Transform vectors (n, D); infinity where they are beyond the frame."""
        if self.distance == "l2" and self.is_plain:
            return vectors
        transformed = np.empty_like(vectors)
        for start in range(0, len(vectors), ROWS):
            rows = vectors[start : start + ROWS].astype(np.float64)
            if self.distance == "cosine":
                rows /= np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]
            elif self.centre is not None:
                rows -= self.centre
            if self.exponent:
                rows *= 2.0**-self.exponent
            with np.errstate(over="ignore"):
                transformed[start : start + ROWS] = rows
        return transformed
