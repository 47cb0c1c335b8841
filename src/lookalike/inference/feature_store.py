"""Local features on disk: key -> an array in half precision, memory-mapped, append-only.

A store is a folder of parts. A part has three files: rows, their checksums and their keys. A row and its checksum are
on disk before its key is written: a row without a key was interrupted and is written again. Each writer locks a part of
its own, so any number of processes may write and read at the same time. A row that does not match its checksum loses
its key, so that it is written again.
"""

import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import IO, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from lookalike._util.checksums import Finding
from lookalike._util.files import folder_size, require_writable, write_text
from lookalike._util.hashing import KEY_LENGTH, digest

try:
    import fcntl
except ImportError:  # on Windows the process number in its name protects a part instead
    fcntl = None  # type: ignore[assignment]

NO_KEY = b"-" * KEY_LENGTH  # of a row that was found damaged
KEY_LINE = re.compile(rb"([0-9a-f]{%d}|-{%d})\n" % (KEY_LENGTH, KEY_LENGTH))
CHECKSUM = np.dtype("<u4")


class NotCacheable(ValueError):  # noqa: N818 - names the state
    """Features do not fit half precision."""


class FeatureStore:
    """Rows of features by key.

    Args:
        folder: Folder of all stores.
        description: What the features depend on; its hash names the folder of the store.
        shape: Shape of a row, e.g. (N, C).
    """

    def __init__(self, folder: Path, description: dict[str, Any], shape: tuple[int, ...]) -> None:
        text = json.dumps({**description, "shape": list(shape)}, sort_keys=True, indent=2) + "\n"
        self.folder = folder / digest(text.removesuffix("\n"))
        self.shape = shape
        self.row_bytes = 2 * prod(shape)
        self.about = text
        require_writable(self.folder)
        self._rows: dict[str, tuple[int, int]] = {}  # key -> part, row in the part
        self._parts: list[_Part] = []
        self.refresh()

    def refresh(self) -> None:
        """Find rows that were written since, also by other processes. Results of ``find`` become invalid."""
        checked = {part.file: part.checked for part in self._parts}
        self._rows, self._parts = {}, []
        for rows_file in sorted(self.folder.glob("part-*.rows")):
            part = _Part(rows_file, self.shape, self.row_bytes)
            if part.file in checked:
                count = min(len(part.checked), len(checked[part.file]))
                part.checked[:count] |= checked[part.file][:count]
            for row, key in enumerate(part.keys):
                if key:
                    self._rows[key] = (len(self._parts), row)
            self._parts.append(part)

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return folder_size(self.folder)

    def lacks_space(self, rows: int) -> str | None:
        """Say in one sentence that the disk has no space for so many rows; None if it has."""
        existing = self.folder
        while not existing.exists():
            existing = existing.parent
        needed, free = rows * self.row_bytes, shutil.disk_usage(existing).free
        if needed <= free:
            return None
        return (
            f"the features of {rows:,} pictures need {needed / 1e9:.1f} GB and {self.folder.parent} has "
            f"{free / 1e9:.1f} GB free"
        )

    def drop_damaged(self, keys: Sequence[str]) -> int:
        """Compare rows with their checksums, each once, and forget the damaged ones.

        Args:
            keys: Keys of the rows; unknown ones are ignored.

        Returns:
            The number of damaged rows.
        """
        damaged = 0
        for key in keys:
            if key not in self._rows:
                continue
            part, row = self._rows[key]
            if not self._parts[part].check(row):
                damaged += 1
                del self._rows[key]
                self._parts[part].forget(row)
        return damaged

    def writer(self) -> "PartWriter":
        """Open a part for writing; use it in a ``with`` block. The folder is made if it is missing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        about = self.folder / "about.json"
        if not about.exists() or about.read_bytes() != self.about.encode():
            write_text(about, self.about)
        return PartWriter(self.folder, self.row_bytes)

    def find(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Find the rows of keys: (n, 2) for ``read``. KeyError if one is missing."""
        return np.array([self._rows[key] for key in keys], dtype=np.int64).reshape(-1, 2)

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        """Read rows (b, 2), as ``find`` returned them: (b, ...). OSError if one is damaged."""
        features = np.empty((len(rows), *self.shape), np.float16)
        for number in np.unique(rows[:, 0]):
            part, in_part = self._parts[number], rows[:, 0] == number
            for row in rows[in_part, 1]:
                if not part.check(row):
                    raise OSError(f"{part.file}: row {row} is damaged; the same command computes it again")
            features[in_part] = part.rows[rows[in_part, 1]]
        return features


