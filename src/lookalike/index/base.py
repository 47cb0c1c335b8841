"""What every index can do, whatever keeps its vectors.

Adding and deleting are committed when they return. A filter is applied before the k nearest are taken, never after.
Of equal distances the lower id comes first.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch

from lookalike._util.checks import check_count
from lookalike.data.files import natural_order
from lookalike.data.names import as_text
from lookalike.index.filters import Condition, parse
from lookalike.index.items import Hit, Item, Vectors, check_ids, check_items, check_vectors
from lookalike.index.kinds import check_kind
from lookalike.index.storage import MODEL, About, Writing, WrongModel, fingerprint_of

MOST = 10_000  # neighbours of one search
AT_ONCE = 64  # queries searched together


class FileRecord(NamedTuple):
    """What was noted about a file when it was indexed: the stamp is the folder's affair (``folder.py``)."""

    path: str
    label: str
    metadata: dict[str, Any]
    stamp: str


def limits_below(folder: str) -> tuple[str, str]:
    """Every path below the folder, and no other, is at least the first and before the second.

    >>> limits_below("/pictures")
    ('/pictures/', '/pictures0')
    """
    separator = as_text(os.sep)
    start = folder.removesuffix(separator)
    return start + separator, start + separator[:-1] + chr(ord(separator[-1]) + 1)


