"""Ctrl-C while torch and other large packages load: exit without a traceback."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 128 + signal.SIGINT


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """End the process at once and silently on Ctrl-C.

    For imports only, when no work has started. A KeyboardInterrupt would be raised inside another package, which may
    print it, ignore it or turn it into an ImportError. A handler that the caller has set stays in place.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    except ValueError:  # only the main thread may set handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
