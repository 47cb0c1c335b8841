"""Files that appear whole or not at all, whatever happens in between."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it takes the place of ``path`` when all went well.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as unfinished:
    ...         _ = unfinished.write_text("whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{token_hex(8)}-{path.name}")
    unfinished.touch(exist_ok=False)
    try:
        yield unfinished
        flush(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def require_writable(path: Path) -> None:
    """One clear error before work starts, where ``path`` could not be written in the end."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if there != path and not there.is_dir():
        raise ValueError(f"{path} cannot be written: {there} is not a folder")
    if not os.access(there, os.W_OK):
        raise ValueError(f"{path} cannot be written: no permission in {there}")
    if there.is_dir():
        try:  # who may do everything still cannot write everywhere
            with TemporaryFile(dir=there):
                pass
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror} in {there}") from error


def require_own_folder(path: Path, what: str, traces: Sequence[str]) -> None:
    """Likewise, for a folder that a command fills: a new one, an empty one, or one that it has filled before.

    what: the command leaves behind, in a word.  traces: names of which one is there once it has begun.
    """
    if path.exists() and not path.is_dir():
        raise ValueError(f"--out must be a folder, got the file {path}")
    require_writable(path)
    if path.exists() and any(path.iterdir()) and not any((path / trace).exists() for trace in traces):
        raise ValueError(f"{path} exists and is no {what}: choose another --out")


def flush(path: Path) -> None:
    """To the disk itself, so that it outlives a power cut; a new name does only once its folder is there, too."""
    with suppress(PermissionError):  # Windows opens no folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
