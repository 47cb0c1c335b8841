"""The index as the routes use it: blocking calls that run in a thread.

Reads run in parallel. Changes run one after the other: two uploads of one file agree on who created it, and a deletion
never removes a file that an addition has just written.
"""

import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from lookalike._util.files import flush, remove_unfinished, replacing
from lookalike.index import filters
from lookalike.index.base import Index
from lookalike.index.folder import ChangedPicture, check_unchanged
from lookalike.index.items import Hit, Item, check_items
from lookalike.index.reranking import search_reranked
from lookalike.index.storage import IndexInUse
from lookalike.index.suggestions import check_keys, metadata_keys
from lookalike.server.batching import Vector
from lookalike.server.errors import ApiError, busy, invalid
from lookalike.server.limits import MOST_POINTS
from lookalike.server.projection import project
from lookalike.server.schemas import Map, Point, name_of

UPLOADS = "uploads"
DUPLICATE_DISTANCE = 0.01  # a file that is farther away cannot be the uploaded one
DUPLICATE_CANDIDATES = 8  # nearest files that are compared byte by byte
MAP_SEED = 0
FILTER_COLUMNS = ("id", "label")  # columns that a filter may name; paths stay private
KEYS_CACHE_SECONDS = 10
ATTEMPTS = 5  # at a map or a re-ranking while items are being deleted


