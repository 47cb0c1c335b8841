"""Processes that decode pictures. A picture that takes too long or too much memory ends its process, not the server.

There are two lanes. The quick lane looks at every picture and decodes those that its estimate calls cheap. Others move
to the slow lane, which has one process, more time and more memory, and a bounded number of waiting pictures. Within a
lane clients take turns, and smaller files go first, so that nobody waits long behind somebody else's pictures.

A process starts with a picture only when what it may use is free of the memory that all may use together. So the bound
does not grow with the number of processes.

Only crops for the model and JPEGs come back. Decoded pictures never enter the server's memory.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lookalike
from lookalike.data.decode_worker import read_message, write_message
from lookalike.data.safe_decode import Decoded, Job
from lookalike.server.budget import WaitingBudget
from lookalike.server.errors import ApiError, busy
from lookalike.server.turns import TurnQueue

COMMAND = (sys.executable, "-c", "from lookalike.data.decode_worker import main; main()")
CLOSING = "the server is closing"
MIN_WAIT_SECONDS = 1.0  # seconds that a picture may wait however short the time of a request is
WAIT_DIVISOR = 3  # a picture may wait one third of the time of a request; the rest is for decoding and the model


class LaneLimits(NamedTuple):
    """Bounds of a lane.

    Attributes:
        workers: Number of processes.
        megabytes: Memory of a process.
        cpu_seconds: Processor time per picture.
        seconds: Time per picture by the clock.
        waiting: Largest number of waiting pictures.
        decoded_megabytes: Largest sum of width x height x channels of all pictures that are decoded or wait.
            The quick lane needs none: each of its processes decodes one picture of at most 40 MB.
    """

    workers: int
    megabytes: int
    cpu_seconds: int
    seconds: float
    waiting: int
    decoded_megabytes: float = float("inf")


QUICK = LaneLimits(
    workers=min(3, max(1, (os.cpu_count() or 1) - 1)), megabytes=200, cpu_seconds=2, seconds=6, waiting=512
)
SLOW = LaneLimits(workers=1, megabytes=900, cpu_seconds=10, seconds=20, waiting=8, decoded_megabytes=900)
MEGABYTES = QUICK.megabytes + SLOW.megabytes  # of all processes that are decoding, however many there are


class _Task:
    """A job, its result, and where it stands in the queue."""

    def __init__(self, job: Job, data: bytes, client: str, seconds: float) -> None:
        self.job = job
        self.data = data
        self.client = client
        self.given_up_at = time.monotonic() + max(MIN_WAIT_SECONDS, seconds / WAIT_DIVISOR)
        self.decoded_bytes = 0  # unknown until the quick lane has read the header
        self.future: Future[Decoded] = Future()

    def fail(self, error: Exception) -> None:
        """Set the error, unless nobody waits for it any more."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class Decoder:
    """Decodes pictures in processes, which start with the first picture or ``start``.

    Args:
        seconds: Time to answer a request; a picture that waited for a third of it gets 503.
        quick: Bounds of the quick lane.
        slow: Bounds of the slow lane.
    """

    def __init__(self, seconds: float, quick: LaneLimits = QUICK, slow: LaneLimits = SLOW) -> None:
        self._seconds = seconds
        memory = WaitingBudget(max(MEGABYTES, quick.megabytes, slow.megabytes))
        self._slow = _Lane("slow", slow, memory, self._finish)
        self._quick = _Lane("quick", quick, memory, self._finish_or_promote)

    def start(self) -> None:
        """Start the processes."""
        self._quick.start()
        self._slow.start()

    def submit(self, job: Job, data: bytes, client: str) -> "Future[Decoded]":
        """Queue one picture.

        Args:
            job: What to do.
            data: The bytes of the file.
            client: Who sent it. Clients take turns.

        Returns:
            A future of the result. It fails with ``ApiError``: 413 or 415 for pictures that are not accepted, 422 if
            the picture takes too much time or memory, 503 if too many pictures are waiting.
        """
        task = _Task(job, data, client, self._seconds)
        self._quick.add(task)
        return task.future

    def close(self) -> None:
        """Kill the processes. Pictures that are being decoded or wait get 503."""
        self._quick.close()
        self._slow.close()

    def _finish_or_promote(self, task: _Task, worker: "_Worker") -> None:
        answer = worker.run(task.job._replace(quick=True), task.data)
        if answer[0].get("costly") or answer[0].get("out_of_memory"):
            task.decoded_bytes = answer[0].get("decoded_bytes", 0)
            self._slow.add(task)
        else:
            _set_result(task, answer)

    def _finish(self, task: _Task, worker: "_Worker") -> None:
        _set_result(task, worker.run(task.job, task.data))


