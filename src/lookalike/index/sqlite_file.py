"""A connection to a SQLite file whose commits survive a killed process and a power cut.

The write-ahead log is flushed at every commit, and readers continue while one process writes.

If the log is damaged, SQLite drops its commits from the damaged one on without a word. Therefore commits are counted
twice: in the table ``commits``, by the commit itself, and after it in a small file beside the database. A database that
has counted fewer than the file has lost some. A kill between the two leaves a smaller number in the file, which is no
damage; neither is a missing file, as that of an earlier version.
"""

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote
from zlib import crc32

from lookalike.data.files import counted
from lookalike.index.stopping import STEPS, Stopped
from lookalike.index.storage import BrokenIndex, IndexInUse

WAIT = 30.0  # seconds, for another connection's commit
VALUES_PER_QUERY = 500  # SQLite allows at least 999
COUNT_COMMIT = (
    "CREATE TABLE IF NOT EXISTS commits (number INTEGER PRIMARY KEY, count INTEGER NOT NULL)",
    "INSERT INTO commits VALUES (1, 1) ON CONFLICT (number) DO UPDATE SET count = count + 1",
)

logger = logging.getLogger(__name__)


class SqliteFile:
    """A connection to an existing file. Subclasses say which tables it has.

    Args:
        path: The file.

    Raises:
        BrokenIndex: If the file is missing or damaged.
        ValueError: If it has another format.
    """

    FORMAT: ClassVar[int]
    TABLES: ClassVar[frozenset[str]]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counter = path.with_name(f"{path.name}-commits")
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
        if not set(tables) >= self.TABLES:
            raise BrokenIndex(f"{path} is damaged: it does not have the tables {', '.join(sorted(self.TABLES))}")
        if version != self.FORMAT:
            raise ValueError(f"{path} has the format {version}, this version reads {self.FORMAT}")
        for fault in self.commit_faults():
            logger.warning("%s: %s; lookalike verify says how to repair it", path, fault)

    @staticmethod
    def make_file(path: Path, schema: str) -> None:
        """Create a file with these tables."""
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(schema)
        connection.close()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    @contextmanager
    def reading(self, stop: Callable[[], bool] | None = None) -> Iterator[None]:
        """Open a read transaction: everything read inside is from one moment.

        Args:
            stop: Is asked again and again; once it returns True, ``Stopped`` is raised.
        """
        with self._translated_errors():
            self.connection.execute("BEGIN")
            self.connection.set_progress_handler(stop, STEPS)
            try:
                yield
            finally:
                self.connection.set_progress_handler(None, STEPS)
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
            for statement in COUNT_COMMIT:
                self.connection.execute(statement)
            count = self._count_commits()
            self.connection.execute("COMMIT")
        _write_counter(self.counter, count)

    def commit_faults(self) -> list[str]:
        """Return whether commits were lost, or their counter is damaged."""
        try:
            expected = _read_counter(self.counter)  # before the database: a writer raises that first
        except (OSError, ValueError):
            return [f"{self.counter.name} is damaged, so lost commits would not be noticed; the next commit repairs it"]
        with self._translated_errors():
            lost = expected - self._count_commits()
        if lost <= 0:
            return []
        return [f"{counted(lost, 'commit')} lost, the latest: the log {self.path.name}-wal was damaged or removed"]

    def structure_faults(self) -> list[str]:
        """Return what SQLite finds wrong with the structure of the file."""
        faults = self._column("PRAGMA integrity_check(5)")
        if faults == ["ok"]:
            return []
        return [str(fault) for fault in faults]

    def _count_commits(self) -> int:
        """Commits that the database has; 0 for those of earlier versions."""
        if not self._column("SELECT 1 FROM sqlite_master WHERE name = 'commits'"):
            return 0
        return int(self._first("SELECT coalesce(max(count), 0) FROM commits"))

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
            yield from self.connection.execute(f"{query} ({placeholders(some)})", some).fetchall()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if text == "interrupted":
                raise Stopped(f"reading {self.path} was stopped") from error
            if "locked" in text:
                message = f"{self.path} is being written by another process: try again when it is done"
                raise IndexInUse(message) from error
            raise OSError(f"{self.path} cannot be used: {text}") from error
        except sqlite3.DatabaseError as error:
            raise BrokenIndex(f"{self.path} is damaged: {error}") from error


def _write_counter(path: Path, count: int) -> None:
    """Replace the number in place, in one write. It is not flushed: an older number is no damage."""
    with suppress(OSError):  # the commit is done
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            os.write(descriptor, _counter_text(count))
        finally:
            os.close(descriptor)


def _read_counter(path: Path) -> int:
    """Number of commits; 0 without the file. ValueError if it is damaged."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return 0
    count = int(text[:20])
    if text != _counter_text(count):
        raise ValueError(f"{path} is damaged")
    return count


def _counter_text(count: int) -> bytes:
    """The same length for every number."""
    number = b"%020d" % count
    return b"%s %08x\n" % (number, crc32(number))


def placeholders(values: Sequence[Any]) -> str:
    """Return a question mark for each value, for SQL."""
    return ", ".join("?" * len(values))
