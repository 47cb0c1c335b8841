"""Ctrl-C in the seconds in which torch and others load.

Nothing has begun that could be left half done, so the process ends at once. A KeyboardInterrupt instead would land in
the middle of somebody else's module, which may print it, swallow it or make an ImportError of it.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 128 + signal.SIGINT


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Ctrl-C in here ends the process, without a word. Who has a handler of their own, or ignores it, keeps that."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    except ValueError:  # not the main thread: signals are somebody else's affair
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
