"""Progress of a long job in the folder of its index, for whoever wants to watch: the page polls it.

IDX/JOB.json    state, stage, progress, and the report of the last one
IDX/JOB.lock    held by the process that does it; freed by the system when it ends, however it ends

The jobs are "improve" and "doctor".
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout

from lookalike._util.checksums import has_good_checksum, with_checksum
from lookalike._util.files import write_text
from lookalike._util.signals import Stopped
from lookalike._util.untrusted import read_json
from lookalike.index.storage import IMPROVEMENT, MODEL, About, IndexInUse

IMPROVE, DOCTOR = "improve", "doctor"
LOCK_SECONDS = 2.0  # somebody who watches holds the lock for a moment
WRITE_SECONDS = 0.5  # between two states of the same stage

DOCTOR_STATES = ("never", "running", "done", "failed", "stopped")
LATEST = 1e11  # seconds; later times have no date

State = Literal["never", "running", "installed", "kept", "rolled back", "done", "failed", "stopped"]


@dataclass
class Status:
    """What a job is doing, or what became of the last one.

    Attributes:
        state: "kept" means that the new model was worse. "stopped" also means that the process was killed.
        stage: Name of the current step.
        done: Finished units of the stage.
        total: All units of the stage; 0 if there is nothing to count.
        started: Seconds since 1970.
        message: One sentence for people.
        report: Of a finished job; empty otherwise.
        version: The version of the index when the job began.
    """

    state: State = "never"
    stage: str = ""
    done: int = 0
    total: int = 0
    started: float = 0.0
    message: str = ""
    report: dict[str, Any] = field(default_factory=dict)
    version: str = ""


def read_status(path: Path, job: str) -> Status:
    """Read the status of a job of an index; a missing or damaged file counts as "never"."""
    try:
        content = read_json(_file(path, job))
        if isinstance(content, dict) and "checksum" in content and not has_good_checksum(content):
            return Status()  # without a checksum it is from an earlier version
        status = Status(**content)
    except (OSError, ValueError, TypeError):
        return Status()
    if not _is_valid(status, job):
        return Status()
    if status.state == "running" and not is_running(path, job):
        _describe_the_end(path, job, status)
    return status


def _describe_the_end(path: Path, job: str, status: Status) -> None:
    """Say what a process has done that was killed. It may have replaced the model before."""
    status.state, status.message = "stopped", "the process has ended before it was done; nothing has changed"
    if job != IMPROVE:
        return
    home = About.read(path).home
    if home == status.version:
        return
    status.state, status.message = "installed", "the model was replaced; then the process was killed"
    with suppress(OSError, ValueError):
        status.report = read_json(path / home / MODEL / IMPROVEMENT)
    if "returned_to" in status.report:
        status.state = "rolled back"


def _is_valid(status: Status, job: str) -> bool:
    """Whether all values have their types: somebody else may have written the file."""
    texts = isinstance(status.stage, str) and isinstance(status.message, str)
    counts = isinstance(status.done, int) and isinstance(status.total, int)
    started = isinstance(status.started, (int, float)) and 0 <= status.started < LATEST
    counts = counts and isinstance(status.version, str)
    report = isinstance(status.report, dict) and isinstance(status.report.get("pictures", 0), int)
    states = get_args(State) if job == IMPROVE else DOCTOR_STATES
    return status.state in states and texts and counts and started and report


def is_running(path: Path, job: str) -> bool:
    """Whether a process does this job now."""
    try:
        with FileLock(_lock(path, job), timeout=0):
            return False
    except Timeout:
        return True


class Watched:
    """Writes the status of a running job.

    Args:
        path: The folder of the index.
        job: Name of the job.
    """

    def __init__(self, path: Path, job: str) -> None:
        self._file = _file(path, job)
        self.status = Status("running", "starting", started=time.time())
        self._written = 0.0

    def stage(self, name: str, total: int = 0) -> None:
        """Begin a stage."""
        self.status.stage, self.status.done, self.status.total = name, 0, total
        self._write()

    def advance(self, count: int = 1) -> None:
        """Count finished units of the stage."""
        self.status.done += count
        if time.monotonic() - self._written >= WRITE_SECONDS:
            self._write()

    def finish(self, state: State, message: str, report: dict[str, Any] | None = None) -> None:
        """Write the final state."""
        self.status.state, self.status.message, self.status.report = state, message, report or {}
        self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        write_text(self._file, with_checksum(asdict(self.status)))


@contextmanager
def watched(path: Path, job: str) -> Iterator[Watched]:
    """Hold the lock of a job and write its status, also if it fails.

    Raises:
        IndexInUse: If another process does the job already.
    """
    lock = FileLock(_lock(path, job), timeout=LOCK_SECONDS)
    try:
        lock.acquire()
    except Timeout:
        doing = "improved" if job == IMPROVE else "examined"
        raise IndexInUse(f"{path} is being {doing} by another process: try again when it is done") from None
    try:
        status = Watched(path, job)
        status.status.version = About.read(path).home
        status.stage("starting")
        try:
            yield status
        except (Stopped, KeyboardInterrupt):
            status.finish("stopped", "stopped; nothing has changed")
            raise
        except Exception as error:
            status.finish("failed", str(error))
            raise
    finally:
        lock.release()


def _file(path: Path, job: str) -> Path:
    return path / f"{job}.json"


def _lock(path: Path, job: str) -> Path:
    return path / f"{job}.lock"
