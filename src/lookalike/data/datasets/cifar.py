"""CIFAR-10 and CIFAR-100 (fine labels): 32 x 32, 60,000 pictures.

The split is the official one of pictures: all classes are in train and in test. Three layouts are read: the "python
version", the "binary version", and train/ and test/ with class folders.

The python version is made of pickles, which could run anything when they are opened. They are read by an unpickler that
accepts only numpy's arrays.

Reference: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookalike.data.arrays import table_of_arrays
from lookalike.data.datasets.layout import DatasetSpec, SplitSize, read_lines
from lookalike.data.folder import read_folder
from lookalike.data.pictures import Pictures

PIXELS = 3 * 32 * 32
Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True)
class Files:
    """An official layout: the batches of each split, and the file with the names of the classes."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str

    def recognises(self, root: Path) -> bool:
        """Tell whether ``root`` has at least two of the files: names such as "train" and "meta" are common."""
        count = len(self.train) + len(self.test) + 1
        return count - len(self.missing(root)) >= 2

    def missing(self, root: Path) -> list[str]:
        """List the files that ``root`` lacks."""
        return [file for file in (*self.train, *self.test, self.meta) if not (root / file).is_file()]


@dataclass(frozen=True)
class Cifar:
    """CIFAR-10 or CIFAR-100 in any of the three layouts."""

    name: str
    classes: int
    some_classes: frozenset[str]  # recognise the class folders
    python: Files
    labels_key: str
    names_key: str
    binary: Files
    label_bytes: int  # before the pixels of each picture; the last one is the label

    def recognises(self, root: Path) -> bool:
        """Tell whether ``root`` has one of the three layouts, complete or not."""
        if self.python.recognises(root) or self.binary.recognises(root):
            return True
        return self._has_class_folders(root / "train") and self._has_class_folders(root / "test")

    def missing(self, root: Path) -> list[str]:
        """List the required files that ``root`` lacks."""
        if self.binary.recognises(root):
            return self.binary.missing(root)
        if not self.python.recognises(root) and (root / "train").is_dir() and (root / "test").is_dir():
            return []  # class folders, complete or not
        return self.python.missing(root)

    def read(self, root: Path) -> Pictures:
        """Read the pictures of ``root`` into memory (class folders: only their table)."""
        files: Files
        read_batch: Callable[[Path], Arrays]
        if self.binary.recognises(root):
            files, read_batch = self.binary, self._binary_batch
            names = read_lines(root / files.meta)
        elif self.python.recognises(root):
            files, read_batch = self.python, self._python_batch
            meta = root / files.meta
            names = list(map(_text, _entry(meta, _unpickle(meta), self.names_key)))
        else:
            return replace(read_folder(root), name=self.name)
        splits = {
            "train": _read_batches(root, files.train, read_batch),
            "test": _read_batches(root, files.test, read_batch),
        }
        return table_of_arrays(self.name, root, names, splits)

    def _has_class_folders(self, folder: Path) -> bool:
        if not folder.is_dir():
            return False
        names = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
        return len(names) == self.classes and names >= self.some_classes

    def _python_batch(self, file: Path) -> Arrays:
        content = _unpickle(file)
        pixels = np.asarray(_entry(file, content, "data"))
        if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
            raise ValueError(f"{file}: data must be uint8 (n, {PIXELS}), got {pixels.dtype} {pixels.shape}")
        return _channels_last(pixels), np.asarray(_entry(file, content, self.labels_key), np.int64)

    def _binary_batch(self, file: Path) -> Arrays:
        content = np.fromfile(file, np.uint8)
        width = self.label_bytes + PIXELS
        if content.size == 0 or content.size % width:
            raise ValueError(f"{file} is truncated: expected a multiple of {width} bytes, got {content.size:,}")
        rows = content.reshape(-1, width)
        return _channels_last(rows[:, self.label_bytes :]), rows[:, self.label_bytes - 1].astype(np.int64)


