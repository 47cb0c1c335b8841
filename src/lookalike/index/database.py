"""Items and vectors of a FAISS index in one SQLite file, the source of truth.

Rows are added or removed, never changed, except for the stamp. A reader with rows in memory catches up by asking for
rows with higher numbers and for removed numbers.

Every row has a CRC-32 of its number and its values. It is compared when the row is read; a damaged row is reported once
and left out. Rows of earlier versions have none.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from lookalike._util.checksums import Finding
from lookalike.index.base import FileRecord, path_range
from lookalike.index.extra_tables import Others, drop_row, extra_tables, is_good_row, put_row
from lookalike.index.filters import Condition, Value
from lookalike.index.items import KEY, Item, Vectors, encode_metadata, report_damage, stored_item
from lookalike.index.sqlite_file import VALUES_PER_QUERY, SqliteFile, placeholders
from lookalike.index.storage import BrokenIndex

FILE = "items.sqlite"
FORMAT = 1
FEW_ROWS = 200_000  # of which a sample is drawn one by one
SAMPLE_RUNS = 1_000  # of neighbouring rows that a large sample consists of
INDEXED_KEYS = 8  # metadata keys that filters find quickly; each costs space and time for every addition
KEY_SAMPLE = 1_000  # items whose keys are looked at
CACHE_KIB = 65_536  # of pages: ids are random, and their tree must fit

SCHEMA = f"""
CREATE TABLE items (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again
    id TEXT NOT NULL UNIQUE,
    path TEXT NOT NULL,
    label TEXT NOT NULL,
    metadata TEXT NOT NULL,
    stamp TEXT NOT NULL,
    checksum INTEGER
);
CREATE INDEX items_by_label ON items (label);
CREATE INDEX items_by_path ON items (path);
CREATE TABLE vectors (  -- apart: filters need not pass over them
    number INTEGER PRIMARY KEY,
    vector BLOB NOT NULL,
    checksum INTEGER
);
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


START = State(0, 0)


