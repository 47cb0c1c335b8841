"""Output of the commands: status lines on stderr, and checks of files to write."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lookalike._util.files import require_writable
from lookalike._util.outside_text import printable
from lookalike._util.signals import Stopped
from lookalike.cli.config_file import UsageError
from lookalike.data.files import counted

SHOWN = 10  # unreadable pictures that are listed


def print_status(text: str) -> None:
    """Print a line to stderr; stdout is for results."""
    print(printable(text, lines=True), file=sys.stderr, flush=True)


@contextmanager
def saying_how_to_continue(unit: str) -> Iterator[None]:
    """Print on a stop that every finished ``unit`` is saved."""
    try:
        yield
    except Stopped:
        print_status(f"stopped; every finished {unit} is saved, and the same command continues")
        raise


def print_result(text: str) -> None:
    """Print lines for people to stdout; control characters in names and labels are shown, not sent."""
    print(printable(text, lines=True), flush=True)


def unreadable_lines(problems: Sequence[Sequence[str]]) -> list[str]:
    """List pictures that were left out.

    Returns:
        Lines for stdout; empty if there are no problems.
    """
    if not problems:
        return []
    lines = [f"left out {counted(len(problems), 'unreadable picture')}:"]
    for name, reason in problems[:SHOWN]:
        lines.append(f"  {printable(name)}: {printable(reason)}")
    if len(problems) > SHOWN:
        lines.append("  ...")
    return lines


def require_new_file(path: Path, option: str, overwrite: bool) -> None:
    """Check, before any work, that a file can be written.

    Raises:
        UsageError: If ``path`` is a folder, or exists and ``overwrite`` is False.
        ValueError: If ``path`` cannot be written.
    """
    require_writable(path)
    if path.is_dir():
        raise UsageError(f"{option} must be a file, got the folder {path}")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists: choose another {option} or add --overwrite")
