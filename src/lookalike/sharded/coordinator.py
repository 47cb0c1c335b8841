"""Divides a collection into shards and lets an executor compute them."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from lookalike.data.collection import SizedCollection, list_with_sizes
from lookalike.executors import Executor
from lookalike.inference.model import TrainedModel
from lookalike.sharded.worker import File, Job, Shard, ShardResult, embed_shard, hash_files, inspect_node, make_job

LARGEST_SHARD = 1024  # pictures of a shard if the caller gives no number
SMALLEST_SHARD = 32
SHARDS_PER_SLOT = 8  # at least, so that no process is idle at the end for long
Known = Mapping[int, Iterable[str]]  # by size of the file, digests of contents whose vectors exist


class Work(NamedTuple):
    """A collection and how to compute it.

    Attributes:
        collection: The collection.
        job: What tasks need.
        executor: Where they run.
        shard_size: Pictures of a shard.
    """

    collection: SizedCollection
    job: Job
    executor: Executor
    shard_size: int | None


def prepare(
    source: str,
    model: TrainedModel,
    executor: Executor,
    *,
    shard_size: int | None = None,
    follow_symlinks: bool = True,
    device: str | None = None,
) -> Work:
    """List a collection, and check that all nodes see the same one.

    Args:
        source: Folder or URL.
        model: The model.
        executor: Where tasks run.
        shard_size: Pictures of a shard; None: by their number.
        follow_symlinks: Follow symbolic links below a folder.
        device: Where tasks compute; None: on a GPU if there is one.

    Raises:
        ValueError: If the folder cannot be listed, or a node differs from this one.
        BrokenData: If there are no pictures.
        StorageError: If the object storage cannot be used.
    """
    collection = list_with_sizes(source, follow_symlinks=follow_symlinks)
    job = make_job(model, source, collection.pictures.base, follow_symlinks=follow_symlinks, device=device)
    executor.check_nodes(inspect_node, job)
    return Work(collection, job, executor, shard_size)


def embed_files(
    work: Work, files: Sequence[File], known: Known, tick: Callable[[int], None] = lambda _: None
) -> Iterator[ShardResult]:
    """Compute the vectors of files.

    Args:
        work: The collection.
        files: Those of its files that are left.
        known: Contents that need not be computed.
        tick: Called with the number of files of every finished shard. It may raise to stop.

    Yields:
        The results, shard by shard. Together they have a vector for every readable content that is not known, once.
    """
    if not files:
        return
    size = work.shard_size or _default_size(len(files), work.executor.slots)
    keys, copies = _content_keys(work, files, size)
    shards = [
        Shard(tuple(some), frozenset(digest for file in some for digest in known.get(file.size, ())))
        for some in plan_shards([file for file in files if file.number in keys], keys, size)
    ]
    for shard, result in work.executor.run(embed_shard, shards, work.job):
        count = len(shard.files)
        for file in shard.files:
            count += _copy_outcome(result, file.number, copies.get(file.number, ()))
        yield result
        tick(count)


def plan_shards(files: Sequence[File], keys: Mapping[int, Hashable], size: int) -> list[list[File]]:
    """Divide files into shards of about ``size``. Files with the same key stay together.

    Args:
        files: The files.
        keys: A key of every file, by its number.
        size: Number of files after which a shard is full; a group of files is not divided.
    """
    groups: dict[Hashable, list[File]] = {}
    for file in files:
        groups.setdefault(keys[file.number], []).append(file)
    shards: list[list[File]] = []
    for group in groups.values():
        if not shards or len(shards[-1]) + len(group) > size:
            shards.append([])
        shards[-1] += group
    return shards


def _content_keys(work: Work, files: Sequence[File], size: int) -> tuple[dict[int, Hashable], dict[int, list[int]]]:
    """Keys that are the same for equal contents: the size, or the digest where too many files have the same size.

    Also, by number of a file, the numbers of its copies: these have no key, since they need not be read again.
    """
    by_size: dict[int, list[File]] = {}
    for file in files:
        by_size.setdefault(file.size, []).append(file)
    keys: dict[int, Hashable] = {}
    blocks: list[tuple[File, ...]] = []  # to hash
    for of_one_size in by_size.values():
        if len(of_one_size) <= size:
            keys.update((file.number, file.size) for file in of_one_size)
            continue
        remaining = iter(of_one_size)
        while block := tuple(islice(remaining, size)):
            blocks.append(block)
    first_of: dict[str, int] = {}
    copies: dict[int, list[int]] = {}
    for block, digests in work.executor.run(hash_files, blocks, work.job):
        for file, digest in zip(block, digests, strict=True):
            if digest and digest in first_of:
                copies.setdefault(first_of[digest], []).append(file.number)
                continue
            keys[file.number] = digest or f"unreadable {file.number}"
            if digest:
                first_of[digest] = file.number
    return keys, copies


def _copy_outcome(result: ShardResult, number: int, copies: Iterable[int]) -> int:
    """Give the copies of a file its outcome; returns how many there are."""
    count = 0
    for copy in copies:
        for outcomes in (result.digests, result.unreadable):
            if number in outcomes:
                outcomes[copy] = outcomes[number]
        count += 1
    return count


def _default_size(count: int, slots: int) -> int:
    return min(LARGEST_SHARD, max(SMALLEST_SHARD, count // (SHARDS_PER_SLOT * max(1, slots))))
