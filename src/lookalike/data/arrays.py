"""Pictures that come as one array: small ones, kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lookalike.data.pictures import Pictures


class ArrayReader:
    """Reads from ``pixels`` (n, H, W) or (n, H, W, 3), uint8."""

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        if pixels.dtype != np.uint8 or not (pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] == 3)):
            raise ValueError(f"pixels must be uint8 (n, H, W) or (n, H, W, 3), got {pixels.dtype} {pixels.shape}")
        self.pixels = pixels

    def __call__(self, index: int) -> Image.Image:
        return Image.fromarray(np.ascontiguousarray(self.pixels[index])).convert("RGB")

    def key(self, index: int) -> str:
        pixels = self.pixels[index]
        return blake2b(pixels.tobytes(), digest_size=16, person=f"{pixels.shape}".encode()[:16]).hexdigest()


def table_of_arrays(
    name: str,
    root: Path,
    classes: Sequence[str],
    parts: dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]],
) -> Pictures:
    """A table of ``parts``, split -> (pixels, labels); picture 7 of "train" is called train/00007."""
    for split, (pixels, labels) in parts.items():
        if len(pixels) != len(labels):
            raise ValueError(f"{root}: the {split} part has {len(pixels):,} pictures, but {len(labels):,} labels")
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
            raise ValueError(f"{root}: a label of the {split} part is not in 0..{len(classes) - 1}")
    labels = np.concatenate([labels for _, labels in parts.values()]).astype(np.int64)
    present, labels = np.unique(labels, return_inverse=True)
    return Pictures(
        name=name,
        names=tuple(f"{split}/{i:05d}" for split, (pixels, _) in parts.items() for i in range(len(pixels))),
        labels=labels.astype(np.int64),
        classes=tuple(classes[i] for i in present),
        reader=ArrayReader(np.concatenate([pixels for pixels, _ in parts.values()])),
        origins=np.arange(len(labels)),
        splits=np.repeat(np.array(list(parts), dtype=np.str_), [len(pixels) for pixels, _ in parts.values()]),
        root=root,
    )
