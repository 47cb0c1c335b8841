"""Local features on disk: key -> (N, C) in half precision, memory-mapped, append-only.

A store is a folder of parts. A part is a file of rows and a file of their keys; a row is on the disk before its key is
written, so that a row without a key is one that was interrupted, and is written again. Each writer holds a part of its
own by a lock: any number of processes may write and read at once, and what one has finished all others find.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from lookalike._util.files import require_writable, write_text
from lookalike._util.hashing import KEY_LENGTH, digest

try:
    import fcntl
except ImportError:  # not on Windows, where a part is protected by the process number in its name instead
    fcntl = None  # type: ignore[assignment]


class FeatureStore:
    """Rows of ``shape`` (N, C) under ``folder / key of the description``."""

    def __init__(self, folder: Path, description: dict[str, Any], shape: tuple[int, int]) -> None:
        text = json.dumps({**description, "shape": list(shape)}, sort_keys=True, indent=2)
        self.folder = folder / digest(text)
        self.shape = shape
        self.row_bytes = 2 * shape[0] * shape[1]
        require_writable(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "about.json").exists():
            write_text(self.folder / "about.json", text + "\n")
        self._places: dict[str, tuple[int, int]] = {}
        self._maps: list[NDArray[np.float16]] = []
        self.refresh()

    def refresh(self) -> None:
        """Find what was written since, also by others. Places that were asked for before hold no longer."""
        self._places, self._maps = {}, []
        for rows_file in sorted(self.folder.glob("part-*.rows")):
            keys = _read_keys(rows_file.with_suffix(".keys"))
            count = min(len(keys), rows_file.stat().st_size // self.row_bytes)
            if count == 0:
                continue
            self._maps.append(np.memmap(rows_file, np.float16, "r", shape=(count, *self.shape)))
            self._places.update((key, (len(self._maps) - 1, row)) for row, key in enumerate(keys[:count]))

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def require_space(self, rows: int) -> None:
        """One clear error before hours of work, not in the middle of it."""
        needed, free = rows * self.row_bytes, shutil.disk_usage(self.folder).free
        if needed > free:
            raise OSError(
                f"the features of {rows:,} pictures need {needed / 1e9:.1f} GB and {self.folder.parent} has "
                f"{free / 1e9:.1f} GB free: choose another place with --cache, or a smaller --size"
            )

    def writer(self) -> "PartWriter":
        return PartWriter(self.folder, self.row_bytes)

    def places(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Where the rows of ``keys`` lie (n, 2), for ``read``."""
        return np.array([self._places[key] for key in keys], dtype=np.int64).reshape(-1, 2)

    def read(self, places: NDArray[np.int64]) -> NDArray[np.float16]:
        """The rows at ``places`` (b, 2) -> (b, N, C)."""
        rows = np.empty((len(places), *self.shape), np.float16)
        for part in np.unique(places[:, 0]):
            here = places[:, 0] == part
            rows[here] = self._maps[part][places[here, 1]]
        return rows


class PartWriter:
    """Appends rows to the first part that nobody else is writing."""

    def __init__(self, folder: Path, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self._rows, self._keys = self._open_free_part(folder)
        keys = _read_keys(Path(self._keys.name))
        count = min(len(keys), Path(self._rows.name).stat().st_size // row_bytes)
        for file, length in ((self._rows, count * row_bytes), (self._keys, count * (KEY_LENGTH + 1))):
            file.truncate(length)
            file.seek(length)

    def append(self, keys: Sequence[str], rows: NDArray[np.float16]) -> None:
        if not np.isfinite(rows).all():
            raise ValueError(
                "the backbone's features do not fit half precision (NaN or beyond 65504) and cannot be cached: "
                "train with --no-freeze-backbone"
            )
        self._rows.write(np.ascontiguousarray(rows).tobytes())
        self._rows.flush()
        os.fsync(self._rows.fileno())  # else a power cut might leave a key without its row
        self._keys.write("".join(f"{key}\n" for key in keys).encode())
        self._keys.flush()

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keys.close()
        self._rows.close()  # and with it the lock

    @staticmethod
    def _open_free_part(folder: Path) -> tuple[IO[bytes], IO[bytes]]:
        number = 0
        while True:
            name = f"part-{number:03d}" if fcntl else f"part-{os.getpid()}-{number:03d}"
            rows = (folder / f"{name}.rows").open("ab")
            with _closing_on_error(rows):
                if not fcntl:
                    return rows, (folder / f"{name}.keys").open("ab")
                try:
                    fcntl.flock(rows, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return rows, (folder / f"{name}.keys").open("ab")
                except BlockingIOError:
                    rows.close()
            number += 1


@contextmanager
def _closing_on_error(file: IO[bytes]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        file.close()
        raise


def _read_keys(path: Path) -> list[str]:
    """The lines of a file of keys, up to the first that is torn: behind it no key can be trusted to have its row."""
    if not path.exists():
        return []
    text = path.read_bytes()
    lines = (text[first : first + KEY_LENGTH + 1] for first in range(0, len(text), KEY_LENGTH + 1))
    return [line[:-1].decode() for line in takewhile(re.compile(rb"[0-9a-f]{%d}\n" % KEY_LENGTH).fullmatch, lines)]
