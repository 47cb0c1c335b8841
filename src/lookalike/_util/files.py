"""Atomic files: a file is complete or absent, even after a crash."""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile

UNFINISHED = re.compile(r"\.[0-9a-f]{16}-.")

LOCK = "run.lock"  # in a folder that a command writes into; see folder_lock.py


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which replaces ``path`` if the ``with`` block succeeds.

    Args:
        path: File to write; its folder is created.
        private: Only the owner may read the file.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with replacing(Path(folder) / "a.txt") as unfinished:
        ...         _ = unfinished.write_text("whole")
        ...     (Path(folder) / "a.txt").read_text()
        'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{token_hex(8)}-{path.name}")
    unfinished.touch(0o600 if private else 0o666, exist_ok=False)
    try:
        yield unfinished
        flush(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def remove_unfinished(folder: Path, *, older_than: float = 0) -> None:
    """Remove the temporary files of ``replacing`` that a killed process left in a folder.

    Args:
        folder: The folder; it need not exist.
        older_than: Age in seconds of files to remove; younger ones may belong to a running process.
    """
    for file in folder.glob(".*"):
        if not UNFINISHED.match(file.name):
            continue
        with suppress(OSError):  # already removed, or owned by another user
            if time.time() - file.stat().st_mtime >= older_than:
                file.unlink()


def require_writable(path: Path) -> None:
    """Check before long work that ``path`` can be written.

    Args:
        path: File or folder, which need not exist.

    Raises:
        ValueError: If it cannot be written.
    """
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if existing != path and not existing.is_dir():
        raise ValueError(f"{path} cannot be written: {existing} is not a folder")
    if not os.access(existing, os.W_OK):
        raise ValueError(f"{path} cannot be written: no permission in {existing}")
    if existing.is_dir():
        try:  # for root, os.access ignores a read-only disk
            with TemporaryFile(dir=existing):
                pass
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror} in {existing}") from error


def check_output_folder(path: Path, what: str, traces: Sequence[str], option: str = "--out") -> None:
    """Check that a command may write into a folder: it is new, empty, or has results of the same command.

    Args:
        path: The folder.
        what: Kind of result, for the message.
        traces: File names of such a result; one of them must exist in a folder that is not empty.
        option: The option that named the folder, for the message.

    Raises:
        ValueError: If the folder cannot be used.
    """
    if path.exists() and not path.is_dir():
        raise ValueError(f"{option} must be a folder, got the file {path}")
    require_writable(path)
    is_used = path.exists() and any(entry.name != LOCK for entry in path.iterdir())
    if is_used and not any((path / trace).exists() for trace in traces):
        raise ValueError(f"{path} exists and is no {what}: choose another {option}")


def cache_folder() -> Path:
    """Return the folder of cached features and hashes: LOOKALIKE_CACHE, or the user's cache folder."""
    chosen = os.environ.get("LOOKALIKE_CACHE")
    if chosen:
        return Path(chosen)
    general = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(general) / "lookalike"


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    size = 0
    for file in folder.rglob("*"):
        with suppress(OSError):  # removed meanwhile
            if file.is_file():
                size += file.stat().st_size
    return size


def flush(path: Path) -> None:
    """Flush a file or folder to disk, so that it survives a power cut. A new file also needs its folder flushed."""
    with suppress(PermissionError):  # Windows cannot open folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
