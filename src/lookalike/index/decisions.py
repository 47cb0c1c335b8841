"""What people decided about the findings of the doctor, in ``doctor.sqlite`` in the folder of an index.

    with Decisions("birds.idx") as decisions:
        decisions.add([Choice(finding, "relabel", "wren")], by="anna")     # on the disk when it returns
        decisions.latest()

Rows are only added, so the history stays; of several decisions about one finding the last one counts. Any number of
processes may write. Every row has a CRC-32.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from threading import RLock
from typing import Any, Literal, NamedTuple
from zlib import crc32

from filelock import FileLock

from lookalike._util.checksums import Finding
from lookalike._util.files import flush, replacing
from lookalike.index.items import report_damage
from lookalike.index.marks import check_name
from lookalike.index.sqlite_file import SqliteFile

FILE = "doctor.sqlite"
LOCK = "decisions.lock"  # held while the file is made
FORMAT = 1
MOST_DECISIONS = 1_000_000
LONGEST_LABEL = 1000  # characters
COLUMNS = ("number", "time", "by", "finding", "action", "new_label")
ACTIONS = ("keep", "drop", "relabel")

SCHEMA = f"""
CREATE TABLE decisions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    time REAL NOT NULL,
    by TEXT NOT NULL,
    finding TEXT NOT NULL,
    action TEXT NOT NULL,
    new_label TEXT NOT NULL,
    checksum INTEGER NOT NULL
);
PRAGMA user_version = {FORMAT};
"""


class Choice(NamedTuple):
    """What to do about a finding.

    Attributes:
        finding: Key of the finding.
        action: What to do.
        new_label: For "relabel".
    """

    finding: str
    action: Literal["keep", "drop", "relabel"]
    new_label: str = ""


class Decision(NamedTuple):
    """A stored choice.

    Attributes:
        choice: What to do.
        by: Who decided; empty if unknown.
        time: When, in seconds since 1970.
    """

    choice: Choice
    by: str
    time: float


class Decisions:
    """The decisions of one index. Threads may share it. The file is made with the first decision.

    Args:
        folder: The folder of the index.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._threads = RLock()
        self._file: _DecisionsFile | None = None

    def add(self, choices: Sequence[Choice], by: str | None = None) -> None:
        """Store decisions, all or none.

        Args:
            choices: What to do about findings.
            by: Who decided.

        Raises:
            ValueError: If a choice is not possible, or there are too many.
        """
        check_name("by", by)
        for choice in choices:
            if choice.action not in ACTIONS:
                raise ValueError(f"the action must be one of {', '.join(ACTIONS)}, got {choice.action!r}")
            if choice.action == "relabel" and not choice.new_label.strip():
                raise ValueError("relabel needs a new label")
            if len(choice.new_label) > LONGEST_LABEL:
                raise ValueError(f"a label must have at most {LONGEST_LABEL:,} characters")
        with self._threads:
            if self._file is None and not (self.folder / FILE).exists():
                self._make()
            file = self._opened()
            with file.writing():
                file.insert(choices, time.time(), by or "")

    def latest(self) -> dict[str, Decision]:
        """Return the last decision about each finding, by its key."""
        with self._threads:
            if self._file is None and not (self.folder / FILE).exists():
                return {}
            file = self._opened()
            with file.reading():
                return {decision.choice.finding: decision for decision in file.all()}

    def check(self) -> Finding | None:
        """Check the structure of the file and the checksums of all rows; None if there is no file."""
        with self._threads:
            if self._file is None and not (self.folder / FILE).exists():
                return None
            file = self._opened()
            with file.reading():
                return file.check()

    def close(self) -> None:
        """Close the file."""
        with self._threads:
            if self._file is not None:
                self._file.close()
                self._file = None

    def __enter__(self) -> "Decisions":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self) -> None:
        path = self.folder / FILE
        with FileLock(self.folder / LOCK):
            if not path.exists():  # another process may have made it
                with replacing(path) as unfinished:
                    _DecisionsFile.make_file(unfinished, SCHEMA)
                flush(self.folder)

    def _opened(self) -> "_DecisionsFile":
        if self._file is None:
            self._file = _DecisionsFile(self.folder / FILE)
        return self._file


class _DecisionsFile(SqliteFile):
    """The table; called inside of transactions."""

    FORMAT = FORMAT
    TABLES = frozenset({"decisions"})

    def insert(self, choices: Sequence[Choice], now: float, by: str) -> None:
        last = self._last()
        if last + len(choices) > MOST_DECISIONS:
            raise ValueError(f"at most {MOST_DECISIONS:,} decisions are kept; there are {last:,}")
        for number, choice in enumerate(choices, start=last + 1):
            row = (number, now, by, *choice)
            self.connection.execute("INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, _checksum(row)))

    def all(self) -> list[Decision]:
        decisions = []
        rows = self.connection.execute(f"SELECT {', '.join(COLUMNS)}, checksum FROM decisions ORDER BY number")
        for *row, checksum in rows:
            if checksum == _checksum(row):
                _, when, by, *choice = row
                decisions.append(Decision(Choice(*choice), by, when))
            else:
                report_damage(f"decision {row[0]}", "its checksum differs")
        return decisions

    def check(self) -> Finding:
        faults = self.structure_faults()
        total = int(self._first("SELECT count(*) FROM decisions"))
        damaged = total - len(self.all())
        if damaged:
            faults.append(f"damaged rows: {damaged:,}")
        if total != self._last():
            faults.append(f"missing rows: {abs(self._last() - total):,}")
        if faults:
            return Finding(self.path.name, "damaged", f"{'; '.join(faults)}. Restore a copy, or decide again")
        return Finding(self.path.name, "ok", f"{total:,} decisions")

    def _last(self) -> int:
        return int(self._first("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'decisions'"))


def _checksum(values: Sequence[Any]) -> int:
    return crc32("\0".join(map(str, values)).encode(errors="surrogateescape"))
