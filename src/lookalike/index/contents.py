"""Pictures of items: their files, splits and contents.

A content is the hash of the bytes of a file, which stays when the file is moved or copied. It comes from the stamp of
an item, or else from its file. An uploaded picture has the hash of what was stored.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lookalike._util.checksums import hash_bytes
from lookalike.data.folder import SPLIT_NAMES
from lookalike.data.hash_cache import hash_file
from lookalike.index.base import Index
from lookalike.index.folder import STAMP
from lookalike.index.items import ID, Item, is_storable
from lookalike.index.storage import UPLOADS

CONTENT = re.compile(r"[0-9a-f]{32}")


class MarkedPicture(NamedTuple):
    """A picture that somebody judged.

    Attributes:
        content: Hash of its bytes; this says which picture it is.
        id: Id of its item when it was judged, for display; empty for a picture that was not in the index.
        path: Path of its file then; empty for an upload.
    """

    content: str
    id: str = ""
    path: str = ""


def file_of(idx: Index, item: Item) -> Path:
    """Return the file of an item's picture."""
    if item.path:
        return item.file
    return idx.path.absolute() / UPLOADS / f"{item.id}.jpg"


def split_of(item: Item) -> str:
    """Return the split in the metadata of an item: "train", "validation" or "test"; empty if there is none."""
    return SPLIT_NAMES.get(str(item.metadata.get("split", "")).lower(), "")


def marked_pictures(idx: Index, ids: Sequence[str]) -> list[MarkedPicture]:
    """Identify items by their content.

    Args:
        idx: The index.
        ids: Ids of items.

    Returns:
        The pictures in this order.

    Raises:
        KeyError: If an item is missing.
    """
    items = []
    for item_id, item in zip(ids, idx.get(ids), strict=True):
        if item is None:
            raise KeyError(f"there is no item {item_id}")
        items.append(item)
    return _identify(idx, items)


def locate(idx: Index, pictures: Sequence[MarkedPicture]) -> dict[str, str]:
    """Find the items that have the contents of pictures now.

    Args:
        idx: The index.
        pictures: The pictures. Their ids are tried first; a picture that was moved is found by its content. An upload
            is found by its id, which is a hash of the uploaded bytes.

    Returns:
        Content -> id of an item, for pictures that are in the index.
    """
    wanted = {picture.content for picture in pictures}
    hints = list(dict.fromkeys(picture.id for picture in pictures if picture.id))
    existing = {item.id: item for item in idx.get(hints) if item is not None}
    located: dict[str, str] = {}
    for picture in pictures:
        if picture.id in existing and not picture.path and not existing[picture.id].path:
            located.setdefault(picture.content, picture.id)
    for picture in _identify(idx, list(existing.values())):
        if picture.content in wanted:
            located.setdefault(picture.content, picture.id)
    if wanted - located.keys():
        for item_id, stamp in sorted(idx.all_stamps().items()):
            content = content_of_stamp(stamp)
            if content in wanted:
                located.setdefault(content, item_id)
    return located


def check_content(content: str) -> None:
    """Raise ValueError if a text is not the hash of a content."""
    if not isinstance(content, str) or not CONTENT.fullmatch(content):
        raise ValueError(f"the hash of a content has 32 hexadecimal digits, got {content!r}")


def check_picture(picture: MarkedPicture) -> None:
    """Raise ValueError if a field of a picture is invalid."""
    check_content(picture.content)
    if picture.id and not ID.fullmatch(picture.id):
        raise ValueError(f"an id must be 1 to 64 letters, digits or any of ._:- , got {picture.id!r}")
    if not is_storable(picture.path):
        raise ValueError(f"a path must be a text that can be stored, got {picture.path!r}")


def content_of_stamp(stamp: str) -> str:
    """Return the hash of the content in a stamp; empty if the stamp has none.

    Examples:
        >>> content_of_stamp("4:17:00112233445566778899aabbccddeeff*"), content_of_stamp("")
        ('00112233445566778899aabbccddeeff', '')
    """
    match = STAMP.fullmatch(stamp)
    return match["digest"] if match is not None else ""


def _identify(idx: Index, items: Sequence[Item]) -> list[MarkedPicture]:
    stamps = idx.stamps([item.id for item in items])
    pictures = []
    for item in items:
        content = content_of_stamp(stamps.get(item.id, "")) or _content_of_item(item)
        pictures.append(MarkedPicture(content, item.id, item.path))
    return pictures


def _content_of_item(item: Item) -> str:
    """The hash of the file of an item without a stamp; without a file, one of its id."""
    if item.path:
        try:
            return hash_file(item.file)
        except OSError:
            pass
    return hash_bytes(f"item {item.id}".encode())
