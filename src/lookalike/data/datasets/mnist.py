"""MNIST (digits) and Fashion-MNIST (clothes): 28 x 28, greyscale, 10 classes.

The split is the official one of pictures: all classes are in both parts.

References: LeCun et al., "Gradient-based learning applied to document recognition", 1998; Xiao, Rasul and Vollgraf,
"Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms", 2017. Both use the same file names;
the first labels, or else the folder's name, tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from lookalike.data.arrays import table_of_arrays
from lookalike.data.datasets.layout import Benchmark, Part
from lookalike.data.idx import read_idx
from lookalike.data.pictures import Pictures

PREFIXES = {"train": "train", "test": "t10k"}
CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
}
FIRST_LABELS = {(5, 0, 4, 1, 9): "mnist", (9, 0, 0, 3, 0): "fashion-mnist"}


def read(name: str, root: Path) -> Pictures:
    parts = {}
    for split in PREFIXES:
        images_file, labels_file = _images(root, split), _labels(root, split)
        pixels, labels = read_idx(images_file), read_idx(labels_file)
        if pixels.ndim != 3 or labels.ndim != 1:
            raise ValueError(f"{images_file} and {labels_file.name} must hold n pictures and n labels")
        parts[split] = (pixels, labels.astype(np.int64))
    return table_of_arrays(name, root, CLASSES[name], parts)


def missing(root: Path) -> list[str]:
    return [
        file.name for split in PREFIXES for file in (_images(root, split), _labels(root, split)) if not file.exists()
    ]


def recognise(root: Path) -> str | None:
    """Which of the two a folder holds, if any."""
    if not any(_images(root, split).exists() for split in PREFIXES):
        return None
    if _labels(root, "train").exists():
        try:
            known = FIRST_LABELS.get(tuple(read_idx(_labels(root, "train"))[:5].tolist()))
        except ValueError:
            known = None
        if known is not None:
            return known
    return "fashion-mnist" if any("fashion" in part.lower() for part in root.resolve().parts[-3:]) else "mnist"


def _images(root: Path, split: str) -> Path:
    return _there(root, f"{PREFIXES[split]}-images", "idx3-ubyte")


def _labels(root: Path, split: str) -> Path:
    return _there(root, f"{PREFIXES[split]}-labels", "idx1-ubyte")


def _there(root: Path, stem: str, kind: str) -> Path:
    """The file as it lies there: with a dash or a dot before its kind, plain or compressed."""
    places = [root / f"{stem}{dash}{kind}{packed}" for dash in "-." for packed in ("", ".gz")]
    return next((place for place in places if place.is_file()), places[0])


def _benchmark(name: str, title: str, page: str, folders: tuple[str, ...]) -> Benchmark:
    recognises: Callable[[Path], bool] = lambda root: recognise(root) == name  # noqa: E731
    return Benchmark(
        name=name,
        title=title,
        page=page,
        classes=10,
        pictures=70_000,
        parts={"train": Part(10, 60_000), "test": Part(10, 10_000)},
        files=(
            *("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"),
            "t10k-labels-idx1-ubyte (each plain or .gz)",
        ),
        folders=folders,
        recognises=recognises,
        missing=missing,
        read=partial(read, name),
        aliases=(name.replace("-", ""), name.replace("-", "_")) if "-" in name else (),
    )


MNIST = _benchmark(
    "mnist", "MNIST (digits)", "http://yann.lecun.com/exdb/mnist/", ("raw", "MNIST/raw", "mnist", "MNIST")
)
FASHION = _benchmark(
    "fashion-mnist",
    "Fashion-MNIST (clothes)",
    "https://github.com/zalandoresearch/fashion-mnist",
    ("raw", "FashionMNIST/raw", "fashion-mnist", "data/fashion"),
)
