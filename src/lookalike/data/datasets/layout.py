"""Description of a public data set: its numbers, its files and the functions that read them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lookalike.data.pictures import Pictures

RECALL_RANKS = (1, 2, 4, 8)  # K of R@K, unless a data set has others


class SplitSize(NamedTuple):
    """Size of a split ("train", "test") or of a role ("query", "gallery")."""

    classes: int
    pictures: int


@dataclass(frozen=True)
class DatasetSpec:
    """A public data set in its official layout.

    Attributes:
        name: Name on the command line.
        title: Name in messages.
        page: Web page of its authors; nothing is downloaded.
        classes: Number of classes.
        pictures: Number of pictures.
        sizes: Size of each split and role.
        files: Files of the layout, for messages.
        folders: Usual folders below the one that a user names in which the layout may start.
        recognises: Whether a folder looks like this layout, complete or not.
        missing: Required files that a folder lacks.
        read: Reads the table of a complete folder; no picture is opened.
        aliases: Other names on the command line.
        ks: K of R@K that is reported for it.
    """

    name: str
    title: str
    page: str
    classes: int
    pictures: int
    sizes: Mapping[str, SplitSize]
    files: tuple[str, ...]
    folders: tuple[str, ...]
    recognises: Callable[[Path], bool]
    missing: Callable[[Path], list[str]]
    read: Callable[[Path], Pictures]
    aliases: tuple[str, ...] = field(default=())
    ks: tuple[int, ...] = RECALL_RANKS

    def find(self, path: Path) -> Path | None:
        """Return the folder in which the layout starts: ``path`` or a usual folder below it; None without one."""
        for folder in (path, *map(path.joinpath, self.folders)):
            if self.recognises(folder) or not self.missing(folder):
                return folder
        return None


def any_of(*files: str) -> Callable[[Path], bool]:
    """Return a function that tells whether a folder has one of ``files``."""
    return lambda root: any((root / file).exists() for file in files)


def all_of(*files: str) -> Callable[[Path], list[str]]:
    """Return a function that lists which of ``files`` a folder lacks."""
    return lambda root: [file for file in files if not (root / file).exists()]


def first_existing(paths: Sequence[Path]) -> Path:
    """Return the first path that exists, or the first of all if none does."""
    for path in paths:
        if path.exists():
            return path
    return paths[0]


def splits_by_class(class_of: Sequence[str], training_classes: Collection[str]) -> list[str]:
    """Return "train" for each picture of a training class and "test" for the others."""
    splits = []
    for class_name in class_of:
        if class_name in training_classes:
            splits.append("train")
        else:
            splits.append("test")
    return splits


def read_rows(file: Path, columns: int, *, skip: int = 0) -> list[list[str]]:
    """Read a list in UTF-8: its lines after ``skip``, split at white space; the last of ``columns`` may contain some.

    Raises:
        ValueError: If the file cannot be read, is empty, or has a line with too few fields.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    while lines and not lines[-1].strip():
        lines.pop()
    rows = []
    for number, line in enumerate(lines[skip:], start=skip + 1):
        row = line.rstrip().split(None, columns - 1)
        if len(row) != columns:
            raise ValueError(f"{file}: line {number} must have {columns} fields, got {line[:80]!r}")
        rows.append(row)
    if not rows:
        raise ValueError(f"{file} is empty")
    return rows


def read_lines(file: Path) -> list[str]:
    """Read a list with one name per line."""
    return [row[0] for row in read_rows(file, 1)]


def read_whole_number(file: Path, text: str) -> int:
    """Return ``text`` as an integer; an error names ``file``."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{file}: expected a whole number, got {text!r}") from None


def distinct(names: Mapping[int, str]) -> dict[int, str]:
    """Sort class names by class number; if two names are equal, put the number before each name."""
    ordered = dict(sorted(names.items()))
    if len(set(ordered.values())) == len(ordered):
        return ordered
    return {number: f"{number} {name}" for number, name in ordered.items()}
