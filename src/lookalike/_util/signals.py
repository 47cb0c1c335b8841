"""Early end of a run: SIGTERM and Ctrl-C request a stop at the next safe point; a second Ctrl-C stops at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):  # noqa: N818 - a request, not an error
    """The run was asked to stop.

    Args:
        signal_number: The signal that asked.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


class RunFailed(RuntimeError):  # noqa: N818 - names the event
    """A run cannot continue; the message says why, and what was saved."""


class StopRequest:
    """Remembers a request to stop: ``requested`` is the number of the signal, or 0."""

    def __init__(self) -> None:
        self.requested = 0

    def check(self) -> None:
        """Raise ``Stopped`` if a stop was requested."""
        if self.requested:
            raise Stopped(self.requested)

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Handle SIGINT and SIGTERM inside the ``with`` block; has no effect outside the main thread."""

        def on_signal(number: int, _frame: FrameType | None) -> None:
            if self.requested and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.requested = number

        try:
            before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not in the main thread, which handles signals
            before = {}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
