"""The command: ``lookalike train | evaluate | embed | index | search | serve | ...``.

Exit codes: 0 done; 1 failed, also for data that are there but broken; 2 bad usage; 128 + n stopped by signal n. Results
go to stdout, everything else to stderr.
"""

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from lookalike import __version__
from lookalike.cli.loading import INTERRUPTED, ending_at_once

COMMANDS = {
    "demo": "the whole story on this machine, in minutes",
    "train": "learn an embedding from labelled pictures",
    "evaluate": "measure a trained model on pictures",
    "embed": "write the vectors of pictures to a file",
    "index": "make a folder of pictures searchable, or bring its index up to date",
    "search": "find the pictures of an index that look like one",
    "serve": "search an index in a browser, and over HTTP",
    "export": "a trained model for other programs: ONNX, torch.export, a folder to share",
    "datasets": "list the benchmarks, or check a folder",
    "benchmark": "train and test many combinations under one protocol",
    "report": "make the table of a benchmark",
    "tune": "search for good settings",
    "study": "a figure of the papers, from one command",
}

READER_GONE = 128 + 13  # SIGPIPE, for which not every system has a name


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0 if words else 2
    if words[0] == "--version":
        print(__version__)
        return 0
    try:
        return _run(words[0], words[1:])
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(name: str, argv: list[str]) -> int:
    with ending_at_once():
        from lookalike._util.signals import RunFailed, Stopped
        from lookalike._util.suggestions import did_you_mean
        from lookalike.data.pictures import BrokenData

        if name not in COMMANDS:
            print(f"lookalike: there is no command {name!r}{did_you_mean(name, COMMANDS)}", file=sys.stderr)
            return 2
        command = import_module(f"lookalike.cli.{name}")
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may hold what an encoding has no sign for
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = command.run(argv)
        sys.stdout.flush()
        return code
    except SystemExit as finished:  # --help
        return int(finished.code or 0)
    except Stopped as stopped:
        return 128 + stopped.signal_number
    except BrokenPipeError:  # who reads our output has seen enough, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be flushed at the end
        return READER_GONE
    except Exception as error:
        if os.environ.get("LOOKALIKE_TRACEBACK"):
            raise
        expected = isinstance(error, (RunFailed, OSError, ValueError, TypeError))
        text = str(error) if expected else _first_line(error)
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"lookalike {name}: {text}", file=sys.stderr)
            if not expected:
                print("LOOKALIKE_TRACEBACK=1 in the environment shows where it comes from", file=sys.stderr)
        bad_usage = isinstance(error, (ValueError, TypeError, FileNotFoundError))
        return 2 if bad_usage and not isinstance(error, BrokenData) else 1


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _overview() -> str:
    lines = [f"  lookalike {name:<10} {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: lookalike COMMAND ...",
            "",
            "Learn what looks alike: train an embedding, measure it honestly, search with it.",
            "",
            *lines,
            "",
            "lookalike COMMAND --help says more about each.",
        ]
    )
