"""Indexes of pictures: create, add, delete and search, with FAISS on this machine or with Milvus anywhere.

    from lookalike import index

    idx = index.create("birds.idx", run="runs/birds")
    index.sync(idx, idx.model(), "pictures/")
    hits = idx.search(idx.model().embed("new.jpg"), k=10, where="label in (robin, wren)")

The same code takes ``store="birds.db"`` (Milvus in this process) or ``store="http://host:19530"`` (a cluster).
"""

import os
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from lookalike.index import database, milvus_connection, milvus_index
from lookalike.index.active_choice import choose_next
from lookalike.index.base import Index
from lookalike.index.calibrating import calibrate, load_calibration
from lookalike.index.faiss_index import FaissIndex
from lookalike.index.folder import Changes, Pruned, prune, remove, sync
from lookalike.index.items import Hit, Item, file_id, file_item
from lookalike.index.kinds import check_kind
from lookalike.index.label_suggestions import suggest_labels
from lookalike.index.labels import Labels
from lookalike.index.marks import Marks
from lookalike.index.milvus_index import MilvusIndex
from lookalike.index.querying import Options, compose_query, find, find_copies
from lookalike.index.reranking import search_reranked
from lookalike.index.second_models import add_model, fill, find_model
from lookalike.index.storage import About, BrokenIndex, IndexInUse, WrongModel, fingerprint_of, make_folder
from lookalike.inference.engine_name import EngineName

if TYPE_CHECKING:
    from lookalike.inference.model import TrainedModel

__all__ = [
    "BrokenIndex",
    "Changes",
    "Hit",
    "Index",
    "IndexInUse",
    "Item",
    "Labels",
    "Marks",
    "Options",
    "Pruned",
    "WrongModel",
    "add_model",
    "calibrate",
    "choose_next",
    "compose_query",
    "create",
    "file_id",
    "file_item",
    "fill",
    "find",
    "find_copies",
    "find_model",
    "fingerprint_of",
    "load_calibration",
    "open",
    "prune",
    "remove",
    "search_reranked",
    "suggest_labels",
    "sync",
]


def create(
    path: str | Path,
    run: Any,
    store: str = "faiss",
    collection: str | None = None,
    kind: str = "auto",
    engine: EngineName = "auto",
    store_settings: dict[str, Any] | None = None,
) -> Index:
    """Create an empty index for vectors of one model.

    Args:
        path: The folder of the index; it must not exist or be empty.
        run: The folder of a run, or a loaded model. A copy of the model goes into the index.
        store: "faiss"; or for Milvus, a file ``x.db`` (Milvus in this process) or the address of a server.
        collection: Name of the collection in Milvus; None generates one.
        kind: "flat" or "flat-fp16" (exact), "ivf", "hnsw", "ivf-pq", or "auto": by the number of items (``kinds.py``).
        engine: What queries compute with. Unless it is torch, the model is also stored in the form of this engine,
            which queries load without torch.
        store_settings: For Milvus, parameters of the construction: ``nlist`` of ivf, ``M`` and ``efConstruction`` of
            hnsw. Those of a search are measured.

    Returns:
        The open index.

    Raises:
        ValueError: If an argument is invalid.
        FileExistsError: If the folder or the collection exists.
        OSError: If Milvus cannot be reached.
    """
    path = Path(path)
    check_kind(kind)
    if store == "faiss":
        if collection is not None:
            raise ValueError("collection names are for Milvus only: leave it out, or give another store")
        if store_settings:
            raise ValueError("store settings are for Milvus only: leave them out, or give another store")
    else:
        milvus_index.check_settings(kind, store_settings or {})
        milvus_connection.check_store(store, collection)
    from lookalike.inference.model import TrainedModel, load

    model = run if isinstance(run, TrainedModel) else load(run, "cpu")
    check_kind(kind, model.distance, "faiss" if store == "faiss" else "milvus")
    about = About(
        distance=model.distance,
        dim=model.dim,
        fingerprint=fingerprint_of(model),
        run=model.source,
        backend="faiss",
        kind=kind,
        precision=model.precision,
    )
    loaded = model if about.precision == "int8" else None
    if store == "faiss":
        make_folder(path, run, lambda folder: _make_database(folder, about))
        return _with_converted_model(open(path), engine, loaded)

    about.backend = "milvus"
    about.store_settings = dict(store_settings or {})
    about.store = _relative_store(store, path)
    about.collection = collection or f"lookalike_{token_hex(8)}"
    made_in: list[str] = []

    def make_collection(folder: Path) -> About:
        uri = about.store
        if not milvus_connection.is_address(uri):
            uri = str((folder / about.store).absolute())
        milvus_index.make_collection(uri, about)
        made_in.append(uri)
        return about

    try:
        make_folder(path, model, make_collection)
    except BaseException:
        for uri in made_in:
            milvus_index.drop_collection(uri, about.collection)
        raise
    return _with_converted_model(open(path, store), engine, loaded)


def _with_converted_model(idx: Index, engine: EngineName, model: "TrainedModel | None") -> Index:
    try:
        idx.convert_model(engine, model)
    except BaseException:
        idx.close()
        raise
    return idx


def open(path: str | Path, store: str | None = None) -> Index:  # noqa: A001 - used as index.open
    """Open an index. Any number of processes may read it while one writes.

    Args:
        path: The folder of the index.
        store: Address of a Milvus server that may receive the token in the environment variable
            LOOKALIKE_MILVUS_TOKEN. None: the address in LOOKALIKE_MILVUS_URI.

    Returns:
        The open index.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If it is no index, or has another format.
        BrokenIndex: If it is damaged or incomplete.
        PermissionError: If the server that it names must not have the token.
    """
    path = Path(path)
    about = About.read(path)
    if about.backend == "faiss":
        return FaissIndex(path, about)
    return MilvusIndex(path, about, store)


def _make_database(folder: Path, about: About) -> About:
    database.Database.make(folder / database.FILE)
    return about


def _relative_store(store: str, path: Path) -> str:
    """The file relative to the index if it is inside, so that both can move together."""
    if milvus_connection.is_address(store):
        return store
    absolute = Path(os.path.abspath(store))  # noqa: PTH100 - without following links
    index_folder = Path(os.path.abspath(path))  # noqa: PTH100
    if absolute.is_relative_to(index_folder):
        absolute = absolute.relative_to(index_folder)
    return str(absolute)
