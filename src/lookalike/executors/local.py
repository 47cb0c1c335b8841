"""Tasks in processes of this machine."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import Any

from lookalike._util.signals import StopRequest
from lookalike.executors import RETRIES, Result, Say, Task, WorkerDied, use_threads

POLL_EVERY = 0.5  # seconds between two looks at requests to stop

_shared: Any = None  # in a worker process
_threads: int | None = None


class LocalExecutor:
    """Runs tasks in this process, or in several.

    Args:
        workers: Number of processes; 1: this one.
        say: Receives messages.
    """

    def __init__(self, workers: int = 1, say: Say = print) -> None:
        self._workers = workers
        self._say = say

    @property
    def slots(self) -> int:
        """Tasks that run at the same time."""
        return self._workers

    @property
    def threads(self) -> int | None:
        """Threads of every task: OMP_NUM_THREADS, else a share of the cores; None with one worker."""
        if self._workers == 1:
            return None
        threads = os.environ.get("OMP_NUM_THREADS", "")
        if threads.isdecimal() and int(threads) > 0:
            return int(threads)
        return max(1, (os.cpu_count() or 1) // self._workers)

    def run(
        self, function: Callable[[Task, Any], Result], tasks: Iterable[Task], shared: Any
    ) -> Iterator[tuple[Task, Result]]:
        """Call the function for every task; see ``Executor.run``."""
        if self._workers == 1:
            for task in tasks:
                yield task, function(task, shared)
            return
        with StopRequest().listening() as stop:
            yield from self._run_in_processes(function, iter(tasks), shared, stop)

    def check_nodes(self, inspect: Callable[[Task], Mapping[str, str]], argument: Task) -> None:
        """Check nothing: all processes see the files and the packages of this machine."""

    def _run_in_processes(
        self, function: Callable[[Task, Any], Result], tasks: Iterator[Task], shared: Any, stop: StopRequest
    ) -> Iterator[tuple[Task, Result]]:
        waiting: list[Task] = []  # their process died
        deaths: Counter[int] = Counter()  # by id of the task
        pool = self._pool(shared)
        running: dict[Future[Result], Task] = {}
        try:
            while True:
                broken = False
                unsent: list[Task] = []
                while len(running) < self._workers and not broken:
                    task = waiting.pop(0) if waiting else next(tasks, None)
                    if task is None:
                        break
                    try:
                        running[pool.submit(_call, function, task)] = task
                    except BrokenProcessPool:  # a process has died since the last look
                        unsent.append(task)
                        broken = True
                if not running and not broken:
                    return
                ended, _ = wait(running, timeout=POLL_EVERY, return_when=FIRST_COMPLETED)
                if stop.requested:
                    _terminate(pool)
                    wait(running)
                    stop.check()
                for future in ended:
                    task = running.pop(future)
                    try:
                        result = future.result()
                    except BrokenProcessPool:
                        broken = True
                        waiting.append(task)
                        continue
                    yield task, result
                if broken:  # one process died; the pool ends the others, whose tasks resume
                    waiting += running.values()
                    running = {}
                    for task in waiting:
                        deaths[id(task)] += 1
                        if deaths[id(task)] > RETRIES:
                            raise WorkerDied(f"a worker process died {RETRIES + 1} times; is there enough memory?")
                    waiting += unsent
                    self._say(f"a worker process died: {len(waiting)} interrupted, continuing")
                    pool.shutdown(cancel_futures=True)
                    pool = self._pool(shared)
        finally:
            _terminate(pool)
            pool.shutdown(cancel_futures=True)

    def _pool(self, shared: Any) -> ProcessPoolExecutor:
        context = get_context("spawn")  # CUDA and OpenMP do not survive a fork
        return ProcessPoolExecutor(
            self._workers, mp_context=context, initializer=_start_worker, initargs=(shared, self.threads)
        )


def _start_worker(shared: Any, threads: int | None) -> None:
    global _shared, _threads
    _shared, _threads = shared, threads
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, and sends SIGTERM
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed saves its work and ends."""
    parent = parent_process()
    if parent is None:
        return
    parent.join()
    while True:  # the first signal may find a training, which ends; the next one finds a worker without a task
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(POLL_EVERY)


def _call(function: Callable[[Task, Any], Result], task: Task) -> Result:
    if _threads is not None:  # here, because the modules of the function are imported now
        use_threads(_threads)
    return function(task, _shared)


def _terminate(pool: ProcessPoolExecutor) -> None:
    """Ask the pool's processes to end; one that trains saves its state first."""
    for process in list((pool._processes or {}).values()):
        process.terminate()
