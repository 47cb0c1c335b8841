"""Output of the commands: status lines on stderr, and checks of files to write."""

import sys
from pathlib import Path

from lookalike._util.files import require_writable
from lookalike.cli.config_file import UsageError


def print_status(text: str) -> None:
    """Print a line to stderr; stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def require_new_file(path: Path, option: str, overwrite: bool) -> None:
    """Check, before any work, that a file can be written.

    Args:
        path: The file.
        option: Option that names it, for the message.
        overwrite: Allow an existing file.

    Raises:
        UsageError: If ``path`` is a folder, or exists and ``overwrite`` is False.
        ValueError: If ``path`` cannot be written.
    """
    require_writable(path)
    if path.is_dir():
        raise UsageError(f"{option} must be a file, got the folder {path}")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists: choose another {option} or add --overwrite")
