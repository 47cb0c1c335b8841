"""An index in Milvus: embedded in this process (a path ``x.db``), or a server or cluster (an address).

Every item is one row of a collection. A search asks for more than k candidates with their vectors and measures them
again (``exact_rescoring.py``), so that neighbours and distances equal those of the FAISS index.

An embedded Milvus belongs to one process at a time. A server takes any number, on any number of machines; each needs
only a copy of the folder of the index.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.index.base import FileRecord, Index, path_range
from lookalike.index.exact_rescoring import Accuracy, distances, rescore
from lookalike.index.filters import Condition
from lookalike.index.items import LONGEST, Hit, Item, Vectors, stored_item
from lookalike.index.kinds import NEIGHBOURS, SAMPLE, TARGET, mean_recall
from lookalike.index.milvus_connection import check_store, connect, connected, disconnect, is_address, translated_errors
from lookalike.index.milvus_filter import FIELD, as_expression, as_literal, by_type
from lookalike.index.storage import About, BrokenIndex

MORE = 16  # candidates in addition to the k
MOST = 16_384  # neighbours that Milvus returns at most
ROWS = 500  # rows per call
SHORTEST = 1e-15  # length of a vector; the longest is its inverse
TUNING_ROWS = 20 * ROWS  # vectors compared at once while measuring recall
LISTS = 1024  # of IVF
BUILD_PARAMS = {"flat": {}, "ivf": {"nlist": LISTS}, "hnsw": {"M": 32, "efConstruction": 80}}
INDEX_TYPES = {"flat": "FLAT", "ivf": "IVF_FLAT", "hnsw": "HNSW"}
EFFORT = {"flat": ("", 0, 0), "ivf": ("nprobe", 8, LISTS), "hnsw": ("ef", 64, 4096)}  # parameter, least, most
COLUMNS = ["id", "path", "label", "metadata"]

Row = dict[str, Any]


def make_collection(uri: str, about: About) -> None:
    """Create a new collection.

    Args:
        uri: A server's address or an absolute file path, as the user gave it.
        about: The index that it belongs to.

    Raises:
        FileExistsError: If there is a collection of this name.
        OSError: If Milvus fails.
    """
    with connected(uri, named=uri) as client, translated_errors(uri):
        from pymilvus import DataType

        if client.has_collection(about.collection):
            raise FileExistsError(f"{uri} has a collection {about.collection} already: choose another name")
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=about.dim)
        schema.add_field("path", DataType.VARCHAR, max_length=LONGEST)
        schema.add_field("label", DataType.VARCHAR, max_length=LONGEST)
        schema.add_field("stamp", DataType.VARCHAR, max_length=256)
        schema.add_field("metadata", DataType.JSON)
        schema.add_field(FIELD, DataType.JSON)
        kind = kind_of(about)
        index_params = client.prepare_index_params()
        index_params.add_index(
            "vector",
            index_type=INDEX_TYPES[kind],
            metric_type="COSINE" if about.distance == "cosine" else "L2",
            params=BUILD_PARAMS[kind],
        )
        client.create_collection(about.collection, schema=schema, index_params=index_params, consistency_level="Strong")


def drop_collection(uri: str, name: str) -> None:
    """Drop a collection, if Milvus can be reached."""
    with suppress(OSError), connected(uri, named=uri) as client, translated_errors(uri):
        client.drop_collection(name)


def kind_of(about: About) -> str:
    """Return the kind to build; "auto" is flat, because a collection cannot change its kind later."""
    if about.kind == "auto":
        return "flat"
    return about.kind


class MilvusIndex(Index):
    """An index with the backend "milvus".

    Args:
        path: The folder of the index.
        about: The content of ``index.json``.
        store: Where the user says that the items are; None if the user did not say.

    Raises:
        BrokenIndex: If the file or the collection is missing.
        PermissionError: If the server must not have the user's token.
        OSError: If Milvus cannot be reached.
    """

    def __init__(self, path: Path, about: About, store: str | None = None) -> None:
        super().__init__(path, about)
        self._collection = about.collection
        self._kind = kind_of(about)
        self.uri = about.store
        if not is_address(about.store):
            self.uri = str((path / about.store).absolute())
            if not Path(self.uri).exists():
                raise BrokenIndex(f"{path} is not complete: its items are in {self.uri}, which is missing")
        else:
            try:
                check_store(about.store, about.collection)
            except ValueError as error:
                raise BrokenIndex(f"{path} does not describe an index: {error}") from None
        self._client: Any = connect(self.uri, named=store)
        try:
            with translated_errors(self.uri):
                if not self._client.has_collection(self._collection):
                    raise BrokenIndex(f"{path} is not complete: {self.uri} has no collection {self._collection}")
                self._client.load_collection(self._collection)
        except BaseException:
            self.close()
            raise

    def is_stored_in(self, store: str) -> bool:
        """Return whether ``store``, as given to ``create``, is where the items are."""
        if is_address(store) or is_address(self.uri):
            return store == self.uri
        return Path(store).resolve() == Path(self.uri).resolve()

    def set_kind(self, kind: str) -> None:
        """Accept the current kind only.

        Raises:
            ValueError: If ``kind`` is another one.
        """
        if kind != self.about.kind:
            raise ValueError(f"this Milvus index is {self.about.kind} and cannot change: {kind} needs a new index")

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            disconnect(self._client, self.uri)
            self._client = None

    def save(self) -> None:
        """Flush; for an approximate kind, also measure its recall and set the search effort."""
        with self.writing(), translated_errors(self.uri):
            self._client.flush(self._collection)
            if self._kind != "flat":
                self._tune()

    def files_below(self, folder: str) -> dict[str, FileRecord]:
        """Return id -> record of the items with a stamp whose path is below the folder."""
        first, end = path_range(folder)
        expression = f'path >= {as_literal(first)} and path < {as_literal(end)} and stamp != ""'
        records = {}
        for row in self._rows(expression, [*COLUMNS, "stamp"]):
            item = _as_item(row)
            if item is not None:  # a damaged one is embedded again
                records[item.id] = FileRecord(item.path, item.label, item.metadata, row["stamp"])
        return records

    def stamps(self, ids: Sequence[str]) -> dict[str, str]:
        """Return id -> stamp of the items with these ids; the stamp is empty if none was given."""
        return {row["id"]: row["stamp"] for row in self._by_id(list(ids), ["id", "stamp"])}

    def restamp(self, stamps: dict[str, str]) -> None:
        """Set new stamps by id; the items stay unchanged."""
        items = list(self._get(list(stamps)).values())
        ids = [item.id for item in items]
        vectors = self._vectors(ids)
        with self.writing():
            self._upsert(items, [vectors[item_id] for item_id in ids], [stamps[item_id] for item_id in ids])

    def _add(self, items: list[Item], vectors: Vectors, stamps: list[str]) -> int:
        self._check_lengths(vectors)
        replaced = len(self._get([item.id for item in items]))
        self._upsert(items, vectors, stamps)
        return len(items) - replaced

    def _upsert(self, items: Sequence[Item], vectors: Sequence[Vectors] | Vectors, stamps: Sequence[str]) -> None:
        rows = []
        for item, vector, stamp in zip(items, vectors, stamps, strict=True):
            row = {**item._asdict(), "vector": vector.tolist(), "stamp": stamp, FIELD: by_type(item.metadata)}
            rows.append(row)
        with translated_errors(self.uri):
            for start in range(0, len(rows), ROWS):
                self._client.upsert(self._collection, rows[start : start + ROWS])

    def _delete(self, ids: list[str]) -> int:
        existing = list(self._get(ids))
        with translated_errors(self.uri):
            for start in range(0, len(existing), ROWS):
                self._client.delete(self._collection, ids=existing[start : start + ROWS])
        return len(existing)

    def _count(self, where: tuple[Condition, ...]) -> int:
        with translated_errors(self.uri):
            rows = self._client.query(self._collection, filter=as_expression(where), output_fields=["count(*)"])
        return int(rows[0]["count(*)"])

    def _get(self, ids: list[str]) -> dict[str, Item]:
        return {item.id: item for item in map(_as_item, self._by_id(ids, COLUMNS)) if item is not None}

    def _vectors(self, ids: list[str]) -> dict[str, Vectors]:
        return {row["id"]: np.array(row["vector"], np.float32) for row in self._by_id(ids, ["id", "vector"])}

    def _by_id(self, ids: list[str], columns: list[str]) -> list[Row]:
        rows: list[Row] = []
        with translated_errors(self.uri):
            for start in range(0, len(ids), ROWS):
                rows += self._client.get(self._collection, ids=ids[start : start + ROWS], output_fields=columns)
        return rows

    def _items(self, where: tuple[Condition, ...], after: str | None, limit: int | None) -> list[Item]:
        expression = as_expression(where)
        if after is not None:
            behind = f"id > {as_literal(after)}"
            expression = f"{expression} and {behind}" if expression else behind
        rows = sorted(self._rows(expression, COLUMNS, limit), key=lambda row: str(row["id"]))[:limit]
        items = [item for item in map(_as_item, rows) if item is not None]
        if limit is not None and len(items) < len(rows) == limit:  # damaged ones do not count
            items += self._items(where, rows[-1]["id"], limit - len(items))
        return items

    def _labels(self) -> dict[str, int]:
        return dict(Counter(row["label"] for row in self._rows("", ["id", "label"])))

    def _rows(self, expression: str, columns: list[str], limit: int | None = None) -> Iterator[Row]:
        """Rows in order of id, which is how Milvus iterates over a collection."""
        with translated_errors(self.uri):
            iterator = self._client.query_iterator(
                self._collection,
                batch_size=ROWS if limit is None else min(ROWS, limit),
                limit=-1 if limit is None else limit,
                filter=expression,
                output_fields=columns,
            )
            try:
                while rows := iterator.next():
                    yield from rows
            finally:
                iterator.close()

    def _info(self) -> dict[str, Any]:
        return {"kind": self._kind, "recall@10": self.about.measured.get("recall@10")}

    # ---- search

    def _search(self, queries: Vectors, k: int, where: tuple[Condition, ...]) -> list[list[Hit]]:
        self._check_lengths(queries)
        expression = as_expression(where)
        results: list[list[Hit]] = [[] for _ in queries]
        remaining = list(range(len(queries)))
        limit = min(k + MORE, MOST)
        while remaining:
            unfinished = []
            candidates = self._candidates(queries[remaining], limit, expression)
            for query, rows in zip(remaining, candidates, strict=True):
                results[query], complete = self._rescore(queries[query], rows, k)
                has_more = len(rows) == limit and limit < MOST
                if self._kind == "flat" and not complete and has_more:
                    unfinished.append(query)
            remaining = unfinished
            limit = min(4 * limit, MOST)
        return results

    def _check_lengths(self, vectors: Vectors) -> None:
        """Refuse vectors whose squared distances Milvus, which computes in fp32, cannot tell from 0 or infinity."""
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
        outside = (lengths > 1 / SHORTEST) | ((lengths < SHORTEST) & (lengths > 0))
        if bool(outside.any()):
            raise ValueError(
                f"Milvus takes vectors with lengths from {SHORTEST:g} to {1 / SHORTEST:g}, "
                f"got {lengths[outside][0]:.3g}: scale all vectors, or use FAISS"
            )

    def _rescore(self, query: Vectors, rows: list[Row], k: int) -> tuple[list[Hit], bool]:
        """The k nearest of the candidates, and whether no other item can belong to them."""
        if not rows:
            return [], True
        reported = np.array([row["distance"] for row in rows], np.float32)
        if self.distance == "cosine":  # Milvus reports the cosine
            reported = 2 - 2 * reported
        vectors = np.array([row["entity"]["vector"] for row in rows], np.float32)
        length = 1.0
        if self.distance == "l2":
            length = float(np.linalg.norm(query.astype(np.float64)))
        ids = [row["id"] for row in rows]
        rescored = rescore(query, ids, vectors, reported, k, self.distance, Accuracy(self.dim, length))
        hits = []
        for i, distance in zip(rescored.rows, rescored.distances, strict=True):
            item = _as_item({**rows[i]["entity"], "id": rows[i]["id"]})
            if item is not None:
                hits.append(Hit(item, distance))
        return hits, rescored.complete

    def _candidates(self, queries: Vectors, k: int, expression: str, effort: int | None = None) -> list[list[Row]]:
        parameter, least, _ = EFFORT[self._kind]
        effort = effort or self.about.measured.get("effort", least)
        if parameter == "ef":
            effort = max(effort, k)
        with translated_errors(self.uri):
            return self._client.search(
                self._collection,
                data=queries.tolist(),
                limit=k,
                filter=expression,
                output_fields=[*COLUMNS, "vector"],
                search_params={"params": {parameter: effort}} if parameter else {},
            )

    # ---- tuning

    def _tune(self) -> None:
        """Double the search effort until the recall reaches TARGET, as ``kinds.Structure`` does."""
        count = self._count(())
        if count <= NEIGHBOURS or self.about.measured.get("count") == count:
            return
        ids = [row["id"] for row in self._rows("", ["id"])]
        chosen = np.random.default_rng(0).choice(count, min(SAMPLE, count), replace=False)
        sample = [ids[i] for i in chosen]
        queries = self.vectors(sample)
        truth = self._true_neighbours(queries)
        _, effort, most = EFFORT[self._kind]
        while True:
            results = []
            for rows in self._candidates(queries, NEIGHBOURS + 1, "", effort):
                results.append([row["id"] for row in rows])
            recall = mean_recall(sample, truth, results)
            if recall >= TARGET or effort >= most:
                break
            effort = min(2 * effort, most)
        measured = {"recall@10": recall, "effort": effort, "count": count}
        self._update_about(lambda about: about.measured.update(measured))

    def _true_neighbours(self, queries: Vectors) -> list[list[str]]:
        """Ids of the exact neighbours of each query; every vector is transferred once."""
        nearest: list[list[tuple[float, str]]] = [[] for _ in queries]
        block: list[Row] = []
        for row in self._rows("", ["id", "vector"]):
            block.append(row)
            if len(block) == TUNING_ROWS:
                self._merge(queries, nearest, block)
                block = []
        if block:
            self._merge(queries, nearest, block)
        neighbours = []
        for row_nearest in nearest:
            neighbours.append([item_id for _, item_id in row_nearest])
        return neighbours

    def _merge(self, queries: Vectors, nearest: list[list[tuple[float, str]]], block: list[Row]) -> None:
        """Update the nearest (distance, id) of each query with a block of rows."""
        vectors = np.array([row["vector"] for row in block], np.float32)
        ids = [row["id"] for row in block]
        for i, query in enumerate(queries):
            block_distances = distances(query, vectors, self.distance).tolist()
            candidates = [*nearest[i], *zip(block_distances, ids, strict=True)]
            nearest[i] = sorted(candidates)[: NEIGHBOURS + 1]


def _as_item(row: Row) -> Item | None:
    return stored_item(row["id"], row["path"], row["label"], row["metadata"])
