"""Lock of an output folder: one process writes into it at a time."""

from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lookalike._util.files import LOCK


class FolderInUse(OSError):  # noqa: N818 - names the state
    """Another process is writing into the folder."""


class FolderLock:
    """Holds a folder for this process. The system frees it when the process ends, however it ends.

    Use it in a with statement, or call ``acquire`` and ``release``.

    Args:
        path: The folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: FileLock | None = None
        self._created: list[Path] = []  # folders, the innermost first

    def acquire(self) -> None:
        """Take the lock; the folder is created.

        Raises:
            FolderInUse: If another process, or another lock of this process, holds it.
        """
        lock = FileLock(self.path / LOCK, timeout=0, thread_local=False)
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise FolderInUse(
                f"{self.path} is being written by another process: wait until it ends, or choose another --out"
            ) from None
        self._lock, self._created = lock, missing

    def release(self) -> None:
        """Free the folder; remove it if it is still empty and this lock created it. May be called twice."""
        if self._lock is None:
            return
        with suppress(OSError):  # Windows: not while it is open
            (self.path / LOCK).unlink()  # before it is freed: who waits for this file sees that it is gone
        self._lock.release()
        self._lock = None
        with suppress(OSError):  # not empty
            for folder in self._created:
                folder.rmdir()

    def __enter__(self) -> "FolderLock":
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
