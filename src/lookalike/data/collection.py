"""All pictures of a collection, a folder or a URL, with what their folders say; no picture is opened."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from lookalike import data
from lookalike._util.hashing import digest
from lookalike.data import datasets
from lookalike.data.folder import SKIPPED, SPLIT_NAMES, Listing, list_pictures
from lookalike.data.object_storage import StoredFile, is_url, list_files
from lookalike.data.pictures import BrokenData, Problem
from lookalike.data.reading import SUFFIXES


class Collection(NamedTuple):
    """Pictures of a collection; the lists have an entry for each.

    Attributes:
        base: Folder or URL that the names start from.
        names: Paths below ``base``.
        labels: Names of their class folders; "" for those that lie in none.
        splits: "train", "validation", "test" or None.
        unreadable: Folders that could not be listed.
        notes: Remarks, one line each.
    """

    base: str
    names: list[str]
    labels: list[str]
    splits: list[str | None]
    unreadable: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def list_collection(root: Path, *, follow_symlinks: bool = True) -> Collection:
    """List a folder.

    Class folders are labels, and folders named train or test above them are splits. A well-known data set in its
    official layout, such as CUB, keeps its own.

    Raises:
        ValueError: If it cannot be listed.
    """
    if datasets.recognise(root) is not None:
        return _list_dataset(root, follow_symlinks)
    listing = list_pictures(root, follow_symlinks=follow_symlinks)
    return _classify(str(root), listing)


def _list_dataset(root: Path, follow_symlinks: bool) -> Collection:
    pictures = data.load(str(root), check=False)
    base = pictures.root or root
    collection = Collection(str(base), [], [], [])
    for i, name in enumerate(pictures.names):
        if not follow_symlinks and _is_linked(root, base / name):
            continue
        collection.names.append(name)
        collection.labels.append(pictures.classes[pictures.labels[i]])
        collection.splits.append(None if pictures.splits is None else str(pictures.splits[i]))
    return collection


def _is_linked(root: Path, file: Path) -> bool:
    """Whether the file or a folder between it and ``root`` is a symbolic link."""
    relative = file.relative_to(root)
    folders = [root.joinpath(*relative.parts[:depth]) for depth in range(1, len(relative.parts) + 1)]
    return any(map(Path.is_symlink, folders))


def _classify(base: str, listing: Listing) -> Collection:
    """Read labels and splits from the folders of a listing."""
    paths = [name.split("/") for name in listing.pictures]
    has_splits = _has_split_folders(paths)
    labels: list[str] = []
    splits: list[str | None] = []
    for path in paths:
        folders = path[:-1]
        split = None
        if has_splits and folders:
            split = SPLIT_NAMES[folders.pop(0).lower()]
        labels.append(folders[0] if folders else "")
        splits.append(split)
    return Collection(base, listing.pictures, labels, splits, tuple(listing.unreadable), listing.notes())


def _has_split_folders(paths: list[list[str]]) -> bool:
    """Whether all top folders are named like splits, and there are class folders in them."""
    top_folders = {path[0].lower() for path in paths if len(path) > 1}
    has_class_folders = any(len(path) > 2 for path in paths)
    return bool(top_folders) and top_folders <= set(SPLIT_NAMES) and has_class_folders


class SizedCollection(NamedTuple):
    """A collection with the sizes of its files.

    Attributes:
        pictures: The collection.
        sizes: Bytes of every file; -1 for one that is gone.
        versions: Of every file, a text that changes with its content: its time, or the ETag of object storage.
    """

    pictures: Collection
    sizes: list[int]
    versions: list[str]

    def fingerprint(self) -> str:
        """Return a digest of all names and sizes; copies on other machines have other versions."""
        return digest(*self.pictures.names, *map(str, self.sizes))

    def describe(self) -> str:
        """Return the number of files and their fingerprint, for messages."""
        return f"{len(self.sizes):,} pictures, fingerprint {self.fingerprint()[:8]}"


def list_with_sizes(source: str, *, follow_symlinks: bool = True) -> SizedCollection:
    """List a folder or a URL, with the sizes of the files.

    Raises:
        ValueError: If the folder cannot be listed.
        BrokenData: If there are no pictures.
        StorageError: If the object storage cannot be used.
    """
    if is_url(source):
        sized = _list_url(source)
    else:
        root = Path(source).expanduser().absolute()
        if not root.is_dir():
            raise ValueError(f"{source} is not a folder of pictures")
        sized = _with_sizes(list_collection(root, follow_symlinks=follow_symlinks))
    if not sized.sizes:
        notes = "; ".join(["", *sized.pictures.notes])
        raise BrokenData(f"{source} has no pictures, so nothing was changed{notes}")
    return sized


def _with_sizes(collection: Collection) -> SizedCollection:
    sizes: list[int] = []
    versions: list[str] = []
    for name in collection.names:
        try:
            status = os.stat(f"{collection.base}/{name}")  # noqa: PTH116 - a Path for every file takes long
        except OSError:  # reported when it is read
            sizes.append(-1)
            versions.append("")
            continue
        sizes.append(status.st_size)
        versions.append(str(status.st_mtime_ns))
    return SizedCollection(collection, sizes, versions)


def _list_url(url: str) -> SizedCollection:
    listing = Listing()
    pictures: list[StoredFile] = []
    others: Counter[str] = Counter()
    for file in list_files(url):
        parts = file.name.split("/")
        suffix = os.path.splitext(parts[-1])[1].lower()  # noqa: PTH122
        if any(_is_skipped(part) for part in parts):
            continue
        if suffix in SUFFIXES:
            pictures.append(file)
        else:
            others[suffix or parts[-1]] += 1
    listing.pictures = [file.name for file in pictures]
    listing.others = others
    sizes = [file.size for file in pictures]
    versions = [file.version for file in pictures]
    return SizedCollection(_classify(url, listing), sizes, versions)


def _is_skipped(name: str) -> bool:
    return name.startswith(".") or name.lower() in SKIPPED
