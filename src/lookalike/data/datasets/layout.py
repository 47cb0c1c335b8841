"""What is known of a benchmark: its numbers, its files, and how to read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lookalike.data.pictures import Pictures


class Part(NamedTuple):
    """The size of a part: "train", "test", or of the roles "query" and "gallery"."""

    classes: int
    pictures: int


@dataclass(frozen=True)
class Benchmark:
    """A public data set in its official layout.

    page: where its authors offer it; nothing is ever downloaded.
    files: what the layout is made of, for people.
    folders: where the layout may start below the folder that a user names.
    recognises: whether a folder looks like this layout, be it complete or not.
    missing: which of the needed files a folder lacks.
    read: the table of a folder that lacks none; no picture is opened.
    """

    name: str
    title: str
    page: str
    classes: int
    pictures: int
    parts: Mapping[str, Part]
    files: tuple[str, ...]
    folders: tuple[str, ...]
    recognises: Callable[[Path], bool]
    missing: Callable[[Path], list[str]]
    read: Callable[[Path], Pictures]
    aliases: tuple[str, ...] = field(default=())

    def find(self, path: Path) -> Path | None:
        """The folder in which the layout starts: ``path`` or one of the usual folders below it."""
        places = [path, *(path / name for name in self.folders)]
        return next((place for place in places if self.recognises(place) or not self.missing(place)), None)


def any_of(*files: str) -> Callable[[Path], bool]:
    """Whether a folder has one of these."""
    return lambda root: any((root / file).exists() for file in files)


def all_of(*files: str) -> Callable[[Path], list[str]]:
    """Which of these a folder lacks."""
    return lambda root: [file for file in files if not (root / file).exists()]


def read_rows(file: Path, columns: int, *, skip: int = 0) -> list[list[str]]:
    """The lines of a list, split at white space into ``columns`` fields (the last may hold white space itself)."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    rows = [line.rstrip().split(None, columns - 1) for line in lines[skip:]]
    while rows and not rows[-1]:
        rows.pop()
    wrong = next((i for i, row in enumerate(rows) if len(row) != columns), None)
    if wrong is not None:
        line = lines[skip + wrong][:80]
        raise ValueError(f"{file}: line {skip + wrong + 1} must have {columns} fields, got {line!r}")
    if not rows:
        raise ValueError(f"{file} is empty")
    return rows


def read_whole_number(file: Path, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{file}: expected a whole number, got {text!r}") from None


def distinct(names: Mapping[int, str]) -> dict[int, str]:
    """Class names by class number, in the order of the numbers; with the number put first should two be the same."""
    ordered = {number: names[number] for number in sorted(names)}
    if len(set(ordered.values())) == len(ordered):
        return ordered
    return {number: f"{number} {name}" for number, name in ordered.items()}
