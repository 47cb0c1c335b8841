"""What a person sees of a run: lines and bars on stderr, from one process only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from lookalike.training.stopping import StopRequest

Tick = Callable[[int], None]


class Display:
    """``say`` a line; ``bar`` shows work going on, and lets it be stopped.

    quiet: say nothing, as all processes but one do.  stop: asked after every piece of work under a bar, unless there
    are other processes, which would wait for this one.
    """

    def __init__(self, stop: StopRequest, quiet: bool = False, alone: bool = True) -> None:
        self.stop, self.quiet, self.alone = stop, quiet, alone

    def say(self, text: str) -> None:
        if not self.quiet:
            tqdm.write(text, file=sys.stderr)

    @contextmanager
    def bar(self, total: int, what: str, unit: str = " pictures") -> Iterator[Tick]:
        with tqdm(total=total, desc=what, unit=unit, leave=False, disable=True if self.quiet else None) as bar:

            def tick(count: int) -> None:
                bar.update(count)
                if self.alone:
                    self.stop.check()

            yield tick

    def steps(self, total: int, done: int) -> "tqdm[Any]":
        return tqdm(total=total, initial=done, unit=" steps", dynamic_ncols=True, disable=True if self.quiet else None)
