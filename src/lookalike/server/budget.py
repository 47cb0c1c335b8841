"""Memory that uploads, answers or decoding processes may take together."""

import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager

from lookalike.server.errors import busy


class Budget:
    """Counts bytes that are held in memory. Used on the event loop only.

    Args:
        limit: Largest number of bytes.
        message: What a client is told beyond it.
        fair: Whether one client may only hold as much as it leaves to others.
    """

    def __init__(self, limit: int, message: str, *, fair: bool = False) -> None:
        self._limit = limit
        self._message = message
        self._fair = fair
        self._held = 0
        self._held_by: Counter[str] = Counter()

    @contextmanager
    def hold(self, size: int, client: str) -> Iterator[None]:
        """Hold ``size`` bytes inside the ``with`` block. A client that holds nothing may hold more than its share.

        Args:
            size: Number of bytes.
            client: Whose they are.

        Raises:
            ApiError: 503 if too many are held.
        """
        free = self._limit - self._held - size
        if self._held and free < 0:
            raise busy(self._message)
        if self._fair and self._held_by[client] and self._held_by[client] + size > free:
            raise busy(self._message)
        self._held += size
        self._held_by[client] += size
        try:
            yield
        finally:
            self._held -= size
            self._held_by[client] -= size
            if not self._held_by[client]:
                del self._held_by[client]


class WaitingBudget:
    """Something that several threads share, such as memory. One that asks for too much waits until it is free.

    They get it in the order in which they ask, so that one who needs much is not overtaken for ever.

    Args:
        limit: How much there is.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Hold ``size``, which is at most the limit, inside the ``with`` block."""
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: self._waiting[0] is ticket and self._held + size <= self._limit)
            self._waiting.popleft()
            self._held += size
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._held -= size
                self._changed.notify_all()
