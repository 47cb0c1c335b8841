"""Where stderr goes while a model of a benchmark or a search trains."""

import io
import time
from contextlib import redirect_stderr
from typing import Any, TextIO

LINE_EVERY = 30.0  # seconds between two lines of a model on the terminal


class RunLog(io.TextIOBase):
    """Context in which stderr goes into a log, and a line to the terminal every ``LINE_EVERY`` seconds.

    Args:
        log: Receives everything.
        terminal: Receives the newest complete line, at most one in ``LINE_EVERY`` seconds.
        name: Of the model; put before a line on the terminal.
    """

    def __init__(self, log: TextIO, terminal: TextIO, name: str) -> None:
        self._log, self._terminal, self._name = log, terminal, name
        self._line = ""  # not complete
        self._due = time.monotonic() + LINE_EVERY
        self._redirected = redirect_stderr(self)

    def __enter__(self) -> "RunLog":
        self._redirected.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._redirected.__exit__(*error)

    def writable(self) -> bool:
        """Always true."""
        return True

    def write(self, text: str) -> int:
        """Write to the log, and to the terminal if a line is due."""
        self._log.write(text)
        *complete, self._line = (self._line + text).split("\n")
        newest = next((line.strip() for line in reversed(complete) if line.strip()), "")
        if newest and time.monotonic() >= self._due:
            self._due = time.monotonic() + LINE_EVERY
            self._terminal.write(f"  {self._name}: {newest}\n")
            self._terminal.flush()
        return len(text)

    def flush(self) -> None:
        """Flush the log."""
        self._log.flush()
