"""Workers: compute the cells of a plan, together with all other workers that share the results folder.

A worker goes through the plan and computes each cell that is neither done nor leased. When it can start nothing more,
it waits for the cells of other workers, since one of them may die. A cell that fails is noted, and the others continue.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lookalike._util.folder_lock import FolderInUse
from lookalike._util.signals import Stopped
from lookalike.data.pictures import Pictures
from lookalike.experiments import leases
from lookalike.experiments.cells import Cell, run_cell
from lookalike.experiments.results import read_error
from lookalike.models.weight_files import first_line

POLL_EVERY = 5.0  # seconds
FIRST_REMINDER = 60.0  # seconds until the wait is mentioned again; doubles every time
MOST_NAMED = 3  # cells named in a message


@dataclass
class Progress:
    """The cells of a plan by their state. ``running`` counts every worker's cells."""

    done: list[Cell] = field(default_factory=list)
    failed: list[tuple[Cell, str]] = field(default_factory=list)
    running: list[Cell] = field(default_factory=list)
    open: list[Cell] = field(default_factory=list)


def read_progress(cells: Sequence[Cell], out: Path, expires: float = leases.EXPIRES) -> Progress:
    """Find out from the results folder which cells are done, failed, running or open.

    Args:
        cells: of the plan.
        out: results folder.
        expires: seconds without a sign after which a worker counts as dead.
    """
    progress = Progress()
    for cell in cells:
        folder = cell.folder(out)
        error = read_error(folder)
        if (folder / "result.json").exists():
            progress.done.append(cell)
        elif folder.exists() and leases.is_leased(folder, expires):
            progress.running.append(cell)
        elif error is not None:
            progress.failed.append((cell, error))
        else:
            progress.open.append(cell)
    return progress


def work(
    cells: Sequence[Cell],
    out: Path,
    pictures_of: Callable[[Cell], Pictures],
    *,
    keep_vectors: bool,
    retry_failed: bool = False,
    expires: float = leases.EXPIRES,
    say: Callable[[str], None] = print,
) -> Progress:
    """Compute the cells that are left, together with other workers on the same folder.

    Args:
        cells: of the plan.
        out: results folder.
        pictures_of: gives the pictures of a cell with the splits of its fold.
        keep_vectors: store the vectors of the test pictures.
        retry_failed: also compute cells that failed before.
        expires: seconds without a sign after which a worker counts as dead.
        say: receives one line for each finished cell.

    Returns:
        The state of all cells when nothing is left to do.

    Raises:
        Stopped: a stop was requested; any worker can resume the interrupted cell.
    """
    tried: set[str] = set()  # keys; a cell that fails here is not tried twice
    next_reminder, pause = 0.0, FIRST_REMINDER
    while True:
        progress = read_progress(cells, out, expires)
        candidates = list(progress.open)
        if retry_failed:
            candidates += [cell for cell, _ in progress.failed]
        for cell in candidates:
            if cell.key not in tried and _try(cell, out, pictures_of, keep_vectors, expires, say):
                tried.add(cell.key)
        progress = read_progress(cells, out, expires)
        if not progress.running and all(cell.key in tried for cell in progress.open):
            return progress
        if progress.running and time.monotonic() >= next_reminder:
            say(_describe_wait(progress.running, out, expires))
            next_reminder, pause = time.monotonic() + pause, 2 * pause
        time.sleep(min(POLL_EVERY, expires / 2))


def _describe_wait(cells: Sequence[Cell], out: Path, expires: float) -> str:
    names = []
    for cell in cells[:MOST_NAMED]:
        worker, silence = leases.holder(cell.folder(out)) or ("unknown worker", 0.0)
        names.append(f"{cell.title}, {cell.run_label} ({worker}, last sign {silence:.0f} s ago)")
    text = "; ".join(names)
    if len(cells) > MOST_NAMED:
        text += f" and {len(cells) - MOST_NAMED} more"
    return f"waiting for {text}; a worker without a sign for {expires:g} s counts as dead"


def _try(
    cell: Cell,
    out: Path,
    pictures_of: Callable[[Cell], Pictures],
    keep_vectors: bool,
    expires: float,
    say: Callable[[str], None],
) -> bool:
    """Compute the cell unless another worker does; whether it was started here."""
    folder = cell.folder(out)
    lease = leases.acquire(folder, expires)
    if lease is None:
        return False
    if (folder / "result.json").exists():  # another worker finished it in between
        lease.release()
        return False
    name = f"{cell.title}, {cell.run_label}"
    started = time.monotonic()
    try:
        with lease.kept_alive_or_stop(name, expires, say):
            result = run_cell(cell, out, pictures_of(cell), keep_vectors=keep_vectors)
    except (Stopped, KeyboardInterrupt):
        raise
    except FolderInUse:  # a worker that seemed dead still trains this cell; it stops when it sees the new lease
        return False
    except Exception as error:
        say(f"{name}: failed: {first_line(error)}")
    else:
        metrics = f"MAP@R {100 * result['test']['MAP@R']:.2f}, P@1 {100 * result['test']['P@1']:.2f}"
        say(f"{name}: {metrics}, {result['steps']} steps, {time.monotonic() - started:.0f} s")
    finally:
        lease.release()
    return True
