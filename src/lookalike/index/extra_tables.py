"""Tables for the vectors of further models, beside those of the first.

extra_<fingerprint>         row number, number of the item, vector, checksum
extra_gone_<fingerprint>    numbers of removed rows, for readers with rows in memory
"""

import re
import sqlite3
from collections.abc import Mapping
from typing import Any
from zlib import crc32

from lookalike.index.items import Vectors

FINGERPRINT = re.compile(r"[0-9a-f]{32}")

Others = Mapping[str, Mapping[str, Vectors]]  # fingerprint of a second model -> id -> vector


def tables_of(fingerprint: str) -> tuple[str, str]:
    """Return the names of the tables of a model: its vectors, and its removed rows."""
    if not FINGERPRINT.fullmatch(fingerprint):
        raise ValueError(f"a fingerprint must be 32 hexadecimal digits, got {fingerprint!r}")
    return f"extra_{fingerprint}", f"extra_gone_{fingerprint}"


def make_tables(connection: sqlite3.Connection, fingerprint: str) -> None:
    """Create the tables of a model, unless they are there."""
    table, gone_table = tables_of(fingerprint)
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {table} (number INTEGER PRIMARY KEY AUTOINCREMENT, "
        "item INTEGER NOT NULL UNIQUE, vector BLOB NOT NULL, checksum INTEGER NOT NULL)"
    )
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {gone_table} (place INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER NOT NULL)"
    )


def extra_tables(connection: sqlite3.Connection) -> dict[str, tuple[str, str]]:
    """Return fingerprint -> tables, for all second models."""
    tables = {}
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        fingerprint = name.removeprefix("extra_")
        if FINGERPRINT.fullmatch(fingerprint):
            tables[fingerprint] = tables_of(fingerprint)
    return tables


def put_row(connection: sqlite3.Connection, table: str, item: int, vector: Vectors) -> None:
    """Add the vector of an item, given by its row number."""
    blob = vector.astype("<f4").tobytes()
    cursor = connection.execute(f"INSERT INTO {table} (item, vector, checksum) VALUES (?, ?, 0)", (item, blob))
    number = cursor.lastrowid or 0
    checksum = extra_checksum(number, item, blob)
    connection.execute(f"UPDATE {table} SET checksum = ? WHERE number = ?", (checksum, number))


def extra_checksum(number: int, item: int, blob: bytes) -> int:
    """Return the CRC-32 of a row. Earlier versions left ``item`` out: ``crc32(blob, number)``."""
    return crc32(blob, crc32(f"{number} {item}".encode()))


def is_good_row(number: int, item: int, blob: Any, checksum: int) -> bool:
    """Whether a row has its checksum."""
    return isinstance(blob, bytes) and checksum in (extra_checksum(number, item, blob), crc32(blob, number))


def drop_row(connection: sqlite3.Connection, table: str, gone_table: str, item: int) -> None:
    """Remove the vector of an item, if it has one."""
    connection.execute(f"INSERT INTO {gone_table} (number) SELECT number FROM {table} WHERE item = ?", (item,))
    connection.execute(f"DELETE FROM {table} WHERE item = ?", (item,))
