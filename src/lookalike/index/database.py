"""Items and vectors in one SQLite file: the truth of a FAISS index.

A row is added or removed, never changed (but for its stamp): whoever has rows in memory catches up by asking for the
rows with a higher number and for the numbers that are gone. Write-ahead log, flushed at every commit: what was
acknowledged survives a killed process and a power cut; readers go on while one process writes.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from lookalike.index.base import FileRecord, limits_below
from lookalike.index.filters import Condition, Value
from lookalike.index.items import Item, Vectors, metadata_as_json
from lookalike.index.storage import BrokenIndex, IndexInUse

FILE = "items.sqlite"
FORMAT = 1
WAIT = 30.0  # seconds, for another connection's commit
AT_ONCE = 500  # values in one statement; SQLite takes 999 or more

SCHEMA = f"""
CREATE TABLE items (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again
    id TEXT NOT NULL UNIQUE,
    path TEXT NOT NULL,
    label TEXT NOT NULL,
    metadata TEXT NOT NULL,
    stamp TEXT NOT NULL
);
CREATE INDEX items_by_label ON items (label);
CREATE INDEX items_by_path ON items (path);
CREATE TABLE vectors (number INTEGER PRIMARY KEY, vector BLOB NOT NULL);  -- apart: filters need not pass over them
CREATE TABLE gone (place INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER NOT NULL);
PRAGMA user_version = {FORMAT};
"""


class State(NamedTuple):
    """How far somebody has read: the last number and the last place among those gone."""

    number: int
    place: int


class Database:
    def __init__(self, path: Path, dim: int) -> None:
        self.path, self.dim = path, dim
        if not path.is_file():
            raise BrokenIndex(f"{path.parent} is not complete: {path.name} is missing")
        name = f"file:{quote(str(path.absolute()))}"
        alone = not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()
        with self._told():
            self.connection = sqlite3.connect(
                f"{name}?{'immutable=1' if alone else 'mode=rw'}",
                uri=True,
                timeout=WAIT,
                isolation_level=None,
                check_same_thread=False,
            )
            self.connection.execute("PRAGMA synchronous = FULL")
            (version,) = self.connection.execute("PRAGMA user_version").fetchone()
            tables = {
                name for (name,) in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
        if not {"items", "vectors", "gone"} <= tables:
            raise BrokenIndex(f"{path} is damaged: it has no table of items")
        if version != FORMAT:
            raise ValueError(f"{path} has the format {version}, this version reads {FORMAT}")

    @staticmethod
    def make(path: Path) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(SCHEMA)
        connection.close()

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """SQLite's errors in our words."""
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "locked" in text:
                raise IndexInUse(
                    f"{self.path} is being written by another process: try again when it is done"
                ) from error
            raise OSError(f"{self.path} cannot be used: {text}") from error
        except sqlite3.DatabaseError as error:
            raise BrokenIndex(f"{self.path} is damaged: {error}") from error

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All that is read in here is of one moment."""
        with self._told():
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                self.connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """All or nothing; on the disk when it ends."""
        with self._told():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")

    def insert(self, items: Sequence[Item], vectors: Vectors, stamps: Sequence[str]) -> int:
        """In place of those with the same ids; returns how many of these there were."""
        replaced = self.remove([item.id for item in items])
        for item, vector, stamp in zip(items, vectors, stamps, strict=True):
            made = self.connection.execute(
                "INSERT INTO items (id, path, label, metadata, stamp) VALUES (?, ?, ?, ?, ?)",
                (item.id, item.path, item.label, metadata_as_json(item), stamp),
            )
            blob = vector.astype("<f4").tobytes()
            self.connection.execute("INSERT INTO vectors (number, vector) VALUES (?, ?)", (made.lastrowid, blob))
        return replaced

    def remove(self, ids: Sequence[str]) -> int:
        numbers = [number for _, number in self._in("SELECT id, number FROM items WHERE id IN", ids)]
        for number in numbers:
            self.connection.execute("DELETE FROM items WHERE number = ?", (number,))
            self.connection.execute("DELETE FROM vectors WHERE number = ?", (number,))
            self.connection.execute("INSERT INTO gone (number) VALUES (?)", (number,))
        return len(numbers)

    def restamp(self, stamps: Iterable[tuple[str, str]]) -> None:
        """(id, stamp) of files that were looked at again and found the same."""
        self.connection.executemany(
            "UPDATE items SET stamp = ? WHERE id = ?", [(stamp, each) for each, stamp in stamps]
        )

    def state(self) -> State:
        last = dict(self.connection.execute("SELECT name, seq FROM sqlite_sequence"))
        return State(last.get("items", 0), last.get("gone", 0))

    def count(self, where: Sequence[Condition] = ()) -> int:
        clause, values = as_sql(where)
        (number,) = self.connection.execute(f"SELECT count(*) FROM items WHERE {clause}", values).fetchone()
        return int(number)

    def new_vectors(self, since: State, block: int) -> Iterator[tuple[NDArray[np.int64], Vectors]]:
        """Numbers and vectors of rows that came after, in blocks."""
        rows = self.connection.execute(
            "SELECT number, vector FROM vectors WHERE number > ? ORDER BY number", (since.number,)
        )
        while some := rows.fetchmany(block):
            yield np.array([number for number, _ in some], np.int64), self._vectors([blob for _, blob in some])

    def gone(self, since: State) -> NDArray[np.int64]:
        found = self.connection.execute("SELECT number FROM gone WHERE place > ?", (since.place,))
        return np.fromiter((number for (number,) in found), np.int64)

    def since(self, state: State) -> tuple[int, int]:
        """How many rows have come after, of those that are there, and how many from before have gone."""
        (fresh,) = self.connection.execute("SELECT count(*) FROM items WHERE number > ?", (state.number,)).fetchone()
        gone = self.connection.execute(
            "SELECT count(*) FROM gone WHERE place > ? AND number <= ?", (state.place, state.number)
        ).fetchone()
        return int(fresh), int(gone[0])

    def numbers(self, where: Sequence[Condition]) -> NDArray[np.int64]:
        clause, values = as_sql(where)
        found = self.connection.execute(f"SELECT number FROM items WHERE {clause} ORDER BY number", values)
        return np.fromiter((number for (number,) in found), np.int64)

    def vectors_of(self, numbers: Sequence[int]) -> tuple[dict[int, str], Vectors]:
        """Number -> id, and the vectors in the same order."""
        rows = list(
            self._in("SELECT number, id, vector FROM items JOIN vectors USING (number) WHERE number IN", numbers)
        )
        return {number: each for number, each, _ in rows}, self._vectors([blob for _, _, blob in rows])

    def items_of(self, key: str, values: Sequence[Any]) -> dict[Any, Item]:
        """By "number" or "id"."""
        query = f"SELECT {key}, id, path, label, metadata FROM items WHERE {key} IN"
        return {row[0]: _item(row[1:]) for row in self._in(query, values)}

    def numbers_of(self, ids: Sequence[str]) -> dict[str, int]:
        return dict(self._in("SELECT id, number FROM items WHERE id IN", ids))

    def items(self, where: Sequence[Condition], after: str | None, limit: int | None) -> list[Item]:
        clause, values = as_sql(where)
        more = "" if after is None else " AND id > ?"
        rows = self.connection.execute(
            f"SELECT id, path, label, metadata FROM items WHERE {clause}{more} ORDER BY id LIMIT ?",
            [*values, *([] if after is None else [after]), -1 if limit is None else limit],
        )
        return [_item(row) for row in rows]

    def labels(self) -> dict[str, int]:
        return dict(self.connection.execute("SELECT label, count(*) FROM items GROUP BY label"))

    def files_below(self, folder: str) -> dict[str, FileRecord]:
        """Id -> what was noted, of the items with a stamp."""
        rows = self.connection.execute(
            "SELECT id, path, label, metadata, stamp FROM items WHERE path >= ? AND path < ? AND stamp != ''",
            limits_below(folder),
        )
        return {each: FileRecord(path, label, json.loads(more), stamp) for each, path, label, more, stamp in rows}

    def _in(self, query: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(values), AT_ONCE):
            some = values[start : start + AT_ONCE]
            yield from self.connection.execute(f"{query} ({', '.join('?' * len(some))})", some).fetchall()

    def _vectors(self, blobs: Sequence[bytes]) -> Vectors:
        if any(len(blob) != 4 * self.dim for blob in blobs):
            raise BrokenIndex(f"{self.path} is damaged: a vector is not of size {self.dim}")
        return np.frombuffer(b"".join(blobs), "<f4").reshape(-1, self.dim).astype(np.float32, copy=False)


def _item(row: Sequence[Any]) -> Item:
    return Item(row[0], row[1], row[2], json.loads(row[3]))


def as_sql(where: Sequence[Condition]) -> tuple[str, list[Any]]:
    """A condition on the table of items, and its values; words of a filter are only ever values."""
    clauses: list[str] = ["1"]
    values: list[Any] = []
    for condition in where:
        clause, some = _metadata(condition) if condition.is_metadata else _column(condition)
        clauses.append(clause)
        values += some
    return " AND ".join(clauses), values


def _column(condition: Condition) -> tuple[str, list[Any]]:
    texts = [value.text for value in condition.values]
    places = ", ".join("?" * len(texts))
    if "in" in condition.operator:
        return f"{condition.key} {condition.operator} ({places})", list(texts)
    return f"{condition.key} {condition.operator} ?", list(texts)


def _metadata(condition: Condition) -> tuple[str, list[Any]]:
    path = f'$."{condition.key}"'
    equality = "in" in condition.operator
    clauses, values = [], list[Any]()
    for types, operands in _comparable(condition.values, equality):
        compared = f"IN ({', '.join('?' * len(operands))})" if equality else f"{condition.operator} ?"
        clauses.append(f"(json_type(metadata, ?) IN ({types}) AND json_extract(metadata, ?) {compared})")
        values += [path, path, *operands]
    met = f"coalesce({' OR '.join(clauses)}, 0)"
    return (f"NOT {met}" if condition.operator == "not in" else met), values


def _comparable(values: Sequence[Value], equality: bool) -> list[tuple[str, list[Any]]]:
    """JSON's types, as SQLite calls them, and what is compared with a value of these."""
    texts = [value.text for value in values if equality or value.number is None]
    numbers = [value.number for value in values if value.number is not None]
    truths = [int(value.truth) for value in values if value.truth is not None and equality]
    by_type: list[tuple[str, list[Any]]] = [
        ("'text'", texts),
        ("'integer', 'real'", numbers),
        ("'true', 'false'", truths),
    ]
    return [(types, operands) for types, operands in by_type if operands]
