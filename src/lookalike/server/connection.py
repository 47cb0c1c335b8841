"""HTTP connections that cannot be held open by sending or reading slowly.

uvicorn waits without limit for the rest of a request's headers, for the rest of a body that nobody reads, and for a
client that does not read its answer.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from lookalike.server.limits import Limits

MOST_CONNECTIONS = 512  # open at the same time; a process may often have no more than 1,024 files


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol with time limits. ``guarded_protocol`` sets them.

    Attributes:
        header_seconds: Time from the connection, or from the last answer, to the end of the next request's headers.
        answer_seconds: Time that a client may take to read the next part of an answer.
    """

    header_seconds: float
    answer_seconds: float
    _header_timer: asyncio.TimerHandle | None = None
    _answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection. If there are too many, the one that has waited longest for headers is closed."""
        super().connection_made(transport)
        self._watch_headers()
        if len(self.connections) > MOST_CONNECTIONS:
            # This connection is one of them; who sends a request at once is never the one that has waited longest.
            waiting = {}
            for other in self.connections:
                if isinstance(other, GuardedProtocol) and other._header_timer is not None:
                    waiting[other] = other._header_timer.when()
            longest = min(waiting, key=lambda other: waiting[other])
            longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._stop("_header_timer")
        self._stop("_answer_timer")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; only a complete set of headers stops the clock."""
        super().data_received(data)
        self._watch_headers()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch_headers()

    def pause_writing(self) -> None:
        """Give a client that does not read its answer a last while."""
        super().pause_writing()
        if self._answer_timer is None:
            self._answer_timer = self.loop.call_later(self.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Continue: the client reads."""
        super().resume_writing()
        self._stop("_answer_timer")

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, unless its headers were and the answer has begun."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # the app's own answer would follow this one
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _stop(self, name: str) -> None:
        timer = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)

    def _watch_headers(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop("_header_timer")
        elif self._header_timer is None and not self.transport.is_closing():
            self._header_timer = self.loop.call_later(self.header_seconds, self._close)

    def _close(self) -> None:
        self.transport.close()  # sends what is left of the last answer
        if self._answer_timer is None:
            self._answer_timer = self.loop.call_later(self.answer_seconds, self.transport.abort)


def guarded_protocol(limits: Limits) -> type[GuardedProtocol]:
    """Return the protocol for ``uvicorn.Config(http=...)``.

    Args:
        limits: Has the times.

    Returns:
        A protocol class.
    """
    times = {"header_seconds": limits.header_seconds, "answer_seconds": limits.upload_seconds}
    return type("GuardedProtocol", (GuardedProtocol,), times)
