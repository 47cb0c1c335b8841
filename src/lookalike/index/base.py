"""The interface of every index, independent of the backend.

Additions and deletions are committed when they return. A filter is applied before the k nearest are taken, never after.
Of equal distances the lower id comes first.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lookalike._util.checks import check_count
from lookalike._util.checksums import Finding
from lookalike.data.files import natural_order
from lookalike.data.names import as_text
from lookalike.index.extra_tables import Others
from lookalike.index.filters import Condition, Where, parse
from lookalike.index.items import Hit, Item, Vectors, check_ids, check_items, check_vectors, encode_metadata
from lookalike.index.kinds import check_kind
from lookalike.index.query_model import convert_model, load_converted, use_int8
from lookalike.index.storage import (
    ABOUT,
    MODEL,
    SECOND,
    About,
    BrokenIndex,
    OutdatedIndex,
    WriterLock,
    WrongModel,
    fingerprint_of,
)
from lookalike.inference.engine_name import EngineName
from lookalike.inference.picture_model import PictureModel

if TYPE_CHECKING:
    import torch

    from lookalike.inference.model import TrainedModel

MOST = 10_000  # neighbours per search
PAGE = 10_000  # items read at a time
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
        self.writing = WriterLock(path, self._require_current)

    @property
    def home(self) -> Path:
        """Folder of model, items and calibration of this version."""
        return self.path / self.about.home

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

    def model(self, device: "torch.device | str | None" = None, engine: EngineName = "auto") -> PictureModel:
        """Load the model that the index was made with.

        Args:
            device: Where to load it; None for a GPU if there is one.
            engine: As for ``lookalike.load``.

        Returns:
            The ``ConvertedModel`` of the index, which needs no torch, if it has one for this device and engine. Else a
            ``TrainedModel``.

        Raises:
            BrokenIndex: If it is damaged.
        """
        converted = load_converted(self.home, self.fingerprint, device, engine)
        if converted is not None:
            converted.load_trained = partial(self.trained_model, "cpu")
            return converted
        return self.trained_model(device, engine)

    def trained_model(self, device: "torch.device | str | None" = None, engine: EngineName = "auto") -> "TrainedModel":
        """Load the model with torch.

        Args:
            device: As for ``model``.
            engine: As for ``model``.

        Returns:
            The model.

        Raises:
            BrokenIndex: If it is damaged.
        """
        from lookalike.inference.model import load

        model = load(self.home / MODEL, device, engine)
        if fingerprint_of(model) != self.fingerprint:
            raise BrokenIndex(
                f"{self.home / MODEL} is damaged or of another index: its fingerprint is not that in index.json. "
                "Copy the model from its run again, or make a new index"
            )
        if self.about.precision == "int8":
            use_int8(self.home, model)
        return model

    def use_precision(self, model: "TrainedModel") -> None:
        """Let a model compute in the precision of the index, with its int8 network if it has one."""
        if self.about.precision == "int8" and model.precision != "int8":
            use_int8(self.home, model)

    def convert_model(self, engine: EngineName = "auto", model: "TrainedModel | None" = None) -> bool:
        """Store a converted model, which queries load without torch, unless the index has it already.

        Args:
            engine: What queries will compute with. Nothing is stored for torch.
            model: The model, if it is loaded already; None loads it.

        Returns:
            Whether the index has a converted model. If the model cannot be converted, a warning says why.
        """
        if self.about.precision == "int8" and model is None:  # cannot be calibrated again without the pictures
            return load_converted(self.home, self.fingerprint, "cpu", engine) is not None
        with self.writing():
            return convert_model(self.home, self.fingerprint, engine, model)

    def is_current(self) -> bool:
        """Whether this is still the version that ``index.json`` names."""
        return About.read(self.path).home == self.about.home

    def _require_current(self) -> None:
        if not self.is_current():
            raise OutdatedIndex(f"{self.path} has another model since it was opened: open it again")

    def check_model(self, model: Any) -> None:
        """Check that a model is the one that the index was made with.

        Args:
            model: The folder of a run, or a loaded model.

        Raises:
            WrongModel: If it is another one.
        """
        fingerprint = fingerprint_of(model)
        if fingerprint != self.fingerprint:
            source = model if isinstance(model, (str, Path)) else getattr(model, "source", "this model")
            raise WrongModel(
                f"{self.path} was made with another model, {self.about.run} ({self.fingerprint[:8]}), and cannot "
                f"hold vectors of {source} ({fingerprint[:8]}): make a new index, or leave out RUN to use its own model"
            )

    def add(
        self, items: Sequence[Item], vectors: Any, stamps: Sequence[str] | None = None, others: Others | None = None
    ) -> int:
        """Add items, replacing those with the same ids.

        Args:
            items: The items (n,).
            vectors: Their vectors (n, D).
            stamps: Their stamps (n,); None for items that are not synchronised with a folder.
            others: Their vectors of second models; an item without one is not found by that model.

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
            return self._add(items, checked, list(stamps), others or {})

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

    def search(self, vectors: Any, k: int = 10, where: Where = None) -> list[list[Hit]]:
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

    def count(self, where: Where = None) -> int:
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

    def with_vectors(self, items: Sequence[Item]) -> tuple[list[Item], Vectors]:
        """Return those of some items whose vectors can be read; damaged and deleted ones are left out.

        Args:
            items: Items of this index.

        Returns:
            The items (n,), in the same order, and their vectors (n, D).
        """
        by_id: dict[str, Vectors] = {}
        for start in range(0, len(items), PAGE):
            by_id.update(self._vectors([item.id for item in items[start : start + PAGE]]))
        readable = [item for item in items if item.id in by_id]
        vectors = np.zeros((len(readable), self.dim), np.float32)
        for row, item in enumerate(readable):
            vectors[row] = by_id.pop(item.id)
        return readable, vectors

    def items(self, where: Where = None, after: str | None = None, limit: int | None = None) -> list[Item]:
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

    def version(self) -> tuple[Any, ...]:
        """Return a value that changes when an item is added, replaced or deleted, by whatever process.

        Milvus cannot tell that one was replaced.
        """
        return (self.count(),)

    def sample(self, most: int, seed: int = 0, largest: int | None = None) -> list[Item]:
        """Return up to ``most`` items, drawn at random, in order of id; all if there are no more.

        Args:
            most: Largest number of items.
            seed: Of the draw.
            largest: Characters of metadata, as JSON, after which no more items are read, so that memory is bounded;
                0: no item has metadata. None: no limit.
        """
        check_count("most", most)
        items: list[Item] = []
        size = 0
        with closing(self._sample(most, seed)) as sample:
            for item in sample:
                if largest == 0:
                    items.append(item._replace(metadata={}))
                    continue
                if largest is not None:
                    size += len(encode_metadata(item.metadata))
                    if items and size > largest:
                        break
                items.append(item)
        return sorted(items, key=lambda item: item.id)

    def metadata_keys(self) -> set[str]:
        """Return the metadata keys of all items. This reads every item."""
        keys: set[str] = set()
        after = None
        while items := self.items(after=after, limit=PAGE):
            for item in items:
                keys.update(item.metadata)
            after = items[-1].id
        return keys

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

    def second_models(self) -> list[str]:
        """Return the names of the models that were added by ``lookalike.index.add_model``."""
        folders = sorted((self.home / SECOND).glob("[!.]*"))  # a dot begins the name of an unfinished folder
        return [folder.name for folder in folders if (folder / ABOUT).is_file()]

    def open_model(self, name: str) -> "SecondIndex":
        """Open the same collection with the vectors of a second model.

        Args:
            name: One of ``second_models``.

        Returns:
            An index that searches and reads. Close it before this one. Items are added to and deleted from this one.

        Raises:
            ValueError: If there is no such model.
        """
        names = self.second_models()
        if name not in names:
            known = ", ".join(names) or "none; lookalike index IDX --with RUN adds one"
            raise ValueError(f"{self.path} has no second model {name!r}; there are: {known}")
        return self._open_second(self.home / SECOND / name)

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
            kind: One of ``kinds.KINDS``.
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
    def all_stamps(self) -> dict[str, str]:
        """Return id -> stamp of all items with a stamp."""

    @abstractmethod
    def restamp(self, stamps: dict[str, str]) -> None:
        """Set new stamps by id; the items stay unchanged."""

    @abstractmethod
    def check(self) -> Finding:
        """Check all stored rows."""

    @abstractmethod
    def other_vectors(self, ids: Sequence[str]) -> Others:
        """Return the vectors of second models, by fingerprint and id."""

    @abstractmethod
    def make_room(self, second: About) -> None:
        """Create the place for the vectors of a second model, unless it is there.

        Args:
            second: The content of its ``index.json``.
        """

    @abstractmethod
    def _open_second(self, path: Path) -> "SecondIndex": ...

    @abstractmethod
    def _add(self, items: list[Item], vectors: Vectors, stamps: list[str], others: Others) -> int: ...

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
    def _sample(self, most: int, seed: int) -> Generator[Item, None, None]: ...

    @abstractmethod
    def _labels(self) -> dict[str, int]: ...

    @abstractmethod
    def _info(self) -> dict[str, Any]: ...


class SecondIndex(Index):
    """A collection with the vectors of a second model. Items without a vector of this model are not part of it.

    Attributes:
        owner: The index of the collection. Items are added to it and deleted from it.
    """

    owner: Index

    @abstractmethod
    def missing(self) -> list[str]:
        """Return the ids of the items without a vector of this model, or with a damaged one."""

    @abstractmethod
    def put(self, ids: Sequence[str], vectors: Vectors) -> None:
        """Set the vectors (n, D) of existing items."""

    @abstractmethod
    def drop_orphans(self) -> None:
        """Remove vectors without an item."""

    def _add(self, *_: object) -> int:
        raise ValueError(f"items are added to {self.owner.path}, with vectors of all its models")

    def _delete(self, ids: list[str]) -> int:
        return self.owner.delete(ids)