class _Lane:
    """A queue, and threads that each own one process. ``finish(task, worker)`` sets the result of a task."""

    def __init__(self, name: str, limits: LaneLimits, memory: WaitingBudget, finish: Any) -> None:
        self._name = name
        self._limits = limits
        self._memory = memory
        self._finish = finish
        self._waiting: TurnQueue[_Task] = TurnQueue(limits.waiting)
        self._decoded_bytes = 0  # of all pictures that are decoded or wait
        self._changed = threading.Condition()
        self._workers: list[_Worker] = []
        self._closed = False

    def start(self) -> None:
        with self._changed:
            while len(self._workers) < self._limits.workers:
                worker = _Worker(self._limits)
                self._workers.append(worker)
                # The thread that starts a process must outlive it: Linux counts the thread as its parent.
                threading.Thread(target=self._loop, args=(worker,), name=f"decode-{self._name}", daemon=True).start()

    def add(self, task: _Task) -> None:
        self.start()
        with self._changed:
            if self._closed:
                task.fail(busy(CLOSING))
                return
            if not self._waiting.has_room(task.client):
                task.fail(busy(f"{len(self._waiting)} pictures are waiting to be decoded"))
                return
            limit = 1_000_000 * self._limits.decoded_megabytes
            if self._decoded_bytes and self._decoded_bytes + task.decoded_bytes > limit:
                task.fail(busy(f"pictures of {self._decoded_bytes / 1e6:.0f} MB are being decoded or wait"))
                return
            self._decoded_bytes += task.decoded_bytes
            displaced = self._waiting.add(task, task.client, len(task.data))
            if displaced is not None:
                self._decoded_bytes -= displaced.decoded_bytes
                displaced.fail(busy("pictures of other clients are waiting to be decoded"))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for task in self._waiting.clear():
                task.fail(busy(CLOSING))
            self._changed.notify_all()
            for worker in self._workers:
                worker.close()

    def _loop(self, worker: "_Worker") -> None:
        worker.start()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    worker.close()
                    return
            with self._memory.hold(self._limits.megabytes):
                self._do_next(worker)

    def _do_next(self, worker: "_Worker") -> None:
        with self._changed:
            if not self._waiting:  # another process was faster
                return
            task, _ = self._waiting.take()
            decoded_bytes = task.decoded_bytes  # the quick lane changes it when a task moves on
        try:
            if time.monotonic() >= task.given_up_at:
                raise busy("too many pictures are waiting to be decoded")
            if not task.future.cancelled():
                self._finish(task, worker)
        except ApiError as error:
            task.fail(error)
        except Exception as error:  # an unexpected answer: never leave a request without one
            worker.stop()
            task.fail(error)
        finally:
            with self._changed:
                self._decoded_bytes -= decoded_bytes
                self._waiting.done(task.client)


class _Worker:
    """One process. It is started again after it has been killed."""

    def __init__(self, limits: LaneLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        with self._lock:
            if self._closed or (self._process is not None and self._process.poll() is None):
                return
            self._process = subprocess.Popen(
                [*COMMAND, str(self._limits.megabytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment(),
            )

    def close(self) -> None:
        """Kill the process; do not start another."""
        with self._lock:
            self._closed = True
        self.stop()

    def stop(self) -> None:
        """Kill the process."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def run(self, job: Job, data: bytes) -> tuple[dict[str, Any], bytes]:
        """Send a job and wait for the answer; kill the process if it takes too long.

        A process that ends by itself is started again once: it may have ended before it saw the picture.
        """
        answer = self._exchange(job, data) or self._exchange(job, data)
        if answer is None:
            raise ApiError(415, "not_a_picture", "the picture is damaged or incomplete")  # its decoder crashes
        return answer

    def _exchange(self, job: Job, data: bytes) -> tuple[dict[str, Any], bytes] | None:
        """Send a job and return the answer; None if the process ended by itself."""
        self.start()
        process = self._process
        if self._closed or process is None or process.stdin is None or process.stdout is None:
            raise busy(CLOSING)
        killed = threading.Event()

        def kill() -> None:
            killed.set()
            process.kill()

        timer = threading.Timer(self._limits.seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            header = {**job._asdict(), "cpu_seconds": self._limits.cpu_seconds}
            write_message(process.stdin, header, data)
            answer = read_message(process.stdout)
        except OSError:
            answer = None
        finally:
            timer.cancel()
        if answer is not None:
            return answer
        process.kill()
        process.stdout.close()
        returncode = process.wait()
        if self._closed:
            raise busy(CLOSING)
        if killed.is_set():
            raise busy("the picture could not be decoded in time")
        if returncode == -signal.SIGXCPU:
            raise ApiError(422, "too_costly", f"decoding takes more than {self._limits.cpu_seconds} seconds")
        return None


def _set_result(task: _Task, answer: tuple[dict[str, Any], bytes]) -> None:
    header, data = answer
    if "refused" in header:
        status, code, message = header["refused"]
        raise ApiError(status, code, message)
    if "size" not in header:
        raise ApiError(422, "too_costly", "decoding takes too much memory")
    pixels = None
    if task.job.crop is not None:
        pixels = np.frombuffer(bytearray(data[: header["pixel_bytes"]]), np.uint8).reshape(header["shape"])
    jpeg = None
    if task.job.jpeg_side is not None:
        jpeg = data[header["pixel_bytes"] :]
    width, height = header["size"]
    with suppress(InvalidStateError):  # cancelled: nobody waits for it any more
        task.future.set_result(Decoded((width, height), pixels, jpeg))


def environment() -> dict[str, str]:
    """Return the environment without keys and tokens, for processes that need none."""
    environment = {}
    for name in ("PATH", "HOME", "LANG", "LC_ALL", "SYSTEMROOT", "TMPDIR", "LD_LIBRARY_PATH", "COVERAGE_PROCESS_START"):
        if name in os.environ:
            environment[name] = os.environ[name]
    source = str(Path(lookalike.__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    environment["PYTHONSAFEPATH"] = "1"  # never import from the folder in which the server was started
    environment["OPENBLAS_NUM_THREADS"] = "1"
    return environment
