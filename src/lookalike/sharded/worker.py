"""What a task does: read the files of a shard, hash them and compute the vectors of new contents.

It runs in another process or on another machine. The model comes with the job, so every worker has the same one.
"""

import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import PIL
from numpy.typing import NDArray

from lookalike._util.checksums import hash_bytes, hash_content
from lookalike.data.collection import list_with_sizes
from lookalike.data.cropping import Pixels, stacks
from lookalike.data.object_storage import StoredPicture, fetch, is_url
from lookalike.data.pictures import UnreadablePicture
from lookalike.index.storage import fingerprint_of
from lookalike.inference.engine_name import PACKAGES, EngineName
from lookalike.inference.model import TrainedModel

READERS = 16  # threads that fetch and decode
BATCH = 32  # pictures that are read ahead

_models: dict[tuple[str, str, str], TrainedModel] = {}  # of this process


class File(NamedTuple):
    """A file of the collection.

    Attributes:
        number: Its place in the collection.
        name: Path below the base of the collection.
        size: Bytes.
    """

    number: int
    name: str
    size: int


class Shard(NamedTuple):
    """A task.

    Attributes:
        files: The files.
        known: Digests of contents whose vectors exist already.
    """

    files: tuple[File, ...]
    known: frozenset[str] = frozenset()


class ShardResult(NamedTuple):
    """What a task returns.

    Attributes:
        digests: By number of the file, the digest of its content. Unreadable files are missing.
        unreadable: By number of the file, why it cannot be read.
        new: Digests of the contents that were computed.
        vectors: Their vectors (n, D).
    """

    digests: dict[int, str]
    unreadable: dict[int, str]
    new: list[str]
    vectors: NDArray[np.float32]


@dataclass(frozen=True)
class Job:
    """What all tasks share.

    Attributes:
        source: Folder or URL that was listed.
        follow_symlinks: How it was listed.
        base: Folder or URL that the names start from.
        settings: Settings of the model.
        weights: Its weights, in the format of safetensors.
        fingerprint: Its fingerprint.
        engine: What computes local features; never "auto".
        device: Where; None: a GPU if there is one.
    """

    source: str
    follow_symlinks: bool
    base: str
    settings: dict[str, Any]
    weights: NDArray[np.uint8]
    fingerprint: str
    engine: EngineName
    device: str | None


def make_job(model: TrainedModel, source: str, base: str, *, follow_symlinks: bool, device: str | None) -> Job:
    """Describe the work on a collection; this process keeps the model for its own tasks."""
    from safetensors.torch import save

    state = {name: value.detach().cpu().contiguous() for name, value in model.embedder.state_dict().items()}
    weights = np.frombuffer(save(state), np.uint8)  # an array: Ray does not copy it for every task
    settings = model.settings()
    job = Job(source, follow_symlinks, base, settings, weights, fingerprint_of(model), model.engine_name, device)
    _models.clear()
    _models[_key(job)] = model
    return job


def inspect_node(job: Job) -> dict[str, str]:
    """Say what this node finds, for ``Executor.check_nodes``."""
    findings = {"the version of Pillow": PIL.__version__}
    for package in PACKAGES.get(job.engine, ())[:1]:
        findings[f"the version of {package}"] = _version(package)
    try:
        findings["the model"] = fingerprint_of(_load(job))
    except (OSError, ValueError) as error:
        findings["the model"] = str(error)
    try:
        collection = list_with_sizes(job.source, follow_symlinks=job.follow_symlinks)
        findings[f"the pictures of {job.source}"] = collection.describe()
    except (OSError, ValueError) as error:
        findings[f"the pictures of {job.source}"] = str(error)
    return findings


def hash_files(files: Sequence[File], job: Job) -> list[str]:
    """Hash the contents of files; "" for those that cannot be read."""
    reader = _Reader(job, None, frozenset())
    with ThreadPoolExecutor(READERS) as threads:
        return list(threads.map(reader.hash, files))


