"""Runs the cells of a plan on an executor. The results folder is the memory: a killed command continues from it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lookalike._util.folder_lock import FolderInUse, FolderLock, wait_until_free
from lookalike._util.signals import Stopped
from lookalike.data.pictures import Pictures
from lookalike.executors import Executor
from lookalike.executors.local import LocalExecutor
from lookalike.experiments.cells import Cell, run_cell
from lookalike.experiments.nodes import inspect_node, probe
from lookalike.experiments.results import read_error
from lookalike.models.weight_files import first_line


@dataclass
class Progress:
    """The cells of a plan by their state."""

    done: list[Cell] = field(default_factory=list)
    failed: list[tuple[Cell, str]] = field(default_factory=list)
    open: list[Cell] = field(default_factory=list)


class CellOutcome(NamedTuple):
    """How the task of a cell ended: a line to print, and the signal that stopped it (0: none)."""

    line: str
    stopped: int = 0


@dataclass(frozen=True)
class Shared:
    """What all tasks need: the results folder and the pictures by data and fold."""

    out: Path
    parts: Mapping[tuple[str, int], Pictures]
    keep_vectors: bool


def read_progress(cells: Sequence[Cell], out: Path) -> Progress:
    """Find out from the results folder which cells are done, failed or open."""
    progress = Progress()
    for cell in cells:
        folder = cell.folder(out)
        error = read_error(folder)
        if (folder / "result.json").exists():
            progress.done.append(cell)
        elif error is not None:
            progress.failed.append((cell, error))
        else:
            progress.open.append(cell)
    return progress


def run_cells(
    cells: Sequence[Cell],
    out: Path,
    parts: Mapping[tuple[str, int], Pictures],
    *,
    keep_vectors: bool = False,
    retry_failed: bool = False,
    executor: Executor | None = None,
    say: Callable[[str], None] = print,
) -> Progress:
    """Compute the cells that are left. A cell that fails is noted, and the others continue.

    Args:
        cells: of the plan.
        out: results folder; one command at a time works on it.
        parts: pictures with the splits of each fold, by data and fold.
        keep_vectors: store the vectors of the test pictures.
        retry_failed: also compute cells that failed before.
        executor: where tasks run; None: in this process.
        say: receives one line for each finished cell.

    Returns:
        The state of all cells when nothing is left to do.

    Raises:
        FolderInUse: another command works on the folder.
        Stopped: a stop was requested; the same command continues.
        ValueError: nodes of a cluster see other files or have other versions.
    """
    executor = executor or LocalExecutor()
    with FolderLock(out):
        progress = read_progress(cells, out)
        left = list(progress.open)
        if retry_failed:
            left += [cell for cell, _ in progress.failed]
        if not left:
            return progress
        shared = Shared(out.resolve(), parts, keep_vectors)
        with probe(shared.out, parts) as argument:
            executor.check_nodes(inspect_node, argument)
        for _, outcome in executor.run(compute_cell, left, shared):
            if outcome.stopped:
                raise Stopped(outcome.stopped)
            say(outcome.line)
    return read_progress(cells, out)


def compute_cell(cell: Cell, shared: Shared) -> CellOutcome:
    """Compute one cell, wherever the executor calls this; a cell that is done already is not computed again."""
    name = f"{cell.data}: {cell.title}, {cell.run_label}"
    if (cell.folder(shared.out) / "result.json").exists():
        return CellOutcome(f"{name}: done before its worker was lost")
    started = time.monotonic()
    pictures = shared.parts[cell.data, cell.fold]
    try:
        wait_until_free(cell.folder(shared.out) / "run")
        result = run_cell(cell, shared.out, pictures, keep_vectors=shared.keep_vectors)
    except Stopped as stopped:
        return CellOutcome(f"{name}: stopped", stopped.signal_number)
    except FolderInUse as error:
        return CellOutcome(f"{name}: left open: {error}")
    except Exception as error:
        return CellOutcome(f"{name}: failed: {first_line(error)}")
    metrics = f"MAP@R {100 * result['test']['MAP@R']:.2f}, P@1 {100 * result['test']['P@1']:.2f}"
    seconds = time.monotonic() - started
    return CellOutcome(f"{name}: {metrics}, {result['steps']} steps, {seconds:.0f} s")
