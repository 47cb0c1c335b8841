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
from typing import Any

from lookalike.index import database, milvus_connection, milvus_index
from lookalike.index.base import Index
from lookalike.index.faiss_index import FaissIndex
from lookalike.index.folder import Changes, sync
from lookalike.index.items import Hit, Item, file_id, file_item
from lookalike.index.kinds import check_kind
from lookalike.index.milvus_index import MilvusIndex
from lookalike.index.reranking import search_reranked
from lookalike.index.storage import About, BrokenIndex, IndexInUse, WrongModel, fingerprint_of, make_folder

__all__ = [
    "BrokenIndex",
    "Changes",
    "Hit",
    "Index",
    "IndexInUse",
    "Item",
    "WrongModel",
    "create",
    "file_id",
    "file_item",
    "fingerprint_of",
    "open",
    "search_reranked",
    "sync",
]


def create(
    path: str | Path,
    run: Any,
    store: str = "faiss",
    collection: str | None = None,
    kind: str = "auto",
) -> Index:
    """Create an empty index for vectors of one model.

    Args:
        path: The folder of the index; it must not exist or be empty.
        run: The folder of a run, or a loaded model. A copy of the model goes into the index.
        store: "faiss"; or for Milvus, a file ``x.db`` (Milvus in this process) or the address of a server.
        collection: Name of the collection in Milvus; None generates one.
        kind: "flat" (exact), "ivf", "hnsw", or "auto": exact until there are too many items.

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
    else:
        milvus_connection.check_store(store, collection)
    from lookalike.inference.model import TrainedModel, load

    if isinstance(run, TrainedModel):
        model, source = run, "a model in memory"
    else:
        model, source = load(run, "cpu"), str(Path(run).absolute())
    about = About(
        distance=model.distance,
        dim=model.dim,
        fingerprint=fingerprint_of(model),
        run=source,
        backend="faiss",
        kind=kind,
    )
    if store == "faiss":
        make_folder(path, run, lambda folder: _make_database(folder, about))
        return open(path)

    about.backend = "milvus"
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
        make_folder(path, run, make_collection)
    except BaseException:
        for uri in made_in:
            milvus_index.drop_collection(uri, about.collection)
        raise
    return open(path, store)


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
