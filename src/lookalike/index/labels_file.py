"""The history of edited labels and metadata in one SQLite file.

A batch of edits is stored before the index is changed, and noted as done afterwards. So a killed process leaves either
nothing, or a batch that the next edit completes. Rows are only added; every row has a CRC-32.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

from lookalike._util.checksums import Finding
from lookalike.index.items import report_damage
from lookalike.index.sqlite_file import SqliteFile, placeholders

FILE = "labels.sqlite"
FORMAT = 1
MOST_EDITS = 1_000_000  # pictures, counted once for each edit
COLUMNS = (
    *("number", "batch", "time", "by", "action", "undoes", "id", "path", "old_label", "new_label"),
    *("old_metadata", "new_metadata", "old_edited", "new_edited"),
)

SCHEMA = f"""
CREATE TABLE edits (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    batch INTEGER NOT NULL,  -- number of the first of the edits that were made together
    time REAL NOT NULL,
    by TEXT NOT NULL,
    action TEXT NOT NULL,
    undoes INTEGER NOT NULL,  -- the batch that this one undoes; 0 for none
    id TEXT NOT NULL,
    path TEXT NOT NULL,
    old_label TEXT NOT NULL,
    new_label TEXT NOT NULL,
    old_metadata TEXT NOT NULL,
    new_metadata TEXT NOT NULL,
    old_edited INTEGER NOT NULL,  -- whether the label came from a table or an edit, not from the class folder
    new_edited INTEGER NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE INDEX edits_by_batch ON edits (batch);
CREATE INDEX edits_by_undoes ON edits (undoes);
CREATE TABLE done (batch INTEGER PRIMARY KEY);
PRAGMA user_version = {FORMAT};
"""


class Edit(NamedTuple):
    """One picture before and after an edit.

    Attributes:
        number: Its number; later edits have higher ones.
        batch: Number of the first of the edits that were made together, and are undone together.
        time: When, in seconds since 1970.
        by: Who; empty if unknown.
        action: "label", "metadata", "rename", "merge" or "undo".
        undoes: The batch that this one undoes; 0 for none.
        id: Id of the item.
        path: Path of its file; empty for an upload.
        old_label: The label before.
        new_label: The label after.
        old_metadata: JSON before.
        new_metadata: JSON after.
        old_edited: Whether the label before came from a table or an edit, and stays when the folder is indexed again.
        new_edited: The same for the label after.
    """

    number: int
    batch: int
    time: float
    by: str
    action: str
    undoes: int
    id: str
    path: str
    old_label: str
    new_label: str
    old_metadata: str
    new_metadata: str
    old_edited: int
    new_edited: int


class LabelsFile(SqliteFile):
    """The tables of edits; called inside of transactions."""

    FORMAT = FORMAT
    TABLES = frozenset({"edits", "done"})

    def insert(self, edits: Sequence[Edit]) -> int:
        """Insert edits that are made together, with new numbers; returns the number of the first.

        Raises:
            ValueError: If there are too many.
        """
        last = self._last()
        if last + len(edits) > MOST_EDITS:
            raise ValueError(f"the history of labels holds at most {MOST_EDITS:,} changes of pictures; it has {last:,}")
        for number, edit in enumerate(edits, start=last + 1):
            values = edit._replace(number=number, batch=last + 1)
            self.connection.execute(
                f"INSERT INTO edits ({', '.join(COLUMNS)}, checksum) VALUES ({placeholders(COLUMNS)}, ?)",
                (*values, _checksum(values)),
            )
        return last + 1

    def finish(self, batch: int) -> None:
        """Note that the index has the edits of a batch."""
        self.connection.execute("INSERT OR IGNORE INTO done VALUES (?)", (batch,))

    def unfinished(self) -> list[Edit]:
        """Read the edits that a killed process may have left undone in the index: of the last batch, if of any."""
        return self._edits("WHERE batch > (SELECT coalesce(max(batch), 0) FROM done) ORDER BY number", [])

    def batch(self, batch: int) -> list[Edit]:
        """Read the edits of a batch."""
        return self._edits("WHERE batch = ? ORDER BY number", [batch])

    def batches(self, limit: int, before: int | None) -> list[tuple[Edit, int]]:
        """Read the first edit of each batch and the number of its edits, the last batch first."""
        clause = "WHERE number = batch"
        values: list[int] = []
        if before is not None:
            clause += " AND number < ?"
            values.append(before)
        found = []
        for edit in self._edits(f"{clause} ORDER BY number DESC LIMIT ?", [*values, limit]):
            found.append((edit, int(self._first("SELECT count(*) FROM edits WHERE batch = ?", [edit.batch]))))
        return found

    def is_undone(self, batch: int) -> bool:
        """Return whether the last undoing of a batch is in force."""
        later = self._column("SELECT DISTINCT batch FROM edits WHERE undoes = ? ORDER BY batch DESC LIMIT 1", [batch])
        return bool(later) and not self.is_undone(later[0])

    def check(self) -> Finding:
        """Check the structure of the file, all checksums, and that no row is missing."""
        faults = self.structure_faults()
        total = int(self._first("SELECT count(*) FROM edits"))
        damaged = total - len(self._edits("", []))
        if damaged:
            faults.append(f"damaged rows: {damaged:,}")
        if total != self._last():
            faults.append(f"missing rows: {abs(self._last() - total):,}")
        batches = self._column("SELECT DISTINCT batch FROM edits ORDER BY batch")
        done = self._column("SELECT batch FROM done ORDER BY batch")
        if done not in (batches, batches[:-1]):
            faults.append("the list of completed edits does not fit the edits")
        faults += self.commit_faults()
        if faults:
            return Finding(self.path.name, "damaged", f"{'; '.join(faults)}. Restore a copy; labels are in the index")
        return Finding(self.path.name, "ok", f"{total:,} edits")

    def _last(self) -> int:
        return int(self._first("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'edits'"))

    def _edits(self, clause: str, values: Sequence[Any]) -> list[Edit]:
        edits = []
        for *row, checksum in self.connection.execute(
            f"SELECT {', '.join(COLUMNS)}, checksum FROM edits {clause}", values
        ):
            if checksum == _checksum(row):
                edits.append(Edit(*row))
            else:
                report_damage(f"edit {row[0]}", "its checksum differs")
        return edits


def _checksum(values: Sequence[Any]) -> int:
    return crc32("\0".join(map(str, values)).encode(errors="surrogateescape"))
