"""The folder of an index: ``index.json``, the model it was made with, and a lock for who writes.

    IDX/index.json      what the index is: model, distance, backend, the folders its pictures come from
    IDX/model/          a copy of the model: IDX alone is enough to search
    IDX/writer.lock     held while something is added or deleted; the system frees it when its process ends
    IDX/items.sqlite    items and vectors (FAISS)     IDX/index.faiss   a cache of the search structure (FAISS)
    IDX/uploads/        pictures that came without a file of their own

A folder is filled under another name and then renamed: it is there whole or not at all.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from threading import RLock
from typing import Any

from filelock import FileLock, Timeout

from lookalike._util.files import flush, require_writable, write_text
from lookalike.data.pictures import BrokenData
from lookalike.models.store import SETTINGS, WEIGHTS
from lookalike.models.weight_files import read_weights

FORMAT = 1
ABOUT = "index.json"
MODEL = "model"
LOCK = "writer.lock"
BESIDES = ("figures.json", "settings.yaml", "data.json")  # of a run: what its model was trained on, and how good it is
UNFINISHED = ".unfinished-index"


class BrokenIndex(BrokenData):
    """An index that is there but damaged, or not all there."""


class IndexInUse(OSError):  # noqa: N818 - it names what happened
    """Somebody else is writing."""


class WrongModel(ValueError):  # noqa: N818
    """Vectors of two models do not go together."""


@dataclass
class About:
    """``index.json``."""

    distance: str
    dim: int
    fingerprint: str
    run: str
    backend: str
    kind: str = "auto"
    store: str = ""  # Milvus: a path, as seen from IDX if it lies within, or an address
    collection: str = ""
    folders: list[str] = field(default_factory=list)  # texts, as paths of items are
    measured: dict[str, Any] = field(default_factory=dict)  # Milvus: how well an approximate search finds
    format: int = FORMAT

    def write(self, path: Path) -> None:
        write_text(path / ABOUT, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> "About":
        if not path.exists():
            raise FileNotFoundError(f"there is no index {path}: lookalike index RUN FOLDER --out {path} makes one")
        if not (path / ABOUT).is_file():
            home = _index_of_store(path)
            instead = (
                "an index is the folder that lookalike index makes"
                if home is None
                else f"it holds the items of the index {home}: give that instead"
            )
            raise ValueError(f"{path} is no index: there is no {ABOUT} in it; {instead}")
        try:
            content = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        except ValueError as error:
            raise BrokenIndex(f"{path / ABOUT} is damaged: {error}") from None
        if not isinstance(content, dict) or "format" not in content:
            raise BrokenIndex(f"{path / ABOUT} does not describe an index")
        if content["format"] != FORMAT:
            raise ValueError(f"{path} has the format {content['format']!r}, this version reads {FORMAT}")
        types = {each.name: each.type for each in fields(cls)}
        if set(content) != set(types) or any(type(content[n]) is not _plain(t) for n, t in types.items()):
            raise BrokenIndex(f"{path / ABOUT} does not describe an index: its entries are not those expected")
        return cls(**content)


def _index_of_store(store: Path) -> Path | None:
    """The index whose items are kept in this file of Milvus, if it is around or beside it."""
    place = Path(os.path.abspath(store))  # noqa: PTH100 - without following links
    try:
        beside = sorted(place.parent.glob(f"*/{ABOUT}"))
    except OSError:
        return None
    for file in (place.parent / ABOUT, *beside):
        try:
            home = file.parent
            about = About.read(home) if file.is_file() else None
        except (OSError, ValueError):
            continue
        if about is not None and about.store and (home / about.store).resolve() == place.resolve():
            return store.parent if home == place.parent else store.parent / home.name
    return None


def _plain(kind: Any) -> type:
    return getattr(kind, "__origin__", kind)


def fingerprint_of(model: Any) -> str:
    """Of a folder with a model in it, or of a loaded model: the same for the same settings and weights."""
    if isinstance(model, (str, Path)):
        folder = Path(model)
        for name in (SETTINGS, WEIGHTS):
            if not (folder / name).is_file():
                raise ValueError(f"{folder} holds no model: there is no {name}")
        try:
            settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{folder / SETTINGS} is damaged or no settings of a model: {error}") from None
        state = read_weights(folder / WEIGHTS)
    else:
        embedder = getattr(model, "embedder", model)
        settings, state = embedder.settings(), embedder.state_dict()
    digest = blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16)
    for name in sorted(state):
        if not name.endswith("num_batches_tracked"):  # bookkeeping, which older files lack
            value = state[name].detach().cpu().contiguous()
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def make_folder(path: Path, model: Any, fill: Callable[[Path], About]) -> None:
    """The folder ``path`` with a copy of the model; ``fill`` puts the rest into the unfinished one."""
    require_writable(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        there = "an index" if (path / ABOUT).is_file() else "something else"
        raise FileExistsError(f"{path} exists already and holds {there}: choose another place, or open it")
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    unfinished = path.with_name(f"{UNFINISHED}-{token_hex(8)}-{path.name}")
    unfinished.mkdir()
    lock = FileLock(unfinished / LOCK)
    try:
        with lock:
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
    folder.mkdir()
    if not isinstance(model, (str, Path)):
        from lookalike.models import save_model

        save_model(getattr(model, "embedder", model), folder)
        return
    for name in (SETTINGS, WEIGHTS, *BESIDES):
        if name in (SETTINGS, WEIGHTS) or (Path(model) / name).is_file():
            shutil.copyfile(Path(model) / name, folder / name)
            flush(folder / name)


def _sweep(path: Path) -> None:
    """What a killed process left behind: its lock is free. One that is still at work holds its own."""
    for left in path.parent.glob(f"{UNFINISHED}-*-{path.name}"):
        try:
            with FileLock(left / LOCK, timeout=0):
                shutil.rmtree(left, ignore_errors=True)
        except (Timeout, OSError):
            continue


class Writing:
    """One process writes at a time; a second one is told so at once. Threads of one process wait for each other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.threads = RLock()
        self._depth = 0
        self._lock = FileLock(path / LOCK, timeout=0, thread_local=False)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self.threads:
            if self._depth == 0:
                if not os.access(self.path, os.W_OK):
                    raise PermissionError(f"{self.path} cannot be written: no permission")
                try:
                    self._lock.acquire()
                except Timeout:
                    raise IndexInUse(
                        f"{self.path} is being written by another process: try again when it is done"
                    ) from None
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._lock.release()
