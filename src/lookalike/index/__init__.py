"""Indexes of pictures: create, add, delete, search, on this machine by FAISS or anywhere by Milvus.

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
    """A new, empty index in the folder ``path``, for vectors of one model.

    run: the folder of a run, or a loaded model; a copy of it goes into the index.
    store: "faiss"; or Milvus, a file ``x.db`` for Milvus in this process, or the address of a server.
    collection: its name in Milvus; None makes one up.
    kind: "flat" (exact), "ivf", "hnsw", or "auto": exact until there are too many.
    """
    check_kind(kind)
    path = Path(path)
    if store != "faiss":
        milvus_connection.check_store(store, collection)
    elif collection is not None:
        raise ValueError("a collection has a name in Milvus only")
    from lookalike.inference.model import TrainedModel, load

    model = run if isinstance(run, TrainedModel) else load(run, "cpu")
    about = About(
        distance=model.distance,
        dim=model.dim,
        fingerprint=fingerprint_of(model),
        run="a model in memory" if isinstance(run, TrainedModel) else str(Path(run).absolute()),
        backend="faiss" if store == "faiss" else "milvus",
        kind=kind,
        store="" if store == "faiss" else _place(store, path),
        collection="" if store == "faiss" else collection or f"lookalike_{token_hex(8)}",
    )

    made: list[str] = []

    def fill(folder: Path) -> About:
        if about.backend == "faiss":
            database.Database.make(folder / database.FILE)
        else:
            uri = about.store if milvus_connection.is_address(about.store) else str((folder / about.store).absolute())
            milvus_index.make_collection(uri, about)
            made.append(uri)
        return about

    try:
        make_folder(path, run, fill)
    except BaseException:
        for uri in made:
            milvus_index.drop_collection(uri, about.collection)
        raise
    return open(path)


def _place(store: str, path: Path) -> str:
    """Of a file as seen from the index, so that both can move together if it lies within."""
    if milvus_connection.is_address(store):
        return store
    absolute = Path(os.path.abspath(store))  # noqa: PTH100 - without following links
    home = Path(os.path.abspath(path))  # noqa: PTH100
    return str(absolute.relative_to(home)) if absolute.is_relative_to(home) else str(absolute)


def open(path: str | Path) -> Index:  # noqa: A001 - used as index.open
    """The index in the folder ``path``. Any number of processes may read it while one writes."""
    path = Path(path)
    about = About.read(path)
    return FaissIndex(path, about) if about.backend == "faiss" else MilvusIndex(path, about)
