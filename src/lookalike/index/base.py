"""The interface of every index, independent of the backend.

Additions and deletions are committed when they return. A filter is applied before the k nearest are taken, never after.
Of equal distances the lower id comes first.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lookalike._util.checks import check_count
from lookalike.data.files import natural_order
from lookalike.data.names import as_text
from lookalike.index.filters import Condition, parse
from lookalike.index.items import Hit, Item, Vectors, check_ids, check_items, check_vectors
from lookalike.index.kinds import check_kind
from lookalike.index.storage import MODEL, About, BrokenIndex, WriterLock, WrongModel, fingerprint_of
from lookalike.inference.engine_name import EngineName

MOST = 10_000  # neighbours per search
QUERIES_AT_ONCE = 64


class FileRecord(NamedTuple):
    """What the index stores about a file.

    Attributes:
        path: Absolute path as text.
        label: The label.
        metadata: JSON values.
        stamp: Size, time and digest of the file when it was indexed (see ``folder.py``).
    """

    path: str
    label: str
    metadata: dict[str, Any]
    stamp: str


def path_range(folder: str) -> tuple[str, str]:
    """Return the range of paths below a folder: at least the first text and before the second.

    Examples:
        >>> path_range("/pictures")
        ('/pictures/', '/pictures0')
    """
    separator = as_text(os.sep)
    start = folder.removesuffix(separator)
    return start + separator, start + separator[:-1] + chr(ord(separator[-1]) + 1)


class Index(ABC):
    """An index, made by ``create`` or ``open``. Threads may share it.

    Close it, or use it in a with statement.

    Attributes:
        path: The folder of the index.
        about: The content of ``index.json``.
        writing: The writer's lock; ``with idx.writing():`` keeps other processes from writing.
    """

    def __init__(self, path: Path, about: About) -> None:
        self.path = path
        self.about = about
        self.writing = WriterLock(path)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the model."""
        return self.about.fingerprint

    @property
    def distance(self) -> str:
        """Distance of the model, "cosine" or "l2"."""
        return self.about.distance

    @property
    def dim(self) -> int:
        """Size D of the vectors."""
        return self.about.dim

    def model(self, device: torch.device | str | None = None, engine: EngineName = "auto") -> Any:
        """Load the model that the index was made with.

        Args:
            device: Where to load it; None for a GPU if there is one.
            engine: As for ``lookalike.load``.

        Returns:
            A ``lookalike.inference.model.TrainedModel``.

        Raises:
            BrokenIndex: If it is damaged.
        """
        from lookalike.inference.model import load

        model = load(self.path / MODEL, device, engine)
        if fingerprint_of(model) != self.fingerprint:
            raise BrokenIndex(
                f"{self.path / MODEL} is damaged or of another index: its fingerprint is not that in index.json. "
                "Copy the model from its run again, or make a new index"
            )
        return model

    def check_model(self, model: Any) -> None:
        """Check that a model is the one that the index was made with.

        Args:
            model: The folder of a run, or a loaded model.

        Raises:
            WrongModel: If it is another one.
        """
        fingerprint = fingerprint_of(model)
        if fingerprint != self.fingerprint:
            source = f"the model in {model}" if isinstance(model, (str, Path)) else "this model"
            raise WrongModel(
                f"{self.path} was made with another model, from {self.about.run} ({self.fingerprint[:8]}), and cannot "
                f"hold vectors of {source} ({fingerprint[:8]}): make a new index, or use its own model"
            )

    def add(self, items: Sequence[Item], vectors: Any, stamps: Sequence[str] | None = None) -> int:
        """Add items, replacing those with the same ids.

        Args:
            items: The items (n,).
            vectors: Their vectors (n, D).
            stamps: Their stamps (n,); None for items that are not synchronised with a folder.

        Returns:
            How many were new.

        Raises:
            ValueError: If an item or a vector is invalid.
            IndexInUse: If another process is writing.
        """
        items = [Item(*item) for item in items]
        check_items(items)
        if stamps is None:
            stamps = [""] * len(items)
        if len(stamps) != len(items):
            raise ValueError(f"there must be a stamp for each of {len(items)} items, got {len(stamps)}")
        if not items:
            return 0
        checked = check_vectors(vectors, self.dim, self.distance, len(items))
        with self.writing():
            return self._add(items, checked, list(stamps))

    def delete(self, ids: Sequence[str]) -> int:
        """Delete items. Files are never touched.

        Args:
            ids: Their ids.

        Returns:
            How many existed.
        """
        check_ids(ids)
        if not ids:
            return 0
        with self.writing():
            return self._delete(list(dict.fromkeys(ids)))

    def search(self, vectors: Any, k: int = 10, where: str | None = None) -> list[list[Hit]]:
        """Find the nearest items.

        Args:
            vectors: Queries (q, D).
            k: Number of hits per query.
            where: A filter such as ``label in (robin, wren), year>=2020``.

        Returns:
            For each query at most ``k`` hits, nearest first.

        Raises:
            ValueError: If an argument is invalid.
        """
        check_count("k", k)
        if k > MOST:
            raise ValueError(f"k must be at most {MOST:,}, got {k:,}")
        conditions = parse(where)
        queries = check_vectors(vectors, self.dim, self.distance, what="queries")
        hits: list[list[Hit]] = []
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            hits += self._search(queries[start : start + QUERIES_AT_ONCE], k, conditions)
        return hits

    def count(self, where: str | None = None) -> int:
        """Count the items that match a filter."""
        return self._count(parse(where))

    def get(self, ids: Sequence[str]) -> list[Item | None]:
        """Return the items with these ids, in this order; None for missing ones."""
        check_ids(ids)
        items = self._get(list(dict.fromkeys(ids)))
        return [items.get(item_id) for item_id in ids]

    def vectors(self, ids: Sequence[str]) -> Vectors:
        """Return the vectors of items as they were added.

        Args:
            ids: Ids (n,).

        Returns:
            Vectors (n, D).

        Raises:
            KeyError: If an item is missing.
        """
        check_ids(ids)
        by_id = self._vectors(list(dict.fromkeys(ids)))
        vectors = np.zeros((len(ids), self.dim), np.float32)
        for row, item_id in enumerate(ids):
            if item_id not in by_id:
                raise KeyError(f"there is no item {item_id}")
            vectors[row] = by_id[item_id]
        return vectors

    def items(self, where: str | None = None, after: str | None = None, limit: int | None = None) -> list[Item]:
        """List items in order of id.

        Args:
            where: A filter.
            after: Start behind this id.
            limit: Largest number of items.

        Returns:
            The items.
        """
        if after is not None:
            check_ids([after])
        if limit is not None:
            check_count("limit", limit)
        return self._items(parse(where), after, limit)

    def labels(self) -> dict[str, int]:
        """Return every label with the number of its items, in natural order."""
        counts = self._labels()
        return {label: counts[label] for label in natural_order(set(counts))}

    def info(self) -> dict[str, Any]:
        """Describe the index, for people and for JSON."""
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
        """Record in ``index.json`` that pictures come from this folder."""
        if folder in self.about.folders:
            return

        def append(about: About) -> None:
            if folder not in about.folders:
                about.folders.append(folder)

        self._update_about(append)

    def set_kind(self, kind: str) -> None:
        """Change the search structure.

        Args:
            kind: "flat", "ivf", "hnsw" or "auto".
        """
        check_kind(kind)
        if kind != self.about.kind:
            self._update_about(lambda about: setattr(about, "kind", kind))

    def is_stored_in(self, store: str) -> bool:
        """Return whether ``store``, as given to ``create``, is where the items are."""
        return store == "faiss"

    def _update_about(self, change: Callable[[About], None]) -> None:
        """Change ``index.json`` as it is on the disk now: another process may have changed it, too."""
        with self.writing():
            about = About.read(self.path)
            change(about)
            about.write(self.path)
            self.about = about

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def save(self) -> None:
        """Write what makes the next opening faster. Items are already on disk."""

    @abstractmethod
    def close(self) -> None:
        """Free files, connections and memory."""

    @abstractmethod
    def files_below(self, folder: str) -> dict[str, FileRecord]:
        """Return id -> record of the items with a stamp whose path is below the folder."""

    @abstractmethod
    def stamps(self, ids: Sequence[str]) -> dict[str, str]:
        """Return id -> stamp of the items with these ids; the stamp is empty if none was given."""

    @abstractmethod
    def restamp(self, stamps: dict[str, str]) -> None:
        """Set new stamps by id; the items stay unchanged."""

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