class Database(SqliteFile):
    """A connection to the SQLite file.

    Args:
        path: The file.
        dim: Size D of the vectors.

    Raises:
        BrokenIndex: If the file is missing or damaged.
        ValueError: If it has another format.
    """

    FORMAT = FORMAT
    TABLES = frozenset({"items", "vectors", "gone"})

    def __init__(self, path: Path, dim: int) -> None:
        super().__init__(path)
        self.dim = dim
        self._has_checksums = self._find_checksums()
        self.connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self._present = "1"  # a condition: the item has a vector of this model
        self._numbered = "items"  # the table whose numbers are those of the rows

    @staticmethod
    def make(path: Path) -> None:
        """Create an empty database file."""
        SqliteFile.make_file(path, SCHEMA)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Open a write transaction: all or nothing, and on the disk at its end."""
        try:
            with super().writing():
                yield
        except BaseException:
            self._has_checksums = self._find_checksums()
            raise

    def insert(self, items: Sequence[Item], vectors: Vectors, stamps: Sequence[str], others: Others) -> int:
        """Insert items, replacing those with the same ids.

        Args:
            items: The items (n,), which were checked.
            vectors: Their vectors (n, D).
            stamps: Their stamps (n,).
            others: Their vectors of further models.

        Returns:
            How many were replaced.
        """
        self._add_checksums()
        extra = extra_tables(self.connection)
        replaced = self.remove([item.id for item in items])
        first = self.state().number + 1
        item_rows, vector_rows = [], []
        little_endian = vectors.astype("<f4", copy=False)
        for number, (item, vector, stamp) in enumerate(zip(items, little_endian, stamps, strict=True), first):
            values = (item.id, item.path, item.label, encode_metadata(item.metadata), stamp)
            item_rows.append((number, *values, item_checksum(number, values)))
            blob = vector.tobytes()
            vector_rows.append((number, blob, crc32(blob, number)))
            for fingerprint, (table, _) in extra.items():
                if item.id in others.get(fingerprint, {}):
                    put_row(self.connection, table, number, others[fingerprint][item.id])
        self.connection.executemany(
            "INSERT INTO items (number, id, path, label, metadata, stamp, checksum) VALUES (?, ?, ?, ?, ?, ?, ?)",
            item_rows,
        )
        self.connection.executemany("INSERT INTO vectors (number, vector, checksum) VALUES (?, ?, ?)", vector_rows)
        return replaced

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items; returns how many there were."""
        numbers = self.numbers_of(ids).values()
        extra = extra_tables(self.connection)
        for number in numbers:
            for table, gone_table in extra.values():
                drop_row(self.connection, table, gone_table, number)
            self.connection.execute("DELETE FROM items WHERE number = ?", (number,))
            self.connection.execute("DELETE FROM vectors WHERE number = ?", (number,))
            self.connection.execute("INSERT INTO gone (number) VALUES (?)", (number,))
        return len(numbers)

    def other_vectors(self, ids: Sequence[str]) -> dict[str, dict[str, Vectors]]:
        """Read the vectors of further models: fingerprint -> id -> vector, where there are any."""
        vectors: dict[str, dict[str, Vectors]] = {}
        for fingerprint, (table, _) in extra_tables(self.connection).items():
            query = f"SELECT id, extra.number, item, vector, extra.checksum FROM items JOIN {table} AS extra "
            found = vectors.setdefault(fingerprint, {})
            for item_id, *row in self._select_in(f"{query} ON item = items.number WHERE id IN", ids):
                if is_good_row(*row):
                    _, _, blob, _ = row
                    found[item_id] = np.frombuffer(blob, "<f4").astype(np.float32)
        return vectors

    def restamp(self, stamps: Iterable[tuple[str, str]]) -> None:
        """Set new stamps, given as (id, stamp)."""
        self._add_checksums()
        new_stamps = dict(stamps)
        query = "SELECT number, id, path, label, metadata, stamp, checksum FROM items WHERE id IN"
        for number, *values, checksum in self._select_in(query, list(new_stamps)):
            if checksum is not None and checksum != item_checksum(number, values):
                continue  # a new checksum would hide the damage
            *unchanged, _ = values
            stamp = new_stamps[values[0]]
            checksum = item_checksum(number, [*unchanged, stamp])
            self.connection.execute(
                "UPDATE items SET stamp = ?, checksum = ? WHERE number = ?", (stamp, checksum, number)
            )

    def state(self) -> State:
        """Return the current state."""
        last = dict(self.connection.execute("SELECT name, seq FROM sqlite_sequence"))
        return State(last.get("items", 0), last.get("gone", 0))

    def count(self, where: Sequence[Condition] = ()) -> int:
        """Count the items that match a filter. Without one this takes no time: numbers are never used again."""
        if not where:
            state = self.state()
            return state.number - state.place
        clause, values = as_sql(where)
        return int(self._first(f"SELECT count(*) FROM items WHERE {clause} AND {self._present}", values))

    def new_vectors(self, since: State, block: int) -> Iterator[tuple[NDArray[np.int64], Vectors]]:
        """Read the rows that were added after a state.

        Args:
            since: The state.
            block: Rows per block.

        Yields:
            Row numbers (b,) and vectors (b, D).
        """
        cursor = self.connection.execute(
            f"SELECT number, vector, {self._vector_checksum} FROM vectors WHERE number > ? ORDER BY number",
            (since.number,),
        )
        while rows := cursor.fetchmany(block):
            numbers, vectors = self._good_vectors(rows)
            yield np.array(numbers, np.int64), vectors

    def gone(self, since: State) -> NDArray[np.int64]:
        """Return the numbers of rows that were removed after a state."""
        return np.array(self._column("SELECT number FROM gone WHERE place > ?", [since.place]), np.int64)

    def sample_vectors(self, most: int, seed: int = 0) -> Vectors:
        """Read the vectors of up to ``most`` rows, drawn at random and in random order.

        Returns:
            Vectors (m, D).
        """
        query = f"SELECT number, vector, {self._vector_checksum} FROM vectors WHERE number >= ? ORDER BY number LIMIT ?"
        rows = list(self._sample(query, most, seed))
        _, vectors = self._good_vectors(rows)
        return vectors[np.random.default_rng(seed).permutation(len(vectors))]

    def sample_items(self, most: int, seed: int = 0) -> Iterator[Item]:
        """Read up to ``most`` items, drawn at random."""
        query = f"SELECT {self._row} FROM items WHERE number >= ? ORDER BY number LIMIT ?"
        for row in self._sample(query, most, seed):
            item = good_item(row)
            if item is not None:
                yield item

    def _sample(self, query: str, most: int, seed: int) -> Iterator[tuple[Any, ...]]:
        """Rows of a query for a first number and a limit: runs of neighbours at random places, or all rows."""
        last = self.state().number
        if self.count() <= most:
            yield from self.connection.execute(query, (0, last))
            return
        rng = np.random.default_rng(seed)
        if last <= FEW_ROWS:
            numbers = self._column(f"SELECT number FROM {self._numbered} ORDER BY number")
            chosen = np.sort(rng.choice(len(numbers), most, replace=False))
            for i in chosen:
                yield from self.connection.execute(query, (numbers[i], 1))
            return
        runs = min(most, SAMPLE_RUNS)
        length = most // runs
        seen: set[int] = set()
        for start in np.sort(rng.integers(1, last + 1, runs)).tolist():
            for row in self.connection.execute(query, (start, length)):
                if row[0] not in seen:
                    seen.add(row[0])
                    yield row

    def index_metadata(self) -> None:
        """Index the metadata keys of a sample of the items, so that filters need not read every item."""
        counts: Counter[str] = Counter()
        for item in self.sample_items(KEY_SAMPLE):
            counts.update(key for key in item.metadata if KEY.fullmatch(key))
        for key, _ in counts.most_common(INDEXED_KEYS):
            name = f"metadata_{key.encode().hex()}"  # names of indexes do not distinguish case
            self.connection.execute(
                f"CREATE INDEX IF NOT EXISTS {name} ON items ({_json_type(key)}, {_json_value(key)})"
            )

    def count_changes(self, since: State) -> tuple[int, int]:
        """Count the existing rows that are newer than a state, and the older ones that were removed."""
        new = self._first("SELECT count(*) FROM items WHERE number > ?", [since.number])
        removed = self._first("SELECT count(*) FROM gone WHERE place > ? AND number <= ?", [since.place, since.number])
        return int(new), int(removed)

    def numbers(self, where: Sequence[Condition], since: State = START) -> NDArray[np.int64]:
        """Return the row numbers, ascending, of the items that match a filter.

        Args:
            where: The filter.
            since: Only of rows that were added after this state.
        """
        clause, values = as_sql(where)
        query = f"SELECT group_concat(number) FROM items WHERE {clause} AND number > ?"
        return parse_numbers(self._first(query, [*values, since.number]))

    def vectors_of(self, numbers: Sequence[int]) -> tuple[dict[int, str], Vectors]:
        """Read vectors by row number.

        Args:
            numbers: Row numbers.

        Returns:
            Row number -> id, and the vectors (n, D) in the same order. Damaged ones are left out.
        """
        query = f"SELECT number, id, vector, {self._vector_checksum} FROM items JOIN vectors USING (number)"
        ids: dict[int, str] = {}
        rows = []
        for number, item_id, blob, checksum in self._select_in(f"{query} WHERE number IN", numbers):
            ids[number] = item_id
            rows.append((number, blob, checksum))
        good, vectors = self._good_vectors(rows)
        return {number: ids[number] for number in good}, vectors

    def items_by_number(self, numbers: Sequence[int]) -> dict[int, Item]:
        """Read items by row number; damaged ones are left out."""
        items = {}
        for row in self._select_in(f"SELECT {self._row} FROM items WHERE number IN", numbers):
            item = good_item(row)
            if item is not None:
                items[row[0]] = item
        return items

    def items_by_id(self, ids: Sequence[str]) -> dict[str, Item]:
        """Read items by id; damaged ones are left out."""
        items = {}
        for row in self._select_in(f"SELECT {self._row} FROM items WHERE id IN", ids):
            item = good_item(row)
            if item is not None:
                items[item.id] = item
        return items

    def stamps(self, ids: Sequence[str]) -> dict[str, str]:
        """Return id -> stamp, for ids that exist."""
        return dict(self._select_in("SELECT id, stamp FROM items WHERE id IN", ids))

    def all_stamps(self) -> dict[str, str]:
        """Return id -> stamp of all items with a stamp."""
        return dict(self.connection.execute("SELECT id, stamp FROM items WHERE stamp != ''"))

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
        query = f"SELECT {self._row} FROM items WHERE {clause} AND {self._present} ORDER BY id LIMIT ? OFFSET ?"
        items: list[Item] = []
        offset = 0
        while True:
            missing = -1
            if limit is not None:
                missing = limit - len(items)
            rows = self.connection.execute(query, [*values, missing, offset]).fetchall()
            for row in rows:
                item = good_item(row)
                if item is not None:
                    items.append(item)
            if limit is None or len(items) == limit or not rows:
                return items
            offset += len(rows)

    def metadata_keys(self) -> set[str]:
        """Return the metadata keys of all items."""
        objects = "CASE WHEN json_valid(metadata) AND json_type(metadata) = 'object' THEN metadata ELSE '{}' END"
        query = f"SELECT DISTINCT key FROM items, json_each({objects}) WHERE {self._present}"
        return {key for key in self._column(query) if KEY.fullmatch(key)}

    def tree_faults(self) -> list[str]:
        """Return what is wrong with the trees by which items are found. Rows have checksums, but these do not."""
        try:
            with self._translated_errors():
                faults = self._column("PRAGMA integrity_check(items)")
        except (OSError, BrokenIndex) as error:
            return [str(error)]
        return [] if faults == ["ok"] else [str(fault) for fault in faults]

    def rebuild_trees(self) -> None:
        """Build these trees again from the rows, inside of ``writing``."""
        self.connection.execute("REINDEX items")

    def labels(self) -> dict[str, int]:
        """Return label -> number of items."""
        query = f"SELECT label, count(*) FROM items WHERE {self._present} GROUP BY label"
        return dict(self.connection.execute(query))

    def files_below(self, folder: str) -> dict[str, FileRecord]:
        """Return id -> record of the items with a stamp whose path is below the folder."""
        rows = self.connection.execute(
            f"SELECT {self._row}, vector, {self._vector_checksum} FROM items LEFT JOIN vectors USING (number) "
            "WHERE path >= ? AND path < ? AND stamp != ''",
            path_range(folder),
        )
        records = {}
        for *row, vector, checksum in rows:
            item = good_item(row)
            if item is not None and self._is_good(row[0], vector, checksum):  # a damaged one is embedded again
                records[item.id] = FileRecord(item.path, item.label, item.metadata, row[5])
        return records

    def check(self) -> Finding:
        """Check the structure of the file, the checksums of all rows, and that no row is missing."""
        faults = self.structure_faults()
        without_checksum = damaged = 0
        for *row, checksum in self.connection.execute(f"SELECT {self._row} FROM items"):
            without_checksum += checksum is None
            damaged += good_item([*row, checksum]) is None
        query = f"SELECT number, vector, {self._vector_checksum} FROM vectors"
        for number, vector, checksum in self.connection.execute(query):
            without_checksum += checksum is None
            damaged += not self._is_good(number, vector, checksum)
        if damaged:
            faults.append(f"damaged rows: {damaged:,}")
        faults += self._missing_rows()
        faults += self.commit_faults()
        if faults:
            repair = "index the folder again to replace damaged rows; if that does not help, restore a copy"
            return Finding(self.path.name, "damaged", f"{'; '.join(map(str, faults))}. To repair: {repair}")
        if without_checksum:
            return Finding(self.path.name, "no checksum", f"in {without_checksum:,} rows, of an earlier version")
        return Finding(self.path.name, "ok", f"{self.count():,} items")

    def _missing_rows(self) -> list[str]:
        """Every number up to the last is that of an item with a vector, or of a removed one."""
        items = set(self._column("SELECT number FROM items"))
        vectors = set(self._column("SELECT number FROM vectors"))
        removed = self._column("SELECT number FROM gone")
        state = self.state()
        faults = []
        if items != vectors:
            faults.append(f"items without a vector, or vectors without an item: {len(items ^ vectors):,}")
        if sorted([*items, *removed]) != list(range(1, state.number + 1)) or len(removed) != state.place:
            faults.append("the list of removed items does not fit the items")
        return faults

    @property
    def _row(self) -> str:
        """The columns that ``good_item`` takes."""
        checksum = "items.checksum" if self._has_checksums else "NULL"
        return f"number, id, path, label, metadata, stamp, {checksum}"

    @property
    def _vector_checksum(self) -> str:
        return "vectors.checksum" if self._has_checksums else "NULL"

    def _find_checksums(self) -> bool:
        return "checksum" in self._column("SELECT name FROM pragma_table_info('items')")

    def _add_checksums(self) -> None:
        """Add the columns of checksums to a file of an earlier version."""
        if self._has_checksums:
            return
        if not self._find_checksums():  # another process may have added them
            self.connection.execute("ALTER TABLE items ADD COLUMN checksum INTEGER")
            self.connection.execute("ALTER TABLE vectors ADD COLUMN checksum INTEGER")
        self._has_checksums = True

    def _good_vectors(self, rows: Sequence[tuple[int, Any, int | None]]) -> tuple[list[int], Vectors]:
        """Row numbers and vectors of the undamaged ones of some rows (number, vector, checksum)."""
        numbers: list[int] = []
        blobs: list[bytes] = []
        size = 4 * self.dim
        for number, blob, checksum in rows:  # runs for every vector of the index: no call for an undamaged one
            is_blob = type(blob) is bytes and len(blob) == size
            if (is_blob and checksum == crc32(blob, number)) or self._is_good(number, blob, checksum):
                numbers.append(number)
                blobs.append(blob)
        if rows and not numbers and all(len(blob) != 4 * self.dim for _, blob, _ in rows):
            raise BrokenIndex(f"{self.path} is damaged: a vector is not of size {self.dim}")
        vectors = np.frombuffer(b"".join(blobs), "<f4").reshape(-1, self.dim).astype(np.float32, copy=False)
        return numbers, vectors

    def _is_good(self, number: int, blob: Any, checksum: int | None) -> bool:
        if not isinstance(blob, bytes) or len(blob) != 4 * self.dim:
            report_damage(f"vector {number}", f"it is not of size {self.dim}")
            return False
        if checksum is not None and checksum != crc32(blob, number):
            report_damage(f"vector {number}", "its checksum differs")
            return False
        return True


