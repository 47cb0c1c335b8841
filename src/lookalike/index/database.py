"""Items and vectors of a FAISS index in one SQLite file, the source of truth.

Rows are added or removed, never changed, except for the stamp. A reader with rows in memory catches up by asking for
rows with higher numbers and for removed numbers. The write-ahead log is flushed at every commit: committed items
survive a killed process and a power cut, and readers continue while one process writes.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from lookalike.index.base import FileRecord, path_range
from lookalike.index.filters import Condition, Value
from lookalike.index.items import Item, Vectors, metadata_as_json, stored_item
from lookalike.index.storage import BrokenIndex, IndexInUse

FILE = "items.sqlite"
FORMAT = 1
WAIT = 30.0  # seconds, for another connection's commit
VALUES_PER_QUERY = 500  # SQLite allows at least 999
TABLES = {"items", "vectors", "gone"}

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
    """How far a reader has read.

    Attributes:
        number: The last row number.
        place: The last entry in the list of removed rows.
    """

    number: int
    place: int


class Database:
    """A connection to the SQLite file.

    Args:
        path: The file.
        dim: Size D of the vectors.

    Raises:
        BrokenIndex: If the file is missing or damaged.
        ValueError: If it has another format.
    """

    def __init__(self, path: Path, dim: int) -> None:
        self.path = path
        self.dim = dim
        if not path.is_file():
            raise BrokenIndex(f"{path.parent} is not complete: {path.name} is missing")
        has_log = path.with_name(f"{path.name}-wal").exists()
        mode = "mode=rw"
        if not os.access(path.parent, os.W_OK) and not has_log:
            mode = "immutable=1"  # a read-only folder without a writer: SQLite needs no log of its own
        with self._translated_errors():
            self.connection = sqlite3.connect(
                f"file:{quote(str(path.absolute()))}?{mode}",
                uri=True,
                timeout=WAIT,
                isolation_level=None,
                check_same_thread=False,
            )
            # A damaged text must not end the reading of all others.
            self.connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
            self.connection.execute("PRAGMA synchronous = FULL")
            version = self._first("PRAGMA user_version")
            tables = self._column("SELECT name FROM sqlite_master WHERE type = 'table'")
        if not set(tables) >= TABLES:
            raise BrokenIndex(f"{path} is damaged: it has no table of items")
        if version != FORMAT:
            raise ValueError(f"{path} has the format {version}, this version reads {FORMAT}")

    @staticmethod
    def make(path: Path) -> None:
        """Create an empty database file."""
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(SCHEMA)
        connection.close()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Open a read transaction: everything read inside is from one moment."""
        with self._translated_errors():
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                self.connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Open a write transaction: all or nothing, and on the disk at its end."""
        with self._translated_errors():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")

    def insert(self, items: Sequence[Item], vectors: Vectors, stamps: Sequence[str]) -> int:
        """Insert items, replacing those with the same ids.

        Args:
            items: The items (n,).
            vectors: Their vectors (n, D).
            stamps: Their stamps (n,).

        Returns:
            How many were replaced.
        """
        replaced = self.remove([item.id for item in items])
        for item, vector, stamp in zip(items, vectors, stamps, strict=True):
            cursor = self.connection.execute(
                "INSERT INTO items (id, path, label, metadata, stamp) VALUES (?, ?, ?, ?, ?)",
                (item.id, item.path, item.label, metadata_as_json(item), stamp),
            )
            blob = vector.astype("<f4").tobytes()
            self.connection.execute("INSERT INTO vectors (number, vector) VALUES (?, ?)", (cursor.lastrowid, blob))
        return replaced

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items; returns how many there were."""
        numbers = self.numbers_of(ids).values()
        for number in numbers:
            self.connection.execute("DELETE FROM items WHERE number = ?", (number,))
            self.connection.execute("DELETE FROM vectors WHERE number = ?", (number,))
            self.connection.execute("INSERT INTO gone (number) VALUES (?)", (number,))
        return len(numbers)

    def restamp(self, stamps: Iterable[tuple[str, str]]) -> None:
        """Set new stamps, given as (id, stamp)."""
        for item_id, stamp in stamps:
            self.connection.execute("UPDATE items SET stamp = ? WHERE id = ?", (stamp, item_id))

    def state(self) -> State:
        """Return the current state."""
        last = dict(self.connection.execute("SELECT name, seq FROM sqlite_sequence"))
        return State(last.get("items", 0), last.get("gone", 0))

    def count(self, where: Sequence[Condition] = ()) -> int:
        """Count the items that match a filter."""
        clause, values = as_sql(where)
        return int(self._first(f"SELECT count(*) FROM items WHERE {clause}", values))

    def new_vectors(self, since: State, block: int) -> Iterator[tuple[NDArray[np.int64], Vectors]]:
        """Read the rows that were added after a state.

        Args:
            since: The state.
            block: Rows per block.

        Yields:
            Row numbers (b,) and vectors (b, D).
        """
        cursor = self.connection.execute(
            "SELECT number, vector FROM vectors WHERE number > ? ORDER BY number", (since.number,)
        )
        while rows := cursor.fetchmany(block):
            numbers, blobs = zip(*rows, strict=True)
            yield np.array(numbers, np.int64), self._as_vectors(blobs)

    def gone(self, since: State) -> NDArray[np.int64]:
        """Return the numbers of rows that were removed after a state."""
        return np.array(self._column("SELECT number FROM gone WHERE place > ?", [since.place]), np.int64)

    def count_changes(self, since: State) -> tuple[int, int]:
        """Count the existing rows that are newer than a state, and the older ones that were removed."""
        new = self._first("SELECT count(*) FROM items WHERE number > ?", [since.number])
        removed = self._first("SELECT count(*) FROM gone WHERE place > ? AND number <= ?", [since.place, since.number])
        return int(new), int(removed)

    def numbers(self, where: Sequence[Condition]) -> NDArray[np.int64]:
        """Return the row numbers, ascending, of the items that match a filter."""
        clause, values = as_sql(where)
        return np.array(self._column(f"SELECT number FROM items WHERE {clause} ORDER BY number", values), np.int64)

    def vectors_of(self, numbers: Sequence[int]) -> tuple[dict[int, str], Vectors]:
        """Read vectors by row number.

        Args:
            numbers: Row numbers.

        Returns:
            Row number -> id, and the vectors (n, D) in the same order.
        """
        ids: dict[int, str] = {}
        blobs: list[bytes] = []
        query = "SELECT number, id, vector FROM items JOIN vectors USING (number) WHERE number IN"
        for number, item_id, blob in self._select_in(query, numbers):
            ids[number] = item_id
            blobs.append(blob)
        return ids, self._as_vectors(blobs)

    def items_by_number(self, numbers: Sequence[int]) -> dict[int, Item]:
        """Read items by row number; damaged ones are left out."""
        query = "SELECT number, id, path, label, metadata FROM items WHERE number IN"
        items = {}
        for number, *row in self._select_in(query, numbers):
            item = stored_item(*row)
            if item is not None:
                items[number] = item
        return items

    def items_by_id(self, ids: Sequence[str]) -> dict[str, Item]:
        """Read items by id; damaged ones are left out."""
        query = "SELECT id, path, label, metadata FROM items WHERE id IN"
        items = {}
        for row in self._select_in(query, ids):
            item = stored_item(*row)
            if item is not None:
                items[item.id] = item
        return items

    def stamps(self, ids: Sequence[str]) -> dict[str, str]:
        """Return id -> stamp, for ids that exist."""
        return dict(self._select_in("SELECT id, stamp FROM items WHERE id IN", ids))

    def numbers_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Return id -> row number, for ids that exist."""
        return dict(self._select_in("SELECT id, number FROM items WHERE id IN", ids))

    def items(self, where: Sequence[Condition], after: str | None, limit: int | None) -> list[Item]:
        """Read items in order of id.

        Args:
            where: A filter.
            after: Start behind this id.
            limit: Largest number of items.

        Returns:
            The items. Damaged ones are left out and do not count towards the limit.
        """
        clause, values = as_sql(where)
        if after is not None:
            clause += " AND id > ?"
            values.append(after)
        query = f"SELECT id, path, label, metadata FROM items WHERE {clause} ORDER BY id LIMIT ? OFFSET ?"
        items: list[Item] = []
        offset = 0
        while True:
            missing = -1
            if limit is not None:
                missing = limit - len(items)
            rows = self.connection.execute(query, [*values, missing, offset]).fetchall()
            for row in rows:
                item = stored_item(*row)
                if item is not None:
                    items.append(item)
            if limit is None or len(items) == limit or not rows:
                return items
            offset += len(rows)

    def labels(self) -> dict[str, int]:
        """Return label -> number of items."""
        return dict(self.connection.execute("SELECT label, count(*) FROM items GROUP BY label"))

    def files_below(self, folder: str) -> dict[str, FileRecord]:
        """Return id -> record of the items with a stamp whose path is below the folder."""
        rows = self.connection.execute(
            "SELECT id, path, label, metadata, stamp FROM items WHERE path >= ? AND path < ? AND stamp != ''",
            path_range(folder),
        )
        records = {}
        for item_id, path, label, metadata, stamp in rows:
            item = stored_item(item_id, path, label, metadata)
            if item is not None:  # a damaged one is embedded again
                records[item.id] = FileRecord(item.path, item.label, item.metadata, stamp)
        return records

    def _first(self, query: str, values: Sequence[Any] = ()) -> Any:
        """The single value of a query."""
        (value,) = self.connection.execute(query, values).fetchone()
        return value

    def _column(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """The first column of a query."""
        return [row[0] for row in self.connection.execute(query, values)]

    def _select_in(self, query: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """Rows of a query that ends in IN, for any number of values."""
        for start in range(0, len(values), VALUES_PER_QUERY):
            some = values[start : start + VALUES_PER_QUERY]
            yield from self.connection.execute(f"{query} ({_placeholders(some)})", some).fetchall()

    def _as_vectors(self, blobs: Sequence[bytes]) -> Vectors:
        if any(len(blob) != 4 * self.dim for blob in blobs):
            raise BrokenIndex(f"{self.path} is damaged: a vector is not of size {self.dim}")
        return np.frombuffer(b"".join(blobs), "<f4").reshape(-1, self.dim).astype(np.float32, copy=False)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "locked" in text:
                message = f"{self.path} is being written by another process: try again when it is done"
                raise IndexInUse(message) from error
            raise OSError(f"{self.path} cannot be used: {text}") from error
        except sqlite3.DatabaseError as error:
            raise BrokenIndex(f"{self.path} is damaged: {error}") from error


def as_sql(where: Sequence[Condition]) -> tuple[str, list[Any]]:
    """Translate a filter into SQL.

    Args:
        where: The conditions.

    Returns:
        A clause on the table of items and its values. Words of a filter are only ever values.
    """
    clauses: list[str] = ["1"]
    values: list[Any] = []
    for condition in where:
        if condition.is_metadata:
            clause, clause_values = _metadata_clause(condition)
        else:
            clause, clause_values = _column_clause(condition)
        clauses.append(clause)
        values += clause_values
    return " AND ".join(clauses), values


def _placeholders(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _is_equality(condition: Condition) -> bool:
    return condition.operator in ("in", "not in")


def _column_clause(condition: Condition) -> tuple[str, list[Any]]:
    texts = [value.text for value in condition.values]
    if _is_equality(condition):
        return f"{condition.key} {condition.operator} ({_placeholders(texts)})", texts
    return f"{condition.key} {condition.operator} ?", texts


def _metadata_clause(condition: Condition) -> tuple[str, list[Any]]:
    path = f'$."{condition.key}"'
    clauses: list[str] = []
    values: list[Any] = []
    for json_types, operands in _operands_by_type(condition.values, _is_equality(condition)):
        comparison = f"{condition.operator} ?"
        if _is_equality(condition):
            comparison = f"IN ({_placeholders(operands)})"
        clauses.append(f"(json_type(metadata, ?) IN ({json_types}) AND json_extract(metadata, ?) {comparison})")
        values += [path, path, *operands]
    matches = f"coalesce({' OR '.join(clauses)}, 0)"
    if condition.operator == "not in":
        matches = f"NOT {matches}"
    # JSON functions fail on a damaged row, and with it the whole query.
    return f"CASE WHEN json_valid(metadata) THEN {matches} ELSE 0 END", values


def _operands_by_type(values: Sequence[Value], equality: bool) -> list[tuple[str, list[Any]]]:
    """SQLite's names of JSON types, with what a value of these types is compared with."""
    texts: list[Any] = []
    numbers: list[Any] = []
    booleans: list[Any] = []
    for value in values:
        if equality or value.number is None:
            texts.append(value.text)
        if value.number is not None:
            numbers.append(value.number)
        if equality and value.truth is not None:
            booleans.append(int(value.truth))
    by_type = [("'text'", texts), ("'integer', 'real'", numbers), ("'true', 'false'", booleans)]
    return [(json_types, operands) for json_types, operands in by_type if operands]