class _Part:
    """The finished rows of a part, with their keys and checksums."""

    def __init__(self, file: Path, shape: tuple[int, ...], row_bytes: int) -> None:
        self.file = file
        keys = _read_keys(file.with_suffix(".keys"))
        sums = _read_checksums(file.with_suffix(".sums"))
        count = min(len(keys), file.stat().st_size // row_bytes)
        if sums is not None:
            count = min(count, len(sums))
        self.keys = keys[:count]
        self.rows: NDArray[np.float16] = np.empty((0, *shape), np.float16)
        if count:
            self.rows = np.memmap(file, np.float16, "r", shape=(count, *shape))
        self.sums = sums
        self.checked = np.full(count, sums is None)  # earlier versions wrote no checksums

    def check(self, row: int) -> bool:
        """Compare a row with its checksum, the first time."""
        if not self.checked[row]:
            assert self.sums is not None
            self.checked[row] = crc32(self.rows[row].tobytes()) == self.sums[row]
        return bool(self.checked[row])

    def forget(self, row: int) -> None:
        """Remove the key of a row, if the file can be written."""
        with suppress(OSError), self.file.with_suffix(".keys").open("r+b") as keys:
            keys.seek(row * (KEY_LENGTH + 1))
            keys.write(NO_KEY)


class PartWriter:
    """Appends rows to the first part that no other process is writing."""

    def __init__(self, folder: Path, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self._rows = self._open_free_part(folder)
        path = Path(self._rows.name)
        sums = _read_checksums(path.with_suffix(".sums"))
        count = min(len(_read_keys(path.with_suffix(".keys"))), path.stat().st_size // row_bytes)
        if sums is not None:
            count = min(count, len(sums))
        self._keys = path.with_suffix(".keys").open("ab")
        self._sums = path.with_suffix(".sums").open("ab")
        if sums is None:
            self._write_checksums(_row_checksums(path, row_bytes, count))
        sizes = ((self._rows, row_bytes), (self._sums, CHECKSUM.itemsize), (self._keys, KEY_LENGTH + 1))
        for file, size in sizes:
            file.truncate(count * size)
            file.seek(count * size)

    def append(self, keys: Sequence[str], rows: NDArray[np.float16]) -> None:
        """Append rows (b, ...) with their keys; ``NotCacheable`` if a number is not finite."""
        if not np.isfinite(rows).all():
            raise NotCacheable(
                "the backbone's features do not fit half precision (NaN or beyond 65504) and cannot be cached: "
                "train with --no-freeze-backbone"
            )
        contents = [row.tobytes() for row in rows]
        self._rows.write(b"".join(contents))
        self._rows.flush()
        self._write_checksums([crc32(content) for content in contents])
        os.fsync(self._rows.fileno())  # else a power cut could leave a key without its row
        self._keys.write("".join(f"{key}\n" for key in keys).encode())
        self._keys.flush()

    def _write_checksums(self, sums: list[int]) -> None:
        self._sums.write(np.array(sums, CHECKSUM).tobytes())
        self._sums.flush()

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._keys.close()
        self._sums.close()
        self._rows.close()  # and with it the lock

    @staticmethod
    def _open_free_part(folder: Path) -> IO[bytes]:
        number = 0
        while True:
            name = f"part-{number:03d}"
            if not fcntl:
                name = f"part-{os.getpid()}-{number:03d}"
            rows = (folder / f"{name}.rows").open("ab")
            try:
                if fcntl:
                    fcntl.flock(rows, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return rows
            except BlockingIOError:
                rows.close()
            except BaseException:
                rows.close()
                raise
            number += 1


def check_store(folder: Path) -> Finding:
    """Compare all rows of a store with their checksums. Nothing is changed."""
    try:
        text = (folder / "about.json").read_text(encoding="utf-8")
        shape = tuple(map(int, json.loads(text)["shape"]))
    except (OSError, ValueError, KeyError, TypeError):
        text, shape = "", (1,)
    if digest(text.removesuffix("\n")) != folder.name:
        return Finding(folder.name, "damaged", "about.json is not that of this folder; it is written again when needed")
    rows = damaged = without_checksum = 0
    for rows_file in sorted(folder.glob("part-*.rows")):
        keys_file = rows_file.with_suffix(".keys")
        lines = keys_file.stat().st_size // (KEY_LENGTH + 1) if keys_file.exists() else 0  # before the part is read
        part = _Part(rows_file, shape, 2 * prod(shape))
        damaged += max(0, lines - len(part.keys))  # behind a damaged line, or without a row
        for row, key in enumerate(part.keys):
            if key:
                rows += 1
                damaged += not part.check(row)
                without_checksum += part.sums is None
    if damaged:
        return Finding(folder.name, "damaged", f"rows: {damaged:,}; they are computed again when they are needed")
    if without_checksum:
        return Finding(folder.name, "no checksum", f"in {without_checksum:,} rows, of an earlier version")
    return Finding(folder.name, "ok", f"{rows:,} rows")


def _read_keys(path: Path) -> list[str]:
    """Keys of a part, "" for forgotten rows, up to the first damaged line: later rows cannot be trusted."""
    if not path.exists():
        return []
    text = path.read_bytes()
    keys = []
    for first in range(0, len(text), KEY_LENGTH + 1):
        line = text[first : first + KEY_LENGTH + 1]
        if not KEY_LINE.fullmatch(line):
            break
        keys.append(line.strip(b"-\n").decode())
    return keys


def _read_checksums(path: Path) -> NDArray[np.uint32] | None:
    """Checksums of a part; None if an earlier version wrote it."""
    if not path.exists():
        return None
    content = path.read_bytes()
    return np.frombuffer(content, CHECKSUM, len(content) // CHECKSUM.itemsize)


def _row_checksums(path: Path, row_bytes: int, count: int) -> list[int]:
    """Checksums of rows that an earlier version wrote."""
    with path.open("rb") as rows:
        return [crc32(rows.read(row_bytes)) for _ in range(count)]
