"""The model that a command is to work with, and Ctrl-C in the seconds in which torch and others load.

Nothing has begun that could be left half done, so the process ends at once. A KeyboardInterrupt instead would land in
the middle of somebody else's module, which may print it, swallow it or make an ImportError of it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lookalike.cli.config_file import UsageError

if TYPE_CHECKING:
    from lookalike.inference.model import TrainedModel

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


def load_model(run: Path, size: int | None, device: str | None) -> TrainedModel:
    """Of a run, or of a backbone given by name, with its weights as they come."""
    with ending_at_once():
        from lookalike import models
        from lookalike.inference import model as trained

    if not run.exists() and models.is_backbone(str(run)):
        return trained.untrained(str(run), size=size, device=device)
    if size is not None:
        raise UsageError("--size goes with a backbone given by name; a run knows its own")
    return trained.load(run, device)
