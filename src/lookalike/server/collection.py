"""The index as the server uses it: what each request asks of it, as plain calls that block and belong into threads.

Reads go on beside each other; changes come one after the other, so that two uploads of one file agree on who created
it, and a deletion never takes a file that an addition has just written.
"""

import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from lookalike._util.files import flush, replacing
from lookalike.data.pictures import UnreadablePicture
from lookalike.data.reading import read_picture
from lookalike.index import filters
from lookalike.index.base import Index
from lookalike.index.items import Hit, Item, check_items
from lookalike.index.reranking import search_reranked
from lookalike.index.storage import IndexInUse
from lookalike.index.suggestions import check_keys, metadata_keys
from lookalike.server.batching import Vector
from lookalike.server.errors import ApiError, busy, invalid
from lookalike.server.limits import MOST_POINTS
from lookalike.server.projection import plane
from lookalike.server.schemas import Map, Point, name_of

UPLOADS = "uploads"
SAME, MOST_ALIKE = 0.01, 8  # the distance up to which a file may be the same, and how many are looked at
SEED = 0
COLUMNS = ("id", "label")  # that may be asked for
KEYS_REMEMBERED = 10  # seconds
ATTEMPTS = 5  # at a map or a re-ranking, while items are being deleted


class Collection:
    def __init__(self, idx: Index) -> None:
        self.idx = idx
        self._changing = Lock()
        self._mapping = Lock()
        self._reading_keys = Lock()
        self._map: tuple[Any, Map] | None = None
        self._keys: tuple[Any, set[str]] | None = None
        self._changes = 0

    def get(self, known: str) -> Item:
        item = self.idx.get([known])[0]
        if item is None:
            raise ApiError(404, "not_found", "there is no item with this id")
        return item

    def vector(self, known: str) -> Vector:
        self.get(known)
        try:
            vector: Vector = self.idx.vectors([known])[0]
        except KeyError:  # deleted in between
            raise ApiError(404, "not_found", "there is no item with this id") from None
        return vector

    def search(self, vector: Vector, k: int, where: str | None, *, rerank: str, without: str | None) -> list[Hit]:
        """The k nearest, in the order of a re-ranking; never the item ``without``."""
        for _ in range(ATTEMPTS):
            try:
                hits = search_reranked(self.idx, vector[None], k, where, rerank, without)[0]
            except KeyError:  # one was deleted in between
                continue
            if not hits:
                self._refuse_unknown_keys(where)
            return hits
        raise busy("the collection is changing")

    def items(self, where: str | None, after: str | None, limit: int) -> list[Item]:
        items = self.idx.items(where, after, limit)
        if not items:
            self._refuse_unknown_keys(where)
        return items

    def _refuse_unknown_keys(self, where: str | None) -> None:
        """The keys are read from all items, so they are remembered for a while; other programs may bring new ones."""
        if not any(condition.is_metadata for condition in filters.parse(where)):
            return
        if not self.idx.count():  # nobody has any key
            return
        with self._reading_keys:
            state = (self._state(), time.monotonic() // KEYS_REMEMBERED)
            if self._keys is None or self._keys[0] != state:
                self._keys = (state, metadata_keys(self.idx))
            keys = self._keys[1]
        try:
            check_keys(where, keys, COLUMNS)
        except ValueError as error:
            raise invalid(f"where: {error}") from None

    def add(self, data: bytes, jpeg: bytes, vector: Vector, label: str, metadata: dict[str, Any]) -> tuple[str, bool]:
        """Kept for good when this returns: first the picture, then its entry, which is what counts."""
        known = upload_id(data)
        if (there := self._indexed_file(data, vector)) is not None:
            return there, False
        item = Item(known, "", label, metadata)
        file = self._upload(known)
        with self._changing:
            with replacing(file) as unfinished:
                unfinished.write_bytes(jpeg)
            flush(file.parent)
            try:
                created = self.idx.add([item], vector[None]) == 1
            except IndexInUse:
                if self.idx.get([known])[0] is None:
                    file.unlink(missing_ok=True)
                raise
            self._changes += 1
        return known, created

    def _indexed_file(self, data: bytes, vector: Vector) -> str | None:
        """The item of a file that was indexed where it lies and holds just this: if any, then one of the nearest."""
        for item, distance in self.idx.search(vector[None], MOST_ALIKE)[0]:
            with suppress(OSError):
                same_size = item.path and distance < SAME and item.file.stat().st_size == len(data)
                if same_size and item.file.read_bytes() == data:
                    return item.id
        return None

    def delete(self, known: str) -> None:
        """The entry, and the picture if it was uploaded; never a file that was indexed where it lies."""
        with self._changing:
            item = self.get(known)
            self.idx.delete([known])
            if not item.path:
                self._upload(known).unlink(missing_ok=True)
            self._changes += 1

    def picture(self, item: Item, *, at_least: int | None) -> Image.Image:
        """What the file of an indexed item holds now; 410 where it is no picture any more."""
        try:
            return read_picture(self._file(item), at_least=at_least)
        except UnreadablePicture:
            raise ApiError(410, "gone", "the picture of this item is no longer there, or cannot be read") from None

    def stamp(self, item: Item) -> str:
        """Changes when the file changes."""
        try:
            status = self._file(item).stat()
        except OSError:
            raise ApiError(410, "gone", "the picture of this item is no longer there, or cannot be read") from None
        return blake2b(f"{item.id} {status.st_mtime_ns} {status.st_size}".encode(), digest_size=12).hexdigest()

    def map(self) -> Map:
        """Computed once, and again when the collection has changed."""
        with self._mapping:
            state = self._state()
            if self._map is None or self._map[0] != state:
                self._map = (state, self._draw())
            return self._map[1]

    def _state(self) -> tuple[int, int]:
        return self._changes, self.idx.count()

    def _draw(self) -> Map:
        for _ in range(ATTEMPTS):
            items = self.idx.items()
            sampled = len(items) > MOST_POINTS
            if sampled:
                chosen = np.random.default_rng(SEED).choice(len(items), MOST_POINTS, replace=False)
                items = [items[i] for i in np.sort(chosen)]
            try:
                places = plane(self.idx.vectors([item.id for item in items]))
            except KeyError:  # one was deleted in between
                continue
            points = [
                Point(id=item.id, x=float(x), y=float(y), label=item.label, name=name_of(item))
                for item, (x, y) in zip(items, places, strict=True)
            ]
            return Map(points=points, sampled=sampled)
        raise busy("the collection is changing")

    def _file(self, item: Item) -> Path:
        return item.file if item.path else self._upload(item.id)

    def _upload(self, known: str) -> Path:
        return self.idx.path / UPLOADS / f"{known}.jpg"


def upload_id(data: bytes) -> str:
    """The same for the same file, whoever sends it."""
    return blake2b(data, digest_size=16, person=b"upload").hexdigest()


def check_where(text: str | None) -> str | None:
    """A filter that may be asked for: paths stay here, and comparing with them would tell them letter by letter."""
    if text is None or not text.strip():
        return None
    try:
        conditions = filters.parse(text)
    except ValueError as error:
        raise invalid(f"where: {error}") from None
    if any(condition.key == "path" for condition in conditions):
        raise invalid("where: paths are not shown, so they cannot be asked for; use label, id or metadata")
    return text


def check_entry(label: str, metadata: dict[str, Any]) -> None:
    try:
        check_items([Item("0", "", label, metadata)])
    except (TypeError, ValueError) as error:
        raise invalid(str(error).replace(" of item 0", "")) from None
