"""The index as the routes use it: blocking calls that run in a thread.

Reads run in parallel. Changes run one after the other: two uploads of one file agree on who created it, and a deletion
never removes a file that an addition has just written.
"""

import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any

from lookalike._util.files import flush, remove_unfinished, replacing
from lookalike.index import filters
from lookalike.index.base import Index
from lookalike.index.calibrating import load_calibration
from lookalike.index.filters import Where
from lookalike.index.folder import ChangedPicture, check_unchanged, content_stamp
from lookalike.index.items import Item, check_items
from lookalike.index.querying import Options, Results, find, find_copies
from lookalike.index.storage import UPLOADS
from lookalike.index.suggestions import check_keys
from lookalike.retrieval.calibration import FILE as CALIBRATION
from lookalike.retrieval.calibration import Calibration
from lookalike.server.batching import Vector
from lookalike.server.errors import ApiError, busy, invalid
from lookalike.server.schemas import MetadataField

FILTER_COLUMNS = ("id", "label")  # columns that a filter may name; paths stay private
KEYS_CACHE_SECONDS = 10
MOST_DESCRIBED = 100_000  # items that are read to learn their metadata keys and values
LARGEST_DESCRIBED = 30_000_000  # characters of the metadata of these items
MOST_VALUES = 100  # of a metadata field, for filters
LONGEST_VALUE = 1000  # characters of such a value
MOST_FIELDS = 200  # that are described, the most frequent ones
ATTEMPTS = 5  # at a re-ranking while items are being deleted


