"""Turns: clients share queues and threads so that nobody waits long behind somebody else's work.

In a full queue a client with fewer jobs takes the place of the last job of the client with the most.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
CLIENT: ContextVar[str] = ContextVar("client", default="")  # who sent the request that is being answered


class _Waiting(NamedTuple, Generic[T]):
    size: int
    number: int  # in order of arrival
    job: T


class TurnQueue(Generic[T]):
    """A queue in which clients take turns; the jobs of one client stay in order. Its users lock it.

    Args:
        most: Largest number of waiting jobs; None is unlimited.
        at_once: Largest number of jobs of one client that are taken and not done; None is unlimited.
    """

    def __init__(self, most: int | None = None, at_once: int | None = None) -> None:
        self._most = most
        self._at_once = at_once
        self._waiting: dict[str, deque[_Waiting[T]]] = {}  # by client
        self._taken: Counter[str] = Counter()
        self._last_turn: dict[str, int] = {}  # of clients that have jobs here
        self._turns = 0
        self._added = 0

    def __len__(self) -> int:
        """Return the number of waiting jobs."""
        return sum(map(len, self._waiting.values()))

    def has_room(self, client: str) -> bool:
        """Return whether a job of this client would be accepted."""
        return not self._is_full() or self._largest_but(client) is not None

    def add(self, job: T, client: str, size: int = 0) -> T | None:
        """Add a job.

        Args:
            job: The job.
            client: Whose it is.
            size: Of clients whose last turn was at the same time, the one with the smaller job is next.

        Returns:
            The job of another client that has lost its place, if the queue was full.

        Raises:
            ValueError: If there is no room.
        """
        displaced = None
        if self._is_full():
            largest = self._largest_but(client)
            if largest is None:
                raise ValueError("the queue is full")
            displaced = self._waiting[largest].pop().job
        self._added += 1
        self._waiting.setdefault(client, deque()).append(_Waiting(size, self._added, job))
        return displaced

    def next(self) -> T | None:
        """Return the next job without taking it; None if there is none that may be taken."""
        client = self._next_client()
        return None if client is None else self._waiting[client][0].job

    def take(self) -> tuple[T, str]:
        """Take the next job, with its client. Call ``done`` when it is finished.

        Raises:
            IndexError: If there is none that may be taken.
        """
        client = self._next_client()
        if client is None:
            raise IndexError("no job may be taken")
        job = self._waiting[client].popleft().job
        if not self._waiting[client]:
            del self._waiting[client]
        self._taken[client] += 1
        self._turns += 1
        self._last_turn[client] = self._turns
        return job, client

    def done(self, client: str) -> None:
        """Note that a job of this client is finished."""
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]
            if client not in self._waiting:
                del self._last_turn[client]

    def clear(self) -> list[T]:
        """Remove all waiting jobs and return them."""
        waiting, self._waiting = self._waiting, {}
        return [each.job for jobs in waiting.values() for each in jobs]

    def _is_full(self) -> bool:
        return self._most is not None and len(self) >= self._most

    def _next_client(self) -> str | None:
        """The client with the fewest taken jobs; of several, the one whose last turn was longest ago."""
        clients = [name for name in self._waiting if self._at_once is None or self._taken[name] < self._at_once]
        return min(
            clients,
            key=lambda name: (self._taken[name], self._last_turn.get(name, 0), self._waiting[name][0][:2]),
            default=None,
        )

    def _largest_but(self, client: str) -> str | None:
        """The client that makes room for one more job of this one: it has more, also afterwards."""
        counts = {name: len(jobs) for name, jobs in self._waiting.items() if name != client}
        largest = max(counts, key=lambda name: counts[name], default=None)
        if largest is None or counts[largest] <= len(self._waiting.get(client, ())) + 1:
            return None
        return largest


class TurnPool:
    """Threads for blocking work. A client has at most half of them, the others wait for other clients.

    Args:
        threads: Number of threads.
        name: Their name.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._name = name
        self._queue: TurnQueue[tuple[Future[Any], Callable[[], Any]]] = TurnQueue(at_once=max(1, threads // 2))
        self._changed = threading.Condition()
        self._started: list[threading.Thread] = []
        self._closed = False

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Queue ``work()`` for the client of the current request.

        Raises:
            RuntimeError: After ``close``.
        """
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError(f"the threads {self._name} have ended")
            if len(self._started) < self._threads:
                thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
                self._started.append(thread)
                thread.start()
            self._queue.add((future, work), CLIENT.get())
            self._changed.notify()
        return future

    def close(self) -> None:
        """Finish the accepted work, then end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._started:
            thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue.next() is not None or (self._closed and not self._queue))
                if self._queue.next() is None:
                    return
                (future, work), client = self._queue.take()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            del future, work
            with self._changed:
                self._queue.done(client)
                self._changed.notify_all()  # a job of this client may be taken now
