"""Synchronise an index with a folder of pictures: add new ones, update changed ones, remove vanished ones.

A file is unchanged if its size and time are, or else if its content is. Batches are committed as they are embedded, so
an interrupted sync continues where it stopped. Unreadable pictures are listed and leave the index. Labels and metadata
that came from a table stay until another table is given.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lookalike import data
from lookalike._util.checks import check_count
from lookalike.data import datasets
from lookalike.data.files import counted, raise_problems
from lookalike.data.folder import SPLIT_NAMES, list_pictures
from lookalike.data.names import as_text
from lookalike.data.pictures import BrokenData, Problem, UnreadablePicture
from lookalike.index.base import FileRecord, Index
from lookalike.index.items import Item, check_items, file_item

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
        removed: Number of pictures that left the index.
        unchanged: Number of other pictures.
        unreadable: Pictures that were left out, and why.
        notes: Further remarks, one line each.
    """

    added: int = 0
    updated: int = 0
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
        pictures = _list_pictures(root, metadata or {}, changes, follow_symlinks)
        check_items([picture.item for picture in pictures])
        if strict:
            raise_problems(str(folder), changes.unreadable)
        root_text = as_text(str(root))
        records = idx.files_below(root_text)
        if metadata is None:
            pictures = [_with_stored_metadata(picture, records.get(picture.item.id)) for picture in pictures]
        unlisted_folders = [as_text(str(root / problem.name)) for problem in changes.unreadable]
        total(len(pictures))
        idx.add_folder(root_text)
        work = _Sync(idx, model, strict, changes, records)
        for start in range(0, len(pictures), batch):
            pictures_of_batch = pictures[start : start + batch]
            work.run_batch(pictures_of_batch)
            progress(len(pictures_of_batch))
        vanished = _vanished(records, pictures, unlisted_folders)
        for start in range(0, len(vanished), DELETE_BATCH):
            changes.removed += idx.delete(vanished[start : start + DELETE_BATCH])
        idx.save()
    return changes


# ---- listing


class _Picture(NamedTuple):
    """A picture in the folder."""

    item: Item
    file: Path
    label_from_table: bool


class _Listing(NamedTuple):
    """Names relative to ``base``, with labels and splits of the same length."""

    base: Path
    names: list[str]
    labels: list[str]
    splits: list[str | None]


def _list_pictures(
    root: Path, metadata: dict[str, dict[str, Any]], changes: Changes, follow_symlinks: bool
) -> list[_Picture]:
    if datasets.recognise(root) is not None:
        listing = _list_dataset(root, follow_symlinks)
    else:
        listing = _list_folder(root, changes, follow_symlinks)
    if not listing.names:
        raise ValueError(
            f"{root} has no pictures, so nothing was changed: is a disk not mounted? "
            "To empty an index, delete its folder"
        )
    unknown = sorted(set(metadata) - set(listing.names))
    if unknown and len(unknown) == len(metadata):
        raise ValueError(f"the metadata name no picture that is in {root}; the first name: {unknown[0]!r}")
    if unknown:
        note = f"{counted(len(unknown), 'row')} of the metadata without a picture; the first: {unknown[0]}"
        changes.notes = (*changes.notes, note)
    pictures = []
    for name, label, split in zip(listing.names, listing.labels, listing.splits, strict=True):
        values: dict[str, Any] = {}
        if split is not None:
            values["split"] = split
        values.update(metadata.get(name, {}))
        label_from_table = "label" in values
        label = str(values.pop("label", label))
        file = listing.base / name
        pictures.append(_Picture(file_item(file, label, values), file, label_from_table))
    return pictures


def _list_dataset(root: Path, follow_symlinks: bool) -> _Listing:
    """List a well-known data set, such as CUB, in its official layout."""
    pictures = data.load(str(root), check=False)
    listing = _Listing(pictures.root or root, [], [], [])
    for i, name in enumerate(pictures.names):
        if not follow_symlinks and _is_linked(root, listing.base / name):
            continue
        listing.names.append(name)
        listing.labels.append(pictures.classes[pictures.labels[i]])
        listing.splits.append(None if pictures.splits is None else str(pictures.splits[i]))
    return listing


