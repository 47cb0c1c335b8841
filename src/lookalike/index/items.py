"""What an index holds, and what a search gives back."""

import json
import os
import re
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.data.names import as_text, from_text

ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
RESERVED = ("id", "path", "label")  # what a filter means by these words
LONGEST = 4096  # bytes of a label or path
LARGEST_METADATA = 32_768  # bytes of JSON

Vectors = NDArray[np.float32]


class Item(NamedTuple):
    """One picture. ``path`` is a text (``lookalike.data.names``): absolute, or "" for what is no file of its own."""

    id: str
    path: str
    label: str = ""
    metadata: dict[str, Any] = {}  # noqa: RUF012 - nobody writes to it; any JSON, by names as KEY has them

    @property
    def file(self) -> Path:
        """The path to open it by."""
        return Path(from_text(self.path))


class Hit(NamedTuple):
    """``distance`` is 1 - cosine, or the Euclidean distance, by the model."""

    item: Item
    distance: float


def file_id(path: str | Path) -> str:
    """The id of a file: the same for the same place, whoever asks.

    >>> file_id("/pictures/wren.jpg") == file_id("/pictures/garden/../wren.jpg")
    True
    """
    absolute = os.path.abspath(path)  # noqa: PTH100 - Path.resolve would follow links, Path.absolute keeps ..
    return blake2b(os.fsencode(absolute), digest_size=16).hexdigest()


def file_item(path: str | Path, label: str = "", metadata: dict[str, Any] | None = None) -> Item:
    absolute = os.path.abspath(path)  # noqa: PTH100
    return Item(file_id(absolute), as_text(absolute), as_text(label), metadata or {})


def check_ids(ids: Sequence[str]) -> None:
    if isinstance(ids, str):
        raise TypeError(f"ids must be a list of ids, got the single text {ids!r}")
    for each in ids:
        if not isinstance(each, str) or not ID.fullmatch(each):
            raise ValueError(f"an id must be 1 to 64 letters, digits or any of ._:- , got {each!r}")


def check_items(items: Sequence[Item]) -> None:
    """Everything that one of the backends could choke on later."""
    check_ids([item.id for item in items])
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise ValueError(f"every item must have an id of its own, got {item.id} twice")
        seen.add(item.id)
        for name, text in (("path", item.path), ("label", item.label)):
            if not isinstance(text, str) or not _writable(text):
                raise ValueError(f"{name} of item {item.id} must be a text of at most {LONGEST:,} bytes, got {text!r}")
        metadata_as_json(item)


def metadata_as_json(item: Item) -> str:
    """
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
    try:
        text = json.dumps(item.metadata, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"metadata of item {item.id} must be what JSON holds: {error}") from None
    if size > LARGEST_METADATA:
        raise ValueError(f"metadata of item {item.id} must be at most {LARGEST_METADATA:,} bytes of JSON, got {size:,}")
    return text


def check_vectors(values: Any, dim: int, distance: str, count: int | None = None, what: str = "vectors") -> Vectors:
    """(n, D) fp32, contiguous, finite and, where angles are measured, none of length zero."""
    vectors = np.ascontiguousarray(values, dtype=np.float32)
    rows = "n" if count is None else str(count)
    if vectors.ndim != 2 or vectors.shape[1] != dim or (count is not None and len(vectors) != count):
        raise ValueError(f"{what} must have the shape ({rows}, {dim}), got {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError(f"{what} must be finite, got NaN or infinity")
    if distance == "cosine" and len(vectors) and not np.linalg.norm(vectors, axis=1).all():
        raise ValueError(f"{what} must not be zero: the cosine of a zero vector is not defined")
    return vectors


def _writable(text: str) -> bool:
    try:
        return len(text.encode()) <= LONGEST and "\0" not in text
    except UnicodeEncodeError:
        return False
