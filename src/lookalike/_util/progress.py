"""Progress on stderr: lines and bars, from one process only.

If stderr is not a terminal, a bar becomes an occasional line.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from lookalike._util.outside_text import printable
from lookalike._util.signals import StopRequest

FIRST_LINE, LONGEST_GAP = 30.0, 600.0  # seconds: delay before the first progress line; longest gap between lines
Tick = Callable[[int], Any]


@contextmanager
def progress(total: int, what: str, unit: str = " pictures", quiet: bool = False) -> Iterator[Tick]:
    """Show progress: a bar on a terminal, else lines at growing intervals.

    Args:
        total: Number of units of work.
        what: Name of the work.
        unit: Name of a unit, with a space in front.
        quiet: Show nothing.

    Yields:
        A function to call with the number of units that were done.
    """
    if sys.stderr.isatty() or quiet:
        with tqdm(total=total, desc=what, unit=unit, leave=False, disable=quiet) as bar:
            yield bar.update
        return
    begun = time.monotonic()
    done, pause, due = 0, FIRST_LINE, begun + FIRST_LINE

    def tick(count: int) -> None:
        nonlocal done, pause, due
        done += count
        now = time.monotonic()
        if now < due or not 0 < done < total:
            return
        pause = min(2 * pause, LONGEST_GAP)
        due = now + pause
        left = (now - begun) * (total - done) / done
        print(f"{what}: {done:,} of {total:,}{unit}, about {format_duration(left)} left", file=sys.stderr, flush=True)

    yield tick


def format_duration(seconds: float) -> str:
    """Format a duration in its natural unit.

    Examples:
        >>> format_duration(42), format_duration(600), format_duration(9000), format_duration(400000)
        ('42 s', '10 min', '2.5 h', '4.6 days')
    """
    for size, unit, digits in ((86400, "days", 1), (3600, "h", 1), (60, "min", 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


class Display:
    """Prints lines and bars for one command.

    Args:
        stop: Request to stop; checked after every unit of work under a bar.
        quiet: Print nothing, as in all processes but one.
        alone: False if there are other processes, which would wait for this one; then bars do not stop.
        opening: Lines to print once work begins, so that an early error stands alone.
    """

    def __init__(self, stop: StopRequest, quiet: bool = False, alone: bool = True, opening: Iterable[str] = ()) -> None:
        self.stop, self.quiet, self.alone = stop, quiet, alone
        self._opening = list(opening)

    def say(self, text: str) -> None:
        """Print a line, without breaking a bar."""
        self.open()
        self._write(text)

    def open(self) -> None:
        """Print the opening lines, once."""
        while self._opening:
            self._write(self._opening.pop(0))

    def _write(self, text: str) -> None:
        if not self.quiet:
            tqdm.write(printable(text, lines=True), file=sys.stderr)

    @contextmanager
    def bar(self, total: int, what: str, unit: str = " pictures") -> Iterator[Tick]:
        """Show progress as ``progress`` does; its function raises ``Stopped`` if a stop was requested."""
        self.open()
        with progress(total, what, unit, self.quiet) as advance:

            def tick(count: int) -> None:
                advance(count)
                if self.alone:
                    self.stop.check()

            yield tick

    def steps(self, total: int, done: int) -> "tqdm[Any]":
        """Return the bar of a training loop, shown on terminals only; ``done`` steps of ``total`` are done."""
        disable = True if self.quiet else None  # None: shown on terminals only
        return tqdm(total=total, initial=done, unit=" steps", dynamic_ncols=True, disable=disable)
