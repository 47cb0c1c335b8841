"""Items and hits: what an index holds and what a search returns, with their checks."""

import json
import logging
import os
import re
from collections.abc import Sequence
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike._util.arrays import as_numbers
from lookalike.data.names import as_text, from_text

ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
RESERVED = ("id", "path", "label")  # columns; a metadata key must not have these names
LONGEST = 4096  # bytes of a label or path
LARGEST_METADATA = 32_768  # bytes of JSON
DEEPEST_METADATA = 32  # lists and objects within each other; JSON encoders fail from about 250
MOST_KEYS = 256  # of metadata, at all levels together
INTEGER_BOUND = 2**63  # not every store holds more than 64 bits
MOST_REPORTED = 1000  # damaged rows that are logged

Vectors = NDArray[np.float32]

logger = logging.getLogger(__name__)
encode_metadata = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode  # of checked items
_reported: set[str] = set()  # ids of damaged rows that the log has already


class Item(NamedTuple):
    """One picture of an index.

    Attributes:
        id: 1 to 64 letters, digits or any of ``._:-``.
        path: Absolute path as text (see ``lookalike.data.names``); empty for a picture without a file of its own.
        label: Its class, possibly empty.
        metadata: JSON values; keys match ``KEY``.
    """

    id: str
    path: str
    label: str = ""
    metadata: dict[str, Any] = {}  # noqa: RUF012 - never written to

    @property
    def file(self) -> Path:
        """The path, ready to be opened."""
        return Path(from_text(self.path))

    def is_missing(self) -> bool:
        """Whether the picture had a file on this machine that is no longer there. Object storage is not asked."""
        return bool(self.path) and "://" not in self.path and not self.file.is_file()


class Hit(NamedTuple):
    """An item found by a search.

    Attributes:
        item: The item.
        distance: 1 - cosine, or the Euclidean distance, depending on the model.
    """

    item: Item
    distance: float


def file_id(path: str | Path) -> str:
    """Return the id of a file: a digest of its absolute path.

    Args:
        path: Any path of the file. Symbolic links are not resolved.

    Returns:
        32 hexadecimal digits.

    Examples:
        >>> file_id("/pictures/wren.jpg") == file_id("/pictures/garden/../wren.jpg")
        True
    """
    absolute = os.path.abspath(path)  # noqa: PTH100 - Path.resolve would follow links, Path.absolute keeps ..
    return blake2b(os.fsencode(absolute), digest_size=16).hexdigest()


def file_item(path: str | Path, label: str = "", metadata: dict[str, Any] | None = None) -> Item:
    """Create the item of a file.

    Args:
        path: Any path of the file.
        label: Its class.
        metadata: JSON values.

    Returns:
        The item, with the id ``file_id(path)``.
    """
    absolute = os.path.abspath(path)  # noqa: PTH100
    return Item(file_id(absolute), as_text(absolute), as_text(label), metadata or {})


def url_item(url: str, label: str = "", metadata: dict[str, Any] | None = None) -> Item:
    """Create the item of a picture in object storage; its path is the URL, and its id a digest of that."""
    item_id = blake2b(url.encode(errors="surrogateescape"), digest_size=16).hexdigest()
    return Item(item_id, as_text(url), as_text(label), metadata or {})


def check_ids(ids: Sequence[str]) -> None:
    """Check the form of ids.

    Raises:
        TypeError: If it is a single text instead of a list.
        ValueError: If an id has a wrong form.
    """
    if isinstance(ids, str):
        raise TypeError(f"ids must be a list of ids, got the single text {ids!r}")
    for item_id in ids:
        if not isinstance(item_id, str) or not ID.fullmatch(item_id):
            raise ValueError(f"an id must be 1 to 64 letters, digits or any of ._:- , got {item_id!r}")


def check_items(items: Sequence[Item]) -> None:
    """Check items against the limits of all backends.

    Raises:
        TypeError: If metadata are not a dict.
        ValueError: If an id is wrong or occurs twice, or if a text or the metadata cannot be stored.
    """
    check_ids([item.id for item in items])
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise ValueError(f"every item must have an id of its own, got {item.id} twice")
        seen.add(item.id)
        for name, text in (("path", item.path), ("label", item.label)):
            if not isinstance(text, str) or not is_storable(text):
                raise ValueError(f"{name} of item {item.id} must be a text of at most {LONGEST:,} bytes, got {text!r}")
        metadata_as_json(item)


