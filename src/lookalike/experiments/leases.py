"""Who does what, among workers that share nothing but a folder.

A piece of work is a folder. Whoever creates ``claim-0`` in it does the work; the file is touched every so often while
it goes on. A claim that was not touched for ``expires`` seconds belongs to a worker that died: whoever then creates
``claim-1`` goes on where it was, and so on. Creating a file that must not exist is atomic on local disks and on NFS, so
there is one winner. Times are those of the file system, whose clock all workers share.

A claim says which process made it. Where that was a process of this very host that is no more, nobody needs to wait.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

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
    latest = _latest(folder)
    if latest is not None and not _is_free(latest, expires):
        return None
    number = 0 if latest is None else _number(latest) + 1
    path = folder / f"claim-{number}"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(f"{socket.gethostname()} {os.getpid()} {token_hex(8)} {_this_process() or ''}".rstrip() + "\n")
    except FileExistsError:  # another worker was faster
        return None
    return Claim(path)


def is_claimed(folder: Path, expires: float = EXPIRES) -> bool:
    """Whether somebody is at the work in ``folder``."""
    latest = _latest(folder)
    return latest is not None and not _is_free(latest, expires)


def holder(folder: Path) -> tuple[str, float] | None:
    """Who is at the work in ``folder``, in words, and for how many seconds there was no sign; None if it is unknown."""
    latest = _latest(folder)
    if latest is None:
        return None
    try:
        host, process, *_ = latest.read_text(encoding="utf-8").split()
        return f"process {process} on {host}", max(0.0, _now(folder) - latest.stat().st_mtime)
    except (OSError, ValueError):  # it is being written or has just been taken over
        return None


def _latest(folder: Path) -> Path | None:
    return max(folder.glob("claim-*"), key=_number, default=None)


def _is_free(path: Path, expires: float) -> bool:
    return _is_dead(path) or _is_expired(path, expires)


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


def _is_dead(path: Path) -> bool:
    """Whether a process of this host made the claim and is no more; whatever cannot be proven is not so."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return False
    words, here = text.split(), _this_process()
    if here is None or len(words) != 6 or not text.endswith("\n") or not words[1].isdecimal():
        return False  # another system, an older claim, or one that is being written
    process, owner = int(words[1]), _Process(*words[3:])
    if words[0] != socket.gethostname() or (owner.boot, owner.space) != (here.boot, here.space):
        return False
    try:
        os.kill(process, 0)  # sends nothing
    except ProcessLookupError:
        return True
    except OSError:  # somebody else's, which may have got the number of the dead one
        pass
    now = _state(process)
    return now is not None and (now[1] != owner.started or now[0] in ("Z", "X"))


class _Process(NamedTuple):
    """What tells a process from others with its number: numbers are reused, and every container counts for itself."""

    boot: str
    space: str
    started: str

    def __str__(self) -> str:
        return " ".join(self)


def _this_process() -> _Process | None:
    """None where the system does not tell, as others than Linux."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None
    state = _state(os.getpid())
    return None if state is None else _Process(boot, space, state[1])


def _state(process: int) -> tuple[str, str] | None:
    """Its state, as a letter, and when it was started; None if that is not to be seen."""
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):  # this /proc counts processes in another way
            return None
        words = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return words[0], words[19]  # the 3rd and the 22nd; the 2nd is a name in brackets, with any letters
