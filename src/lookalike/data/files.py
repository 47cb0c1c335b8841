"""Tables of picture files: their reader, and the checks for unreadable files and for wrong labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lookalike._util.checks import check_count
from lookalike.data.hash_cache import hash_file
from lookalike.data.pictures import BrokenData, Pictures, Problem, UnreadablePicture
from lookalike.data.reading import PIXEL_LIMIT, read_picture, verify_all

BEGINNING = 4096  # bytes; files of equal size are read to their end only if these are equal


class FileReader:
    """Reads picture files.

    Args:
        root: Folder that the names start from.
        names: Paths below ``root``.
        at_least: Shorter side that is needed, as in ``read_picture``.
        pixel_limit: Largest number of pixels, as in ``read_picture``.
    """

    def __init__(
        self, root: Path, names: Sequence[str], *, at_least: int | None = None, pixel_limit: int = PIXEL_LIMIT
    ) -> None:
        if at_least is not None:
            check_count("at_least", at_least)
        check_count("pixel_limit", pixel_limit)
        self.root = root
        self.names = tuple(names)
        self.at_least = at_least
        self.pixel_limit = pixel_limit

    def __call__(self, index: int) -> Image.Image:
        """Read picture ``index``: mode RGB, upright."""
        return read_picture(self.path(index), at_least=self.at_least, pixel_limit=self.pixel_limit)

    def path(self, index: int) -> Path:
        """Return the path of picture ``index``."""
        return self.root / self.names[index]

    def paths(self, indices: NDArray[np.int64]) -> list[Path]:
        """Return the paths of the pictures ``indices``."""
        return [self.path(index) for index in indices.tolist()]

    def key(self, index: int) -> str:
        """Hash the file's content; remembered as long as the file's size and times stay the same."""
        path = self.path(index)
        try:
            return hash_file(path)
        except OSError as error:
            raise UnreadablePicture(str(path), f"cannot be read: {error.strerror}") from error


def table_of_files(
    name: str,
    root: Path,
    names: Sequence[str],
    class_of: Sequence[str],
    *,
    classes: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
    roles: Sequence[str] | None = None,
) -> Pictures:
    """Make a table of picture files, with a ``FileReader``. The disk is not touched.

    Args:
        name: Name of the table.
        root: Folder that the names start from.
        names: Paths below ``root``; class_of, splits and roles have an entry for each.
        class_of: Class names.
        classes: Order of the classes (default: natural order); classes without a picture are dropped.
        splits: "train", "validation" or "test".
        roles: "query", "gallery" or "both".
    """
    present = set(class_of)
    if classes is None:
        ordered = natural_order(present)
    else:
        ordered = [class_name for class_name in classes if class_name in present]
    numbers = {class_name: number for number, class_name in enumerate(ordered)}
    return Pictures(
        name=name,
        names=tuple(names),
        labels=np.fromiter(map(numbers.__getitem__, class_of), np.int64, len(names)),
        classes=tuple(ordered),
        reader=FileReader(root, names),
        origins=np.arange(len(names)),
        splits=_column(splits),
        roles=_column(roles),
        root=root,
    )


def verified(pictures: Pictures, *, strict: bool = False, progress: bool = False) -> Pictures:
    """Decode every picture file once and leave out those that cannot be read.

    Args:
        pictures: The table. Tables with their pixels in memory are returned unchanged.
        strict: Raise instead of leaving out.
        progress: Show a progress bar.

    Returns:
        The readable pictures, with the others in ``problems``.

    Raises:
        BrokenData: If no picture can be read, or with ``strict`` if one cannot.
    """
    reader = pictures.reader
    if not isinstance(reader, FileReader):
        return pictures
    reasons = verify_all(reader.paths(pictures.origins), pixel_limit=reader.pixel_limit, progress=progress)
    unreadable = problems_of(pictures, reasons)
    problems = (*pictures.problems, *unreadable)
    if unreadable and len(unreadable) == len(pictures):
        raise BrokenData(
            f"not one of {len(pictures):,} pictures of {pictures.name} can be read; the first: {unreadable[0]}"
        )
    if strict:
        raise_problems(pictures.name, problems)
    if not unreadable:
        return pictures
    readable = np.array([reason is None for reason in reasons], dtype=bool)
    return replace(pictures.take(readable), problems=problems, notes=pictures.notes)


def find_contradictions(pictures: Pictures) -> tuple[str, ...]:
    """Find files of equal content in several classes; few files are read in full."""
    groups = equal_files(pictures, across_classes=True)
    if not groups:
        return ()
    first = " = ".join(pictures.names[i] for i in groups[0])
    return (f"{counted(len(groups), 'picture')} with the same content in more than one class; the first: {first}",)


def equal_files(pictures: Pictures, *, across_classes: bool = False) -> list[list[int]]:
    """Group the positions of files of equal content; few files are read in full.

    Args:
        pictures: The table. Pictures that are not files have no groups.
        across_classes: Only groups with more than one class.
    """
    reader = pictures.reader
    if not isinstance(reader, FileReader):
        return []
    paths = reader.paths(pictures.origins)

    def size(i: int) -> int:
        return paths[i].stat().st_size

    def beginning(i: int) -> bytes:
        with paths[i].open("rb") as file:
            return file.read(BEGINNING)

    groups: list[Sequence[int]] = [range(len(pictures))]
    for property_of in (size, beginning, pictures.key):
        smaller_groups: list[Sequence[int]] = []
        for group in groups:
            smaller_groups += _group_by(group, property_of)
        if across_classes:
            groups = [group for group in smaller_groups if len(set(pictures.labels[group])) > 1]
        else:
            groups = [group for group in smaller_groups if len(group) > 1]
    return list(map(list, groups))


def problems_of(pictures: Pictures, reasons: Sequence[str | None]) -> list[Problem]:
    """Pair the names of pictures with the reasons why they cannot be read (None: they can)."""
    return [Problem(name, reason) for name, reason in zip(pictures.names, reasons, strict=True) if reason is not None]


def reading_at_least(pictures: Pictures, side: int) -> Pictures:
    """Let large JPEG files be decoded at a smaller size, with a shorter side of at least ``side``, which is faster.

    Twice the side that is needed gives the same picture after a resize.
    """
    reader = pictures.reader
    if not isinstance(reader, FileReader):
        return pictures
    smaller = FileReader(reader.root, reader.names, at_least=side, pixel_limit=reader.pixel_limit)
    return replace(pictures, reader=smaller)


def raise_problems(name: str, problems: Sequence[Problem]) -> None:
    """Raise ``BrokenData`` if there are problems in the table ``name``."""
    if problems:
        raise BrokenData(
            f"{name} has {counted(len(problems), 'picture')} that cannot be used; the first: {problems[0]}"
        )


def counted(number: int, what: str) -> str:
    """Write a number with its noun.

    Examples:
        >>> counted(1, "picture"), counted(2000, "picture")
        ('1 picture', '2,000 pictures')
    """
    ending = "" if number == 1 else "s"
    return f"{number:,} {what}{ending}"


def natural_order(names: Sequence[str] | set[str]) -> list[str]:
    """Sort names with numbers by value: "part 2" before "part 10"; the same on every machine.

    Examples:
        >>> natural_order(["b", "a10", "A2"])
        ['A2', 'a10', 'b']
    """
    return sorted(names, key=_natural_key)


def _natural_key(name: str) -> tuple[list[str | int], str]:
    key: list[str | int] = []
    for piece in re.split(r"(\d+)", name):  # alternates between text and digits, also at the start
        if piece.isdecimal():
            key.append(int(piece))
        else:
            key.append(piece.casefold())
    return key, name


def _column(values: Sequence[str] | None) -> NDArray[np.str_] | None:
    if values is None:
        return None
    return np.array(values, dtype=np.str_)


def _group_by(indices: Sequence[int], property_of: Callable[[int], Hashable]) -> list[list[int]]:
    """Group pictures by a property; files that have vanished meanwhile are dropped."""
    groups: dict[Hashable, list[int]] = {}
    for index in indices:
        try:
            groups.setdefault(property_of(index), []).append(index)
        except (OSError, UnreadablePicture):
            continue
    return list(groups.values())
