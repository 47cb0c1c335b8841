"""Hashes of files, remembered by path, size and times: a file is read again only if one of these has changed."""

import os
import sqlite3
import time
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock

from lookalike._util.checksums import hash_content
from lookalike._util.files import cache_folder

FILE = "hashes-1.sqlite"
SETTLED = 2 * 10**9  # nanoseconds; a file that changed later may change again without another time


def hash_file(path: Path) -> str:
    """Hash the content of a file, 32 hexadecimal digits. It is read unless its path, size and times are known.

    Raises:
        OSError: If it cannot be read.
    """
    status = path.stat()
    stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    name = os.fsencode(path.absolute())
    cache = _open(cache_folder() / FILE, os.getpid())
    digest = cache.get(name, stamp)
    if digest is None:
        digest = hash_content(path)
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED:
            cache.put(name, stamp, digest)
    return digest


@lru_cache(maxsize=4)
def _open(path: Path, _process: int) -> "_HashCache":  # a connection must not be used after a fork
    return _HashCache(path)


class _HashCache:
    """The file of hashes. Without it, or if it is damaged, every file is read."""

    def __init__(self, path: Path) -> None:
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        with suppress(OSError, sqlite3.Error):
            path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS hashes (path BLOB PRIMARY KEY, stamp TEXT, hash TEXT, sum TEXT)"
            )
            self._connection = connection

    def get(self, path: bytes, stamp: str) -> str | None:
        if self._connection is None:
            return None
        with self._lock, suppress(sqlite3.Error):
            query = "SELECT hash, sum FROM hashes WHERE path = ? AND stamp = ?"
            row = self._connection.execute(query, (path, stamp)).fetchone()
            if row is not None and row[1] == _checksum(path, stamp, row[0]):
                return str(row[0])
        return None

    def put(self, path: bytes, stamp: str, digest: str) -> None:
        if self._connection is None:
            return
        row = (path, stamp, digest, _checksum(path, stamp, digest))
        with self._lock, suppress(sqlite3.Error):
            self._connection.execute("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?)", row)


def _checksum(path: bytes, stamp: str, digest: str) -> str:
    return blake2b(b"%b\0%b\0%b" % (path, stamp.encode(), str(digest).encode()), digest_size=8).hexdigest()
