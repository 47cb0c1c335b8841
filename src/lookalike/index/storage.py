"""The folder of an index: ``index.json``, a copy of the model, and the writer's lock.

    IDX/index.json      model, distance, backend, and the folders that the pictures come from
    IDX/checksums.json  checksum of index.json
    IDX/model/          a copy of the model: IDX alone is enough to search
    IDX/model/engine/   the converted model, which queries load without torch
    IDX/writer.lock     held while items are added or deleted; freed by the system when its process ends
    IDX/items.sqlite    items and vectors (FAISS)     IDX/index.faiss   a cache of the search structure (FAISS)
    IDX/models/NAME/    a second model: its own index.json, model/, index.faiss and calibration.json
    IDX/calibration.json    what a distance means, learnt from the labels of the items
    IDX/marks.sqlite    what people said about results     IDX/marked/    pictures they searched with
    IDX/labels.sqlite   the history of edited labels        IDX/labels.csv    all labels, for lookalike train
    IDX/doctor.sqlite   what people decided about findings  IDX/doctor-findings.json    findings of the doctor
    IDX/uploads/        uploaded pictures, which have no file of their own
    IDX/versions/       after another model was installed: folders with model, items, calibration (see ``versions.py``)

A new folder is filled under another name and then renamed: it appears complete or not at all.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from threading import RLock
from typing import Any

from filelock import FileLock, Timeout

from lookalike._util.checksums import DamagedFile, write_checked
from lookalike._util.files import flush, remove_unfinished, require_writable
from lookalike._util.untrusted import LARGEST_LIST, parse_json, read_json, read_text
from lookalike.data.pictures import BrokenData
from lookalike.index.kinds import KINDS
from lookalike.retrieval.calibration import FILE as CALIBRATION
from lookalike.retrieval.calibration import WHOLE_FILE as WHOLE_CALIBRATION

FORMAT = 1
ABOUT = "index.json"
MODEL = "model"
IMPROVEMENT = "improvement.json"  # in the folder of the model: how it came about
SECOND = "models"
UPLOADS = "uploads"
LARGEST_DIM = 2**16
LATER_FIELDS = {"home", "precision", "previous", "store_settings"}  # missing in files of earlier versions
LOCK = "writer.lock"
MODEL_EXTRAS = ("figures.json", "settings.yaml", "data.json", CALIBRATION)  # of a run
UNFINISHED = ".unfinished-index"
HOME = re.compile(r"(versions/[0-9]{1,6}-[0-9a-f]{8})?")
LEFTOVER_SECONDS = 600  # a reader may be writing its cache without the lock


class BrokenIndex(BrokenData):
    """An index that is damaged or incomplete."""


class IndexInUse(OSError):  # noqa: N818 - names the state
    """Another process is writing to the index."""


class OutdatedIndex(IndexInUse):
    """The index has another model since it was opened: open it again."""


class WrongModel(ValueError):  # noqa: N818
    """The model is not the one that the index was made with."""


@dataclass
class About:
    """The content of ``index.json``.

    Attributes:
        distance: "cosine" or "l2".
        dim: Size D of the vectors.
        fingerprint: Digest of the model.
        run: Where the model came from.
        backend: "faiss" or "milvus".
        kind: The requested kind of search structure.
        store: Milvus only: an address, or a path, relative to the index if it is inside.
        collection: Milvus only: name of the collection.
        folders: Folders that were indexed, as text.
        store_settings: Milvus only: parameters of the construction, for example ``M`` of HNSW.
        measured: Milvus only: recall and effort of an approximate search.
        home: Folder of the current version within the index; empty: the index itself.
        previous: Entries of this file that the previous version had; empty if there is none.
        format: Version of this file.
        precision: In which the backbone computes, "fp32" or "int8".
    """

    distance: str
    dim: int
    fingerprint: str
    run: str
    backend: str
    kind: str = "auto"
    store: str = ""
    collection: str = ""
    folders: list[str] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    home: str = ""
    previous: dict[str, Any] = field(default_factory=dict)
    store_settings: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT
    precision: str = "fp32"

    def write(self, path: Path) -> None:
        """Write ``index.json`` into the folder ``path``."""
        content = asdict(self)
        for name in LATER_FIELDS:
            if content[name] in ("", {}, "fp32"):  # so that earlier versions of lookalike can read it
                del content[name]
        write_checked(path / ABOUT, json.dumps(content, indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> "About":
        """Read ``index.json`` from the folder ``path``.

        Raises:
            FileNotFoundError: If there is no such folder.
            ValueError: If it is no index, or has another format.
            BrokenIndex: If the file is damaged.
        """
        if not path.exists():
            raise FileNotFoundError(f"there is no index {path}: lookalike index FOLDER --out {path} makes one")
        if not (path / ABOUT).is_file():
            hint = "an index is the folder that lookalike index makes"
            owner = _index_of_store(path)
            if owner is not None:
                hint = f"it holds the items of the index {owner}: give that instead"
            raise ValueError(f"{path} is no index: there is no {ABOUT} in it; {hint}")
        try:
            content = read_json(path / ABOUT)
        except DamagedFile as error:
            raise BrokenIndex(str(error)) from None
        except ValueError as error:
            raise BrokenIndex(f"{path / ABOUT} is damaged: {error}") from None
        if not isinstance(content, dict) or "format" not in content:
            raise BrokenIndex(f"{path / ABOUT} does not describe an index")
        if content["format"] != FORMAT:
            raise ValueError(f"{path} has the format {content['format']!r}, this version reads {FORMAT}")
        return cls.from_dict(content, path / ABOUT)

    @classmethod
    def from_dict(cls, content: dict[str, Any], source: Path) -> "About":
        """Check and convert what ``source`` holds.

        Raises:
            BrokenIndex: If names, types or values are wrong.
        """
        if not cls._is_valid(content):
            raise BrokenIndex(f"{source} does not describe an index: unexpected names or types of entries")
        return cls(**content)

    @classmethod
    def _is_valid(cls, content: dict[str, Any]) -> bool:
        types = {entry.name: getattr(entry.type, "__origin__", entry.type) for entry in fields(cls)}
        if set(content) | LATER_FIELDS != set(types):
            return False
        if not all(type(value) is types[name] for name, value in content.items()):
            return False
        has_known_names = content["distance"] in ("cosine", "l2") and content["backend"] in ("faiss", "milvus")
        if not HOME.fullmatch(content.get("home", "")) or content.get("precision", "fp32") not in ("fp32", "int8"):
            return False
        return has_known_names and content["kind"] in KINDS and 0 < content["dim"] <= LARGEST_DIM


def _index_of_store(store: Path) -> Path | None:
    """The index whose items are in this file of Milvus, if it is the parent or a sibling of the file."""
    absolute = Path(os.path.abspath(store))  # noqa: PTH100 - without following links
    try:
        siblings = sorted(absolute.parent.glob(f"*/{ABOUT}"))
    except OSError:
        return None
    for file in (absolute.parent / ABOUT, *siblings):
        if not file.is_file():
            continue
        folder = file.parent
        try:
            about = About.read(folder)
        except (OSError, ValueError):
            continue
        if about.store and (folder / about.store).resolve() == absolute.resolve():
            if folder == absolute.parent:
                return store.parent
            return store.parent / folder.name
    return None


def fingerprint_of(model: Any) -> str:
    """Compute the fingerprint of a model: a digest of its settings and weights.

    Args:
        model: A folder with a model, a loaded model, or a converted model, whose files were checked.

    Returns:
        32 hexadecimal digits.

    Raises:
        ValueError: If the folder holds no model.
    """
    if isinstance(model, (str, Path)):
        from lookalike.models.store import read_model  # loads torch

        stored = read_model(Path(model))
        return fingerprint_of_weights(parse_json(stored.text), stored.weights)
    if hasattr(model, "fingerprint"):
        return str(model.fingerprint)
    embedder = getattr(model, "embedder", model)
    return fingerprint_of_weights(embedder.settings(), embedder.state_dict())


def fingerprint_of_weights(settings: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """Compute the fingerprint of a model from its settings and its weights."""
    digest = blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16)
    for name in sorted(state):
        if name.endswith("num_batches_tracked"):  # older files lack these counters
            continue
        value = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def make_folder(path: Path, model: Any, fill: Callable[[Path], About]) -> None:
    """Create the folder of an index with a copy of the model.

    Args:
        path: The folder; it must not exist or be empty.
        model: A loaded model; metrics, settings and data of its run are copied, too.
        fill: Called with the unfinished folder; adds the rest and returns the content of ``index.json``.

    Raises:
        FileExistsError: If ``path`` exists and is not empty.
        ValueError: If it cannot be written.
    """
    require_writable(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        content = "an index" if (path / ABOUT).is_file() else "something else"
        raise FileExistsError(f"{path} exists already and holds {content}: choose another folder, or open it")
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    unfinished = path.with_name(f"{UNFINISHED}-{token_hex(8)}-{path.name}")
    unfinished.mkdir()
    try:
        with FileLock(unfinished / LOCK):
            _copy_model(model, unfinished / MODEL)
            fill(unfinished).write(unfinished)
            flush(unfinished / MODEL)
            flush(unfinished)
            if path.exists():
                path.rmdir()
            unfinished.rename(path)
            flush(path.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _copy_model(model: Any, folder: Path) -> None:
    from lookalike.models.store import SETTINGS, WEIGHTS, model_file, save_model  # loads torch

    folder.mkdir()
    if isinstance(model, (str, Path)):
        run = Path(model)
        for name in (SETTINGS, WEIGHTS):
            shutil.copyfile(model_file(run, name), folder / name)
            flush(folder / name)
    else:
        save_model(model.embedder, folder)
        run = Path(model.source)
    for name in MODEL_EXTRAS:
        source = run / name
        if name == CALIBRATION:
            source = _calibration_file(run, folder / SETTINGS)
        if source.is_file():
            write_checked(folder / name, read_text(source, LARGEST_LIST))


def _calibration_file(run: Path, settings: Path) -> Path:
    """The calibration of a run for what a model with these settings sees; it need not exist."""
    if not _sees_whole(settings) or ((run / settings.name).is_file() and _sees_whole(run / settings.name)):
        return run / CALIBRATION
    return run / WHOLE_CALIBRATION


def _sees_whole(settings: Path) -> bool:
    return bool(read_json(settings)["input"].get("cells"))


def _remove_leftovers(path: Path) -> None:
    """Remove unfinished folders of killed processes; a running process holds the lock of its own."""
    for leftover in path.parent.glob(f"{UNFINISHED}-*-{path.name}"):
        try:
            with FileLock(leftover / LOCK, timeout=0):
                shutil.rmtree(leftover, ignore_errors=True)
        except (Timeout, OSError):
            continue


class WriterLock:
    """The lock of an index: ``with lock():``. Other processes fail at once; threads of this process wait.

    Args:
        path: The folder of the index.
        check: Called when the lock was acquired; it may raise.

    Attributes:
        patience: Seconds to wait for another process before failing.
    """

    def __init__(self, path: Path, check: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self.check = check
        self.patience = 0.0
        self._threads = RLock()
        self._depth = 0
        self._lock = FileLock(path / LOCK, timeout=0, thread_local=False)
        self._is_clean = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the lock for the length of a with statement; it may be nested.

        Raises:
            PermissionError: If the folder is read-only.
            IndexInUse: If another process holds it.
        """
        with self._threads:
            if self._depth == 0:
                self._acquire()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._lock.release()

    def _acquire(self) -> None:
        if not os.access(self.path, os.W_OK):
            raise PermissionError(f"{self.path} cannot be written: no permission")
        try:
            self._lock.acquire(timeout=self.patience)
        except Timeout:
            raise IndexInUse(f"{self.path} is being written by another process: try again when it is done") from None
        try:
            self.check()
        except BaseException:
            self._lock.release()
            raise
        if not self._is_clean:
            remove_unfinished(self.path, older_than=LEFTOVER_SECONDS)
            self._is_clean = True
