"""Tables of small pictures that are kept in memory as one array."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lookalike.data.pictures import Pictures


class ArrayReader:
    """Reads pictures from an array.

    Args:
        pixels: (n, H, W) or (n, H, W, 3), uint8.
    """

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        if pixels.dtype != np.uint8 or not (pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] == 3)):
            raise ValueError(f"pixels must be uint8 (n, H, W) or (n, H, W, 3), got {pixels.dtype} {pixels.shape}")
        self.pixels = pixels

    def __call__(self, index: int) -> Image.Image:
        """Return picture ``index`` in mode RGB."""
        return Image.fromarray(np.ascontiguousarray(self.pixels[index])).convert("RGB")

    def key(self, index: int) -> str:
        """Hash the pixels of picture ``index``."""
        pixels = self.pixels[index]
        return blake2b(pixels.tobytes(), digest_size=16, person=f"{pixels.shape}".encode()[:16]).hexdigest()


def table_of_arrays(
    name: str,
    root: Path,
    classes: Sequence[str],
    arrays: dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]],
) -> Pictures:
    """Make a table of pictures in memory; picture 7 of "train" is called train/00007.

    Args:
        name: Name of the table.
        root: Folder that the arrays come from.
        classes: Class names; classes without a picture are dropped.
        arrays: For each split pixels (n, H, W) or (n, H, W, 3), uint8, and labels (n,).

    Returns:
        The table, with an ``ArrayReader``.

    Raises:
        ValueError: If pixels and labels do not fit each other or ``classes``.
    """
    names: list[str] = []
    splits: list[str] = []
    for split, (pixels, labels) in arrays.items():
        if len(pixels) != len(labels):
            raise ValueError(f"{root}: the split {split} has {len(pixels):,} pictures, but {len(labels):,} labels")
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
            raise ValueError(f"{root}: a label of the split {split} is not in 0..{len(classes) - 1}")
        names += [f"{split}/{number:05d}" for number in range(len(pixels))]
        splits += [split] * len(pixels)
    all_pixels, all_labels = zip(*arrays.values(), strict=True)
    present, labels = np.unique(np.concatenate(all_labels), return_inverse=True)
    return Pictures(
        name=name,
        names=tuple(names),
        labels=labels.astype(np.int64),
        classes=tuple(classes[number] for number in present),
        reader=ArrayReader(np.concatenate(all_pixels)),
        origins=np.arange(len(labels)),
        splits=np.array(splits, dtype=np.str_),
        root=root,
    )
