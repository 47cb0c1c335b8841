"""Vectors of a collection in a folder of Parquet files.

    FOLDER/_embedding.json       the collection and the model, and whether all pictures are done
    FOLDER/part-00000.parquet    path, label, split, size, version, digest and vector of some pictures

pyarrow and others read the folder as one table: they pass over names that begin with an underscore or a dot.

A part is written whole or not at all. A picture is done if a part has its path, size and version; the next command
computes the others, and removes the rows of files that are gone or have changed.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike._util.checksums import DamagedFile
from lookalike._util.files import check_output_folder, remove_unfinished, replacing, write_text
from lookalike._util.folder_lock import FolderLock
from lookalike._util.untrusted import read_json
from lookalike.data.collection import SizedCollection
from lookalike.data.names import as_text
from lookalike.data.object_storage import is_url
from lookalike.data.pictures import BrokenData, Problem
from lookalike.executors import Executor
from lookalike.index.storage import fingerprint_of
from lookalike.inference.model import TrainedModel
from lookalike.sharded.coordinator import embed_files, prepare
from lookalike.sharded.worker import File, ShardResult

ABOUT = "_embedding.json"
FORMAT = 1
BEGIN_AGAIN = "choose another folder, or begin again with lookalike embed --overwrite"
KEPT = ("path", "size", "version", "digest")  # columns that say what is done
Tick = Callable[[int], None]


class Embedded(NamedTuple):
    """What ``embed_collection`` did.

    Attributes:
        pictures: Pictures with a vector.
        computed: Contents that were computed now; the others were done before, or equal to another one.
        done_before: Pictures that an earlier command had finished.
        removed: Rows of files that are gone or have changed.
        parts: Number of Parquet files.
        dim: Size of the vectors.
        unreadable: Pictures that were left out, and why.
        notes: Remarks, one line each.
    """

    pictures: int
    computed: int
    done_before: int
    removed: int
    parts: int
    dim: int
    unreadable: list[Problem]
    notes: tuple[str, ...]


def embed_collection(
    source: str,
    model: TrainedModel,
    out: str | Path,
    executor: Executor,
    *,
    shard_size: int | None = None,
    strict: bool = False,
    overwrite: bool = False,
    device: str | None = None,
    total: Callable[[int], Tick] = lambda _: lambda _: None,
) -> Embedded:
    """Write the vectors of a collection to a folder of Parquet files, or continue that.

    Args:
        source: A folder of pictures, or a URL that fsspec opens, such as ``s3://bucket/birds``.
        model: Computes the vectors.
        out: The folder.
        executor: Where shards are computed.
        shard_size: Pictures of a shard; None: by their number.
        strict: Raise if a picture cannot be read, instead of leaving it out.
        overwrite: Begin again, whatever the folder has.
        device: Where to compute; None: on a GPU if there is one.
        total: Called once with the number of pictures; returns a function that is called with the number of finished
            ones, and may raise to stop.

    Returns:
        What was done.

    Raises:
        ValueError: If the folder holds something else, the source cannot be listed, or nodes differ.
        FolderInUse: If another process writes into the folder.
        BrokenData: If no picture can be read, or with ``strict`` if one cannot.
        StorageError: If the object storage cannot be used.
    """
    folder = VectorFolder(Path(out))
    if not is_url(source):
        source = str(Path(source).expanduser().absolute())
    check_output_folder(folder.path, "folder of vectors", [ABOUT])
    about = describe(source, model)
    with FolderLock(folder.path):
        if not overwrite:
            folder.check(about)
        work = prepare(source, model, executor, shard_size=shard_size, device=device)
        if overwrite:
            folder.clear()
        folder.begin(about)
        done, removed = folder.drop_outdated(work.collection)
        files = _files(work.collection, done)
        unreadable = list(work.collection.pictures.unreadable)
        tick = total(len(work.collection.sizes))
        tick(len(work.collection.sizes) - len(files))
        known = folder.known({file.size for file in files})
        computed = 0
        for result in embed_files(work, files, known, tick):
            folder.write_part(work.collection, result.digests, folder.vectors_of(result))
            computed += len(result.new)
            for number, reason in result.unreadable.items():
                problem = Problem(work.collection.pictures.names[number], reason)
                if strict:
                    raise BrokenData(f"a picture cannot be used: {problem}")
                unreadable.append(problem)
        pictures = folder.count()
        if not pictures:
            raise BrokenData(f"not one of {len(files):,} pictures of {source} can be read; the first: {unreadable[0]}")
        folder.finish(about)
    return Embedded(
        pictures=pictures,
        computed=computed,
        done_before=len(done),
        removed=removed,
        parts=len(folder.parts()),
        dim=model.dim,
        unreadable=unreadable,
        notes=work.collection.pictures.notes,
    )


def describe(source: str, model: TrainedModel) -> dict[str, Any]:
    """Return what ``_embedding.json`` says about a collection and a model."""
    return {
        "format": FORMAT,
        "source": as_text(source),
        "model": model.source,
        "fingerprint": fingerprint_of(model),
        "engine": model.engine_name,
        "dim": model.dim,
        "distance": model.distance,
    }


class VectorFolder:
    """A folder of Parquet files; see the module.

    Args:
        path: The folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._vectors: dict[str, tuple[Path, int]] = {}  # by digest, a row that has it
        self._next = 0

    def parts(self) -> list[Path]:
        """Return the Parquet files, in order."""
        return sorted(self.path.glob("part-*.parquet"))

    def clear(self) -> None:
        """Remove everything that ``embed_collection`` wrote."""
        for file in [*self.parts(), self.path / ABOUT]:
            file.unlink(missing_ok=True)

    def check(self, about: dict[str, Any]) -> None:
        """Check that the folder is new, or holds vectors of the same collection and model.

        Raises:
            ValueError: If it holds vectors of something else.
        """
        file = self.path / ABOUT
        if not file.exists():
            return
        stored = read_json(file)
        if not isinstance(stored, dict):
            raise ValueError(f"{file} is damaged: {BEGIN_AGAIN}")
        for name, value in about.items():
            if stored.get(name) != value:
                raise ValueError(
                    f"{self.path} holds other vectors: {name} was {stored.get(name)} and is {value}; {BEGIN_AGAIN}"
                )

    def begin(self, about: dict[str, Any]) -> None:
        """Write ``_embedding.json``: not all pictures are done."""
        remove_unfinished(self.path)
        self._write_about(about, finished=False)

    def finish(self, about: dict[str, Any]) -> None:
        """Note that all pictures are done."""
        self._write_about(about, finished=True)

    def drop_outdated(self, collection: SizedCollection) -> tuple[set[str], int]:
        """Remove the rows of files that are gone or have changed.

        Returns:
            The paths that are done, and the number of removed rows.
        """
        import pyarrow as pa

        current = {}
        rows = zip(collection.pictures.names, collection.sizes, collection.versions, strict=True)
        for name, size, version in rows:
            current[as_text(name)] = (size, version)
        done: set[str] = set()
        removed = 0
        for part in self.parts():
            self._next = int(part.stem.removeprefix("part-")) + 1
            stored = _read(part, KEPT).to_pydict()
            keep = []
            for path, size, version in zip(stored["path"], stored["size"], stored["version"], strict=True):
                is_current = current.get(path) == (size, version) and path not in done
                if is_current:
                    done.add(path)
                keep.append(is_current)
            if not all(keep):
                removed += keep.count(False)
                table = _read(part).filter(pa.array(keep))
                if len(table):
                    _write(part, table)
                else:
                    part.unlink()
        return done, removed

    def known(self, sizes: set[int]) -> dict[int, list[str]]:
        """Return the digests of stored contents of these sizes, by size."""
        digests: dict[int, list[str]] = {}
        for part in self.parts():
            stored = _read(part, ("size", "digest")).to_pydict()
            for row, (size, digest) in enumerate(zip(stored["size"], stored["digest"], strict=True)):
                if size in sizes and digest not in self._vectors:
                    self._vectors[digest] = (part, row)
                    digests.setdefault(size, []).append(digest)
        return digests

    def vector_of(self, digest: str) -> NDArray[np.float32]:
        """Read the vector of a content that is ``known``."""
        part, row = self._vectors[digest]
        return np.array(_read(part, ("vector",))["vector"][row].as_py(), np.float32)

    def vectors_of(self, result: ShardResult) -> NDArray[np.float32]:
        """Return the vectors (n, D) of the readable pictures of a shard, in order of their numbers."""
        new = {digest: row for row, digest in enumerate(result.new)}
        vectors = [np.zeros((0, result.vectors.shape[1]), np.float32)]
        for _, digest in sorted(result.digests.items()):
            vector = result.vectors[new[digest]] if digest in new else self.vector_of(digest)
            vectors.append(vector[None])
        return np.concatenate(vectors)

    def write_part(
        self, collection: SizedCollection, digest_of: Mapping[int, str], vectors: NDArray[np.float32]
    ) -> None:
        """Write pictures to a new part.

        Args:
            collection: The collection.
            digest_of: By number of the picture, the digest of its content.
            vectors: Their vectors (n, D), in order of their numbers.
        """
        import pyarrow as pa

        if not digest_of:
            return
        numbers = sorted(digest_of)
        pictures = collection.pictures
        flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        columns = {
            "path": [as_text(pictures.names[number]) for number in numbers],
            "label": [as_text(pictures.labels[number]) for number in numbers],
            "split": pa.array([pictures.splits[number] for number in numbers], pa.string()),
            "size": pa.array([collection.sizes[number] for number in numbers], pa.int64()),
            "version": [collection.versions[number] for number in numbers],
            "digest": [digest_of[number] for number in numbers],
            "vector": flat,
        }
        _write(self.path / f"part-{self._next:05d}.parquet", pa.table(columns))
        self._next += 1

    def count(self) -> int:
        """Return the number of rows of all parts."""
        import pyarrow.parquet as pq

        return sum(pq.read_metadata(part).num_rows for part in self.parts())

    def _write_about(self, about: dict[str, Any], *, finished: bool) -> None:
        write_text(self.path / ABOUT, json.dumps({**about, "finished": finished}, indent=2) + "\n")


def _files(collection: SizedCollection, done: set[str]) -> list[File]:
    """The files that are left."""
    files = []
    for number, (name, size) in enumerate(zip(collection.pictures.names, collection.sizes, strict=True)):
        if as_text(name) not in done:
            files.append(File(number, name, size))
    return files


def _read(part: Path, columns: Iterable[str] | None = None) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(pa.ArrowException, ValueError):
        return pq.ParquetFile(part).read(None if columns is None else list(columns))
    raise DamagedFile(f"{part} is damaged: delete it, and the same command computes its vectors again")


def _write(part: Path, table: Any) -> None:
    import pyarrow.parquet as pq

    with replacing(part) as unfinished:
        pq.write_table(table, unfinished)
