"""An index in Milvus: embedded in this process (a path ``x.db``) or a server or cluster (an address), by the same code.

Every item is one row of a collection. A search asks for more than k candidates with their vectors and measures them
again (``exact_rescoring.py``), so that neighbours and distances are those of the FAISS index.

Milvus in this process belongs to one process at a time. A server takes any number, on any number of machines; each
needs only a copy of the folder of the index.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.index.base import FileRecord, Index, limits_below
from lookalike.index.exact_rescoring import distances, rescore
from lookalike.index.filters import Condition
from lookalike.index.items import LONGEST, Hit, Item, Vectors
from lookalike.index.kinds import NEIGHBOURS, SAMPLE, TARGET
from lookalike.index.milvus_connection import connect, connected, disconnect, is_address, told
from lookalike.index.milvus_filter import FIELD, as_expression, as_literal, by_type
from lookalike.index.storage import About, BrokenIndex

MORE = 16  # candidates beyond the k
MOST = 16_384  # neighbours that Milvus gives at once
ROWS = 500  # written or read in one call
LISTS = 1024  # of IVF
BUILDING = {"flat": {}, "ivf": {"nlist": LISTS}, "hnsw": {"M": 32, "efConstruction": 80}}
TYPES = {"flat": "FLAT", "ivf": "IVF_FLAT", "hnsw": "HNSW"}
EFFORT = {"flat": ("", 0, 0), "ivf": ("nprobe", 8, LISTS), "hnsw": ("ef", 64, 4096)}  # name, least, most
COLUMNS = ["id", "path", "label", "metadata"]


def make_collection(uri: str, about: About) -> None:
    """A new collection; refuses one that is there."""
    with connected(uri) as client, told(uri):
        from pymilvus import DataType

        if client.has_collection(about.collection):
            raise FileExistsError(f"{uri} has a collection {about.collection} already: choose another name")
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=about.dim)
        for name in ("path", "label"):
            schema.add_field(name, DataType.VARCHAR, max_length=LONGEST)
        schema.add_field("stamp", DataType.VARCHAR, max_length=256)
        schema.add_field("metadata", DataType.JSON)
        schema.add_field(FIELD, DataType.JSON)
        kind = kind_of(about)
        structure = client.prepare_index_params()
        structure.add_index(
            "vector",
            index_type=TYPES[kind],
            metric_type="COSINE" if about.distance == "cosine" else "L2",
            params=BUILDING[kind],
        )
        client.create_collection(about.collection, schema=schema, index_params=structure, consistency_level="Strong")


def drop_collection(uri: str, name: str) -> None:
    with suppress(OSError), connected(uri) as client, told(uri):
        client.drop_collection(name)


def kind_of(about: About) -> str:
    """auto means exact: Milvus cannot be asked to change its mind when there are more."""
    return "flat" if about.kind == "auto" else about.kind


class MilvusIndex(Index):
    def __init__(self, path: Path, about: About) -> None:
        super().__init__(path, about)
        self.uri = about.store if is_address(about.store) else str((path / about.store).absolute())
        if not is_address(self.uri) and not Path(self.uri).exists():
            raise BrokenIndex(f"{path} is not complete: its items are in {self.uri}, which is missing")
        self._client: Any = connect(self.uri)
        try:
            with self._told():
                if not self._client.has_collection(about.collection):
                    raise BrokenIndex(f"{path} is not complete: {self.uri} has no collection {about.collection}")
                self._client.load_collection(about.collection)
        except BaseException:
            self.close()
            raise

    def is_kept_in(self, store: str) -> bool:
        if is_address(store) or is_address(self.uri):
            return store == self.uri
        return Path(store).resolve() == Path(self.uri).resolve()

    def set_kind(self, kind: str) -> None:
        if kind != self.about.kind:
            raise ValueError(
                f"a collection in Milvus stays as it was made, {self.about.kind}: {kind} needs a new index"
            )

    def _told(self) -> Any:
        return told(self.uri)

    def close(self) -> None:
        if self._client is not None:
            disconnect(self._client, self.uri)
            self._client = None

    def save(self) -> None:
        """Flush, and measure an approximate search, setting it so that it finds what it should."""
        with self.writing(), self._told():
            self._client.flush(self.about.collection)
            if kind_of(self.about) != "flat":
                self._tune()

    def files_below(self, folder: str) -> dict[str, FileRecord]:
        first, last = limits_below(folder)
        expression = f'path >= {as_literal(first)} and path < {as_literal(last)} and stamp != ""'
        found = self._rows(expression, [*COLUMNS, "stamp"])
        return {row["id"]: FileRecord(row["path"], row["label"], row["metadata"], row["stamp"]) for row in found}

    def restamp(self, stamps: dict[str, str]) -> None:
        ids = list(stamps)
        found, vectors = self._get(ids), self._vectors(ids)
        items = [found[each] for each in ids if each in found]
        with self.writing():
            self._upsert(items, [vectors[item.id] for item in items], [stamps[item.id] for item in items])

    def _add(self, items: list[Item], vectors: Vectors, stamps: list[str]) -> int:
        there = len(self._get([item.id for item in items]))
        self._upsert(items, vectors, stamps)
        return len(items) - there

    def _upsert(self, items: Sequence[Item], vectors: Sequence[Vectors] | Vectors, stamps: Sequence[str]) -> None:
        rows = [
            {
                "id": item.id,
                "vector": vector.tolist(),
                "path": item.path,
                "label": item.label,
                "stamp": stamp,
                "metadata": item.metadata,
                FIELD: by_type(item.metadata),
            }
            for item, vector, stamp in zip(items, vectors, stamps, strict=True)
        ]
        with self._told():
            for start in range(0, len(rows), ROWS):
                self._client.upsert(self.about.collection, rows[start : start + ROWS])

    def _delete(self, ids: list[str]) -> int:
        there = [each for each in ids if each in self._get(ids)]
        with self._told():
            for start in range(0, len(there), ROWS):
                self._client.delete(self.about.collection, ids=there[start : start + ROWS])
        return len(there)

    def _count(self, where: tuple[Condition, ...]) -> int:
        with self._told():
            found = self._client.query(self.about.collection, filter=as_expression(where), output_fields=["count(*)"])
        return int(found[0]["count(*)"])

    def _get(self, ids: list[str]) -> dict[str, Item]:
        return {row["id"]: _item(row) for row in self._by_id(ids, COLUMNS)}

    def _vectors(self, ids: list[str]) -> dict[str, Vectors]:
        return {row["id"]: np.array(row["vector"], np.float32) for row in self._by_id(ids, ["id", "vector"])}

    def _by_id(self, ids: list[str], columns: list[str]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        with self._told():
            for start in range(0, len(ids), ROWS):
                some = ids[start : start + ROWS]
                rows += self._client.get(self.about.collection, ids=some, output_fields=columns)
        return rows

    def _items(self, where: tuple[Condition, ...], after: str | None, limit: int | None) -> list[Item]:
        expression = as_expression(where)
        if after is not None:
            expression = " and ".join(filter(None, [expression, f"id > {as_literal(after)}"]))
        items = sorted((_item(row) for row in self._rows(expression, COLUMNS, limit)), key=lambda item: item.id)
        return items if limit is None else items[:limit]

    def _labels(self) -> dict[str, int]:
        return dict(Counter(row["label"] for row in self._rows("", ["id", "label"])))

    def _rows(self, expression: str, columns: list[str], limit: int | None = None) -> Iterator[dict[str, Any]]:
        """In the order of ids, which is how Milvus walks through a collection."""
        with self._told():
            walk = self._client.query_iterator(
                self.about.collection,
                batch_size=ROWS if limit is None else min(ROWS, limit),
                limit=-1 if limit is None else limit,
                filter=expression,
                output_fields=columns,
            )
            try:
                while some := walk.next():
                    yield from some
            finally:
                walk.close()

    def _info(self) -> dict[str, Any]:
        return {"kind": kind_of(self.about), "recall@10": self.about.measured.get("recall@10")}

    def _search(self, queries: Vectors, k: int, where: tuple[Condition, ...]) -> list[list[Hit]]:
        expression = as_expression(where)
        found: list[list[Hit]] = [[] for _ in queries]
        left, asked = list(range(len(queries))), min(k + MORE, MOST)
        exact = kind_of(self.about) == "flat"
        while left:
            again = []
            for query, rows in zip(left, self._candidates(queries[left], asked, expression), strict=True):
                found[query], complete = self._rescore(queries[query], rows, k)
                if exact and not complete and asked == len(rows) and asked < MOST:
                    again.append(query)
            left, asked = again, min(4 * asked, MOST)
        return found

    def _rescore(self, query: Vectors, rows: list[dict[str, Any]], k: int) -> tuple[list[Hit], bool]:
        if not rows:
            return [], True
        entities = [row["entity"] for row in rows]
        reported = np.array([row["distance"] for row in rows], np.float32)
        reported = 2 - 2 * reported if self.distance == "cosine" else reported
        vectors = np.array([entity["vector"] for entity in entities], np.float32)
        rescored = rescore(query, [row["id"] for row in rows], vectors, reported, k, self.distance)
        hits = [
            Hit(_item({**entities[place], "id": rows[place]["id"]}), distance)
            for place, distance in zip(rescored.places, rescored.distances, strict=True)
        ]
        return hits, rescored.complete

    def _candidates(
        self, queries: Vectors, k: int, expression: str, effort: int | None = None
    ) -> list[list[dict[str, Any]]]:
        name, least, _ = EFFORT[kind_of(self.about)]
        effort = effort or self.about.measured.get("effort", least)
        effort = max(effort, k) if name == "ef" else effort
        with self._told():
            return self._client.search(
                self.about.collection,
                data=queries.tolist(),
                limit=k,
                filter=expression,
                output_fields=[*COLUMNS, "vector"],
                search_params={"params": {name: effort}} if name else {},
            )

    def _tune(self) -> None:
        """As ``kinds.Structure`` does, but every vector has to come over the wire once."""
        count = self._count(())
        if count <= NEIGHBOURS or self.about.measured.get("count") == count:
            return
        ids = [row["id"] for row in self._rows("", ["id"])]
        chosen = [ids[i] for i in np.random.default_rng(0).choice(count, min(SAMPLE, count), replace=False)]
        queries = self.vectors(chosen)
        best: list[list[tuple[float, str]]] = [[] for _ in chosen]
        block: list[dict[str, Any]] = []
        for row in self._rows("", ["id", "vector"]):
            block.append(row)
            if len(block) == 20 * ROWS:
                best = self._nearer(queries, best, block)
                block = []
        best = self._nearer(queries, best, block) if block else best
        _, effort, most = EFFORT[kind_of(self.about)]
        while True:
            shares = []
            for own, truth, rows in zip(
                chosen, best, self._candidates(queries, NEIGHBOURS + 1, "", effort), strict=True
            ):
                wanted = [each for _, each in truth if each != own][:NEIGHBOURS]
                shares.append(len(set(wanted) & {row["id"] for row in rows}) / len(wanted))
            recall = float(np.mean(shares))
            if recall >= TARGET or effort >= most:
                break
            effort = min(2 * effort, most)
        measured = {"recall@10": recall, "effort": effort, "count": count}
        self._note(lambda about: about.measured.update(measured))

    def _nearer(
        self, queries: Vectors, best: list[list[tuple[float, str]]], block: list[dict[str, Any]]
    ) -> list[list[tuple[float, str]]]:
        vectors = np.array([row["vector"] for row in block], np.float32)
        ids = [row["id"] for row in block]
        nearer = []
        for query, before in zip(queries, best, strict=True):
            new = zip(distances(query, vectors, self.distance).tolist(), ids, strict=True)
            nearer.append(sorted([*before, *new])[: NEIGHBOURS + 1])
        return nearer


def _item(row: dict[str, Any]) -> Item:
    return Item(row["id"], row["path"], row["label"], row["metadata"])
