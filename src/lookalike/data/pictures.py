"""A table of labelled pictures: what every source gives and everything else takes.

The table holds names, labels and, where the source has them, splits and roles; the pixels stay where they are until the
table's reader is asked for them. A part of a table is a table again, with the same reader.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

SPLITS = ("train", "validation", "test")
ROLES = ("query", "gallery", "both", "")


class BrokenData(ValueError):  # noqa: N818 - it names the thing, as FileNotFoundError would not
    """The data were found, but something in them is broken or missing: to be mended there, not in what was asked."""


class UnreadablePicture(BrokenData):
    """A picture that cannot be decoded; ``name`` says which and ``reason`` why, in words for people."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)  # both as arguments, so that it survives the way back from a worker process
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class Problem(NamedTuple):
    """A picture that was left out of a table, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class Reader(Protocol):
    """Gives the pixels of one source. It must pickle: worker processes get a copy of it."""

    def __call__(self, index: int) -> Image:
        """The picture, always in mode RGB and upright; raises ``UnreadablePicture``."""
        ...

    def key(self, index: int) -> str:
        """A name for the picture's content, which changes when the content changes."""
        ...


@dataclass(frozen=True, eq=False)
class Pictures:
    """n labelled pictures.

    Picture i is called ``names[i]``, belongs to ``classes[labels[i]]``, and is what ``reader`` gives for
    ``origins[i]``. ``splits`` holds "train", "validation" or "test" for each, ``roles`` holds "query", "gallery",
    "both" or "" (no role, as for training pictures); either is None where the source says nothing of the kind.
    ``root`` is where the files lie, None for pictures that are not files. ``problems`` lists what was found unreadable
    and left out, ``notes`` what else a person should know of how the table came about.
    """

    name: str
    names: tuple[str, ...]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    reader: Reader
    origins: NDArray[np.int64]
    splits: NDArray[np.str_] | None = None
    roles: NDArray[np.str_] | None = None
    root: Path | None = None
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.names)
        for field in ("labels", "origins", "splits", "roles"):
            column = getattr(self, field)
            if column is not None and np.shape(column) != (n,):
                raise ValueError(f"{field} must have one entry for each of the {n} names, got shape {np.shape(column)}")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes must differ from each other: a name stands twice")
        if n and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise ValueError(
                f"labels must lie in 0..{len(self.classes) - 1}, got {self.labels.min()}..{self.labels.max()}"
            )
        for field, allowed in (("splits", SPLITS), ("roles", ROLES)):
            column = getattr(self, field)
            strange = sorted(set(np.unique(column).tolist()) - set(allowed)) if column is not None else []
            if strange:
                raise ValueError(f"{field} must be of {', '.join(map(repr, allowed))}, got {strange[0]!r}")

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        problems = f", {len(self.problems)} problems" if self.problems else ""
        return f"Pictures({self.name!r}, {len(self):,} pictures of {len(self.classes):,} classes{problems})"

    @property
    def has_roles(self) -> bool:
        """Whether any picture is meant for one side of a search only, or for both."""
        return self.roles is not None and bool((self.roles != "").any())

    def image(self, i: int) -> Image:
        """Picture i: mode RGB, upright."""
        return self.reader(int(self.origins[i]))

    def key(self, i: int) -> str:
        """A name for the content of picture i."""
        return self.reader.key(int(self.origins[i]))

    def counts(self) -> NDArray[np.int64]:
        """How many pictures each class has, (classes,)."""
        return np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)

    def take(self, indices: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_]) -> Pictures:
        """The pictures at ``indices`` (or where a mask is True), in that order.

        Classes that no longer occur are dropped and the labels renumbered; the classes keep their order. Problems and
        notes stay with the table they were found in.
        """
        chosen = np.asarray(indices)
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise ValueError(f"a mask must have one entry for each of {len(self)} pictures, got {chosen.shape}")
            chosen = np.flatnonzero(chosen)
        if chosen.ndim != 1 or (chosen.size and not np.issubdtype(chosen.dtype, np.integer)):
            raise TypeError(f"indices must be a list of integers or a mask, got {chosen.dtype} of shape {chosen.shape}")
        chosen = chosen.astype(np.int64)
        if chosen.size and not -len(self) <= chosen.min() <= chosen.max() < len(self):
            raise IndexError(f"indices must lie in 0..{len(self) - 1}, got {chosen.min()}..{chosen.max()}")
        present, labels = np.unique(self.labels[chosen], return_inverse=True)
        return Pictures(
            name=self.name,
            names=tuple(self.names[i] for i in chosen.tolist()),
            labels=labels.astype(np.int64).reshape(-1),
            classes=tuple(self.classes[c] for c in present.tolist()),
            reader=self.reader,
            origins=self.origins[chosen],
            splits=None if self.splits is None else self.splits[chosen],
            roles=None if self.roles is None else self.roles[chosen],
            root=self.root,
        )

    def split(self, name: str) -> Pictures:
        """The pictures of one split: "train", "validation" or "test"."""
        if self.splits is None:
            raise ValueError(f"{self.name} has no splits, so there is no {name!r}; lookalike.data.splits can make one")
        if name not in self.splits:
            there = ", ".join(repr(split) for split in SPLITS if split in self.splits)
            raise ValueError(f"{self.name} has no split {name!r}; it has {there}")
        return self.take(self.splits == name)

    def with_classes(self, classes: Collection[str]) -> Pictures:
        """The pictures of the classes named, in their old order."""
        if isinstance(classes, str):
            raise TypeError(f"classes must be a collection of names, got the single text {classes!r}")
        wanted = set(classes)
        unknown = sorted(wanted - set(self.classes))
        if unknown:
            raise ValueError(f"{self.name} has no class {unknown[0]!r} ({len(unknown)} of {len(wanted)} are unknown)")
        keep = np.array([name in wanted for name in self.classes], dtype=bool)
        return self.take(keep[self.labels])