def _is_linked(root: Path, file: Path) -> bool:
    """Whether the file or a folder between it and ``root`` is a symbolic link."""
    relative = file.relative_to(root)
    folders = [root.joinpath(*relative.parts[:depth]) for depth in range(1, len(relative.parts) + 1)]
    return any(map(Path.is_symlink, folders))


def _list_folder(root: Path, changes: Changes, follow_symlinks: bool) -> _Listing:
    """List a folder; class folders are labels, and folders named train or test above them are splits."""
    listing = list_pictures(root, follow_symlinks=follow_symlinks)
    changes.unreadable = list(listing.unreadable)
    changes.notes = listing.notes()
    paths = [name.split("/") for name in listing.pictures]
    has_splits = _has_split_folders(paths)
    labels: list[str] = []
    splits: list[str | None] = []
    for path in paths:
        folders = path[:-1]
        split = None
        if has_splits and folders:
            split = SPLIT_NAMES[folders.pop(0).lower()]
        labels.append(folders[0] if folders else "")
        splits.append(split)
    return _Listing(root, listing.pictures, labels, splits)


def _has_split_folders(paths: list[list[str]]) -> bool:
    """Whether all top folders are named like splits, and there are class folders in them."""
    top_folders = {path[0].lower() for path in paths if len(path) > 1}
    has_class_folders = any(len(path) > 2 for path in paths)
    return bool(top_folders) and top_folders <= set(SPLIT_NAMES) and has_class_folders


def _with_stored_metadata(picture: _Picture, record: FileRecord | None) -> _Picture:
    """Keep the label from an earlier table, and metadata, of a picture that the index already has."""
    if record is None:
        return picture
    item = picture.item._replace(metadata={**picture.item.metadata, **record.metadata})
    label_from_table = record.stamp.endswith(LABEL_FROM_TABLE)
    if label_from_table:
        item = item._replace(label=record.label)
    return picture._replace(item=item, label_from_table=label_from_table)


def _vanished(records: dict[str, FileRecord], pictures: list[_Picture], unlisted_folders: list[str]) -> list[str]:
    """Ids of indexed files that are gone. Files in folders that could not be listed may still be there."""
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

    def __init__(self, idx: Index, model: Any, strict: bool, changes: Changes, records: dict[str, FileRecord]) -> None:
        self.idx = idx
        self.model = model
        self.strict = strict
        self.changes = changes
        self.records = records

    def run_batch(self, pictures: list[_Picture]) -> None:
        """Compare a batch of pictures with the index, embed those that need it, and commit."""
        new_stamps: dict[str, str] = {}  # of files whose time alone has changed, by id
        relabelled: list[Item] = []  # same content, new label or metadata
        relabelled_stamps: list[str] = []
        to_embed: list[_Picture] = []
        stamps: dict[str, str] = {}  # of ``to_embed``, by id
        for picture in pictures:
            item = picture.item
            record = self.records.get(item.id)
            try:
                stamp, same_content = _compare(picture, record)
            except OSError as error:
                self._leave_out(picture, error.strerror or str(error))
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
            vectors = self.idx.vectors([item.id for item in relabelled])
            self.idx.add(relabelled, vectors, relabelled_stamps)
            self.changes.updated += len(relabelled)
        self._embed(to_embed, stamps)

    def _embed(self, pictures: list[_Picture], stamps: dict[str, str]) -> None:
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

    def _leave_out(self, picture: _Picture, reason: str) -> None:
        problem = Problem(str(picture.file), reason)
        if self.strict:
            raise BrokenData(f"a picture cannot be used: {problem}")
        self.changes.unreadable.append(problem)
        if picture.item.id in self.records:
            self.changes.removed += self.idx.delete([picture.item.id])


def _compare(picture: _Picture, record: FileRecord | None) -> tuple[str, bool]:
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


def _digest(file: BinaryIO) -> str:
    digest = blake2b(digest_size=16)
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()
