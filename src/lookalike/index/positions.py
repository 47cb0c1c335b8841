"""Row numbers of the vectors in memory, in order of their positions, and whether each row still exists."""

import numpy as np
from numpy.typing import NDArray

from lookalike.index.structures import Selection

Numbers = NDArray[np.int64]


class Positions:
    """Grows at the end without copying all of it each time.

    Args:
        numbers: Row number of each position (n,), ascending.
        alive: Whether the row still exists (n,); None if all do.
    """

    def __init__(self, numbers: Numbers | None = None, alive: NDArray[np.bool_] | None = None) -> None:
        if numbers is None:
            numbers = np.zeros(0, np.int64)
        if alive is None:
            alive = np.ones(len(numbers), bool)
        self._numbers = numbers
        self._alive = alive
        self._count = len(numbers)
        self.alive_count = int(alive.sum())
        self._selection: Selection | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def numbers(self) -> Numbers:
        """Row number of each position (n,)."""
        return self._numbers[: self._count]

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Whether the row still exists (n,)."""
        return self._alive[: self._count]

    def append(self, numbers: Numbers) -> None:
        """Append existing rows (m,)."""
        end = self._count + len(numbers)
        if end > len(self._numbers):
            room = max(end, 2 * len(self._numbers))
            self._numbers = np.concatenate([self.numbers, np.empty(room - self._count, np.int64)])
            self._alive = np.concatenate([self.alive, np.zeros(room - self._count, bool)])
        self._numbers[self._count : end] = numbers
        self._alive[self._count : end] = True
        self._count = end
        self.alive_count += len(numbers)
        self._selection = None

    def mark_removed(self, numbers: Numbers) -> None:
        """Mark rows as removed. Rows that came and went since the last update are not here."""
        if not len(numbers):
            return
        self._alive[self.of(numbers)] = False
        self.alive_count = int(self.alive.sum())
        self._selection = None

    def of(self, numbers: Numbers) -> NDArray[np.int64]:
        """Return the positions of those rows that are here; damaged ones are not."""
        positions = np.searchsorted(self.numbers, numbers)
        inside = positions < self._count
        positions = positions[inside]
        return positions[self.numbers[positions] == numbers[inside]]

    def select(self, numbers: Numbers) -> Selection:
        """Select rows by number."""
        mask = np.zeros(self._count, bool)
        mask[self.of(numbers)] = True
        return Selection.of(mask)

    def existing(self) -> Selection | None:
        """Select all existing rows; None if nothing was removed."""
        if self.alive_count == self._count:
            return None
        if self._selection is None:
            self._selection = Selection.of(self.alive)
        return self._selection
