"""Memory that uploads or answers may take together."""

from collections import Counter
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