class _ArraysOnly(pickle.Unpickler):
    """Refuses everything but what numpy writes for a plain array."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}:
            return _empty_array
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        if (module, name) == ("_codecs", "encode"):  # how bytes are written for Python 2
            return _latin1
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")


def _empty_array(kind: type, shape: tuple[int, ...], code: bytes) -> NDArray[Any]:
    """Where unpickling an array starts; its content is set after that."""
    if kind is not np.ndarray:
        raise pickle.UnpicklingError("it holds an array of an unknown kind")
    return np.ndarray(shape, np.dtype(_text(code)))


def _latin1(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it holds bytes in the unknown encoding {encoding!r}")
    return text.encode("latin1")


def _unpickle(file: Path) -> dict[Any, Any]:
    try:
        with file.open("rb") as stream:
            content = _ArraysOnly(stream, encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(f"{file} is not a readable CIFAR file: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a dictionary, got {type(content).__name__}")
    return content


def _entry(file: Path, content: dict[Any, Any], key: str) -> Any:
    """Entry ``key``; files written by Python 2 have keys of bytes."""
    for spelling in (key, key.encode()):
        if spelling in content:
            return content[spelling]
    raise ValueError(f"{file} lacks the entry {key!r}")


def _text(name: str | bytes) -> str:
    if isinstance(name, bytes):
        return name.decode()
    return str(name)


def _channels_last(flat: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(n, 3072), red then green then blue -> (n, 32, 32, 3)."""
    return np.ascontiguousarray(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _read_batches(root: Path, files: tuple[str, ...], read_batch: Callable[[Path], Arrays]) -> Arrays:
    all_pixels, all_labels = [], []
    for file in files:
        pixels, labels = read_batch(root / file)
        all_pixels.append(pixels)
        all_labels.append(labels)
    return np.concatenate(all_pixels), np.concatenate(all_labels)


_CIFAR10_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_CIFAR10_BINARIES = tuple(f"{batch}.bin" for batch in _CIFAR10_BATCHES)
_CIFAR10 = Cifar(
    name="cifar10",
    classes=10,
    some_classes=frozenset({"airplane", "automobile", "deer", "frog", "horse", "ship", "truck"}),
    python=Files(_CIFAR10_BATCHES, ("test_batch",), "batches.meta"),
    labels_key="labels",
    names_key="label_names",
    binary=Files(_CIFAR10_BINARIES, ("test_batch.bin",), "batches.meta.txt"),
    label_bytes=1,
)
_CIFAR100 = Cifar(
    name="cifar100",
    classes=100,
    some_classes=frozenset({"aquarium_fish", "lawn_mower", "pickup_truck", "sweet_pepper", "willow_tree"}),
    python=Files(("train",), ("test",), "meta"),
    labels_key="fine_labels",
    names_key="fine_label_names",
    binary=Files(("train.bin",), ("test.bin",), "fine_label_names.txt"),
    label_bytes=2,
)


def _spec(cifar: Cifar, title: str, files: tuple[str, ...], folders: tuple[str, ...]) -> DatasetSpec:
    return DatasetSpec(
        name=cifar.name,
        title=title,
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        classes=cifar.classes,
        pictures=60_000,
        sizes={"train": SplitSize(cifar.classes, 50_000), "test": SplitSize(cifar.classes, 10_000)},
        files=files,
        folders=folders,
        recognises=cifar.recognises,
        missing=cifar.missing,
        read=cifar.read,
        aliases=(cifar.name.replace("cifar", "cifar-"),),
    )


CIFAR10 = _spec(
    _CIFAR10,
    "CIFAR-10",
    ("data_batch_1 ... data_batch_5, test_batch, batches.meta", "or the same with .bin", "or class folders"),
    ("cifar-10-batches-py", "cifar-10-batches-bin", "cifar10"),
)
CIFAR100 = _spec(
    _CIFAR100,
    "CIFAR-100 (fine labels)",
    ("train, test, meta", "or train.bin, test.bin, fine_label_names.txt", "or class folders in train/ and test/"),
    ("cifar-100-python", "cifar-100-binary", "cifar100"),
)
