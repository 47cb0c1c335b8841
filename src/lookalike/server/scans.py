"""Reading that may take as long as the collection is large, such as a filter on metadata.

It has threads of its own, so that a search never waits for it. There are two lanes, as for pictures: the first stops
what takes more than half a second of processor time; it starts again in the second. Clients take turns in both.
"""

import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from lookalike.index.stopping import Stopped, stopping
from lookalike.server.errors import ApiError, busy
from lookalike.server.turns import TurnPool

T = TypeVar("T")
SHORT_SECONDS = 0.5  # of processor time
WAIT_DIVISOR = 3  # work may wait for one third of the time of a request, and be done after two


class Scans:
    """Runs work that reads, in two lanes.

    Args:
        seconds: Time to answer a request.
        short: Threads for all work.
        long: Threads for work that takes longer than ``SHORT_SECONDS``.
    """

    def __init__(self, seconds: float, short: TurnPool, long: TurnPool) -> None:
        self._seconds = seconds
        self._short = short
        self._long = long

    async def run(self, work: Callable[[], T], wait: "Callable[[Future[T]], Awaitable[T]]") -> T:
        """Run ``work()`` in a thread; twice if it takes long.

        Args:
            work: Reads from the index and changes nothing.
            wait: Waits for a future.

        Returns:
            The result of ``work``.

        Raises:
            ApiError: 503 if it has waited for too long, 422 if it takes too long.
        """
        started = time.monotonic()
        start_by = started + self._seconds / WAIT_DIVISOR
        end_by = started + 2 * self._seconds / WAIT_DIVISOR
        try:
            return await wait(self._short.submit(lambda: _run_shortly(work, start_by, end_by)))
        except Stopped:
            pass
        try:
            return await wait(self._long.submit(lambda: _run_until(work, start_by, end_by)))
        except Stopped:
            message = f"reading this takes more than {self._seconds / WAIT_DIVISOR:g} seconds: use a simpler filter"
            raise ApiError(422, "too_costly", message) from None

    def close(self) -> None:
        """Finish the accepted work, then end the threads."""
        self._short.close()
        self._long.close()


def _run_shortly(work: Callable[[], T], start_by: float, end_by: float) -> T:
    _refuse_after(start_by)
    end = time.thread_time() + SHORT_SECONDS
    with stopping(lambda: time.thread_time() > end or time.monotonic() > end_by):  # a busy machine gives little time
        return work()


def _run_until(work: Callable[[], T], start_by: float, end_by: float) -> T:
    _refuse_after(start_by)
    with stopping(lambda: time.monotonic() > end_by):
        return work()


def _refuse_after(start_by: float) -> None:
    if time.monotonic() > start_by:
        raise busy("too many filters and listings are waiting")
