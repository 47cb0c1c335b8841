"""An index in Milvus: embedded in this process (a path ``x.db``), or a server or cluster (an address).

Every item is one row of a collection. A search asks for more than k candidates with their vectors and measures them
again (``exact_rescoring.py``), so that neighbours and distances equal those of the FAISS index.

A second model has a collection of its own. Its rows repeat the texts of the items, so that filters work there, too.

Every row has two CRC-32: of its texts, and of its vector. They are compared when the row is read; a damaged row is
reported once and left out. Collections of earlier versions have none.

An embedded Milvus belongs to one process at a time. A server takes any number, on any number of machines; each needs
only a copy of the folder of the index.
"""

import json
import logging
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from lookalike._util.checksums import Finding, write_checked
from lookalike._util.untrusted import read_json
from lookalike.index.base import FileRecord, Index, SecondIndex, path_range
from lookalike.index.exact_rescoring import Accuracy, distances, rescore
from lookalike.index.extra_tables import FINGERPRINT, Others
from lookalike.index.filters import Condition
from lookalike.index.items import LONGEST, Hit, Item, Vectors, check_vectors, report_damage, stored_item
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
BUILD_PARAMS: dict[str, dict[str, int]] = {
    "flat": {},
    "ivf": {"nlist": LISTS},
    "hnsw": {"M": 32, "efConstruction": 80},
    "diskann": {},
}
INDEX_TYPES = {"flat": "FLAT", "ivf": "IVF_FLAT", "hnsw": "HNSW", "diskann": "DISKANN"}
EFFORT = {  # parameter of a search, its least and largest value
    "flat": ("", 0, 0),
    "ivf": ("nprobe", 8, LISTS),
    "hnsw": ("ef", 64, 4096),
    "diskann": ("search_list", 32, 4096),
}
COUNT = "collection.json"  # in the folder of the index: the number of committed items
COLUMNS = ["id", "path", "label", "metadata"]
CHECKSUM, VECTOR_CHECKSUM = "checksum", "vector_checksum"

Row = dict[str, Any]
logger = logging.getLogger(__name__)


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
        if client.has_collection(about.collection):
            raise FileExistsError(f"{uri} has a collection {about.collection} already: choose another name")
        _create_collection(client, about)


def _create_collection(client: Any, about: About) -> None:
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=about.dim)
    schema.add_field("path", DataType.VARCHAR, max_length=LONGEST)
    schema.add_field("label", DataType.VARCHAR, max_length=LONGEST)
    schema.add_field("stamp", DataType.VARCHAR, max_length=256)
    schema.add_field("metadata", DataType.JSON)
    schema.add_field(FIELD, DataType.JSON)
    schema.add_field(CHECKSUM, DataType.INT64)
    schema.add_field(VECTOR_CHECKSUM, DataType.INT64)
    kind = kind_of(about)
    index_params = client.prepare_index_params()
    index_params.add_index(
        "vector",
        index_type=INDEX_TYPES[kind],
        metric_type="COSINE" if about.distance == "cosine" else "L2",
        params={**BUILD_PARAMS[kind], **about.store_settings},
    )
    client.create_collection(about.collection, schema=schema, index_params=index_params, consistency_level="Strong")


def drop_collection(uri: str, name: str) -> None:
    """Drop a collection and those of its second models, if Milvus can be reached."""
    with suppress(OSError), connected(uri, named=uri) as client, translated_errors(uri):
        for second in second_collections(client, name).values():
            client.drop_collection(second)
        client.drop_collection(name)


def second_collection(collection: str, fingerprint: str) -> str:
    """Return the name of the collection of a second model."""
    return f"{collection}_model_{fingerprint}"


def second_collections(client: Any, collection: str) -> dict[str, str]:
    """Return fingerprint -> collection of the second models, as Milvus has them.

    A copy of the index's folder on another machine may lack a model that was added later; its writers still find it.
    """
    prefix = second_collection(collection, "")
    names = {}
    for name in client.list_collections():
        fingerprint = name.removeprefix(prefix)
        if name.startswith(prefix) and FINGERPRINT.fullmatch(fingerprint):
            names[fingerprint] = name
    return names


