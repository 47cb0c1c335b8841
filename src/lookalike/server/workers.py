"""Several worker processes on one listening socket: started, watched, started again, and ended together.

Each worker has its own model, decoding processes and connection to the index. They share the socket, the index, the
quotas and the metrics (a folder that the parent makes and removes). A worker whose parent is killed ends by itself.
"""

import logging
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from lookalike._util.signals import StopRequest

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client when it is imported
TICK = 0.2  # seconds
LONGEST_PAUSE = 30.0  # before a worker that keeps dying is started again
STABLE_SECONDS = 60.0  # a worker that lived as long may be started again at once

logger = logging.getLogger(__name__)


class Workers:
    """Worker processes.

    Args:
        count: How many.
        target: Called in each worker as ``target(folder, ready, *arguments)``, with the shared folder and an event to
            set when it serves. Must be importable.
        arguments: Further arguments, which are pickled.
        grace: Seconds that a worker may take to end after SIGTERM; then it is killed.
    """

    def __init__(self, count: int, target: Callable[..., None], arguments: tuple[Any, ...], grace: float) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._count = count
        self._target = target
        self._arguments = arguments
        self._grace = grace
        self._failures = 0

    def run(self, stop: StopRequest, on_ready: Callable[[], None]) -> None:
        """Serve until a stop is requested.

        Args:
            stop: Set by SIGTERM and Ctrl-C.
            on_ready: Called once, when all workers serve.

        Raises:
            OSError: If a worker ends before it has served; it has said why.
        """
        with tempfile.TemporaryDirectory(prefix="lookalike-serve-") as name:
            folder = Path(name)
            before = os.environ.get(METRICS_FOLDER)
            os.environ[METRICS_FOLDER] = name
            workers = [_Worker(self._start(folder)) for _ in range(self._count)]
            try:
                self._wait_until_ready(workers, stop)
                if not stop.requested:
                    on_ready()
                while not stop.requested:
                    self._watch(workers, folder)
                    time.sleep(TICK)
            finally:
                self._end(workers)
                if before is None:
                    del os.environ[METRICS_FOLDER]
                else:
                    os.environ[METRICS_FOLDER] = before

    def _start(self, folder: Path) -> "tuple[SpawnProcess, Any]":
        ready = self._context.Event()
        process = self._context.Process(target=_work, args=(self._target, folder, ready, *self._arguments))
        process.start()
        return process, ready

    def _wait_until_ready(self, workers: "list[_Worker]", stop: StopRequest) -> None:
        while not stop.requested:
            for worker in workers:
                if worker.process.exitcode is not None:
                    raise OSError(f"a worker ended with {worker.process.exitcode} before it could serve")
            if all(worker.ready.is_set() for worker in workers):
                return
            time.sleep(TICK)

    def _watch(self, workers: "list[_Worker]", folder: Path) -> None:
        """Start dead workers again; those that keep dying after a growing pause."""
        for slot, worker in enumerate(workers):
            if worker.process.exitcode is None:
                continue
            now = time.monotonic()
            if worker.start_again_at is None:
                _forget_gauges(folder, worker.process.pid)
                self._failures = 0 if now - worker.started > STABLE_SECONDS else self._failures + 1
                pause = min(LONGEST_PAUSE, 2.0 ** (self._failures - 2))
                worker.start_again_at = now + pause
                logger.error(
                    "worker %s ended with %s; it is started again in %.1f s",
                    worker.process.pid,
                    worker.process.exitcode,
                    pause,
                )
            if now >= worker.start_again_at:
                workers[slot] = _Worker(self._start(folder))

    def _end(self, workers: "list[_Worker]") -> None:
        for worker in workers:
            worker.process.terminate()
        deadline = time.monotonic() + self._grace
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.exitcode is None:
                logger.error("worker %s did not end in time and is killed", worker.process.pid)
                worker.process.kill()
                worker.process.join()


class _Worker:
    def __init__(self, started: "tuple[SpawnProcess, Any]") -> None:
        self.process, self.ready = started
        self.started = time.monotonic()
        self.start_again_at: float | None = None


def _work(target: Callable[..., None], folder: Path, ready: Any, *arguments: Any) -> None:
    """The life of a worker."""
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    target(folder, ready, *arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # nobody is left to say when to stop, and the port must become free


def _forget_gauges(folder: Path, pid: int | None) -> None:
    """Remove what a dead worker was doing from the metrics; its counts stay."""
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(pid, str(folder))
