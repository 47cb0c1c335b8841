"""Unit vectors with the structure of embeddings, any number of them: groups, classes in groups, pictures in classes.

A class is a point near the centre of its group. A picture is a point near its class, spread over few directions that
all classes share, with a little noise in the others. Vectors come in chunks; the same seed gives the same vectors.
"""

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from lookalike.index import Item

Array = NDArray[np.float32]
DIM = 128
CHUNK = 20_000
GROUPS = 100
PER_CLASS = 100  # pictures on average
DIRECTIONS = 24  # within a class
SHELVES = 100  # values of a metadata field that is independent of the vectors
SPREAD = 0.55  # of pictures around their class; gives a mean cosine of about 0.7 within a class
NOISE = 0.15


class Clusters:
    """A distribution of vectors.

    Args:
        count: Number of vectors that it is made for; decides how many classes there are.
        dim: Size D of the vectors.
    """

    def __init__(self, count: int, dim: int = DIM) -> None:
        rng = np.random.default_rng(20)
        self.dim = dim
        classes = max(GROUPS, count // PER_CLASS)
        groups = _units(rng, GROUPS, dim)
        self.group_of = rng.integers(0, GROUPS, classes)
        self.centres = groups[self.group_of] + 0.8 * _units(rng, classes, dim)
        self.centres /= np.linalg.norm(self.centres, axis=1, keepdims=True)
        self.basis = _units(rng, min(DIRECTIONS, dim), dim)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, NDArray[np.int64]]:
        """Draw vectors (count, D) and the groups that they belong to. Some classes are ten times as large as others."""
        classes = (len(self.centres) * rng.random(count) ** 2).astype(np.int64)
        spread = rng.standard_normal((count, len(self.basis)), dtype=np.float32) @ self.basis
        spread *= SPREAD * 1.4 / np.sqrt(len(self.basis))
        noise = rng.standard_normal((count, self.dim), dtype=np.float32) * (NOISE / np.sqrt(self.dim))
        vectors = self.centres[classes] + spread + noise
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors.astype(np.float32), self.group_of[classes]

    def chunks(self, first: int, end: int) -> Iterator[tuple[list[Item], Array]]:
        """Yield items and vectors number ``first`` to ``end``; both are multiples of the chunk, or the last."""
        for start in range(first, end, CHUNK):
            count = min(CHUNK, end - start)
            vectors, groups = self.draw(np.random.default_rng([1, start]), count)
            yield [_item(start + i, int(group)) for i, group in enumerate(groups)], vectors

    def queries(self, count: int) -> Array:
        """Draw queries (count, D), which are not among the vectors."""
        return self.draw(np.random.default_rng([2, 0]), count)[0]


def _units(rng: np.random.Generator, count: int, dim: int) -> Array:
    vectors = rng.standard_normal((count, dim), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _item(number: int, group: int) -> Item:
    item_id = blake2b(str(number).encode(), digest_size=16).hexdigest()
    metadata = {"shelf": number % SHELVES, "year": 2000 + number % 25}
    return Item(item_id, f"/pictures/group {group}/{number:08d}.jpg", f"group {group}", metadata)
