"""The cells of a plan, one after the other, by as many workers as share the folder.

A worker goes through the plan and does whatever is neither done nor claimed. When nothing is left that it could begin,
it waits for those of the others, since one of them may die. A cell that fails is noted, and the rest goes on.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lookalike._util.signals import Stopped
from lookalike.data.pictures import Pictures
from lookalike.experiments import leases as claims
from lookalike.experiments.cells import Cell, failure_of, run_cell

LOOK_AGAIN = 5.0  # seconds
SAY_AGAIN = 60.0  # who is waited for; then after twice as long, and so on


@dataclass
class Progress:
    """How far a plan came."""

    done: list[Cell] = field(default_factory=list)
    failed: list[tuple[Cell, str]] = field(default_factory=list)
    running: list[Cell] = field(default_factory=list)  # by anybody
    open: list[Cell] = field(default_factory=list)


def read_progress(cells: Sequence[Cell], out: Path, expires: float = claims.EXPIRES) -> Progress:
    found = Progress()
    for cell in cells:
        folder = cell.folder(out)
        failure = failure_of(folder)
        if (folder / "result.json").exists():
            found.done.append(cell)
        elif folder.exists() and claims.is_claimed(folder, expires):
            found.running.append(cell)
        elif failure is not None:
            found.failed.append((cell, failure))
        else:
            found.open.append(cell)
    return found


def work(
    cells: Sequence[Cell],
    out: Path,
    pictures_of: Callable[[Cell], Pictures],
    *,
    keep_vectors: bool,
    retry_failed: bool = False,
    expires: float = claims.EXPIRES,
    say: Callable[[str], None] = print,
) -> Progress:
    """Do what is left of the cells. Raises ``Stopped`` when asked to stop; what was begun is resumed by anybody.

    ``pictures_of`` gives the pictures of a cell with their splits.
    """
    tried: set[str] = set()
    say_at, pause = 0.0, SAY_AGAIN
    while True:
        now = read_progress(cells, out, expires)
        again = [cell for cell, _ in now.failed if retry_failed and cell.key not in tried]
        for cell in [*now.open, *again]:
            if cell.key not in tried:
                _try(cell, out, pictures_of, tried, keep_vectors, expires, say)
        now = read_progress(cells, out, expires)
        if not now.running and all(cell.key in tried for cell in now.open):
            return now
        if now.running and time.monotonic() >= say_at:
            say(_waiting_for(now.running, out, expires))
            say_at, pause = time.monotonic() + pause, 2 * pause
        time.sleep(min(LOOK_AGAIN, expires / 2))


def _waiting_for(cells: Sequence[Cell], out: Path, expires: float) -> str:
    told = []
    for cell in cells[:3]:
        who, silent = claims.holder(cell.folder(out)) or ("somebody", 0.0)
        told.append(f"{cell.title}, {cell.place} ({who}, last sign {silent:.0f} s ago)")
    more = f" and {len(cells) - 3} more" if len(cells) > 3 else ""
    return f"waiting for {'; '.join(told)}{more}; whoever gives no sign for {expires:g} s counts as dead"


def _try(
    cell: Cell,
    out: Path,
    pictures_of: Callable[[Cell], Pictures],
    tried: set[str],
    keep_vectors: bool,
    expires: float,
    say: Callable[[str], None],
) -> None:
    """Do the cell if nobody else does."""
    folder = cell.folder(out)
    held = claims.claim(folder, expires)
    if held is None:
        return
    if (folder / "result.json").exists():  # it was finished between the look and the claim
        held.release()
        return
    tried.add(cell.key)
    started = time.monotonic()

    def on_lost() -> None:
        say(f"{cell.title}, {cell.place}: another worker has taken this over, as this one seemed dead; stopping")
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        with held.kept_alive(on_lost, min(claims.TOUCH_EVERY, expires / 4)):
            result = run_cell(cell, out, pictures_of(cell), keep_vectors=keep_vectors)
    except (Stopped, KeyboardInterrupt):
        held.release()
        raise
    except Exception as error:
        held.release()
        say(f"{cell.title}, {cell.place}: failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        return
    held.release()
    figures = ", ".join(f"{name} {100 * result['test'][name]:.2f}" for name in ("MAP@R", "P@1"))
    say(f"{cell.title}, {cell.place}: {figures}, {result['steps']} steps, {time.monotonic() - started:.0f} s")
