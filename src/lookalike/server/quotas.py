"""Quotas per key and minute, as token buckets: a minute's quota at once, then as it refills."""

import math
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path

from lookalike._util.settings import check_settings, setting
from lookalike.server.errors import ApiError

MOST_BUCKETS = 10_000  # remembered; those unused for longest are forgotten
MINUTE = 60.0


@dataclass(frozen=True)
class Quota:
    """What one key may do per minute; without keys, what one address may do. None is unlimited.

    Args:
        reads: Requests that read, searches included.
        writes: Requests that add, delete, mark or label.
        items: Requests that add.
        megabytes: Size of request bodies. A body of unknown size counts as the largest that is allowed.

    Raises:
        ValueError: If a number is not positive.
    """

    reads: int | None = setting(None, "requests that read, per key and minute", least=1)
    writes: int | None = setting(None, "requests that add, delete, mark or label, per key and minute", least=1)
    items: int | None = setting(None, "pictures added, per key and minute", least=1)
    megabytes: float | None = setting(None, "uploaded megabytes, per key and minute", above=0)

    def __post_init__(self) -> None:
        check_settings(self)

    def updated(self, other: "Quota") -> "Quota":
        """Return this quota with the numbers that ``other`` has set."""
        values = {}
        for field in fields(self):
            value = getattr(other, field.name)
            values[field.name] = getattr(self, field.name) if value is None else value
        return Quota(**values)


class Buckets:
    """Token buckets by name. Use them from one thread.

    Args:
        clock: Seconds, as ``time.monotonic`` gives them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # and when they were counted

    def wait(self, name: Hashable, amount: float, per_minute: float) -> float:
        """Return the seconds until ``amount`` can be taken; 0 if it can be taken now.

        More than a minute's quota can be taken from a full bucket, which is then in debt.
        """
        needed = min(amount, per_minute)
        return max(0.0, (needed - self._filled(name, per_minute)) * MINUTE / per_minute)

    def take(self, name: Hashable, amount: float, per_minute: float) -> None:
        """Take ``amount``, whether it is there or not."""
        tokens = self._filled(name, per_minute) - amount
        self._tokens[name] = (tokens, self._clock())
        self._tokens.move_to_end(name)
        if len(self._tokens) > MOST_BUCKETS:
            self._tokens.popitem(last=False)

    def _filled(self, name: Hashable, per_minute: float) -> float:
        now = self._clock()
        tokens, counted = self._tokens.get(name, (per_minute, now))
        return min(per_minute, tokens + (now - counted) * per_minute / MINUTE)


class SharedBuckets(Buckets):
    """Token buckets that all workers of a server share, in a SQLite file. They are as temporary as those in memory.

    Args:
        file: The file. Names, which include keys, are stored as digests.
        clock: Seconds since the machine started, the same in all processes.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._connection = sqlite3.connect(file, timeout=10, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS buckets (name BLOB PRIMARY KEY, tokens REAL, counted REAL) WITHOUT ROWID"
        )

    def take(self, name: Hashable, amount: float, per_minute: float) -> None:
        """Take ``amount``, whether it is there or not."""
        self._connection.execute("BEGIN IMMEDIATE")
        tokens = self._filled(name, per_minute) - amount
        self._connection.execute(
            "INSERT OR REPLACE INTO buckets VALUES (?, ?, ?)", (_digest(name), tokens, self._clock())
        )
        (count,) = self._connection.execute("SELECT count(*) FROM buckets").fetchone()
        if count > MOST_BUCKETS:
            self._connection.execute(
                "DELETE FROM buckets WHERE name IN (SELECT name FROM buckets ORDER BY counted LIMIT ?)",
                (MOST_BUCKETS // 10,),
            )
        self._connection.execute("COMMIT")

    def _filled(self, name: Hashable, per_minute: float) -> float:
        now = self._clock()
        row = self._connection.execute(
            "SELECT tokens, counted FROM buckets WHERE name = ?", (_digest(name),)
        ).fetchone()
        tokens, counted = row or (per_minute, now)
        return min(per_minute, tokens + (now - counted) * per_minute / MINUTE)


def _digest(name: Hashable) -> bytes:
    return blake2b(repr(name).encode(errors="surrogateescape"), digest_size=16).digest()


def too_many(message: str, seconds: float) -> ApiError:
    """Create a 429 that says when to ask again."""
    retry = max(1, math.ceil(seconds))
    return ApiError(429, "too_many_requests", f"{message}: try again in {retry} s", {"Retry-After": str(retry)})
