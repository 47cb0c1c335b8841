"""Lock of an output folder: one process writes into it at a time."""

from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lookalike._util.files import LOCK

DYING = 120.0  # seconds in which a process that was told to end saves its work


class FolderInUse(OSError):  # noqa: N818 - names the state
    """Another process is writing into the folder."""


class FolderLock:
    """Holds a folder for this process. The system frees it when the process ends, however it ends.

    Use it in a with statement, or call ``acquire`` and ``release``.

    Args:
        path: The folder; it need not exist.
        timeout: Seconds to wait for another process that holds it.
    """

    def __init__(self, path: Path, timeout: float = 0) -> None:
        self.path = path
        self._timeout = timeout
        self._lock: FileLock | None = None
        self._created: list[Path] = []  # folders, the innermost first

    def acquire(self) -> None:
        """Take the lock; the folder is created.

        Raises:
            FolderInUse: If another process, or another lock of this process, still holds it.
        """
        lock = FileLock(self.path / LOCK, timeout=self._timeout, thread_local=False)
        while not lock.is_locked:
            missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
            except FileNotFoundError:  # its owner has just removed the empty folder
                continue
            except Timeout:
                raise FolderInUse(
                    f"{self.path} is being written by another process: wait until it ends, or choose another --out"
                ) from None
            self._created = missing
        self._lock = lock

    def release(self) -> None:
        """Free the folder; remove it if it is still empty and this lock created it. May be called twice."""
        if self._lock is None:
            return
        with suppress(OSError):  # Windows: not while it is open
            (self.path / LOCK).unlink()  # before unlocking, so that a waiting process sees that the file is gone
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


def wait_until_free(path: Path, seconds: float = DYING) -> None:
    """Wait for a process that still holds a folder, perhaps on another machine, because its end takes a while.

    Raises:
        FolderInUse: If it does not end.
    """
    with FolderLock(path, seconds):
        pass
