"""Synchronise an index with a folder of pictures: add new ones, update changed ones, remove vanished ones.

A file is unchanged if its size and time are, or else if its content is. Batches are committed as they are embedded, so
an interrupted sync continues where it stopped. A new file whose content is indexed already takes over its vector: if
the old file is gone, it was moved or renamed, and keeps its metadata. Unreadable pictures are listed and leave the
index. Labels and metadata that came from a table stay until another table is given.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lookalike._util.checks import check_count
from lookalike.data.collection import Collection, list_collection
from lookalike.data.files import counted, raise_problems
from lookalike.data.names import as_text, from_text
from lookalike.data.object_storage import is_url
from lookalike.data.pictures import BrokenData, Problem, UnreadablePicture
from lookalike.index.base import FileRecord, Index
from lookalike.index.items import Item, check_items, file_id, file_item, url_item

BATCH = 64  # pictures per commit
DELETE_BATCH = 1000
BLOCK = 1 << 20
STAMP = re.compile(r"(?P<size>[0-9]+):-?[0-9]+:(?P<digest>[0-9a-f]{32})\*?")
LABEL_FROM_TABLE = "*"  # end of a stamp: the label came from a table, not from the class folder


@dataclass
class Changes:
    """What a sync did.

    Attributes:
        added: Number of new pictures.
        updated: Number of pictures with new content, label or metadata.
        moved: Number of pictures with a new path and the same content.
        removed: Number of pictures that left the index.
        unchanged: Number of other pictures.
        unreadable: Pictures that were left out, and why.
        notes: Further remarks, one line each.
    """

    added: int = 0
    updated: int = 0
    moved: int = 0
    removed: int = 0
    unchanged: int = 0
    unreadable: list[Problem] = field(default_factory=list)
    notes: tuple[str, ...] = ()


def sync(
    idx: Index,
    model: Any,
    folder: str | Path,
    *,
    progress: Callable[[int], None] = lambda _: None,
    total: Callable[[int], None] = lambda _: None,
    before_embedding: Callable[[int], None] = lambda _: None,
    strict: bool = False,
    batch: int = BATCH,
    metadata: dict[str, dict[str, Any]] | None = None,
    follow_symlinks: bool = True,
) -> Changes:
    """Make the index hold the pictures below a folder as they are now.

    Args:
        idx: The index.
        model: The ``TrainedModel`` that the index was made with.
        folder: The folder.
        progress: Called after every batch with its number of pictures. It may raise to stop; another sync continues.
        total: Called once with the number of pictures. It may raise, too.
        before_embedding: Called once if a picture must be embedded, with the number of pictures that may follow.
        strict: Raise at the first unreadable picture.
        batch: Pictures per commit.
        metadata: Metadata by path within the folder, e.g. {"wren/1.jpg": {"year": 2020}}. A "label" in it overrides
            the class folder. It replaces what was given before, even if it is empty. None keeps labels and metadata.
        follow_symlinks: Follow symbolic links below the folder. False leaves them out.

    Returns:
        What has changed.

    Raises:
        ValueError: If the folder has no pictures, or ``metadata`` name none of them.
        WrongModel: If the model is another one.
        BrokenData: With ``strict``, if a picture is unreadable.
    """
    check_count("batch", batch)
    idx.check_model(model)
    root = Path(folder).expanduser().absolute()
    if not root.is_dir():
        raise ValueError(f"{folder} is not a folder of pictures")
    changes = Changes()
    with idx.writing():
        pictures = make_items(list_collection(root, follow_symlinks=follow_symlinks), metadata or {}, changes)
        check_items([picture.item for picture in pictures])
        if strict:
            raise_problems(str(folder), changes.unreadable)
        root_text = as_text(str(root))
        records = idx.files_below(root_text)
        if metadata is None:
            pictures = [with_stored_metadata(picture, records.get(picture.item.id)) for picture in pictures]
        unlisted_folders = [as_text(str(root / problem.name)) for problem in changes.unreadable]
        total(len(pictures))
        idx.add_folder(root_text)
        work = _Sync(idx, model, strict, changes, records, before_embedding)
        for start in range(0, len(pictures), batch):
            pictures_of_batch = pictures[start : start + batch]
            work.run_batch(pictures_of_batch, len(pictures) - start)
            progress(len(pictures_of_batch))
        changes.removed += delete_items(idx, vanished(records, pictures, unlisted_folders))
        idx.save()
    return changes


class Pruned(NamedTuple):
    """What ``prune`` did.

    Attributes:
        paths: Files that are gone and have left the index.
        missing_folders: Indexed folders that are missing as a whole; their items stay.
    """

    paths: list[str]
    missing_folders: list[str]


def prune(idx: Index) -> Pruned:
    """Remove items whose files are gone.

    The items of a folder that is missing as a whole stay: its disk may not be mounted. So do those of object storage.
    """
    gone: dict[str, str] = {}
    missing_folders = []
    with idx.writing():
        for folder in idx.about.folders:
            if is_url(folder):
                continue
            if not Path(from_text(folder)).is_dir():
                missing_folders.append(folder)
                continue
            for item_id, record in idx.files_below(folder).items():
                if not os.path.lexists(from_text(record.path)):
                    gone[item_id] = record.path
        delete_items(idx, list(gone))
        idx.save()
    return Pruned(sorted(gone.values()), missing_folders)


def remove(idx: Index, pattern: str) -> list[str]:
    """Remove items by their path. Files are never touched; the next sync adds those that exist.

    Args:
        idx: The index.
        pattern: A shell pattern for whole paths or file names, such as ``*/private/*`` or ``*.gif``.

    Returns:
        The paths of the removed items.

    Raises:
        ValueError: If no item matches.
    """
    matches = {}
    with idx.writing():
        for item in idx.items():
            name = item.path.rpartition("/")[2]
            if item.path and (fnmatchcase(item.path, pattern) or fnmatchcase(name, pattern)):
                matches[item.id] = item.path
        if not matches:
            raise ValueError(f"no picture of {idx.path} matches {pattern!r}")
        delete_items(idx, list(matches))
        idx.save()
    return sorted(matches.values())


def delete_items(idx: Index, ids: list[str]) -> int:
    """Delete items in batches; returns how many existed."""
    removed = 0
    for start in range(0, len(ids), DELETE_BATCH):
        removed += idx.delete(ids[start : start + DELETE_BATCH])
    return removed


# ---- listing


class IndexedPicture(NamedTuple):
    """A picture of the folder.

    Attributes:
        item: What the index holds of it.
        label_from_table: Whether its label came from a table, not from the class folder.
    """

    item: Item
    label_from_table: bool

    @property
    def file(self) -> Path:
        """The file, if it is on this machine."""
        return self.item.file


def make_items(collection: Collection, metadata: dict[str, dict[str, Any]], changes: Changes) -> list[IndexedPicture]:
    """Make items of the pictures of a collection.

    Args:
        collection: The pictures, below a folder or a URL.
        metadata: As for ``sync``.
        changes: Receives problems and notes.

    Raises:
        ValueError: If the collection has no pictures, or ``metadata`` name none of them.
    """
    changes.unreadable = list(collection.unreadable)
    changes.notes = collection.notes
    if not collection.names:
        raise ValueError(
            f"{collection.base} has no pictures, so nothing was changed: is a disk not mounted? "
            "To empty an index, delete its folder"
        )
    unknown = sorted(set(metadata) - set(collection.names))
    if unknown and len(unknown) == len(metadata):
        raise ValueError(f"the metadata name no picture that is in {collection.base}; the first name: {unknown[0]!r}")
    if unknown:
        note = f"{counted(len(unknown), 'row')} of the metadata without a picture; the first: {unknown[0]}"
        changes.notes = (*changes.notes, note)
    in_storage = is_url(collection.base)
    pictures = []
    for name, label, split in zip(collection.names, collection.labels, collection.splits, strict=True):
        values: dict[str, Any] = {}
        if split is not None:
            values["split"] = split
        values.update(metadata.get(name, {}))
        label_from_table = "label" in values
        label = str(values.pop("label", label))
        if in_storage:
            item = url_item(f"{collection.base.rstrip('/')}/{name}", label, values)
        else:
            item = file_item(os.path.join(collection.base, name), label, values)  # noqa: PTH118 - many files
        pictures.append(IndexedPicture(item, label_from_table))
    return pictures


def with_stored_metadata(picture: IndexedPicture, record: FileRecord | None) -> IndexedPicture:
    """Keep the label from an earlier table, and metadata, of a picture that the index already has."""
    if record is None:
        return picture
    item = picture.item._replace(metadata={**picture.item.metadata, **record.metadata})
    label_from_table = record.stamp.endswith(LABEL_FROM_TABLE)
    if label_from_table:
        item = item._replace(label=record.label)
    return picture._replace(item=item, label_from_table=label_from_table)


def vanished(records: dict[str, FileRecord], pictures: list[IndexedPicture], unlisted_folders: list[str]) -> list[str]:
    """Return the ids of indexed files that are gone. Files in folders that could not be listed may still be there."""
    present = {picture.item.id for picture in pictures}
    prefixes = tuple(f"{folder}/" for folder in unlisted_folders)
    vanished = []
    for item_id, record in records.items():
        if item_id not in present and not record.path.startswith(prefixes):
            vanished.append(item_id)
    return vanished


# ---- updating


class _Sync:
    """Updates the index batch by batch; ``records`` are what it held before, by id."""

    def __init__(
        self,
        idx: Index,
        model: Any,
        strict: bool,
        changes: Changes,
        records: dict[str, FileRecord],
        before_embedding: Callable[[int], None],
    ) -> None:
        self.before_embedding: Callable[[int], None] | None = before_embedding
        self.idx = idx
        self.model = model
        self.strict = strict
        self.changes = changes
        self.records = records
        self._indexed: dict[str, list[FileRecord]] | None = None  # records of all folders by digest

    def _take_over(self, picture: IndexedPicture, stamp: str) -> bool:
        """Add a new picture with the vector of a file of the same content, if the index has one."""
        if self._indexed is None:
            self._indexed = {}
            for folder in self.idx.about.folders:
                for record in self.idx.files_below(folder).values():
                    self._indexed.setdefault(digest_of(record.stamp), []).append(record)
        digest = digest_of(stamp)
        records = self._indexed.setdefault(digest, [])
        records.sort(key=lambda record: Path(from_text(record.path)).exists())  # moved files first
        for record in records:
            old_id = file_id(from_text(record.path))
            if digest_of(self.idx.stamps([old_id]).get(old_id, "")) != digest:
                continue  # another content meanwhile
            is_moved = not Path(from_text(record.path)).exists()
            if is_moved:
                picture = with_stored_metadata(picture, record)
                stamp = stamp.removesuffix(LABEL_FROM_TABLE) + (LABEL_FROM_TABLE if picture.label_from_table else "")
            others = {}
            for fingerprint, by_id in self.idx.other_vectors([old_id]).items():
                if old_id in by_id:
                    others[fingerprint] = {picture.item.id: by_id[old_id]}
            self.idx.add([picture.item], self.idx.vectors([old_id]), [stamp], others)
            records.append(FileRecord(picture.item.path, picture.item.label, picture.item.metadata, stamp))
            if is_moved:
                records.remove(record)
                self.idx.delete([old_id])
                self.changes.moved += 1
            else:
                self.changes.added += 1
            return True
        return False

    def run_batch(self, pictures: list[IndexedPicture], remaining: int) -> None:
        """Compare a batch of the ``remaining`` pictures with the index, embed those that need it, and commit."""
        new_stamps: dict[str, str] = {}  # of files whose time alone has changed, by id
        relabelled: list[Item] = []  # same content, new label or metadata
        relabelled_stamps: list[str] = []
        to_embed: list[IndexedPicture] = []
        stamps: dict[str, str] = {}  # of ``to_embed``, by id
        for picture in pictures:
            item = picture.item
            record = self.records.get(item.id)
            try:
                stamp, same_content = _compare(picture, record)
            except OSError as error:
                self._leave_out(picture, error.strerror or str(error))
                continue
            if record is None and self._take_over(picture, stamp):
                continue
            if record is None or not same_content:
                to_embed.append(picture)
                stamps[item.id] = stamp
            elif (record.label, record.metadata) != (item.label, item.metadata):
                relabelled.append(item)
                relabelled_stamps.append(stamp)
            else:
                self.changes.unchanged += 1
                if stamp != record.stamp:
                    new_stamps[item.id] = stamp
        if new_stamps:
            self.idx.restamp(new_stamps)
        if relabelled:
            ids = [item.id for item in relabelled]
            self.idx.add(relabelled, self.idx.vectors(ids), relabelled_stamps, self.idx.other_vectors(ids))
            self.changes.updated += len(relabelled)
        if to_embed and self.before_embedding is not None:
            self.before_embedding(remaining)
            self.before_embedding = None
        self._embed(to_embed, stamps)

    def _embed(self, pictures: list[IndexedPicture], stamps: dict[str, str]) -> None:
        """Embed and add pictures; an unreadable one is left out and the rest tried again."""
        while pictures:
            try:
                vectors = self.model.embed([picture.file for picture in pictures])
            except UnreadablePicture as failure:
                unreadable = [picture for picture in pictures if str(picture.file) == failure.name]
                if not unreadable:
                    raise
                self._leave_out(unreadable[0], failure.reason)
                pictures = [picture for picture in pictures if picture is not unreadable[0]]
                continue
            items = [picture.item for picture in pictures]
            added = self.idx.add(items, vectors, [stamps[item.id] for item in items])
            self.changes.added += added
            self.changes.updated += len(items) - added
            return

    def _leave_out(self, picture: IndexedPicture, reason: str) -> None:
        problem = Problem(str(picture.file), reason)
        if self.strict:
            raise BrokenData(f"a picture cannot be used: {problem}")
        self.changes.unreadable.append(problem)
        if picture.item.id in self.records:
            self.changes.removed += self.idx.delete([picture.item.id])


def digest_of(stamp: str) -> str:
    """Return the digest of the content in a stamp."""
    return stamp.removesuffix(LABEL_FROM_TABLE).rpartition(":")[2]


def _compare(picture: IndexedPicture, record: FileRecord | None) -> tuple[str, bool]:
    """The stamp of a file, "size:time:digest", and whether its content is that of the record."""
    status = picture.file.stat()
    size_and_time = f"{status.st_size}:{status.st_mtime_ns}"
    mark = LABEL_FROM_TABLE if picture.label_from_table else ""
    recorded_size_and_time = recorded_digest = ""
    if record is not None:
        recorded_size_and_time, _, recorded_digest = record.stamp.removesuffix(LABEL_FROM_TABLE).rpartition(":")
    if size_and_time == recorded_size_and_time:
        return f"{size_and_time}:{recorded_digest}{mark}", True
    with picture.file.open("rb") as content:
        digest = _digest(content)
    return f"{size_and_time}:{digest}{mark}", recorded_digest == digest


# ---- serving


class ChangedPicture(UnreadablePicture):
    """A file has another content than when it was indexed."""


def check_unchanged(file: BinaryIO, stamp: str) -> None:
    """Check that a file has the content that was indexed: its size, then a digest of all bytes.

    The time alone proves nothing: it changes when a file is copied, and it can be set.

    Args:
        file: The open file.
        stamp: The stamp from the index. Items that were added without one are not checked.

    Raises:
        ChangedPicture: If the content differs.
    """
    match = STAMP.fullmatch(stamp)
    if match is None:
        return
    size = os.fstat(file.fileno()).st_size
    if size != int(match["size"]) or _digest(file) != match["digest"]:
        raise ChangedPicture(str(file.name), "changed since it was indexed")


def is_unchanged(path: Path, stamp: str) -> bool:
    """Whether a file has the content that was indexed: the same size and time, or else the same digest.

    Args:
        path: The file.
        stamp: The stamp from the index. Files of items that were added without one count as unchanged.

    Raises:
        OSError: If the file is missing or cannot be read.
    """
    status = path.stat()
    if stamp.startswith(f"{status.st_size}:{status.st_mtime_ns}:"):
        return True
    with path.open("rb") as file:
        try:
            check_unchanged(file, stamp)
        except ChangedPicture:
            return False
    return True


def content_stamp(content: bytes) -> str:
    """Return the stamp of a content without a file of its own, for ``check_unchanged``."""
    return f"{len(content)}:0:{_digest(BytesIO(content))}"


def _digest(file: BinaryIO) -> str:
    digest = blake2b(digest_size=16)
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()
