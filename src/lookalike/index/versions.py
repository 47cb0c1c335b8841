"""Versions of an index: the same pictures with another model, installed in one moment and kept for the way back.

    IDX/versions/3-0f41c2aa/    model/, items and vectors, calibration.json: everything that belongs to one model
    IDX/index.json              names the current version and the one before

A version is written whole, beside the current one, which still answers. Then ``index.json`` is replaced: that is the
moment of change. A killed process leaves a folder that nothing names; the next installation removes it. The first
version lies in IDX itself. Two versions are kept, the current one and the one before.

Marks, uploads and the writer's lock belong to the index, not to a version.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from lookalike._util.checksums import remove_checked, write_checked
from lookalike._util.files import flush
from lookalike._util.untrusted import LARGEST_LIST, read_json, read_text
from lookalike.index import cache, database, layout_file, milvus_index
from lookalike.index.base import Index
from lookalike.index.calibrating import calibrate
from lookalike.index.faiss_index import FaissIndex
from lookalike.index.items import Item, Vectors
from lookalike.index.milvus_connection import is_address
from lookalike.index.milvus_index import MilvusIndex
from lookalike.index.query_model import convert_model
from lookalike.index.storage import IMPROVEMENT, MODEL, SECOND, About, BrokenIndex, IndexInUse, fingerprint_of
from lookalike.inference.engine_name import EngineName
from lookalike.inference.model import TrainedModel
from lookalike.models.store import save_model
from lookalike.retrieval.calibration import FILE as CALIBRATION

FOLDER = "versions"
COPIED = ("settings.yaml", "data.json")  # facts about the training data, which another head does not change
COLLECTION = "version.json"  # Milvus only: the collection of a version
BATCH = 512  # items per transaction
LOCK_SECONDS = 60.0  # how long the last step waits for another writer

VectorsOf = Callable[[Sequence[Item], Sequence[str]], Vectors]


def install(
    idx: Index,
    model: TrainedModel,
    vectors_of: VectorsOf,
    *,
    report: dict[str, Any],
    engine: EngineName = "auto",
    store: str | None = None,
    stage: Callable[[str], None] = lambda _: None,
) -> About:
    """Replace the model of an index and all vectors, in one moment.

    Readers with the index open continue with the version that they opened. Items that change meanwhile are taken over.

    Args:
        idx: The index, of the current version. It cannot be written to afterwards: open it again.
        model: The new model.
        vectors_of: Computes vectors (n, D) of items with these stamps by the new model.
        report: Facts about the new model, kept beside it as ``improvement.json``.
        engine: As for ``lookalike.index.create``.
        store: As for ``lookalike.index.open``.
        stage: Called before every step with its name. It may raise to stop; then nothing has changed.

    Returns:
        The new content of ``index.json``.

    Raises:
        OutdatedIndex: If another version was installed since ``idx`` was opened.
        IndexInUse: If another process has been writing for ``LOCK_SECONDS``.
    """
    remove_leftovers(idx.path)
    about = _next_version(idx.about, model)
    home = idx.path / about.home
    installed = False
    try:
        stage("writing the model")
        _write_model(model, idx.home / MODEL, home / MODEL, report)
        with _new_store(idx, about, store) as new:
            _copy_second_models(idx, new)
            stage("writing the vectors")
            copied = _copy_items(idx, new, vectors_of, {})
            stage("preparing queries")
            convert_model(home, about.fingerprint, engine, model if about.precision == "int8" else None)
            stage("calibrating")
            with suppress(ValueError):  # no labels, or too few: then there are no probabilities
                calibrate(new)
            stage("replacing the model")
            with _writing(idx):
                _copy_items(idx, new, vectors_of, copied)
                new.save()
                current = About.read(idx.path)
                about = replace(about, folders=current.folders, measured=new.about.measured)
                for folder in (home / MODEL, home, home.parent):
                    flush(folder)
                about.write(idx.path)
                installed = True
    finally:
        if not installed:
            shutil.rmtree(home, ignore_errors=True)
            if about.backend == "milvus":
                milvus_index.drop_collection(_uri(idx.path, about), about.collection)
    if about.backend == "milvus" and idx.about.previous:  # the version that is not kept any longer
        milvus_index.drop_collection(_uri(idx.path, about), str(idx.about.previous["collection"]))
    remove_leftovers(idx.path)
    return about


def previous_version(idx: Index) -> About:
    """Return what ``index.json`` says about the version before the current one.

    Raises:
        ValueError: If there is none.
        BrokenIndex: If it is not complete.
    """
    entries = About.read(idx.path).previous
    if not entries:
        raise ValueError(f"{idx.path} has no earlier version: there is nothing to return to")
    about = About.from_dict({**asdict(idx.about), **entries, "previous": {}}, idx.path)
    if not (idx.path / about.home / MODEL).is_dir():
        raise BrokenIndex(f"{idx.path} is not complete: the earlier version {about.home or idx.path} is missing")
    return about


def open_version(path: Path, about: About, store: str | None = None) -> Index:
    """Open a version, for reading only."""
    if about.backend == "faiss":
        return FaissIndex(path, about)
    return MilvusIndex(path, about, store)


def remove_leftovers(path: Path) -> None:
    """Remove versions that ``index.json`` does not name: older ones, and those of killed processes.

    Only one process may install at a time; see ``lookalike.improve.job``.
    """
    about = About.read(path)
    homes = {about.home}
    if about.previous:
        homes.add(about.previous["home"])
    for folder in (path / FOLDER).glob("*"):
        if f"{FOLDER}/{folder.name}" in homes:
            continue
        if about.backend == "milvus":
            with suppress(OSError, ValueError, KeyError):  # the collection was dropped already
                milvus_index.drop_collection(_uri(path, about), read_json(folder / COLLECTION)["collection"])
        shutil.rmtree(folder, ignore_errors=True)
    if "" not in homes:
        _remove_first_version(path)


def _next_version(about: About, model: TrainedModel) -> About:
    """The content of ``index.json`` for a new version."""
    number = 1
    if about.home:
        number += int(about.home.removeprefix(f"{FOLDER}/").partition("-")[0])
    kept = ("home", "fingerprint", "dim", "run", "collection", "measured", "distance", "precision")
    previous = {name: getattr(about, name) for name in kept}
    new = replace(
        about,
        home=f"{FOLDER}/{number}-{token_hex(4)}",
        previous=previous,
        fingerprint=fingerprint_of(model),
        dim=model.dim,
        distance=model.distance,
        measured={},
        precision=model.precision,
    )
    if about.backend == "milvus":
        new.collection = f"lookalike_{token_hex(8)}"
    return new


def _write_model(model: TrainedModel, old: Path, folder: Path, report: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    save_model(model.embedder, folder)
    for name in COPIED:
        if (old / name).is_file():
            write_checked(folder / name, read_text(old / name, LARGEST_LIST))
    write_checked(folder / IMPROVEMENT, json.dumps(report, indent=2) + "\n")


@contextmanager
def _new_store(idx: Index, about: About, store: str | None) -> Iterator[Index]:
    """An empty index in the folder of the new version. Nobody else knows it, so that it needs no lock."""
    home = idx.path / about.home
    if about.backend == "faiss":
        database.Database.make(home / database.FILE)
    else:
        write_checked(home / COLLECTION, json.dumps({"collection": about.collection}) + "\n")
        milvus_index.make_collection(_uri(idx.path, about), about)
    with open_version(idx.path, about, store) as new:
        new.writing = nullcontext  # type: ignore[assignment]
        yield new


def _copy_second_models(idx: Index, new: Index) -> None:
    """Copy the second models; their vectors come with the items."""
    for name in idx.second_models():
        shutil.copytree(idx.home / SECOND / name, new.home / SECOND / name, ignore=shutil.ignore_patterns(cache.FILE))
        new.make_room(About.read(new.home / SECOND / name))


def _copy_items(
    idx: Index, new: Index, vectors_of: VectorsOf, copied: dict[str, tuple[Item, str]]
) -> dict[str, tuple[Item, str]]:
    """Bring a new version up to date; ``copied`` is what it holds. Returns what it holds then: items and stamps."""
    items = idx.items()
    stamps = idx.stamps([item.id for item in items])
    current = {item.id: (item, stamps.get(item.id, "")) for item in items}
    new.delete([item_id for item_id in copied if item_id not in current])
    changed = [entry for item_id, entry in current.items() if copied.get(item_id) != entry]
    for start in range(0, len(changed), BATCH):
        batch = changed[start : start + BATCH]
        batch_items = [item for item, _ in batch]
        batch_stamps = [stamp for _, stamp in batch]
        others = idx.other_vectors([item.id for item in batch_items])
        new.add(batch_items, vectors_of(batch_items, batch_stamps), batch_stamps, others)
    return current


@contextmanager
def _writing(idx: Index) -> Iterator[None]:
    """Hold the writer's lock; wait for another process that has it."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        lock = idx.writing()
        try:
            lock.__enter__()
            break
        except IndexInUse:
            if not idx.is_current() or time.monotonic() >= deadline:
                raise
            time.sleep(0.2)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def _remove_first_version(path: Path) -> None:
    """Remove the version that lies in the folder of the index itself."""
    for name in (MODEL, SECOND):
        shutil.rmtree(path / name, ignore_errors=True)
    for name in (CALIBRATION, milvus_index.COUNT):
        remove_checked(path / name)
    database_files = [f"{database.FILE}{suffix}" for suffix in ("", "-wal", "-shm", "-commits")]
    for name in (cache.FILE, layout_file.FILE, *database_files):
        (path / name).unlink(missing_ok=True)


def _uri(path: Path, about: About) -> str:
    if is_address(about.store):
        return about.store
    return str((path / about.store).absolute())
