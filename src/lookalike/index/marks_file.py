"""The tables of marks in one SQLite file. Rows are only added; every row has a CRC-32.

An undone mark stays, with a row in the table ``undone``. Marks that were set together have one batch.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zlib import crc32

from lookalike._util.checksums import Finding
from lookalike.index.contents import MarkedPicture
from lookalike.index.items import report_damage
from lookalike.index.sqlite_file import SqliteFile, placeholders

FILE = "marks.sqlite"
FORMAT = 1
MOST_MARKS = 200_000  # stored, undone ones included
logger = logging.getLogger(__name__)

Verdict = Literal["same", "different", "skip"]
COLUMNS = (
    *("number", "batch", "time", "by", "verdict", "query", "query_id", "query_path"),
    *("result", "result_id", "result_path", "model"),
)

SCHEMA = f"""
CREATE TABLE marks (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    batch INTEGER NOT NULL,  -- number of the first of the marks that were set together
    time REAL NOT NULL,
    by TEXT NOT NULL,
    verdict TEXT NOT NULL,
    query TEXT NOT NULL,  -- hash of the content
    query_id TEXT NOT NULL,
    query_path TEXT NOT NULL,
    result TEXT NOT NULL,
    result_id TEXT NOT NULL,
    result_path TEXT NOT NULL,
    model TEXT NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE INDEX marks_by_pair ON marks (min(query, result), max(query, result));
CREATE INDEX marks_by_batch ON marks (batch);
CREATE TABLE undone (batch INTEGER PRIMARY KEY, time REAL NOT NULL, by TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO facts VALUES ('salt', '%s');
PRAGMA user_version = {FORMAT};
"""
SELECT = f"""SELECT {", ".join(f"marks.{column}" for column in COLUMNS)}, marks.checksum,
    undone.time, undone.by, undone.checksum FROM marks LEFT JOIN undone USING (batch)"""
PAIR = "min(query, result) = ? AND max(query, result) = ?"


class Mark(NamedTuple):
    """One judgement.

    Attributes:
        number: Its number; later marks have higher ones.
        batch: Number of the first of the marks that were set together, and are undone together.
        time: When, in seconds since 1970.
        by: Who; empty if unknown.
        verdict: "same", "different" or "skip".
        query: One picture.
        result: The other.
        model: Fingerprint of the model whose result was judged; empty if unknown.
        undone_time: When it was undone; None if it was not.
        undone_by: Who undid it.
    """

    number: int
    batch: int
    time: float
    by: str
    verdict: Verdict
    query: MarkedPicture
    result: MarkedPicture
    model: str
    undone_time: float | None = None
    undone_by: str = ""

    @property
    def pair(self) -> tuple[str, str]:
        """The contents of both pictures, the smaller text first."""
        first, second = sorted((self.query.content, self.result.content))
        return first, second


class MarksFile(SqliteFile):
    """The tables of marks; called inside of transactions."""

    FORMAT = FORMAT
    TABLES = frozenset({"marks", "undone", "facts"})

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self._translated_errors():
            for fault in self._undone_faults():
                logger.warning("%s: %s; lookalike verify says how to repair it", path, fault)

    def insert(
        self,
        pairs: Sequence[tuple[MarkedPicture, MarkedPicture]],
        seconds: float,
        by: str,
        verdict: str,
        model: str,
    ) -> int:
        """Insert marks that are set together; returns the number of the first.

        Raises:
            ValueError: If there are too many.
        """
        last = self._last()
        if last + len(pairs) > MOST_MARKS:
            raise ValueError(f"an index may have at most {MOST_MARKS:,} marks, undone ones included; it has {last:,}")
        batch = last + 1
        for number, (query, result) in enumerate(pairs, start=batch):
            values = (number, batch, seconds, by, verdict, *query, *result, model)
            self.connection.execute(
                f"INSERT INTO marks ({', '.join(COLUMNS)}, checksum) VALUES ({placeholders(COLUMNS)}, ?)",
                (*values, _checksum(values)),
            )
        return batch

    def undo(self, number: int, seconds: float, by: str) -> int:
        """Undo the batch of a mark; returns the number of its marks, 0 if it was undone before."""
        batches = self._column("SELECT batch FROM marks WHERE number = ?", [number])
        if not batches:
            raise KeyError(f"there is no mark {number}")
        values = (batches[0], seconds, by)
        cursor = self.connection.execute(
            "INSERT OR IGNORE INTO undone VALUES (?, ?, ?, ?)", (*values, _checksum(values))
        )
        if not cursor.rowcount:
            return 0
        return int(self._first("SELECT count(*) FROM marks WHERE batch = ?", batches))

    def history(self, limit: int | None = None, before: int | None = None) -> list[Mark]:
        """Read marks, the last one first, undone ones included."""
        clause = ""
        values: list[int] = []
        if before is not None:
            clause, values = "WHERE number < ?", [before]
        return self._marks(f"{clause} ORDER BY number DESC LIMIT ?", [*values, -1 if limit is None else limit])

    def together(self, number: int) -> list[Mark]:
        """Read the marks of the batch of a mark."""
        return self._marks("WHERE batch = (SELECT batch FROM marks WHERE number = ?) ORDER BY number", [number])

    def between(self, content: str, others: Sequence[str]) -> dict[str, Mark]:
        """Read the last mark that was not undone on a picture and each of some others."""
        found = {}
        for other in others:
            pair = sorted((content, other))
            clause = f"WHERE {PAIR} AND undone.batch IS NULL ORDER BY number DESC LIMIT 1"
            for mark in self._marks(clause, pair):
                found[other] = mark
        return found

    def is_marked(self, content: str) -> bool:
        """Return whether a mark, undone or not, names a content."""
        return bool(self._first("SELECT EXISTS (SELECT 1 FROM marks WHERE query = ? OR result = ?)", [content] * 2))

    def count(self) -> int:
        """Count the marks that are not undone."""
        return int(self._first("SELECT count(*) FROM marks WHERE batch NOT IN (SELECT batch FROM undone)"))

    def version(self) -> tuple[int, int]:
        """Return the number of the last mark and the number of undone batches."""
        return self._last(), int(self._first("SELECT count(*) FROM undone"))

    def salt(self) -> str:
        """Return the random text of this file."""
        return str(self._first("SELECT value FROM facts WHERE name = 'salt'"))

    def check(self) -> Finding:
        """Check the structure of the file, all checksums, and that no row is missing."""
        faults = self.structure_faults()
        total = int(self._first("SELECT count(*) FROM marks"))
        damaged = total - len(self.history())
        last = self._last()
        if damaged:
            faults.append(f"damaged rows: {damaged:,}")
        if total != last:
            faults.append(f"missing rows: {abs(last - total):,}")
        faults += self._undone_faults()
        faults += self.commit_faults()
        if faults:
            return Finding(self.path.name, "damaged", f"{'; '.join(faults)}. Restore a copy, or set these marks again")
        return Finding(self.path.name, "ok", f"{total:,} marks")

    def _undone_faults(self) -> list[str]:
        """A damaged number would undo other marks, or none."""
        damaged = 0
        query = "SELECT batch, time, by, checksum, batch IN (SELECT batch FROM marks) FROM undone"
        for *values, checksum, has_marks in self.connection.execute(query):
            damaged += not has_marks or checksum != _checksum(values)
        return [f"damaged rows of undone marks: {damaged:,}"] if damaged else []

    def _last(self) -> int:
        return int(self._first("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'marks'"))

    def _marks(self, clause: str, values: Sequence[Any]) -> list[Mark]:
        marks = []
        for *row, checksum, undone_time, undone_by, undone_checksum in self.connection.execute(
            f"{SELECT} {clause}", values
        ):
            mark = _good_mark(row, checksum)
            if mark is None:
                continue
            if undone_time is not None:
                mark = mark._replace(undone_time=undone_time, undone_by=undone_by)
                if undone_checksum != _checksum((mark.batch, undone_time, undone_by)):
                    report_damage(f"undoing of mark {mark.number}", "its checksum differs; the mark counts as undone")
            marks.append(mark)
        return marks


def _good_mark(row: Sequence[Any], checksum: int) -> Mark | None:
    if checksum != _checksum(row):
        report_damage(f"mark {row[0]}", "its checksum differs")
        return None
    number, batch, seconds, by, verdict, *pictures, model = row
    query, result = MarkedPicture(*pictures[:3]), MarkedPicture(*pictures[3:])
    return Mark(number, batch, seconds, by, verdict, query, result, model)


def _checksum(values: Sequence[Any]) -> int:
    return crc32("\0".join(map(str, values)).encode(errors="surrogateescape"))
