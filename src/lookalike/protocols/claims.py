"""Who does what, among workers that share nothing but a folder.

A piece of work is a folder. Whoever creates ``claim-0`` in it does the work; the file is touched every so often while
it goes on. A claim that was not touched for ``expires`` seconds belongs to a worker that died: whoever then creates
``claim-1`` goes on where it was, and so on. Creating a file that must not exist is atomic on local disks and on NFS, so
there is one winner. Times are those of the file system, whose clock all workers share.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

TOUCH_EVERY = 15.0  # seconds
EXPIRES = 180.0


class Claim:
    """A claim that is held. ``release`` gives it up at once, for others to go on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = _number(path)

    @property
    def lost(self) -> bool:
        """Whether another worker took over, because this one looked dead."""
        return any(_number(path) > self.number for path in self.path.parent.glob("claim-*"))

    def release(self) -> None:
        os.utime(self.path, (0, 0))

    @contextmanager
    def kept_alive(self, on_lost: Callable[[], None], every: float = TOUCH_EVERY) -> Iterator[None]:
        """Touch the claim from a thread; ``on_lost`` is called once if another worker has taken over."""
        done = threading.Event()

        def touch() -> None:
            while not done.wait(every):
                try:
                    if self.lost:
                        on_lost()
                        return
                    os.utime(self.path)
                except OSError:  # a file system that is away for a moment; the claim may expire meanwhile
                    continue

        thread = threading.Thread(target=touch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def claim(folder: Path, expires: float = EXPIRES) -> Claim | None:
    """A claim on the work in ``folder``; None if somebody is at it."""
    folder.mkdir(parents=True, exist_ok=True)
    latest = max(folder.glob("claim-*"), key=_number, default=None)
    if latest is not None and not _is_expired(latest, expires):
        return None
    number = 0 if latest is None else _number(latest) + 1
    path = folder / f"claim-{number}"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(f"{socket.gethostname()} {os.getpid()} {token_hex(8)}\n")
    except FileExistsError:  # another worker was faster
        return None
    return Claim(path)


def is_claimed(folder: Path, expires: float = EXPIRES) -> bool:
    """Whether somebody is at the work in ``folder``."""
    latest = max(folder.glob("claim-*"), key=_number, default=None)
    return latest is not None and not _is_expired(latest, expires)


def _is_expired(path: Path, expires: float) -> bool:
    try:
        return _now(path.parent) - path.stat().st_mtime > expires
    except FileNotFoundError:
        return False  # it changed this moment: look again later


def _now(folder: Path) -> float:
    """The file system's time, which may differ from this machine's."""
    probe = folder / f".clock-{token_hex(8)}"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _number(path: Path) -> int:
    return int(path.name.rsplit("-", 1)[1])