def check_settings(kind: str, settings: dict[str, Any]) -> None:
    """Check a kind and the parameters of its construction.

    Args:
        kind: The requested kind.
        settings: ``nlist`` for ivf; ``M`` and ``efConstruction`` for hnsw.

    Raises:
        ValueError: If Milvus has no such kind, or a parameter is unknown or no positive integer.
    """
    if kind != "auto" and kind not in INDEX_TYPES:
        raise ValueError(f"kind {kind} is for FAISS only: with Milvus use one of {', '.join(INDEX_TYPES)}")
    names = BUILD_PARAMS[kind] if kind != "auto" else {}
    for name, value in settings.items():
        if name not in names:
            raise ValueError(f"store settings of kind {kind} are {', '.join(names) or 'none'}, got {name}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"the store setting {name} must be a positive integer, got {value!r}")


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
        self._named = store
        self._loaded: set[str] = set()
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
                    raise BrokenIndex(self._lacks_collection())
                self._load(self._collection)
                fields = self._client.describe_collection(self._collection)["fields"]
                self._has_checksums = CHECKSUM in {field["name"] for field in fields}
            self._check_count()
        except BaseException:
            self.close()
            raise

    def _repair(self) -> str:
        if is_address(self.uri):
            return "delete them, then index the folder again"
        return "index the folder again to replace them"

    def _lacks_collection(self) -> str:
        return f"{self.path} is not complete: {self.uri} has no collection {self._collection}"

    def _open_second(self, path: Path) -> "SecondMilvusIndex":
        return SecondMilvusIndex(self, path)

    def make_room(self, second: About) -> None:
        """Create the collection of a second model, unless it is there."""
        about = replace(second, collection=second_collection(self._collection, second.fingerprint))
        with self.writing(), translated_errors(self.uri):
            if not self._client.has_collection(about.collection):
                _create_collection(self._client, about)

    def other_vectors(self, ids: Sequence[str]) -> Others:
        """Return the vectors of second models, by fingerprint and id."""
        others: dict[str, dict[str, Vectors]] = {}
        seconds = self._second_collections()
        current = self._item_checksums(ids) if seconds else {}
        for fingerprint, collection in seconds.items():
            self._load(collection)
            vectors = others[fingerprint] = {}
            for row in self._by_id(ids, ["id", CHECKSUM, "vector", VECTOR_CHECKSUM], collection):
                if row[CHECKSUM] == current.get(row["id"]) and _is_good_vector(row):
                    vectors[row["id"]] = np.array(row["vector"], np.float32)
        return others

    def _load(self, collection: str) -> None:
        """Let Milvus load a collection, as it must before searches and queries."""
        if collection not in self._loaded:
            with translated_errors(self.uri):
                self._client.load_collection(collection)
            self._loaded.add(collection)

    def _second_collections(self) -> dict[str, str]:
        with translated_errors(self.uri):
            return second_collections(self._client, self._collection)

    def _item_checksums(self, ids: Sequence[str] | None = None) -> dict[str, int]:
        """Return id -> checksum of the texts of items; None for all."""
        columns = ["id", CHECKSUM] if self._has_checksums else [*COLUMNS, "stamp"]
        rows = self._rows("", columns) if ids is None else self._by_id(ids, columns)
        return {row["id"]: row[CHECKSUM] if CHECKSUM in row else _item_checksum(row) for row in rows}

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
        columns = [*self._item_columns, "stamp"]
        if not is_address(self.uri):  # from a server, that would be too much to transfer; verify names damaged ones
            columns += self._vector_columns
        records = {}
        for row in self._rows(expression, list(dict.fromkeys(columns))):
            item = _as_item(row)
            if item is not None and _is_good_vector(row):  # a damaged one is embedded again
                records[item.id] = FileRecord(item.path, item.label, item.metadata, row["stamp"])
        return records

    def stamps(self, ids: Sequence[str]) -> dict[str, str]:
        """Return id -> stamp of the items with these ids; the stamp is empty if none was given."""
        return {row["id"]: row["stamp"] for row in self._by_id(list(ids), ["id", "stamp"])}

    def all_stamps(self) -> dict[str, str]:
        """Return id -> stamp of all items with a stamp."""
        return {row["id"]: row["stamp"] for row in self._rows('stamp != ""', ["id", "stamp"])}

    def restamp(self, stamps: dict[str, str]) -> None:
        """Set new stamps by id; the items stay unchanged."""
        vectors = self._vectors(list(stamps))
        items = list(self._get(list(vectors)).values())  # new checksums would hide damage
        ids = [item.id for item in items]
        with self.writing():
            new_stamps = [stamps[item_id] for item_id in ids]
            self._upsert(items, [vectors[item_id] for item_id in ids], new_stamps, self.other_vectors(ids))

    def check(self) -> Finding:
        """Read all rows."""
        part = f"the Milvus collection {self._collection}"
        count = damaged = 0
        first = ""
        for row in self._rows("", [*self._item_columns, *self._vector_columns]):
            count += 1
            vector = np.array(row["vector"], np.float32)
            has_shape = vector.shape == (self.dim,) and bool(np.isfinite(vector).all())
            if _as_item(row) is None or not has_shape or not _is_good_vector(row):
                damaged += 1
                first = first or str(row["id"])
        if damaged:
            return Finding(part, "damaged", f"{damaged:,} of {count:,} rows (first: {first}): {self._repair()}")
        if not self._has_checksums:
            return Finding(part, "no checksum", f"{count:,} items can be read; an earlier version wrote them")
        return Finding(part, "ok", f"{count:,} items")

    @property
    def _item_columns(self) -> list[str]:
        """The columns that ``_as_item`` takes."""
        if self._has_checksums:
            return [*COLUMNS, "stamp", CHECKSUM]
        return COLUMNS

    @property
    def _vector_columns(self) -> list[str]:
        """The columns that ``_is_good_vector`` takes."""
        if self._has_checksums:
            return ["vector", VECTOR_CHECKSUM]
        return ["vector"]

    def _add(self, items: list[Item], vectors: Vectors, stamps: list[str], others: Others) -> int:
        self._check_lengths(vectors)
        replaced = len(self._get([item.id for item in items]))
        self._upsert(items, vectors, stamps, others)
        self._expect(self._expected() + len(items) - replaced)  # afterwards: a crash leaves a number that is too small
        return len(items) - replaced

    def _upsert(
        self,
        items: Sequence[Item],
        vectors: Sequence[Vectors] | Vectors,
        stamps: Sequence[str],
        others: Others,
    ) -> None:
        """Write items. Vectors of second models leave before and come afterwards: a crash leaves none of old items."""
        seconds = self._second_collections()
        for collection in seconds.values():
            self._remove_rows(collection, [item.id for item in items])
        self._put_rows(self._collection, [self._as_row(*each) for each in zip(items, vectors, stamps, strict=True)])
        for fingerprint, collection in seconds.items():
            rows = []
            for item, stamp in zip(items, stamps, strict=True):
                if item.id in others.get(fingerprint, {}):
                    rows.append(self._as_row(item, others[fingerprint][item.id], stamp, with_checksums=True))
            self._put_rows(collection, rows)

    def _as_row(self, item: Item, vector: Vectors, stamp: str, *, with_checksums: bool = False) -> Row:
        row = {**item._asdict(), "vector": vector.tolist(), "stamp": stamp, FIELD: by_type(item.metadata)}
        if self._has_checksums or with_checksums:
            row |= {CHECKSUM: _item_checksum(row), VECTOR_CHECKSUM: _vector_checksum(row)}
        return row

    def _put_rows(self, collection: str, rows: list[Row]) -> None:
        with translated_errors(self.uri):
            for start in range(0, len(rows), ROWS):
                self._client.upsert(collection, rows[start : start + ROWS])

    def _remove_rows(self, collection: str, ids: list[str]) -> None:
        with translated_errors(self.uri):
            for start in range(0, len(ids), ROWS):
                self._client.delete(collection, ids=ids[start : start + ROWS])

    def _delete(self, ids: list[str]) -> int:
        existing = list(self._get(ids))
        self._expect(max(0, self._expected() - len(existing)))
        for collection in (*self._second_collections().values(), self._collection):
            self._remove_rows(collection, existing)
        return len(existing)

    def _expected(self) -> int:
        """The number of items that were committed; 0 for indexes of earlier versions."""
        try:
            return int(read_json(self.home / COUNT)["count"])
        except FileNotFoundError:
            return 0
        except (KeyError, TypeError, ValueError) as error:
            raise BrokenIndex(f"{self.home / COUNT} is damaged: {error}") from None

    def _expect(self, count: int) -> None:
        write_checked(self.home / COUNT, json.dumps({"count": count}) + "\n")

    def _check_count(self) -> None:
        """Compare the collection with the number of committed items; others may delete on a server."""
        expected, count = self._expected(), self._count(())
        if count >= expected:
            return
        message = (
            f"{self.path} is damaged: the collection {self._collection} has {count:,} items, expected {expected:,}. "
            f"Restore {self.uri}; if items were deleted in another way, delete {COUNT} and checksums.json"
        )
        if count == 0 or not is_address(self.uri):
            raise BrokenIndex(message)
        logger.warning(message)

    def _count(self, where: tuple[Condition, ...]) -> int:
        with translated_errors(self.uri):
            rows = self._client.query(self._collection, filter=as_expression(where), output_fields=["count(*)"])
        return int(rows[0]["count(*)"])

    def _get(self, ids: list[str]) -> dict[str, Item]:
        return {item.id: item for item in map(_as_item, self._by_id(ids, self._item_columns)) if item is not None}

    def _vectors(self, ids: list[str]) -> dict[str, Vectors]:
        vectors = {}
        for row in self._by_id(ids, ["id", *self._vector_columns]):
            if _is_good_vector(row):
                vectors[row["id"]] = np.array(row["vector"], np.float32)
        return vectors

    def _by_id(self, ids: Sequence[str], columns: list[str], collection: str | None = None) -> list[Row]:
        rows: list[Row] = []
        with translated_errors(self.uri):
            for start in range(0, len(ids), ROWS):
                some = list(ids[start : start + ROWS])
                rows += self._client.get(collection or self._collection, ids=some, output_fields=columns)
        return rows

    def _items(self, where: tuple[Condition, ...], after: str | None, limit: int | None) -> list[Item]:
        expression = as_expression(where)
        if after is not None:
            behind = f"id > {as_literal(after)}"
            expression = f"{expression} and {behind}" if expression else behind
        rows = sorted(self._rows(expression, self._item_columns, limit), key=lambda row: str(row["id"]))[:limit]
        items = [item for item in map(_as_item, rows) if item is not None]
        if limit is not None and len(items) < len(rows) == limit:  # damaged ones do not count
            items += self._items(where, rows[-1]["id"], limit - len(items))
        return items

    def _labels(self) -> dict[str, int]:
        return dict(Counter(row["label"] for row in self._rows("", ["id", "label"])))

    def _sample(self, most: int, seed: int) -> Generator[Item, None, None]:
        """Items whose ids follow a random one: ids of files are digests, so these are a random sample."""
        start = as_literal(np.random.default_rng(seed).bytes(16).hex())
        read = 0
        for row in self._rows(f"id >= {start}", COLUMNS, most):
            read += 1
            item = _as_item(row)
            if item is not None:
                yield item
        if read == most:
            return
        for row in self._rows(f"id < {start}", COLUMNS, most - read):
            item = _as_item(row)
            if item is not None:
                yield item

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
        why = "as asked"
        if self.about.kind == "auto":
            why = "exact, because a collection cannot change its kind later"
        return {"kind": self._kind, "why": why, "recall@10": self.about.measured.get("recall@10")}

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
        rows = [row for row in rows if _is_good_vector({**row["entity"], "id": row["id"]})]
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
        if parameter in ("ef", "search_list"):
            effort = max(effort, k)
        with translated_errors(self.uri):
            return self._client.search(
                self._collection,
                data=queries.tolist(),
                limit=k,
                filter=expression,
                output_fields=[*self._item_columns, *self._vector_columns],
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
        if self._kind == "ivf":
            most = max(most, self.about.store_settings.get("nlist", 0))
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


class SecondMilvusIndex(SecondIndex, MilvusIndex):
    """A collection with the vectors of a second model.

    Milvus has no transactions over several collections. A row counts if its texts and its stamp, which has the digest
    of the file, are those of the item now. Whatever else a killed or another writer left is ``missing``.

    Args:
        owner: The index of the collection.
        path: Folder of the second model.
    """

    def __init__(self, owner: MilvusIndex, path: Path) -> None:
        self.owner: MilvusIndex = owner
        about = About.read(path)
        collection = second_collection(owner._collection, about.fingerprint)
        super().__init__(path, replace(about, store=owner.uri, collection=collection), owner._named)
        self.writing = owner.writing

    def missing(self) -> list[str]:
        """Return the ids of the items without a vector of this model, or with a damaged one.

        On a server, damaged vectors are left to ``check``: they would be too much to transfer.
        """
        columns = ["id", CHECKSUM] if is_address(self.uri) else [*self._item_columns, *self._vector_columns]
        current = self.owner._item_checksums()
        for row in self._rows("", columns):
            is_good = is_address(self.uri) or (_as_item(row) is not None and _is_good_vector(row))
            if is_good and current.get(row["id"]) == row[CHECKSUM]:
                del current[row["id"]]
        return sorted(current)

    def put(self, ids: Sequence[str], vectors: Vectors) -> None:
        """Set the vectors (n, D) of existing items."""
        checked = check_vectors(vectors, self.dim, self.distance, len(ids))
        self._check_lengths(checked)
        vector_of = dict(zip(ids, checked, strict=True))
        with self.writing():
            stamps = self.owner.stamps(ids)
            items = [item for item in self.owner.get(ids) if item is not None]
            self._put_rows(
                self._collection, [self._as_row(item, vector_of[item.id], stamps[item.id]) for item in items]
            )

    def drop_orphans(self) -> None:
        """Remove vectors without an item."""
        with self.writing():
            self._remove_rows(self._collection, self._orphans())

    def restamp(self, stamps: dict[str, str]) -> None:
        """Set new stamps by id; the items stay unchanged."""
        self.owner.restamp(stamps)

    def check(self) -> Finding:
        """Read all rows, and compare them with the items."""
        finding = super().check()
        orphans = self._orphans()
        if orphans:
            detail = f"vectors without an item: {len(orphans):,}. To repair: lookalike index IDX --with RUN"
            return finding._replace(status="damaged", detail=detail)
        missing = len(self.missing())
        if missing and finding.status == "ok":
            detail = f"{finding.detail}; {missing:,} pictures have none yet: lookalike index IDX --with RUN adds them"
            return finding._replace(detail=detail)
        return finding

    def _orphans(self) -> list[str]:
        ids = {row["id"] for row in self.owner._rows("", ["id"])}
        return [row["id"] for row in self._rows("", ["id"]) if row["id"] not in ids]

    def _repair(self) -> str:
        if is_address(self.uri):
            return f"drop the collection {self._collection}, then lookalike index IDX --with RUN"
        return "lookalike index IDX --with RUN replaces them"

    def _lacks_collection(self) -> str:
        return f"{self.uri} has no vectors of this model: add it again with lookalike index IDX --with RUN"

    def _check_count(self) -> None:
        """Vectors that are gone are ``missing``."""


def _as_item(row: Row) -> Item | None:
    """Make an item of a row; None if it is damaged."""
    if CHECKSUM in row and row[CHECKSUM] != _item_checksum(row):
        report_damage(f"item {row['id']!r}", "its checksum differs")
        return None
    return stored_item(row["id"], row["path"], row["label"], row["metadata"])


def _is_good_vector(row: Row) -> bool:
    """Whether the vector of a row has its checksum; True without one."""
    if VECTOR_CHECKSUM in row and row[VECTOR_CHECKSUM] != _vector_checksum(row):
        report_damage(f"vector of item {row['id']!r}", "its checksum differs")
        return False
    return True


def _item_checksum(row: Row) -> int:
    metadata = json.dumps(row["metadata"], sort_keys=True)
    texts = (row["id"], row["path"], row["label"], row["stamp"], metadata)
    return crc32("\0".join(map(str, texts)).encode(errors="surrogatepass"))


def _vector_checksum(row: Row) -> int:
    return crc32(np.array(row["vector"], "<f4").tobytes(), crc32(str(row["id"]).encode(errors="surrogatepass")))
