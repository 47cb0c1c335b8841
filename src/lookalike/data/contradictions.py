"""The same picture under two labels: one of them is wrong, and neither training nor a figure can tell which."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from lookalike.data.files import FileReader, counted
from lookalike.data.pictures import Pictures, UnreadablePicture

BEGINNING = 4096  # bytes: only where two pictures of equal size are alike in these are they read to their end


def find_contradictions(pictures: Pictures) -> tuple[str, ...]:
    """A note on files of equal content in several classes, if there are any. Few have to be read to find out."""
    reader = pictures.reader
    if not isinstance(reader, FileReader):
        return ()

    def size(i: int) -> int:
        return reader.path(int(pictures.origins[i])).stat().st_size

    def beginning(i: int) -> bytes:
        with reader.path(int(pictures.origins[i])).open("rb") as file:
            return file.read(BEGINNING)

    groups: list[Sequence[int]] = [range(len(pictures))]
    for trait in (size, beginning, pictures.key):
        alike = [group for each in groups for group in _alike(each, trait)]
        groups = [group for group in alike if len({int(pictures.labels[i]) for i in group}) > 1]
    if not groups:
        return ()
    first = " = ".join(pictures.names[i] for i in groups[0])
    return (f"{counted(len(groups), 'picture')} with the same content in more than one class; the first: {first}",)


def _alike(members: Sequence[int], trait: Callable[[int], Hashable]) -> list[list[int]]:
    """Those that share a trait with others; what has vanished meanwhile has none."""
    groups: dict[Hashable, list[int]] = {}
    for each in members:
        try:
            groups.setdefault(trait(each), []).append(each)
        except (OSError, UnreadablePicture):
            continue
    return list(groups.values())