class Collection:
    """One index and its uploaded pictures.

    Args:
        idx: The index.
    """

    def __init__(self, idx: Index) -> None:
        self.idx = idx
        remove_unfinished(idx.path / UPLOADS)
        self._write_lock = Lock()
        self._map_lock = Lock()
        self._keys_lock = Lock()
        self._map: tuple[Any, Map] | None = None
        self._keys: tuple[Any, set[str]] | None = None
        self._changes = 0

    def get(self, item_id: str) -> Item:
        """Return the item with this id.

        Raises:
            ApiError: 404 if there is none.
        """
        item = self.idx.get([item_id])[0]
        if item is None:
            raise _not_found()
        return item

    def vector(self, item_id: str) -> Vector:
        """Return the vector (D,) of an item.

        Raises:
            ApiError: 404 if there is no such item.
        """
        try:
            vector: Vector = self.idx.vectors([item_id])[0]
        except KeyError:
            raise _not_found() from None
        return vector

    def search(self, vector: Vector, k: int, where: str | None, *, rerank: str, without: str | None) -> list[Hit]:
        """Return the nearest items.

        Args:
            vector: The query (D,).
            k: Number of hits.
            where: A checked filter.
            rerank: A method of ``lookalike.index.reranking``.
            without: Id of an item to leave out.

        Returns:
            At most ``k`` hits, in the order of the re-ranking.

        Raises:
            ApiError: 422 if the filter names an unknown key, 503 if the index keeps changing.
        """
        for _ in range(ATTEMPTS):
            try:
                hits = search_reranked(self.idx, vector[None], k, where, rerank, without)[0]
            except KeyError:  # an item was deleted in between
                continue
            if not hits:
                self._refuse_unknown_keys(where)
            return hits
        raise busy("the collection is changing")

    def items(self, where: str | None, after: str | None, limit: int) -> list[Item]:
        """Return at most ``limit`` items in order of id, starting behind the id ``after``.

        Raises:
            ApiError: 422 if the filter names an unknown key.
        """
        items = self.idx.items(where, after, limit)
        if not items:
            self._refuse_unknown_keys(where)
        return items

    def add(
        self,
        data: bytes,
        jpeg: bytes,
        vector: Vector,
        label: str,
        metadata: dict[str, Any],
        most_items: int | None = None,
    ) -> tuple[str, bool]:
        """Add an uploaded picture. It is on the disk when this returns.

        Args:
            data: The file as uploaded; its id is the digest of these bytes.
            jpeg: The picture to keep.
            vector: The vector (D,).
            label: The label, possibly empty.
            metadata: JSON values by key.
            most_items: Largest number of items in the collection.

        Returns:
            The id, and whether the item is new.

        Raises:
            ApiError: 403 if the collection is full.
        """
        existing_id = self._indexed_file(data, vector)
        if existing_id is not None:
            return existing_id, False
        item = Item(upload_id(data), "", label, metadata)
        file = self._upload_file(item.id)
        with self._write_lock:
            if most_items is not None and self.idx.count() >= most_items and self.idx.get([item.id])[0] is None:
                raise ApiError(403, "full", f"the collection may have at most {most_items:,} items")
            # The picture first, then the entry: the entry is what counts.
            with replacing(file, private=True) as unfinished:
                unfinished.write_bytes(jpeg)
            flush(file.parent)
            try:
                created = self.idx.add([item], vector[None]) == 1
            except IndexInUse:
                if self.idx.get([item.id])[0] is None:
                    file.unlink(missing_ok=True)
                raise
            self._changes += 1
        return item.id, created

    def delete(self, item_id: str) -> None:
        """Delete an item, and its picture if it was uploaded. Indexed files are never touched."""
        with self._write_lock:
            item = self.get(item_id)
            self.idx.delete([item_id])
            if not item.path:
                self._upload_file(item_id).unlink(missing_ok=True)
            self._changes += 1

    def read(self, item: Item) -> bytes:
        """Read the file of an item's picture.

        Raises:
            ApiError: 410 if the file is missing or unreadable, or has changed since it was indexed.
        """
        stamp = ""
        if item.path:
            stamp = self.idx.stamps([item.id]).get(item.id, "")
        path = self._file(item)
        try:
            if not path.is_file():
                raise _gone()
            with path.open("rb") as file:
                check_unchanged(file, stamp)
                file.seek(0)
                return file.read()
        except ChangedPicture:
            message = "the file of this item has changed since it was indexed: update the index"
            raise ApiError(410, "changed", message) from None
        except OSError:
            raise _gone() from None

    def size(self, item: Item) -> int:
        """Return the bytes of the file of an item's picture, 0 if it is missing."""
        with suppress(OSError):
            return self._file(item).stat().st_size
        return 0

    def stamp(self, item: Item) -> str:
        """Return a text that changes when the file of the item changes.

        Raises:
            ApiError: 410 if the file is missing.
        """
        try:
            status = self._file(item).stat()
        except OSError:
            raise _gone() from None
        return blake2b(f"{item.id} {status.st_mtime_ns} {status.st_size}".encode(), digest_size=12).hexdigest()

    def map(self) -> Map:
        """Return the map of the collection. It is computed again only after a change."""
        with self._map_lock:
            state = self._state()
            if self._map is None or self._map[0] != state:
                self._map = (state, self._compute_map())
            return self._map[1]

    def _compute_map(self) -> Map:
        for _ in range(ATTEMPTS):
            items = self.idx.items()
            sampled = len(items) > MOST_POINTS
            if sampled:
                chosen = np.random.default_rng(MAP_SEED).choice(len(items), MOST_POINTS, replace=False)
                items = [items[i] for i in np.sort(chosen)]
            try:
                positions = project(self.idx.vectors([item.id for item in items]))
            except KeyError:  # an item was deleted in between
                continue
            points = []
            for item, (x, y) in zip(items, positions.tolist(), strict=True):
                points.append(Point(id=item.id, x=x, y=y, label=item.label, name=name_of(item)))
            return Map(points=points, sampled=sampled)
        raise busy("the collection is changing")

    def _refuse_unknown_keys(self, where: str | None) -> None:
        """Raise 422 if no item has a metadata key that the filter names."""
        conditions = filters.parse(where)
        if not any(condition.is_metadata for condition in conditions):
            return
        if not self.idx.count():
            return  # without items every key is unknown
        with self._keys_lock:
            # Reading the keys reads every item, so they are cached; other programs may add new ones.
            state = (self._state(), time.monotonic() // KEYS_CACHE_SECONDS)
            if self._keys is None or self._keys[0] != state:
                self._keys = (state, metadata_keys(self.idx))
            keys = self._keys[1]
        try:
            check_keys(where, keys, FILTER_COLUMNS)
        except ValueError as error:
            raise invalid(f"where: {error}") from None

    def _indexed_file(self, data: bytes, vector: Vector) -> str | None:
        """Return the id of an indexed file with just these bytes; it must be among the nearest."""
        for item, distance in self.idx.search(vector[None], DUPLICATE_CANDIDATES)[0]:
            if not item.path or distance >= DUPLICATE_DISTANCE:
                continue
            with suppress(OSError):
                if item.file.stat().st_size == len(data) and item.file.read_bytes() == data:
                    return item.id
        return None

    def _state(self) -> tuple[int, int]:
        return self._changes, self.idx.count()

    def _file(self, item: Item) -> Path:
        if item.path:
            return item.file
        return self._upload_file(item.id)

    def _upload_file(self, item_id: str) -> Path:
        return self.idx.path / UPLOADS / f"{item_id}.jpg"


def upload_id(data: bytes) -> str:
    """Return the id of an uploaded file: a digest of its bytes."""
    return blake2b(data, digest_size=16, person=b"upload").hexdigest()


def check_where(text: str | None) -> str | None:
    """Check a filter from a request.

    Filters on paths are refused: comparisons would reveal a path letter by letter.

    Args:
        text: The filter as sent.

    Returns:
        The filter, or None if it is empty.

    Raises:
        ApiError: 422 if it cannot be parsed or names the path.
    """
    if text is None or not text.strip():
        return None
    try:
        conditions = filters.parse(text)
    except ValueError as error:
        raise invalid(f"where: {error}") from None
    if any(condition.key == "path" for condition in conditions):
        raise invalid("where: filters on path are not allowed; use label, id or metadata")
    return text


def check_entry(label: str, metadata: dict[str, Any]) -> None:
    """Check the label and metadata of an upload.

    Raises:
        ApiError: 422 if the index cannot hold them.
    """
    try:
        check_items([Item("0", "", label, metadata)])
    except (TypeError, ValueError) as error:
        raise invalid(str(error).replace(" of item 0", "")) from None


def _not_found() -> ApiError:
    return ApiError(404, "not_found", "there is no item with this id")


def _gone() -> ApiError:
    return ApiError(410, "gone", "the picture of this item is missing or cannot be read")