class Collection:
    """One index and its uploaded pictures.

    Args:
        idx: The index.
    """

    def __init__(self, idx: Index) -> None:
        self.idx = idx
        remove_unfinished(idx.path / UPLOADS)
        self._write_lock = Lock()
        self._keys: tuple[Any, set[str]] | None = None
        self._fields: tuple[Any, list[MetadataField]] | None = None
        self._calibration: tuple[Any, Calibration | None] | None = None
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

    def get_all(self, ids: list[str]) -> list[Item]:
        """Return the items with these ids.

        Raises:
            ApiError: 404 if one is missing.
        """
        items = [item for item in self.idx.get(ids) if item is not None]
        if len(items) < len(ids):
            raise _not_found()
        return items

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

    def search(self, vector: Vector, options: Options) -> Results:
        """Return the nearest items.

        Args:
            vector: The query (D,).
            options: Checked options.

        Returns:
            The results.

        Raises:
            ApiError: 422 if the filter names an unknown key or there are no probabilities, 503 if the index keeps
                changing.
        """
        for _ in range(ATTEMPTS):
            try:
                results = find(self.idx, vector, options, self.calibration())
            except KeyError:  # an item was deleted in between
                continue
            except ValueError as error:
                raise invalid(str(error)) from None
            if not results.results:
                self._refuse_unknown_keys(options.where)
            return results
        raise busy("the collection is changing")

    def copies(self, data: bytes, vector: Vector) -> list[str]:
        """Return the ids of the items with just these bytes: indexed files, and what was uploaded here."""
        ids = find_copies(self.idx, vector, data)
        uploaded = upload_id(data)
        if self.idx.get([uploaded])[0] is not None:
            ids.append(uploaded)
        return ids

    def fields(self) -> list[MetadataField]:
        """Describe the metadata fields of all items, in a large collection of a sample, for filters."""
        state = self.state()
        known = self._fields
        if known is None or known[0] != state:
            known = self._fields = (state, describe_fields(self.idx.sample(MOST_DESCRIBED, largest=LARGEST_DESCRIBED)))
        return known[1]

    def calibration(self) -> Calibration | None:
        """Return the calibration; it is read again after a change of the index or of the file."""
        file = self.idx.home / CALIBRATION
        changed = file.stat().st_mtime_ns if file.is_file() else 0
        state = (self.state(), changed)
        if self._calibration is None or self._calibration[0] != state:
            self._calibration = (state, load_calibration(self.idx))
        return self._calibration[1]

    def items(self, where: Where, after: str | None, limit: int) -> list[Item]:
        """Return at most ``limit`` items in order of id, starting behind the id ``after``.

        Raises:
            ApiError: 422 if the filter names an unknown key.
        """
        items = self.idx.items(where, after, limit)
        if not items and after is None:
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
        others: Mapping[str, Vector] | None = None,
    ) -> tuple[str, bool]:
        """Add an uploaded picture. It is on the disk when this returns.

        Args:
            data: The file as uploaded; its id is the digest of these bytes.
            jpeg: The picture to keep.
            vector: The vector (D,).
            label: The label, possibly empty.
            metadata: JSON values by key.
            most_items: Largest number of items in the collection.
            others: Vectors of second models, by fingerprint.

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
        with self._write_lock, self.idx.writing():
            if most_items is not None and self.idx.count() >= most_items and self.idx.get([item.id])[0] is None:
                raise ApiError(403, "full", f"the collection may have at most {most_items:,} items")
            # The picture first, then the entry: the entry is what counts.
            with replacing(file, private=True) as unfinished:
                unfinished.write_bytes(jpeg)
            flush(file.parent)
            by_model = {fingerprint: {item.id: other} for fingerprint, other in (others or {}).items()}
            created = self.idx.add([item], vector[None], [content_stamp(jpeg)], by_model) == 1
            self._changes += 1
        return item.id, created

    def changed(self) -> None:
        """Forget what was computed from labels and metadata: they have changed."""
        self._changes += 1

    def delete(self, item_id: str) -> None:
        """Delete an item, and its picture if it was uploaded. Indexed files are never touched."""
        with self._write_lock, self.idx.writing():
            self.get(item_id)
            self._delete([item_id])

    def delete_all(self, ids: list[str]) -> int:
        """Delete the items that exist, as ``delete``; returns how many they were."""
        with self._write_lock, self.idx.writing():
            existing = [item.id for item in self.idx.get(ids) if item is not None]
            if existing:
                self._delete(existing)
            return len(existing)

    def _delete(self, ids: list[str]) -> None:
        uploaded = [item.id for item in self.idx.get(ids) if item is not None and not item.path]
        self.idx.delete(ids)
        for item_id in uploaded:
            self._upload_file(item_id).unlink(missing_ok=True)
        self._changes += 1

    def read(self, item: Item) -> bytes:
        """Read the file of an item's picture.

        Raises:
            ApiError: 410 if the file is missing or unreadable, or has changed since it was indexed.
        """
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

    def _refuse_unknown_keys(self, where: Where) -> None:
        """Raise 422 if no item has a metadata key that the filter names."""
        conditions = filters.parse(where)
        if not any(condition.is_metadata for condition in conditions):
            return
        if not 0 < self.idx.count() <= MOST_DESCRIBED:
            return  # without items every key is unknown; with many, reading all keys takes too long
        # Reading the keys reads every item, so they are cached; other programs may add new ones.
        state = (self.state(), time.monotonic() // KEYS_CACHE_SECONDS)
        known = self._keys
        if known is None or known[0] != state:
            known = self._keys = (state, self.idx.metadata_keys())
        keys = known[1]
        try:
            check_keys(where, keys, FILTER_COLUMNS)
        except ValueError as error:
            raise invalid(f"where: {error}") from None

    def _indexed_file(self, data: bytes, vector: Vector) -> str | None:
        """Return the id of an indexed file with just these bytes; it must be among the nearest."""
        copies = find_copies(self.idx, vector, data)
        return copies[0] if copies else None

    def state(self) -> tuple[Any, ...]:
        """Return something that changes when an item does, here or in another process."""
        return self._changes, self.idx.version()

    def _file(self, item: Item) -> Path:
        if item.path:
            return item.file
        return self._upload_file(item.id)

    def _upload_file(self, item_id: str) -> Path:
        return self.idx.path / UPLOADS / f"{item_id}.jpg"


def upload_id(data: bytes) -> str:
    """Return the id of an uploaded file: a digest of its bytes."""
    return blake2b(data, digest_size=16, person=b"upload").hexdigest()


def describe_fields(items: list[Item]) -> list[MetadataField]:
    """Describe the metadata of items: each field with its most frequent values, or its range if all are numbers."""
    values: dict[str, list[Any]] = {}
    for item in items:
        for key, value in item.metadata.items():
            if isinstance(value, (str, int, float)):  # bool is an int
                values.setdefault(key, []).append(value)
    fields = []
    frequent = sorted(values, key=lambda key: -len(values[key]))[:MOST_FIELDS]
    for key in sorted(frequent):
        numbers = [value for value in values[key] if not isinstance(value, (str, bool))]
        if len(numbers) == len(values[key]):
            fields.append(MetadataField(key=key, least=min(numbers), most=max(numbers), values=[]))
        else:
            texts = Counter(json.dumps(value) if isinstance(value, bool) else str(value) for value in values[key])
            common = [text for text, _ in texts.most_common(MOST_VALUES) if len(text) <= LONGEST_VALUE]
            fields.append(MetadataField(key=key, least=None, most=None, values=sorted(common)))
    return fields


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
