"""The ``lookalike`` command: ``lookalike train | evaluate | embed | index | search | serve | ...``.

Results go to stdout, everything else to stderr. Exit codes: 0 success; 1 failure, also for broken data; 2 bad usage;
128 + n stopped by signal n. Every command is a module with a function ``run(argv)``.
"""

import atexit
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from lookalike import __version__
from lookalike.cli.interrupt import INTERRUPTED, exit_on_interrupt

COMMANDS = {
    "demo": "train and compare small models on drawn pictures, in minutes",
    "train": "learn an embedding from labelled pictures",
    "evaluate": "measure a model on labelled pictures",
    "embed": "write the vectors of pictures to a file",
    "index": "make a folder of pictures searchable, or update its index",
    "search": "find pictures of an index that look like yours",
    "calibrate": "learn what a distance means from the labels of an index",
    "improve": "train the model of an index further on marks and labels",
    "serve": "search an index in a browser and over HTTP",
    "marks": "list what people said about results, and what to label next",
    "verify": "look for damage in the files of a run or an index",
    "export": "write a model as ONNX, torch.export or a folder to share",
    "doctor": "find duplicates, doubtful labels and other faults in your pictures",
    "cache": "list what is cached on this machine, or remove it",
    "datasets": "list the known data sets, or check a folder",
    "weights": "list, check or convert pretrained weights of backbones",
    "benchmark": "train and test many combinations under one protocol",
    "report": "make tables from the results of a benchmark",
    "tune": "search for good settings",
    "study": "reproduce a figure of the papers",
}

EXTRAS = {
    "index": "serve",
    "search": "serve",
    "calibrate": "serve",
    "serve": "serve",
    "marks": "serve",
    "export": "train,export",
}  # others: train
BROKEN_PIPE = 128 + 13  # signal.SIGPIPE does not exist on every system


def script() -> None:
    """Run the command as a process of its own and end the process."""
    code = main()
    if _is_one_of_several_processes():
        # A thread of gloo that still releases its last work would abort the interpreter's shutdown, so skip that.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _is_one_of_several_processes() -> bool:
    """True in a rank of a distributed run."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command with the words after ``lookalike`` (None: those of this process), and return the exit code."""
    words = list(argv) if argv is not None else sys.argv[1:]
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words:
        print(_overview())
        return 2
    if words[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if words[0] == "--version":
        print(__version__)
        return 0
    try:
        return _run(words[0], words[1:])
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(name: str, argv: list[str]) -> int:
    with exit_on_interrupt():
        from lookalike._util.signals import Stopped
        from lookalike._util.suggestions import did_you_mean

        if name not in COMMANDS:
            print(f"lookalike: there is no command {name!r}{did_you_mean(name, COMMANDS)}", file=sys.stderr)
            return 2
        try:
            command = import_module(f"lookalike.cli.{name}")
        except ModuleNotFoundError as error:
            return _report_missing_package(name, error)
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may have characters that the encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = command.run(argv)
        sys.stdout.flush()
        return code
    except SystemExit as finished:  # --help
        return int(finished.code or 0)
    except Stopped as stopped:
        return 128 + stopped.signal_number
    except BrokenPipeError:  # the reader has closed the pipe, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return BROKEN_PIPE
    except Exception as error:
        if os.environ.get("LOOKALIKE_TRACEBACK"):
            raise
        if isinstance(error, ModuleNotFoundError):
            return _report_missing_package(name, error)
        return _report_error(name, error)


def _report_missing_package(name: str, error: ModuleNotFoundError) -> int:
    package = (error.name or str(error)).partition(".")[0]
    if package == "lookalike":  # a mistake in our own imports
        return _report_error(name, error)
    command = f'pip install "lookalike[{EXTRAS.get(name, "train")}]"'
    print(f"lookalike {name}: the package {package} is not installed: {command}", file=sys.stderr)
    return 1


def _report_error(name: str, error: Exception) -> int:
    """Print one line about the error and return the exit code."""
    from lookalike._util.checksums import DamagedFile
    from lookalike._util.outside_text import printable
    from lookalike._util.signals import RunFailed
    from lookalike.data.pictures import BrokenData

    is_expected = isinstance(error, (RunFailed, OSError, ValueError, TypeError))
    message = str(error)
    if not is_expected:
        first_line = message.strip().partition("\n")[0]
        message = f"{type(error).__name__}: {first_line}".removesuffix(": ")
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"lookalike {name}: {printable(message, lines=True)}", file=sys.stderr)
        if not is_expected:
            print("set LOOKALIKE_TRACEBACK=1 in the environment to see the traceback", file=sys.stderr)
    if isinstance(error, (BrokenData, DamagedFile)):
        return 1
    if isinstance(error, (ValueError, TypeError, FileNotFoundError)):
        return 2
    return 1


def _overview() -> str:
    lines = ["usage: lookalike COMMAND ...", "", "Train an embedding of pictures, measure it and search with it.", ""]
    for name, summary in COMMANDS.items():
        lines.append(f"  lookalike {name:<10} {summary}")
    lines += ["", "lookalike COMMAND --help shows the options and an example."]
    return "\n".join(lines)
