"""Finds files with the same content in two classes: one of the labels is wrong."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from lookalike.data.files import FileReader, counted
from lookalike.data.pictures import Pictures, UnreadablePicture

BEGINNING = 4096  # bytes; files of equal size are read to their end only if these are equal


def find_contradictions(pictures: Pictures) -> tuple[str, ...]:
    """Find files of equal content in several classes; few files are read in full."""
    reader = pictures.reader
    if not isinstance(reader, FileReader):
        return ()
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
        groups = [group for group in smaller_groups if len(set(pictures.labels[group])) > 1]
    if not groups:
        return ()
    first = " = ".join(pictures.names[i] for i in groups[0])
    return (f"{counted(len(groups), 'picture')} with the same content in more than one class; the first: {first}",)


def _group_by(indices: Sequence[int], property_of: Callable[[int], Hashable]) -> list[list[int]]:
    """Group pictures by a property; files that have vanished meanwhile are dropped."""
    groups: dict[Hashable, list[int]] = {}
    for index in indices:
        try:
            groups.setdefault(property_of(index), []).append(index)
        except (OSError, UnreadablePicture):
            continue
    return list(groups.values())
