"""How a run ends early.

SIGTERM and Ctrl-C ask it to stop at the next point where nothing is lost; a second Ctrl-C insists.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):  # noqa: N818 - not an error: somebody asked for it
    """The run was asked to stop; ``signal_number`` says how."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


class RunFailed(RuntimeError):  # noqa: N818 - it names what happened
    """A run that cannot go on; the message says why, and what is left of it."""


class StopRequest:
    """``requested`` is the number of the signal that came, or 0."""

    def __init__(self) -> None:
        self.requested = 0

    def check(self) -> None:
        if self.requested:
            raise Stopped(self.requested)

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Handle SIGINT and SIGTERM in here; only the main thread of a process may."""

        def on_signal(number: int, _frame: FrameType | None) -> None:
            if self.requested and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.requested = number

        try:
            before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # in another thread: signals are somebody else's affair
            before = {}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
