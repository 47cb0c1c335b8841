"""MNIST (digits) and Fashion-MNIST (clothes): 28 x 28, greyscale, 10 classes.

The split is the official one of pictures: all classes are in train and in test.

References: LeCun et al., "Gradient-based learning applied to document recognition", 1998; Xiao, Rasul and Vollgraf,
"Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms", 2017. Both use the same file names;
the first labels, or else the folder's name, tell them apart.
"""

from __future__ import annotations

import gzip
import math
import struct
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from lookalike.data.arrays import table_of_arrays
from lookalike.data.datasets.layout import DatasetSpec, SplitSize
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


UNSIGNED_BYTES = 0x08  # type code of an IDX file


def read(name: str, root: Path) -> Pictures:
    """Read the pictures of "mnist" or "fashion-mnist" into memory."""
    arrays = {}
    for split in PREFIXES:
        images_file, labels_file = _images(root, split), _labels(root, split)
        pixels, labels = read_idx(images_file), read_idx(labels_file)
        if pixels.ndim != 3 or labels.ndim != 1:
            raise ValueError(f"{images_file} and {labels_file.name} must hold n pictures and n labels")
        arrays[split] = (pixels, labels.astype(np.int64))
    return table_of_arrays(name, root, CLASSES[name], arrays)


def read_idx(file: Path) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, plain or compressed by gzip (recognised by its content).

    The format: two zero bytes, the type, the number of axes, their lengths (big-endian), the numbers.

    Raises:
        ValueError: If the file cannot be read, has the wrong length, or is not an IDX file of bytes.
    """
    try:
        with file.open("rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
        with _open(file, compressed) as stream:
            zeros, kind, axes = struct.unpack(">HBB", _exactly(stream.read(4), 4))
            if zeros != 0 or kind != UNSIGNED_BYTES or axes == 0:
                raise ValueError("it is not an IDX file of bytes")
            shape = struct.unpack(f">{axes}I", _exactly(stream.read(4 * axes), 4 * axes))
            size = math.prod(shape)
            content = _exactly(stream.read(size), size)
            if stream.read(1):
                raise ValueError(f"it is longer than the {size:,} bytes that its header states")
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    return np.frombuffer(content, np.uint8).reshape(shape)


def _open(file: Path, compressed: bool) -> BinaryIO:
    if compressed:
        return cast(BinaryIO, gzip.open(file))
    return file.open("rb")


def _exactly(content: bytes, size: int) -> bytes:
    if len(content) != size:
        raise ValueError(f"it is truncated: expected {size:,} more bytes, got {len(content):,}")
    return content


def missing(root: Path) -> list[str]:
    """List the required files that ``root`` lacks."""
    lacking = []
    for split in PREFIXES:
        for file in (_images(root, split), _labels(root, split)):
            if not file.exists():
                lacking.append(file.name)
    return lacking


def recognise(root: Path) -> str | None:
    """Return the name of the data set in ``root``, or None."""
    if not any(_images(root, split).exists() for split in PREFIXES):
        return None
    labels_file = _labels(root, "train")
    if labels_file.exists():
        try:
            first_labels = tuple(read_idx(labels_file)[:5].tolist())
        except ValueError:
            first_labels = ()
        if first_labels in FIRST_LABELS:
            return FIRST_LABELS[first_labels]
    last_folders = "/".join(root.resolve().parts[-3:])
    if "fashion" in last_folders.lower():
        return "fashion-mnist"
    return "mnist"


def _images(root: Path, split: str) -> Path:
    return _find(root, f"{PREFIXES[split]}-images", "idx3-ubyte")


def _labels(root: Path, split: str) -> Path:
    return _find(root, f"{PREFIXES[split]}-labels", "idx1-ubyte")


def _find(root: Path, stem: str, kind: str) -> Path:
    """The file under any of its usual names: with a dash or a dot before its kind, plain or compressed."""
    names = (f"{stem}-{kind}", f"{stem}-{kind}.gz", f"{stem}.{kind}", f"{stem}.{kind}.gz")
    for name in names:
        if (root / name).is_file():  # some archives unpack to folders of these names
            return root / name
    return root / names[0]


def _spec(name: str, title: str, page: str, folders: tuple[str, ...], aliases: tuple[str, ...] = ()) -> DatasetSpec:
    return DatasetSpec(
        name=name,
        title=title,
        page=page,
        classes=10,
        pictures=70_000,
        sizes={"train": SplitSize(10, 60_000), "test": SplitSize(10, 10_000)},
        files=(
            *("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"),
            "t10k-labels-idx1-ubyte (each plain or .gz)",
        ),
        folders=folders,
        recognises=lambda root: recognise(root) == name,
        missing=missing,
        read=partial(read, name),
        aliases=aliases,
    )


MNIST = _spec("mnist", "MNIST (digits)", "http://yann.lecun.com/exdb/mnist/", ("raw", "MNIST/raw", "mnist", "MNIST"))
FASHION = _spec(
    "fashion-mnist",
    "Fashion-MNIST (clothes)",
    "https://github.com/zalandoresearch/fashion-mnist",
    ("raw", "FashionMNIST/raw", "fashion-mnist", "data/fashion"),
    aliases=("fashionmnist", "fashion_mnist"),
)