class Index(ABC):
    """Made by ``create`` or ``open``; close it, or use it in a with statement. Threads may share it."""

    def __init__(self, path: Path, about: About) -> None:
        self.path, self.about = path, about
        self.writing = Writing(path)  # ``with idx.writing():`` keeps other processes from writing in between

    @property
    def fingerprint(self) -> str:
        """Of the model that its vectors come from."""
        return self.about.fingerprint

    @property
    def distance(self) -> str:
        return self.about.distance

    @property
    def dim(self) -> int:
        return self.about.dim

    def model(self, device: torch.device | str | None = None) -> Any:
        """The model that the index was made with, a ``lookalike.inference.model.TrainedModel``."""
        from lookalike.inference.model import load

        return load(self.path / MODEL, device)

    def check_model(self, model: Any) -> None:
        """Raise unless it is the one that the index was made with: the folder of a run, or a loaded model."""
        if (other := fingerprint_of(model)) != self.fingerprint:
            whose = f"the model in {model}" if isinstance(model, (str, Path)) else "this model"
            raise WrongModel(
                f"{self.path} was made with another model, from {self.about.run} ({self.fingerprint[:8]}), and cannot "
                f"hold vectors of {whose} ({other[:8]}): make a new index, or use its own model"
            )

    def add(self, items: Sequence[Item], vectors: Any, stamps: Sequence[str] | None = None) -> int:
        """Add items with their vectors (n, D), in place of those with the same ids; returns how many were new."""
        items = [Item(*item) for item in items]
        check_items(items)
        checked = check_vectors(vectors, self.dim, self.distance, len(items)) if items else None
        if stamps is not None and len(stamps) != len(items):
            raise ValueError(f"there must be a stamp for each of {len(items)} items, got {len(stamps)}")
        if checked is None:
            return 0
        with self.writing():
            return self._add(items, checked, [""] * len(items) if stamps is None else list(stamps))

    def delete(self, ids: Sequence[str]) -> int:
        """Forget these items; returns how many there were. Files are never touched."""
        check_ids(ids)
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return 0
        with self.writing():
            return self._delete(wanted)

    def search(self, vectors: Any, k: int = 10, where: str | None = None) -> list[list[Hit]]:
        """The k nearest items of every query (q, D), fewer if there are fewer that fulfil ``where``."""
        check_count("k", k)
        if k > MOST:
            raise ValueError(f"k must be at most {MOST:,}, got {k:,}")
        conditions = parse(where)
        queries = check_vectors(vectors, self.dim, self.distance, what="queries")
        hits: list[list[Hit]] = []
        for start in range(0, len(queries), AT_ONCE):
            hits += self._search(queries[start : start + AT_ONCE], k, conditions)
        return hits

    def count(self, where: str | None = None) -> int:
        return self._count(parse(where))

    def get(self, ids: Sequence[str]) -> list[Item | None]:
        """The items with these ids, in this order; None where there is none."""
        check_ids(ids)
        found = self._get(list(dict.fromkeys(ids)))
        return [found.get(each) for each in ids]

    def vectors(self, ids: Sequence[str]) -> Vectors:
        """(n, D), as they were added. Raises KeyError if there is no such item."""
        check_ids(ids)
        found = self._vectors(list(dict.fromkeys(ids)))
        for each in ids:
            if each not in found:
                raise KeyError(f"there is no item {each}")
        joined = [found[each] for each in ids]
        return np.stack(joined) if joined else np.zeros((0, self.dim), np.float32)

    def items(self, where: str | None = None, after: str | None = None, limit: int | None = None) -> list[Item]:
        """In the order of their ids, from the one ``after`` this id on, at most ``limit`` of them."""
        if after is not None:
            check_ids([after])
        if limit is not None:
            check_count("limit", limit)
        return self._items(parse(where), after, limit)

    def labels(self) -> dict[str, int]:
        """Every label and how many items have it, in natural order."""
        found = self._labels()
        return {label: found[label] for label in natural_order(set(found))}

    def info(self) -> dict[str, Any]:
        """What it is, for people and for JSON."""
        return {
            "path": str(self.path),
            "backend": self.about.backend,
            "store": self.about.store,
            "asked": self.about.kind,
            **self._info(),
            "count": self.count(),
            "distance": self.distance,
            "dim": self.dim,
            "run": self.about.run,
            "fingerprint": self.fingerprint,
            "folders": list(self.about.folders),
        }

    def add_folder(self, folder: str) -> None:
        """Note in index.json that pictures come from there."""
        if folder not in self.about.folders:
            self._note(lambda about: about.folders.append(folder) if folder not in about.folders else None)

    def _note(self, change: Callable[[About], None]) -> None:
        """Change index.json, as it is on the disk now: another process may have, too."""
        with self.writing():
            about = About.read(self.path)
            change(about)
            about.write(self.path)
            self.about = about

    def is_kept_in(self, store: str) -> bool:
        """Whether this is the store that ``create`` was told."""
        return store == "faiss"

    def set_kind(self, kind: str) -> None:
        """Search by another structure from now on, as ``create`` has them."""
        check_kind(kind)
        if kind != self.about.kind:
            self._note(lambda about: setattr(about, "kind", kind))

    def __enter__(self) -> "Index":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def save(self) -> None:
        """Write what makes the next opening faster. Items need no saving: they are on disk since they were added."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def files_below(self, folder: str) -> dict[str, FileRecord]:
        """Id -> what was noted, of the items with a stamp whose path lies below the folder."""

    @abstractmethod
    def restamp(self, stamps: dict[str, str]) -> None:
        """New stamps for these ids; the items stay as they are."""

    @abstractmethod
    def _add(self, items: list[Item], vectors: Vectors, stamps: list[str]) -> int: ...

    @abstractmethod
    def _delete(self, ids: list[str]) -> int: ...

    @abstractmethod
    def _search(self, queries: Vectors, k: int, where: tuple[Condition, ...]) -> list[list[Hit]]: ...

    @abstractmethod
    def _count(self, where: tuple[Condition, ...]) -> int: ...

    @abstractmethod
    def _get(self, ids: list[str]) -> dict[str, Item]: ...

    @abstractmethod
    def _vectors(self, ids: list[str]) -> dict[str, Vectors]: ...

    @abstractmethod
    def _items(self, where: tuple[Condition, ...], after: str | None, limit: int | None) -> list[Item]: ...

    @abstractmethod
    def _labels(self) -> dict[str, int]: ...

    @abstractmethod
    def _info(self) -> dict[str, Any]: ...
