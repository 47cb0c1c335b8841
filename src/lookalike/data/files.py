"""Picture files -> a table, with the reader of files and the check that finds the unreadable ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lookalike._util.checks import check_count
from lookalike.data.pictures import BrokenData, Pictures, Problem, UnreadablePicture
from lookalike.data.reading import PIXEL_LIMIT, read_picture, verify_all


class FileReader:
    """Reads the pictures ``names`` below ``root``; ``at_least`` and ``pixel_limit`` as in ``read_picture``."""

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
        self._keys: dict[int, tuple[tuple[int, int], str]] = {}

    def __call__(self, index: int) -> Image.Image:
        return read_picture(self.path(index), at_least=self.at_least, pixel_limit=self.pixel_limit)

    def path(self, index: int) -> Path:
        return self.root / self.names[index]

    def key(self, index: int) -> str:
        """A hash of the file's content; not read again as long as the file's size and time stay the same."""
        path = self.path(index)
        try:
            status = path.stat()
            stamp = (status.st_size, status.st_mtime_ns)
            known = self._keys.get(index)
            if known is None or known[0] != stamp:
                known = (stamp, _hash_file(path))
                self._keys[index] = known
        except OSError as error:
            raise UnreadablePicture(str(path), f"cannot be read: {error.strerror}") from error
        return known[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_keys": {}}


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
    """A table of the files ``names`` below ``root``; picture i is of the class called ``class_of[i]``.

    ``classes`` gives the order of the classes (default: natural order); those without a picture are dropped.
    Nothing is looked up on the disk.
    """
    present = set(class_of)
    ordered = natural_order(present) if classes is None else [each for each in classes if each in present]
    number = {each: i for i, each in enumerate(ordered)}
    return Pictures(
        name=name,
        names=tuple(names),
        labels=np.fromiter((number[each] for each in class_of), np.int64, len(names)),
        classes=tuple(ordered),
        reader=FileReader(root, names),
        origins=np.arange(len(names)),
        splits=None if splits is None else np.array(splits, dtype=np.str_),
        roles=None if roles is None else np.array(roles, dtype=np.str_),
        root=root,
    )


def verified(pictures: Pictures, *, strict: bool = False, progress: bool = False) -> Pictures:
    """The table without the pictures that cannot be read: these go to its ``problems``, or raise if ``strict``.

    Tables whose pixels are in memory already come back as they are.
    """
    reader = pictures.reader
    if not isinstance(reader, FileReader):
        return pictures
    paths = [str(reader.path(int(origin))) for origin in pictures.origins]
    reasons = verify_all(paths, pixel_limit=reader.pixel_limit, progress=progress)
    good = np.array([reason is None for reason in reasons], dtype=bool)
    found = [Problem(name, reason) for name, reason in zip(pictures.names, reasons, strict=True) if reason is not None]
    problems = (*pictures.problems, *found)
    if len(pictures) and not good.any():
        raise BrokenData(f"not one of {len(pictures):,} pictures of {pictures.name} can be read; the first: {found[0]}")
    if strict:
        raise_problems(pictures.name, problems)
    return pictures if not found else replace(pictures.take(good), problems=problems, notes=pictures.notes)


def reading_at_least(pictures: Pictures, side: int) -> Pictures:
    """The same table, whose JPEGs may be decoded smaller, down to a shorter side of ``side``: faster if they are large.

    Ask for twice the side that is needed if the pictures are to look the same after they are resized.
    """
    reader = pictures.reader
    if not isinstance(reader, FileReader):
        return pictures
    return replace(
        pictures, reader=FileReader(reader.root, reader.names, at_least=side, pixel_limit=reader.pixel_limit)
    )


def raise_problems(name: str, problems: Sequence[Problem]) -> None:
    if problems:
        raise BrokenData(
            f"{name} has {counted(len(problems), 'picture')} that cannot be used; the first: {problems[0]}"
        )


def counted(number: int, what: str) -> str:
    """
    >>> counted(1, "picture"), counted(2000, "picture")
    ('1 picture', '2,000 pictures')
    """
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def natural_order(names: Sequence[str] | set[str]) -> list[str]:
    """Sorted as people count: "part 2" before "part 10"; the same on every machine.

    >>> natural_order(["b", "a10", "A2"])
    ['A2', 'a10', 'b']
    """
    return sorted(names, key=_natural_key)


def _natural_key(name: str) -> tuple[list[str | int], str]:
    # the pattern's group makes texts and numbers take turns, so that like is compared with like
    parts = [int(part) if i % 2 else part.casefold() for i, part in enumerate(re.split(r"(\d+)", name))]
    return parts, name


def _hash_file(path: Path) -> str:
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
