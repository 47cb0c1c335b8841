"""What a person sees of a run: lines and bars on stderr, from one process only.

Where stderr is no terminal, a log for instance, a bar is a line now and then.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from lookalike._util.signals import StopRequest

FIRST_LINE, MOST_APART = 30.0, 600.0  # seconds: when a log hears of work going on, and how long it is left in silence
Tick = Callable[[int], Any]


@contextmanager
def progress(total: int, what: str, unit: str = " pictures", quiet: bool = False) -> Iterator[Tick]:
    """Work going on: a bar on a terminal, lines elsewhere, the first after a while, then ever less often."""
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
        pause = min(2 * pause, MOST_APART)
        due = now + pause
        left = (now - begun) * (total - done) / done
        print(f"{what}: {done:,} of {total:,}{unit}, about {for_people(left)} left", file=sys.stderr, flush=True)

    yield tick


def for_people(seconds: float) -> str:
    """
    >>> for_people(42), for_people(600), for_people(9000), for_people(400000)
    ('42 s', '10 min', '2.5 h', '4.6 days')
    """
    for size, unit, digits in ((86400, "days", 1), (3600, "h", 1), (60, "min", 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


class Display:
    """``say`` a line; ``bar`` shows work going on, and lets it be stopped.

    quiet: say nothing, as all processes but one do.  stop: asked after every piece of work under a bar, unless there
    are other processes, which would wait for this one.  opening: lines to be said once work begins, so that an error
    before that stands alone.
    """

    def __init__(self, stop: StopRequest, quiet: bool = False, alone: bool = True, opening: Iterable[str] = ()) -> None:
        self.stop, self.quiet, self.alone = stop, quiet, alone
        self._opening = list(opening)

    def say(self, text: str) -> None:
        self.open()
        self._write(text)

    def open(self) -> None:
        """Say the opening lines, unless they have been said."""
        while self._opening:
            self._write(self._opening.pop(0))

    def _write(self, text: str) -> None:
        if not self.quiet:
            tqdm.write(text, file=sys.stderr)

    @contextmanager
    def bar(self, total: int, what: str, unit: str = " pictures") -> Iterator[Tick]:
        self.open()
        with progress(total, what, unit, self.quiet) as advance:

            def tick(count: int) -> None:
                advance(count)
                if self.alone:
                    self.stop.check()

            yield tick

    def steps(self, total: int, done: int) -> "tqdm[Any]":
        return tqdm(total=total, initial=done, unit=" steps", dynamic_ncols=True, disable=True if self.quiet else None)
