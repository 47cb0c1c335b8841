"""Leases: file locks for workers that share nothing but a folder.

A piece of work is a folder. The worker that creates ``lease-0`` in it does the work and touches the file regularly. A
lease that was not touched for ``expires`` seconds belongs to a dead worker: the next worker creates ``lease-1`` and
resumes the work, and so on. Creating a file that must not exist is atomic on local disks and on NFS, so exactly one
worker wins. Times are those of the file system, whose clock all workers share.

A lease names its process. If that process ran on this host and is gone, the lease is free at once.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

TOUCH_EVERY = 15.0  # seconds
EXPIRES = 180.0


class Lease:
    """A lease that this process holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = _number(path)

    @property
    def lost(self) -> bool:
        """Whether another worker took over because this one looked dead."""
        latest = _latest(self.path.parent)
        return latest is not None and _number(latest) > self.number

    def release(self) -> None:
        """Give the lease up at once, so that another worker can resume the work."""
        os.utime(self.path, (0, 0))

    def discard(self) -> None:
        """Remove the lease, because there was nothing to do."""
        self.path.unlink(missing_ok=True)

    def kept_alive_or_stop(self, name: str, expires: float, say: Callable[[str], None]) -> AbstractContextManager[None]:
        """Keep the lease on work ``name`` alive; stop this process if another worker takes over."""

        def stop() -> None:
            say(f"{name}: another worker has taken over because this one seemed dead; stopping")
            os.kill(os.getpid(), signal.SIGTERM)

        return self.kept_alive(stop, min(TOUCH_EVERY, expires / 4))

    @contextmanager
    def kept_alive(self, on_lost: Callable[[], None], every: float = TOUCH_EVERY) -> Iterator[None]:
        """Touch the lease from a thread while the context is open.

        Args:
            on_lost: called once if another worker has taken over.
            every: seconds between two touches.
        """
        done = threading.Event()

        def touch() -> None:
            while not done.wait(every):
                try:
                    if self.lost:
                        on_lost()
                        return
                    os.utime(self.path)
                except OSError:  # the file system is away for a moment; the lease may expire meanwhile
                    continue

        thread = threading.Thread(target=touch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def acquire(folder: Path, expires: float = EXPIRES) -> Lease | None:
    """Take the lease on the work in ``folder``.

    Args:
        folder: the piece of work; created if missing.
        expires: seconds without a touch after which a lease counts as abandoned.

    Returns:
        The lease, or None if another worker holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    latest = _latest(folder)
    number = 0
    if latest is not None:
        if not _is_free(latest, expires):
            return None
        number = _number(latest) + 1
    path = folder / f"lease-{number}"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(f"{socket.gethostname()} {os.getpid()} {token_hex(8)} {_this_process() or ''}".rstrip() + "\n")
    except FileExistsError:  # another worker was faster
        return None
    return Lease(path)


def is_leased(folder: Path, expires: float = EXPIRES) -> bool:
    """Whether a living worker holds the lease on ``folder``."""
    latest = _latest(folder)
    return latest is not None and not _is_free(latest, expires)


def holder(folder: Path) -> tuple[str, float] | None:
    """Who holds the lease on ``folder``.

    Returns:
        The holder as text and the seconds since its last touch, or None if unknown.
    """
    latest = _latest(folder)
    if latest is None:
        return None
    try:
        host, process, *_ = latest.read_text(encoding="utf-8").split()
        return f"process {process} on {host}", max(0.0, _now(folder) - latest.stat().st_mtime)
    except (OSError, ValueError):  # it is being written, or was taken over this moment
        return None


def _latest(folder: Path) -> Path | None:
    return max(folder.glob("lease-*"), key=_number, default=None)


def _is_free(path: Path, expires: float) -> bool:
    if _is_dead(path):
        return True
    try:
        return _now(path.parent) - path.stat().st_mtime > expires
    except FileNotFoundError:
        return False  # it changed this moment; the caller tries again


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


def _is_dead(path: Path) -> bool:
    """Whether the lease was made by a process of this host that is gone; False if that cannot be proven."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return False
    words = text.split()
    here = _this_process()
    if here is None or len(words) != 6 or not text.endswith("\n") or not words[1].isdecimal():
        return False  # another system, or a lease that is being written
    process = int(words[1])
    owner = _Process(*words[3:])
    if words[0] != socket.gethostname() or (owner.boot, owner.space) != (here.boot, here.space):
        return False
    try:
        os.kill(process, 0)  # sends nothing
    except ProcessLookupError:
        return True
    except OSError:  # another user's process, which may have got the number of the dead one
        pass
    current = _process_state(process)
    if current is None:
        return False
    state, started = current
    return started != owner.started or state in ("Z", "X")


class _Process(NamedTuple):
    """Identifies a process beyond its number: numbers are reused, and every container counts its own."""

    boot: str
    space: str
    started: str

    def __str__(self) -> str:
        return " ".join(self)


def _this_process() -> _Process | None:
    """This process, or None on systems other than Linux."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None
    state = _process_state(os.getpid())
    if state is None:
        return None
    return _Process(boot, space, started=state[1])


def _process_state(process: int) -> tuple[str, str] | None:
    """The state letter and start time of a process; None if /proc does not show them."""
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):  # /proc of another PID namespace
            return None
        words = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return words[0], words[19]  # fields 3 and 22; field 2 is a name in brackets with any characters