def metadata_as_json(item: Item) -> str:
    """Return the metadata of an item as JSON.

    Raises:
        TypeError: If they are not a dict.
        ValueError: If a key is invalid, a value is not JSON, or the text is too long.

    Examples:
        >>> metadata_as_json(Item("a", "/a.jpg", metadata={"year": 2020}))
        '{"year": 2020}'
    """
    if not isinstance(item.metadata, dict):
        raise TypeError(f"metadata of item {item.id} must be a dict, got {type(item.metadata).__name__}")
    for key in item.metadata:
        if not isinstance(key, str) or not KEY.fullmatch(key) or key in RESERVED:
            raise ValueError(
                f"a key of metadata must be a letter or _ and then letters, digits, _ or -, at most 64, "
                f"and none of {', '.join(RESERVED)}, got {key!r}"
            )
    extent = _measure(item.metadata)
    if extent.depth > DEEPEST_METADATA:
        raise ValueError(f"metadata of item {item.id} must be nested at most {DEEPEST_METADATA} deep")
    if extent.keys > MOST_KEYS:
        raise ValueError(f"metadata of item {item.id} must have at most {MOST_KEYS} keys, got {extent.keys:,}")
    if extent.integer >= INTEGER_BOUND:
        raise ValueError(f"integers in the metadata of item {item.id} must fit into 64 bits")
    try:
        text = encode_metadata(item.metadata)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"metadata of item {item.id} must be valid JSON: {error}") from None
    if size > LARGEST_METADATA:
        raise ValueError(f"metadata of item {item.id} must be at most {LARGEST_METADATA:,} bytes of JSON, got {size:,}")
    return text


def stored_item(item_id: Any, path: Any, label: Any, metadata: Any) -> Item | None:
    """Make an item of a stored row.

    Args:
        item_id: The id as stored.
        path: The path as stored.
        label: The label as stored.
        metadata: The metadata as stored: JSON, or the values themselves.

    Returns:
        The item. None if the row is damaged; the log says so once.
    """
    try:
        check_ids([item_id])
        is_plain = isinstance(metadata, str) and metadata.isascii() and "\\u" not in metadata
        if isinstance(metadata, str):
            metadata = json.loads(metadata)
        if not isinstance(metadata, dict):
            raise ValueError("metadata are not an object")
        extent = _measure(metadata)
        if extent.depth > DEEPEST_METADATA:
            raise ValueError(f"metadata are nested deeper than {DEEPEST_METADATA}")
        if not extent.is_finite:
            raise ValueError("metadata have a number that is not finite")
        for text in (path, label):
            if not isinstance(text, str) or not is_storable(text):
                raise ValueError("path or label is not a text")
        if not is_plain:
            json.dumps(metadata, ensure_ascii=False).encode()  # fails for half a character
    except (TypeError, ValueError, RecursionError) as error:
        report_damage(f"item {item_id!r}", str(error) or type(error).__name__)
        return None
    return Item(item_id, path, label, metadata)


def report_damage(name: str, fault: str) -> None:
    """Log once that something stored is damaged and left out."""
    if name not in _reported and len(_reported) < MOST_REPORTED:
        _reported.add(name)
        logger.warning("the stored %s is damaged and left out: %s; lookalike verify checks all", name, fault)


def check_vectors(values: Any, dim: int, distance: str, count: int | None = None, what: str = "vectors") -> Vectors:
    """Check vectors and convert them.

    Args:
        values: Real numbers (n, D): numpy array of any layout and byte order, tensor or nested lists.
        dim: The expected D.
        distance: "cosine" or "l2"; the cosine needs vectors other than zero.
        count: The expected n. None accepts any.
        what: What they are called in errors.

    Returns:
        Contiguous fp32 vectors (n, D).

    Raises:
        TypeError: If they are not real numbers.
        ValueError: If shape or values are wrong.
    """
    numbers = as_numbers(what, values)
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(numbers, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != dim or (count is not None and len(vectors) != count):
        rows = "n" if count is None else count
        raise ValueError(f"{what} must have the shape ({rows}, {dim}), got {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError(f"{what} must be finite in fp32, got NaN, infinity or a number beyond 3.4e38")
    if distance == "cosine" and not vectors.any(axis=1).all():
        raise ValueError(f"{what} must not be zero: the cosine of a zero vector is not defined")
    return vectors


def is_storable(text: str) -> bool:
    """Return whether every backend can store a text: valid Unicode without zeros, of at most 4,096 bytes."""
    try:
        return len(text.encode()) <= LONGEST and "\0" not in text
    except UnicodeEncodeError:
        return False


class _Extent(NamedTuple):
    """Levels of metadata (at most one more than allowed), keys, the largest integer, whether all numbers are finite."""

    depth: int
    keys: int
    integer: int
    is_finite: bool


def _measure(metadata: dict[str, Any]) -> _Extent:
    depth = keys = integer = 0
    is_finite = True
    level: list[Any] = [metadata]
    while level and depth <= DEEPEST_METADATA:
        depth += 1
        inner: list[Any] = []
        for container in level:
            children = container
            if isinstance(container, dict):
                keys += len(container)
                children = container.values()
            for child in children:
                if isinstance(child, (dict, list, tuple)):
                    inner.append(child)
                elif isinstance(child, int):
                    integer = max(integer, abs(child))
                elif isinstance(child, float) and not isfinite(child):
                    is_finite = False
            if len(inner) > LARGEST_METADATA:  # each takes two bytes; one object may be listed many times
                return _Extent(DEEPEST_METADATA + 1, keys, integer, is_finite)
        level = inner
    return _Extent(depth, keys, integer, is_finite)
