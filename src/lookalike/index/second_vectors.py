"""Vectors of a second model beside those of the first, in the same SQLite file, see ``extra_tables``.

An item and all of its vectors leave in one transaction, so that a killed process leaves no vector without an item. An
item may lack a vector of the second model; then searches by this model do not find it, and ``second_models.fill`` adds
it.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from lookalike._util.checksums import Finding
from lookalike.index.database import START, Database, State, as_sql, good_item, parse_numbers
from lookalike.index.extra_tables import drop_row, is_good_row, put_row, tables_of
from lookalike.index.filters import Condition
from lookalike.index.items import Item, Vectors
from lookalike.index.storage import BrokenIndex

ROW = "number, item, vector, checksum"


class SecondDatabase(Database):
    """The items that have a vector of a second model. It reads; items are added and removed by ``Database``.

    Args:
        path: The file.
        dim: Size D of the second model's vectors.
        fingerprint: Fingerprint of the second model.

    Raises:
        BrokenIndex: If the file is missing or damaged, or has no vectors of this model.
    """

    def __init__(self, path: Path, dim: int, fingerprint: str) -> None:
        super().__init__(path, dim)
        self.table, self.gone_table = tables_of(fingerprint)
        self._present = f"items.number IN (SELECT item FROM {self.table})"
        self._numbered = self.table
        self._joined = f"items JOIN {self.table} AS extra ON extra.item = items.number"
        with self._translated_errors():
            tables = set(self._column("SELECT name FROM sqlite_master WHERE type = 'table'"))
        if not {self.table, self.gone_table} <= tables:
            self.close()
            raise BrokenIndex(f"{path} has no vectors of this model: add it again with lookalike index IDX --with RUN")

    def state(self) -> State:
        """Return the current state."""
        last = dict(self.connection.execute("SELECT name, seq FROM sqlite_sequence"))
        return State(last.get(self.table, 0), last.get(self.gone_table, 0))

    def new_vectors(self, since: State, block: int) -> Iterator[tuple[NDArray[np.int64], Vectors]]:
        """Read the rows that were added after a state, as ``Database.new_vectors``."""
        query = f"SELECT {ROW} FROM {self.table} WHERE number > ? ORDER BY number"
        cursor = self.connection.execute(query, (since.number,))
        while rows := cursor.fetchmany(block):
            numbers, vectors = self._good_vectors(without_item(rows))
            yield np.array(numbers, np.int64), vectors

    def sample_vectors(self, most: int, seed: int = 0) -> Vectors:
        """Read the vectors of up to ``most`` rows, as ``Database.sample_vectors``."""
        query = f"SELECT {ROW} FROM {self.table} WHERE number >= ? ORDER BY number LIMIT ?"
        _, vectors = self._good_vectors(without_item(list(self._sample(query, most, seed))))
        return vectors[np.random.default_rng(seed).permutation(len(vectors))]

    def sample_items(self, most: int, seed: int = 0) -> Iterator[Item]:
        """Read up to ``most`` items, as ``Database.sample_items``."""
        condition = "extra.number >= ? ORDER BY extra.number LIMIT ?"
        for row in self._sample(f"SELECT {self._joined_row} FROM {self._joined} WHERE {condition}", most, seed):
            item = good_item(row)
            if item is not None:
                yield item

    def gone(self, since: State) -> NDArray[np.int64]:
        """Return the numbers of rows that were removed after a state."""
        return np.array(self._column(f"SELECT number FROM {self.gone_table} WHERE place > ?", [since.place]), np.int64)

    def count_changes(self, since: State) -> tuple[int, int]:
        """Count the existing rows that are newer than a state, and the older ones that were removed."""
        new = self._first(f"SELECT count(*) FROM {self.table} WHERE number > ?", [since.number])
        query = f"SELECT count(*) FROM {self.gone_table} WHERE place > ? AND number <= ?"
        return int(new), int(self._first(query, [since.place, since.number]))

    def numbers(self, where: Sequence[Condition], since: State = START) -> NDArray[np.int64]:
        """Return the row numbers, ascending, of the items that match a filter, as ``Database.numbers``."""
        clause, values = as_sql(where)
        query = f"SELECT group_concat(extra.number) FROM {self._joined} WHERE {clause} AND extra.number > ?"
        return parse_numbers(self._first(query, [*values, since.number]))

    def vectors_of(self, numbers: Sequence[int]) -> tuple[dict[int, str], Vectors]:
        """Read vectors by row number, as ``Database.vectors_of``."""
        query = f"SELECT id, extra.number, item, vector, extra.checksum FROM {self._joined} WHERE extra.number IN"
        ids: dict[int, str] = {}
        rows = []
        for item_id, *row in self._select_in(query, numbers):
            ids[row[0]] = item_id
            rows.append(row)
        good, vectors = self._good_vectors(without_item(rows))
        return {number: ids[number] for number in good}, vectors

    def items_by_number(self, numbers: Sequence[int]) -> dict[int, Item]:
        """Read items by row number; damaged ones are left out."""
        items = {}
        query = f"SELECT extra.number, {self._joined_row} FROM {self._joined} WHERE extra.number IN"
        for number, *row in self._select_in(query, numbers):
            item = good_item(row)
            if item is not None:
                items[number] = item
        return items

    def numbers_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Return id -> row number, for ids that exist."""
        return dict(self._select_in(f"SELECT id, extra.number FROM {self._joined} WHERE id IN", ids))

    @property
    def _joined_row(self) -> str:
        """The columns that ``good_item`` takes, of ``_joined``."""
        return self._row.replace("number,", "items.number,", 1)

    def missing(self) -> list[str]:
        """Return the ids of the items without a vector of this model, or with a damaged one."""
        missing = self._column(f"SELECT id FROM items WHERE NOT {self._present}")
        query = f"SELECT id, extra.number, item, vector, extra.checksum FROM {self._joined}"
        for item_id, *row in self.connection.execute(query):
            if not self._is_good(*without_item([row])[0]):
                missing.append(item_id)
        return sorted(missing)

    def put(self, ids: Sequence[str], vectors: Vectors) -> None:
        """Set the vectors of existing items, inside of ``writing``."""
        numbers = dict(self._select_in("SELECT id, number FROM items WHERE id IN", ids))
        for item_id, vector in zip(ids, vectors, strict=True):
            if item_id in numbers:
                drop_row(self.connection, self.table, self.gone_table, numbers[item_id])
                put_row(self.connection, self.table, numbers[item_id], vector)

    def drop_orphans(self) -> None:
        """Remove vectors without an item, inside of ``writing``."""
        for item in self._column(f"SELECT item FROM {self.table} WHERE item NOT IN (SELECT number FROM items)"):
            drop_row(self.connection, self.table, self.gone_table, item)

    def check(self) -> Finding:
        """Check all vectors, that each has an item, and that no row is missing."""
        faults = []
        damaged = 0
        for row in self.connection.execute(f"SELECT {ROW} FROM {self.table}"):
            damaged += not self._is_good(*without_item([row])[0])
        if damaged:
            faults.append(f"damaged vectors: {damaged:,}")
        orphans = self._first(f"SELECT count(*) FROM {self.table} WHERE item NOT IN (SELECT number FROM items)")
        if orphans:
            faults.append(f"vectors without an item: {orphans:,}")
        rows = [
            *self._column(f"SELECT number FROM {self.table}"),
            *self._column(f"SELECT number FROM {self.gone_table}"),
        ]
        if sorted(rows) != list(range(1, self.state().number + 1)):
            faults.append("the list of removed rows does not fit the vectors")
        if faults:
            return Finding(self.table, "damaged", f"{'; '.join(faults)}. To repair: lookalike index IDX --with RUN")
        detail = f"{self.count():,} vectors"
        missing = self._first(f"SELECT count(*) FROM items WHERE NOT {self._present}")
        if missing:
            detail += f"; {missing:,} pictures have none yet: lookalike index IDX --with RUN adds them"
        return Finding(self.table, "ok", detail)


def without_item(rows: Iterable[Sequence[Any]]) -> list[tuple[int, Any, int]]:
    """Rows (number, item, vector, checksum) as ``Database`` has them, with a checksum of the vector alone."""
    plain = []
    for number, item, blob, checksum in rows:
        if is_good_row(number, item, blob, checksum):
            checksum = crc32(blob, number)
        plain.append((number, blob, checksum))
    return plain
