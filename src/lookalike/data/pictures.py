"""A table of labelled pictures: every source produces it, everything else uses it.

The table holds names, labels and, if the source has them, splits and roles. Pixels are read on demand by the table's
reader. A selection of a table is a table with the same reader.
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
    """Something in the data is broken or missing; the request was correct."""


class UnreadablePicture(BrokenData):
    """A picture that cannot be decoded.

    Args:
        name: Name or path of the picture.
        reason: Why not, for messages.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)  # both as arguments, so that it can be pickled in a worker process
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
    """Reads the pictures of one source. It must pickle: worker processes get a copy of it."""

    def __call__(self, index: int) -> Image:
        """Read a picture, in mode RGB and upright.

        Raises:
            UnreadablePicture: If it cannot be decoded.
        """
        ...

    def key(self, index: int) -> str:
        """Return a key that changes when the content of the picture changes."""
        ...


@dataclass(frozen=True, eq=False)
class Pictures:
    """n labelled pictures.

    Attributes:
        name: Name of the source.
        names: Names of the pictures, n.
        labels: Class number of each picture, (n,).
        classes: Class names; picture i belongs to ``classes[labels[i]]``.
        reader: Reads the pictures.
        origins: Number of each picture for ``reader``, (n,).
        splits: "train", "validation" or "test" for each picture, (n,); None if the source has no splits.
        roles: "query", "gallery", "both" or "" (none, as for training pictures), (n,); None if it has no roles.
        root: Folder of the files; None if the pictures are not files.
        problems: Pictures that were left out.
        notes: Remarks on how the table was made.
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
            raise ValueError("classes must differ from each other: a name occurs twice")
        if n and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise ValueError(
                f"labels must lie in 0..{len(self.classes) - 1}, got {self.labels.min()}..{self.labels.max()}"
            )
        for field, allowed in (("splits", SPLITS), ("roles", ROLES)):
            column = getattr(self, field)
            if column is None:
                continue
            unknown = sorted(set(np.unique(column).tolist()) - set(allowed))
            if unknown:
                raise ValueError(f"{field} must be of {', '.join(map(repr, allowed))}, got {unknown[0]!r}")

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        problems = f", {len(self.problems)} problems" if self.problems else ""
        return f"Pictures({self.name!r}, {len(self):,} pictures of {len(self.classes):,} classes{problems})"

    @property
    def has_roles(self) -> bool:
        """Whether any picture has a role in a search."""
        return self.roles is not None and bool((self.roles != "").any())

    def image(self, i: int) -> Image:
        """Read picture i: mode RGB, upright."""
        return self.reader(int(self.origins[i]))

    def key(self, i: int) -> str:
        """Return a key for the content of picture i."""
        return self.reader.key(int(self.origins[i]))

    def counts(self) -> NDArray[np.int64]:
        """Count the pictures of each class, (classes,)."""
        return np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)

    def take(self, indices: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_]) -> Pictures:
        """Select pictures.

        Args:
            indices: Numbers of pictures, or a mask (n,) bool.

        Returns:
            The pictures in the order of ``indices``. Classes without a picture are dropped and the labels renumbered;
            problems and notes are not copied.
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
            splits=_select(self.splits, chosen),
            roles=_select(self.roles, chosen),
            root=self.root,
        )

    def split(self, name: str) -> Pictures:
        """Select the pictures of one split: "train", "validation" or "test"."""
        if self.splits is None:
            raise ValueError(f"{self.name} has no splits, so there is no {name!r}; lookalike.data.splits can make one")
        if name not in self.splits:
            present = [repr(split) for split in SPLITS if split in self.splits]
            raise ValueError(f"{self.name} has no split {name!r}; it has {', '.join(present)}")
        return self.take(self.splits == name)

    def with_classes(self, classes: Collection[str]) -> Pictures:
        """Select the pictures of some classes, by name; the order stays."""
        if isinstance(classes, str):
            raise TypeError(f"classes must be a collection of names, got the single text {classes!r}")
        wanted = set(classes)
        unknown = sorted(wanted - set(self.classes))
        if unknown:
            raise ValueError(f"{self.name} has no class {unknown[0]!r} ({len(unknown)} of {len(wanted)} are unknown)")
        selected = np.array([name in wanted for name in self.classes], dtype=bool)
        return self.take(selected[self.labels])


def _select(column: NDArray[np.str_] | None, indices: NDArray[np.int64]) -> NDArray[np.str_] | None:
    if column is None:
        return None
    return column[indices]