def item_checksum(number: int, values: Sequence[Any]) -> int:
    """Return the CRC-32 of a row number and the texts of a row of items."""
    return crc32("\0".join(map(str, values)).encode(errors="surrogateescape"), number)


def good_item(row: Sequence[Any]) -> Item | None:
    """Make an item of a row (number, id, path, label, metadata, stamp, checksum); None if it is damaged."""
    number, *values, checksum = row
    if checksum is not None and checksum != item_checksum(number, values):
        report_damage(f"item {values[0]!r}", "its checksum differs")
        return None
    return stored_item(*values[:4])


def parse_numbers(text: str | None) -> NDArray[np.int64]:
    """Return the numbers that ``group_concat`` has joined, ascending. Rows one by one would take the lock of Python."""
    if text is None:
        return np.zeros(0, np.int64)
    return np.sort(np.array(text.split(","), np.int64))


def as_sql(where: Sequence[Condition]) -> tuple[str, list[Any]]:
    """Translate a filter into SQL.

    Args:
        where: The conditions.

    Returns:
        A clause on the table of items and its values. Words of a filter are only ever values; keys are checked.
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


def _is_equality(condition: Condition) -> bool:
    return condition.operator in ("in", "not in")


def _column_clause(condition: Condition) -> tuple[str, list[Any]]:
    texts = [value.text for value in condition.values]
    if condition.key == "id" and len(texts) > VALUES_PER_QUERY:  # from a program: a written filter has fewer
        return f"{condition.key} {condition.operator} (SELECT value FROM json_each(?))", [json.dumps(texts)]
    if _is_equality(condition):
        return f"{condition.key} {condition.operator} ({placeholders(texts)})", texts
    return f"{condition.key} {condition.operator} ?", texts


def _metadata_clause(condition: Condition) -> tuple[str, list[Any]]:
    clauses: list[str] = []
    values: list[Any] = []
    for json_types, operands in _operands_by_type(condition.values, _is_equality(condition)):
        comparison = f"{condition.operator} ?"
        if _is_equality(condition):
            comparison = f"IN ({placeholders(operands)})"
        clauses.append(f"({_json_type(condition.key)} IN ({json_types}) AND {_json_value(condition.key)} {comparison})")
        values += operands
    matches = f"({' OR '.join(clauses)})"
    if condition.operator == "not in":
        return f"(json_valid(metadata) AND NOT coalesce({matches}, 0))", values
    return matches, values


def _json_type(key: str) -> str:
    """The type of a metadata value in SQL; NULL in a damaged row, where JSON functions would fail the whole query.

    The key is part of the text, because SQLite uses an index only for the very same expression.
    """
    return f"CASE WHEN json_valid(metadata) THEN json_type(metadata, {_json_path(key)}) END"


def _json_value(key: str) -> str:
    """A metadata value in SQL; NULL in a damaged row."""
    return f"CASE WHEN json_valid(metadata) THEN json_extract(metadata, {_json_path(key)}) END"


def _json_path(key: str) -> str:
    if not KEY.fullmatch(key):
        raise ValueError(f"a key must be letters, digits, _ and -, got {key!r}")
    return f"'$.\"{key}\"'"


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
