"""Local features on disk: key -> (N, C) in half precision, memory-mapped, append-only.

A store is a folder of parts. A part is a file of rows and a file of their keys. A row is on disk before its key is
written: a row without a key was interrupted and is written again. Each writer locks a part of its own, so any number of
processes may write and read at the same time.
"""

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from lookalike._util.files import require_writable, write_text
from lookalike._util.hashing import KEY_LENGTH, digest

try:
    import fcntl
except ImportError:  # on Windows the process number in its name protects a part instead
    fcntl = None  # type: ignore[assignment]

KEY_LINE = re.compile(rb"[0-9a-f]{%d}\n" % KEY_LENGTH)


class FeatureStore:
    """Rows of features by key.

    Args:
        folder: Folder of all stores.
        description: What the features depend on; its hash names the folder of the store.
        shape: Shape (N, C) of a row.
    """

    def __init__(self, folder: Path, description: dict[str, Any], shape: tuple[int, int]) -> None:
        text = json.dumps({**description, "shape": list(shape)}, sort_keys=True, indent=2)
        self.folder = folder / digest(text)
        self.shape = shape
        self.row_bytes = 2 * shape[0] * shape[1]
        require_writable(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "about.json").exists():
            write_text(self.folder / "about.json", text + "\n")
        self._rows: dict[str, tuple[int, int]] = {}  # key -> part, row in the part
        self._maps: list[NDArray[np.float16]] = []
        self.refresh()

    def refresh(self) -> None:
        """Find rows that were written since, also by other processes. Results of ``find`` become invalid."""
        self._rows, self._maps = {}, []
        for rows_file in sorted(self.folder.glob("part-*.rows")):
            keys = _read_keys(rows_file.with_suffix(".keys"))
            count = min(len(keys), rows_file.stat().st_size // self.row_bytes)
            if count == 0:
                continue
            part = len(self._maps)
            self._maps.append(np.memmap(rows_file, np.float16, "r", shape=(count, *self.shape)))
            for row, key in enumerate(keys[:count]):
                self._rows[key] = (part, row)

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def require_space(self, rows: int) -> None:
        """Raise OSError if the disk has no space for so many rows."""
        needed, free = rows * self.row_bytes, shutil.disk_usage(self.folder).free
        if needed > free:
            raise OSError(
                f"the features of {rows:,} pictures need {needed / 1e9:.1f} GB and {self.folder.parent} has "
                f"{free / 1e9:.1f} GB free: choose another folder with --cache, or a smaller --size"
            )

    def writer(self) -> "PartWriter":
        """Open a part for writing; use it in a ``with`` block."""
        return PartWriter(self.folder, self.row_bytes)

    def find(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Find the rows of keys: (n, 2) for ``read``. KeyError if one is missing."""
        return np.array([self._rows[key] for key in keys], dtype=np.int64).reshape(-1, 2)

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        """Read rows (b, 2), as ``find`` returned them: (b, N, C)."""
        features = np.empty((len(rows), *self.shape), np.float16)
        for part in np.unique(rows[:, 0]):
            in_part = rows[:, 0] == part
            features[in_part] = self._maps[part][rows[in_part, 1]]
        return features


class PartWriter:
    """Appends rows to the first part that no other process is writing."""

    def __init__(self, folder: Path, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self._rows, self._keys = self._open_free_part(folder)
        keys = _read_keys(Path(self._keys.name))
        count = min(len(keys), Path(self._rows.name).stat().st_size // row_bytes)
        for file, length in ((self._rows, count * row_bytes), (self._keys, count * (KEY_LENGTH + 1))):
            file.truncate(length)
            file.seek(length)

    def append(self, keys: Sequence[str], rows: NDArray[np.float16]) -> None:
        """Append rows (b, N, C) with their keys; ValueError if a number is not finite."""
        if not np.isfinite(rows).all():
            raise ValueError(
                "the backbone's features do not fit half precision (NaN or beyond 65504) and cannot be cached: "
                "train with --no-freeze-backbone"
            )
        self._rows.write(np.ascontiguousarray(rows).tobytes())
        self._rows.flush()
        os.fsync(self._rows.fileno())  # else a power cut could leave a key without its row
        self._keys.write("".join(f"{key}\n" for key in keys).encode())
        self._keys.flush()

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._keys.close()
        self._rows.close()  # and with it the lock

    @staticmethod
    def _open_free_part(folder: Path) -> tuple[IO[bytes], IO[bytes]]:
        number = 0
        while True:
            name = f"part-{number:03d}"
            if not fcntl:
                name = f"part-{os.getpid()}-{number:03d}"
            rows = (folder / f"{name}.rows").open("ab")
            try:
                if fcntl:
                    fcntl.flock(rows, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return rows, (folder / f"{name}.keys").open("ab")
            except BlockingIOError:
                rows.close()
            except BaseException:
                rows.close()
                raise
            number += 1


def _read_keys(path: Path) -> list[str]:
    """Keys of a part, up to the first damaged line: the rows of later keys cannot be trusted."""
    if not path.exists():
        return []
    text = path.read_bytes()
    keys = []
    for first in range(0, len(text), KEY_LENGTH + 1):
        line = text[first : first + KEY_LENGTH + 1]
        if not KEY_LINE.fullmatch(line):
            break
        keys.append(line[:-1].decode())
    return keys
