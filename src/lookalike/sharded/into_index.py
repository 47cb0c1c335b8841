"""Brings an index up to date with a large collection; does what ``index.sync`` does, in shards.

A folder of Parquet files may be written in the same pass. Every shard is committed to the index first; its rows are
then copied from there. So whatever a killed process had computed is in the index, and the next one copies the rows
that the folder still lacks.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lookalike._util.files import check_output_folder
from lookalike._util.folder_lock import FolderLock
from lookalike.data.collection import SizedCollection
from lookalike.data.files import raise_problems
from lookalike.data.names import as_text, from_text
from lookalike.data.object_storage import is_url
from lookalike.data.pictures import BrokenData, Problem
from lookalike.executors import Executor
from lookalike.index.base import FileRecord, Index
from lookalike.index.folder import (
    LABEL_FROM_TABLE,
    Changes,
    IndexedPicture,
    delete_items,
    digest_of,
    make_items,
    vanished,
    with_stored_metadata,
)
from lookalike.index.items import Item, Vectors, check_items, file_id
from lookalike.inference.model import TrainedModel
from lookalike.sharded.coordinator import LARGEST_SHARD, embed_files, prepare
from lookalike.sharded.into_parquet import ABOUT, VectorFolder, describe
from lookalike.sharded.worker import File, ShardResult

RELABELLED_AT_ONCE = 1000
Tick = Callable[[int], None]


class Indexed(NamedTuple):
    """What ``index_collection`` did.

    Attributes:
        changes: As ``index.sync`` counts them.
        computed: Contents that were computed; the others were in the index, or equal to another one.
        rows: Pictures in the folder of Parquet files, if there is one.
    """

    changes: Changes
    computed: int
    rows: int = 0


def index_collection(
    idx: Index,
    model: TrainedModel,
    source: str,
    executor: Executor,
    *,
    shard_size: int | None = None,
    strict: bool = False,
    metadata: dict[str, dict[str, object]] | None = None,
    follow_symlinks: bool = True,
    device: str | None = None,
    parquet: str | Path | None = None,
    total: Callable[[int], Tick] = lambda _: lambda _: None,
) -> Indexed:
    """Make the index hold the pictures of a collection as they are now. Every shard is committed when it is done.

    Args:
        idx: The index.
        model: The model that it was made with.
        source: A folder of pictures, or a URL that fsspec opens, such as ``s3://bucket/birds``.
        executor: Where shards are computed. This process alone writes into the index.
        shard_size: Pictures of a shard; None: by their number.
        strict: Raise if a picture cannot be read, instead of leaving it out.
        metadata: As for ``index.sync``.
        follow_symlinks: As for ``index.sync``.
        device: Where to compute; None: on a GPU if there is one.
        parquet: A folder for the same vectors in Parquet files, as ``embed_collection`` writes them; vectors that it
            has already are not computed again.
        total: As for ``embed_collection``.

    Returns:
        What has changed.

    Raises:
        ValueError: If the source cannot be listed, nodes differ, or ``parquet`` holds something else.
        WrongModel: If the model is another one.
        IndexInUse: If another process writes into the index.
        FolderInUse: If another process writes into the folder of Parquet files.
        BrokenData: If there are no pictures, or with ``strict`` if one cannot be read.
        StorageError: If the object storage cannot be used.
    """
    idx.check_model(model)
    root = source
    if not is_url(source):
        root = str(Path(source).expanduser().absolute())
    about = describe(root, model)
    folder = None
    with idx.writing(), ExitStack() as stack:
        if parquet is not None:
            folder = VectorFolder(Path(parquet))
            check_output_folder(folder.path, "folder of vectors", [ABOUT], "--parquet")
            stack.enter_context(FolderLock(folder.path))
            folder.check(about)
        work = prepare(root, model, executor, shard_size=shard_size, follow_symlinks=follow_symlinks, device=device)
        changes = Changes()
        pictures = make_items(work.collection.pictures, metadata or {}, changes)
        check_items([picture.item for picture in pictures])
        if strict:
            raise_problems(root, changes.unreadable)
        records = idx.files_below(as_text(root))
        if metadata is None:
            pictures = [with_stored_metadata(picture, records.get(picture.item.id)) for picture in pictures]
        unlisted_folders = [as_text(f"{root}/{problem.name}") for problem in changes.unreadable]
        idx.add_folder(as_text(root))
        writer = _Writer(idx, work.collection, pictures, records, changes, strict, folder)
        files = writer.compare()
        if folder is not None:
            folder.begin(about)
            writer.copied, _ = folder.drop_outdated(work.collection)
            writer.copy_unchanged(files)
        tick = total(len(pictures))
        tick(len(pictures) - len(files))
        for result in embed_files(work, files, writer.known({file.size for file in files}), tick):
            writer.commit(result)
        changes.removed += delete_items(idx, vanished(records, pictures, unlisted_folders))
        idx.save()
        rows = 0
        if folder is not None:
            folder.finish(about)
            rows = folder.count()
    return Indexed(changes, writer.computed, rows)


class _Writer:
    """Compares a collection with the index, and commits shards."""

    def __init__(
        self,
        idx: Index,
        collection: SizedCollection,
        pictures: list[IndexedPicture],
        records: dict[str, FileRecord],
        changes: Changes,
        strict: bool,
        folder: VectorFolder | None,
    ) -> None:
        self.idx, self.collection, self.pictures, self.records = idx, collection, pictures, records
        self.changes, self.strict, self.folder = changes, strict, folder
        self.computed = 0
        self.copied: set[str] = set()  # paths of pictures that the folder has
        self._present = {picture.item.id for picture in pictures}
        self._owners: dict[str, str] = {}  # by digest, the id of an item that has the vector
        self._digests: dict[str, str] = {}  # the reverse
        self._gone: dict[str, FileRecord] = {}  # items whose files are gone, by id
        self._kept: dict[str, Vectors] = {}  # by digest, vectors that their owners have lost

    def compare(self) -> list[File]:
        """Update what needs no vector, and return the files whose content is new or may have changed."""
        files: list[File] = []
        relabelled: list[tuple[Item, str]] = []
        for number, picture in enumerate(self.pictures):
            item = picture.item
            record = self.records.get(item.id)
            size = self.collection.sizes[number]
            if record is None or not self._has_stamp(number, record):
                files.append(File(number, self.collection.pictures.names[number], size))
            elif (record.label, record.metadata) != (item.label, item.metadata):
                relabelled.append((item, self._stamp(number, digest_of(record.stamp))))
            else:
                self.changes.unchanged += 1
        for start in range(0, len(relabelled), RELABELLED_AT_ONCE):
            some = relabelled[start : start + RELABELLED_AT_ONCE]
            items = [item for item, _ in some]
            ids = [item.id for item in items]
            stamps = [stamp for _, stamp in some]
            self.idx.add(items, self.idx.vectors(ids), stamps, self.idx.other_vectors(ids))
            self.changes.updated += len(items)
        return files

    def known(self, sizes: set[int]) -> dict[int, list[str]]:
        """Return the digests of indexed contents of these sizes, by size."""
        digests: dict[int, list[str]] = {}
        if not sizes:
            return digests
        if self.folder is not None:
            digests.update(self.folder.known(sizes))
        for folder in self.idx.about.folders:
            for item_id, record in self.idx.files_below(folder).items():
                size = record.stamp.partition(":")[0]
                if not size.isdecimal() or int(size) not in sizes:
                    continue
                if self._is_gone(item_id, record):
                    self._gone[item_id] = record
                digest = digest_of(record.stamp)
                if digest not in self._owners:
                    digests.setdefault(int(size), []).append(digest)
                if digest not in self._owners or item_id in self._gone:
                    self._owners[digest] = item_id
        self._digests = {item_id: digest for digest, item_id in self._owners.items()}
        return digests

    def commit(self, result: ShardResult) -> None:
        """Write the pictures of a shard into the index."""
        self.computed += len(result.new)
        new = {digest: row for row, digest in enumerate(result.new)}
        items: list[Item] = []
        stamps: list[str] = []
        vectors: list[Vectors] = []
        moved: list[str] = []  # ids of items that others replace
        touched: dict[str, str] = {}  # new stamps of items whose content is the same
        for number, digest in sorted(result.digests.items()):
            item = self.pictures[number].item
            record = self.records.get(item.id)
            if record is not None and digest_of(record.stamp) == digest and self._is_described(item, record):
                touched[item.id] = self._stamp(number, digest)
                self.changes.unchanged += 1
                continue
            if digest in new:
                vectors.append(result.vectors[new[digest]])
            else:
                vectors.append(self._stored_vector(digest))
                owner = self._owners.get(digest, "")
                if record is None and owner in self._gone:
                    item = self._take_over(number, self._gone.pop(owner))
                    moved.append(owner)
                    self.changes.moved += 1
                    self.changes.added -= 1
            self._keep_vector(item.id)
            items.append(item)
            stamps.append(self._stamp(number, digest))
        if touched:
            self.idx.restamp(touched)
        if items:
            added = self.idx.add(items, np.stack(vectors), stamps)
            self.changes.added += added
            self.changes.updated += len(items) - added
        for owner in moved:
            self._keep_vector(owner)
        delete_items(self.idx, moved)
        for number, reason in sorted(result.unreadable.items()):
            self._leave_out(number, reason)
        self._copy(list(result.digests))

    def copy_unchanged(self, changed: Sequence[File]) -> None:
        """Copy the rows of all other pictures to the folder of Parquet files."""
        unchanged = sorted(set(range(len(self.pictures))) - {file.number for file in changed})
        for start in range(0, len(unchanged), LARGEST_SHARD):
            self._copy(unchanged[start : start + LARGEST_SHARD])

    def _copy(self, numbers: Sequence[int]) -> None:
        """Copy the rows of indexed pictures to the folder of Parquet files, if there is one that lacks them."""
        names = self.collection.pictures.names
        numbers = [number for number in numbers if as_text(names[number]) not in self.copied]
        if self.folder is None or not numbers:
            return
        ids = [self.pictures[number].item.id for number in sorted(numbers)]
        stamps = self.idx.stamps(ids)
        digests = {number: digest_of(stamps[self.pictures[number].item.id]) for number in numbers}
        self.folder.write_part(self.collection, digests, self.idx.vectors(ids))

    def _stored_vector(self, digest: str) -> Vectors:
        """The vector of a content that the index or the folder had when the work began."""
        if self.folder is not None and digest not in self._owners:
            return self.folder.vector_of(digest)
        if digest not in self._kept:
            vector: Vectors = self.idx.vectors([self._owners[digest]])[0]
            return vector
        return self._kept[digest]

    def _keep_vector(self, item_id: str) -> None:
        """Remember the vector of an item that is about to change or to go, if other files may need it."""
        digest = self._digests.get(item_id)
        if digest is not None and digest not in self._kept:
            self._kept[digest] = self.idx.vectors([item_id])[0]

    def _take_over(self, number: int, record: FileRecord) -> Item:
        """The item of a moved file, with the metadata and the label that it had."""
        self.pictures[number] = with_stored_metadata(self.pictures[number], record)
        return self.pictures[number].item

    def _leave_out(self, number: int, reason: str) -> None:
        item = self.pictures[number].item
        problem = Problem(from_text(item.path), reason)
        if self.strict:
            raise BrokenData(f"a picture cannot be used: {problem}")
        self.changes.unreadable.append(problem)
        if item.id in self.records:
            self._keep_vector(item.id)
            self.changes.removed += self.idx.delete([item.id])

    def _stamp(self, number: int, digest: str) -> str:
        mark = LABEL_FROM_TABLE if self.pictures[number].label_from_table else ""
        return f"{self.collection.sizes[number]}:{self.collection.versions[number]}:{digest}{mark}"

    def _has_stamp(self, number: int, record: FileRecord) -> bool:
        size_and_version = record.stamp.removesuffix(LABEL_FROM_TABLE).rpartition(":")[0]
        return size_and_version == f"{self.collection.sizes[number]}:{self.collection.versions[number]}"

    def _is_described(self, item: Item, record: FileRecord) -> bool:
        return (record.label, record.metadata) == (item.label, item.metadata)

    def _is_gone(self, item_id: str, record: FileRecord) -> bool:
        if item_id in self._present:
            return False
        if item_id in self.records:
            return True
        if is_url(record.path):  # of another URL, which was not listed
            return False
        path = Path(from_text(record.path))
        return file_id(path) == item_id and not path.exists()
