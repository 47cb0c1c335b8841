"""Processes that improve the model of the served index or examine its pictures: one of each, apart from the server.

They are ``lookalike improve`` and ``lookalike doctor``, which write their progress into the folder of the index. So the
status also shows a run that was started on the command line. A server that ends stops the processes that it has
started; nothing has changed then.
"""

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock

from lookalike.index.job_status import DOCTOR, IMPROVE, Status, is_running, read_status
from lookalike.index.storage import About
from lookalike.server.errors import ApiError
from lookalike.server.keys import READ_VARIABLE, WRITE_VARIABLE

NICENESS = 10  # searches go first
SECONDS_TO_STOP = 10.0
PATH = re.compile(r"[^\s:,()]*[/\\]([^\s:,()/\\]*)")


class Job:
    """Starts, watches and stops a process.

    Args:
        path: The folder of the index.
        name: Name of the job, which is also the command.
        running: What a client is told if it is running already.
    """

    def __init__(self, path: Path, name: str, running: str) -> None:
        self.path = path
        self._name, self._running = name, running
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._cancelled = False

    def start(self, *words: str) -> None:
        """Start the process.

        Args:
            *words: Further words of the command.

        Raises:
            ApiError: 409 if it is running.
        """
        with self._lock:
            if self._is_alive() or is_running(self.path, self._name):
                raise ApiError(409, "running", self._running)
            command = [sys.executable, "-m", "lookalike", self._name, str(self.path.absolute()), *words]
            secret = (READ_VARIABLE, WRITE_VARIABLE)
            environment = {name: value for name, value in os.environ.items() if name not in secret}
            self._started, self._cancelled = time.time(), False
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment, start_new_session=True
            )
            with suppress(OSError, AttributeError):  # no such call on Windows
                os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)

    def cancel(self) -> None:
        """Stop the process that this server has started.

        Raises:
            ApiError: 409 if there is none.
        """
        with self._lock:
            if self._process is None or not self._is_alive():
                raise ApiError(409, "not_running", "nothing is running that this server has started")
            self._cancelled = True
            self._process.terminate()

    def status(self) -> Status:
        """Return what the process is doing, or what became of the last one; without paths of this machine."""
        status = read_status(self.path, self._name)
        is_old = status.started < self._started
        if self._is_alive() and (is_old or status.state != "running"):
            return Status("running", "starting", started=self._started)
        if self._process is not None and is_old:
            status = Status("failed", started=self._started, message="it could not start; see the log of the server")
            if self._cancelled:
                status.state, status.message = "stopped", "stopped; nothing has changed"
        status.message = PATH.sub(r"\1", status.message)
        return status

    def close(self) -> None:
        """Stop the process and wait for it."""
        with self._lock:
            if self._process is None or not self._is_alive():
                return
            self._process.terminate()
            try:
                self._process.wait(SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None


class Improver(Job):
    """The process that improves the model.

    Args:
        path: The folder of the index.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, IMPROVE, "the model is being improved already")

    def roll_back(self) -> None:
        """Start the way back to the model before.

        Raises:
            ApiError: 409 if the model is being improved, or there is nothing to return to.
        """
        if not About.read(self.path).previous:
            raise ApiError(409, "no_version", "there is no earlier model to return to")
        self.start("--rollback")


class Examiner(Job):
    """The process that looks for faults in the pictures.

    Args:
        path: The folder of the index.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, DOCTOR, "the pictures are being examined already")