def embed_shard(shard: Shard, job: Job) -> ShardResult:
    """Compute the vectors of a shard; an unreadable picture does not end the work."""
    model = _load(job)
    reader = _Reader(job, model, shard.known)
    result = ShardResult({}, {}, [], np.zeros((0, model.dim), np.float32))
    reasons: dict[str, str] = {}  # by digest: equal files are unreadable for the same reason
    vectors = [result.vectors]
    with ThreadPoolExecutor(READERS) as threads:
        for readings in _read_ahead(reader, shard.files, threads):
            crops = []
            for reading in readings:
                if reading.digest:
                    result.digests[reading.file.number] = reading.digest
                if reading.reason and reading.digest:
                    reasons[reading.digest] = reading.reason
                elif reading.reason:
                    result.unreadable[reading.file.number] = reading.reason
                if reading.crop is not None:
                    result.new.append(reading.digest)
                    crops.append(reading.crop)
            for stack in stacks(crops):
                vectors.append(model.embed_crops(stack))
    for number, digest in list(result.digests.items()):
        if digest in reasons:
            result.unreadable[number] = reasons[digest]
            del result.digests[number]
    return result._replace(vectors=np.concatenate(vectors))


class _Reading(NamedTuple):
    """A file that was read; ``crop`` is None for a content that is known or unreadable."""

    file: File
    digest: str
    crop: Pixels | None
    reason: str


class _Reader:
    """Reads and hashes files, and crops those whose content is new. Threads share it."""

    def __init__(self, job: Job, model: TrainedModel | None, known: frozenset[str]) -> None:
        self._url = job.base if is_url(job.base) else None
        self._base = Path(job.base)
        self._preprocess = None if model is None else model.preprocess
        self._seen = set(known)
        self._lock = Lock()

    def hash(self, file: File) -> str:
        try:
            return self._open(file)[0]
        except UnreadablePicture:
            return ""

    def read(self, file: File) -> _Reading:
        assert self._preprocess is not None
        digest = ""
        try:
            digest, picture = self._open(file)
            if digest and not self._is_new(digest):
                return _Reading(file, digest, None, "")
            crop = self._preprocess.read_crop(picture)
        except UnreadablePicture as failure:
            return _Reading(file, digest, None, failure.reason)
        if not digest:  # it could not be hashed, but could be read afterwards
            return _Reading(file, "", None, "changed while it was read")
        return _Reading(file, digest, crop, "")

    def _open(self, file: File) -> tuple[str, Path | StoredPicture]:
        """The digest of a file, "" if it cannot be read, and the picture."""
        if self._url is not None:
            content = fetch(self._url, file.name)
            return hash_bytes(content), StoredPicture(self._url, file.name, content)
        path = self._base / file.name
        try:
            if stat.S_ISREG(path.stat().st_mode):
                return hash_content(path), path
        except OSError:  # read_picture gives the reason
            pass
        return "", path

    def _is_new(self, digest: str) -> bool:
        with self._lock:
            if digest in self._seen:
                return False
            self._seen.add(digest)
            return True


def _read_ahead(reader: _Reader, files: Sequence[File], threads: ThreadPoolExecutor) -> Iterator[list[_Reading]]:
    """Batches of files that were read, while the next batch is."""

    def submit(first: int) -> list[Future[_Reading]]:
        return [threads.submit(reader.read, file) for file in files[first : first + BATCH]]

    ahead = submit(0)
    for first in range(0, len(files), BATCH):
        current, ahead = ahead, submit(first + BATCH)
        yield [future.result() for future in current]


def _load(job: Job) -> TrainedModel:
    """The model of a job, loaded once by every process."""
    key = _key(job)
    if key not in _models:
        from safetensors.torch import load

        from lookalike.inference.model import default_device
        from lookalike.models import Embedder

        embedder = Embedder.from_settings(job.settings)
        embedder.load_state_dict(load(job.weights.tobytes()))
        _models.clear()
        _models[key] = TrainedModel(embedder.to(job.device or default_device()), job.engine)
    return _models[key]


def _key(job: Job) -> tuple[str, str, str]:
    return job.fingerprint, job.engine, job.device or ""


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
