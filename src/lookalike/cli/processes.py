"""Runs one command in several worker processes of this machine."""

import os
import subprocess
import sys
from collections.abc import Sequence

WORKER = "LOOKALIKE_WORKER"  # environment variable of the processes started here


def is_worker() -> bool:
    """Return whether ``run_workers`` started this process. Only the parent prints."""
    return WORKER in os.environ


def threads_per_worker(count: int) -> int:
    """Return the number of threads of each of ``count`` workers.

    This is OMP_NUM_THREADS if it is set, else an equal share of the cores.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads) > 0:
        return int(threads)
    return max(1, (os.cpu_count() or 1) // count)


def run_workers(count: int, command: str, argv: Sequence[str]) -> int:
    """Run ``lookalike COMMAND ARGV``, with ``--workers 1``, in ``count`` processes and wait for all of them.

    Returns:
        The first exit code other than 0 and 1 (a stopped process), else the highest.
    """
    line = [sys.executable, "-m", "lookalike", command, *_without_workers(argv), "--workers", "1"]
    environment = {"OMP_NUM_THREADS": str(threads_per_worker(count)), **os.environ, WORKER: "1"}
    processes = [subprocess.Popen(line, env=environment) for _ in range(count)]
    codes = [_wait(process) for process in processes]
    for code in codes:
        if code not in (0, 1):
            return code
    return max(codes)


def _without_workers(argv: Sequence[str]) -> list[str]:
    words = []
    skip_value = False
    for word in argv:
        if skip_value:
            skip_value = False
        elif word == "--workers":
            skip_value = True
        elif not word.startswith("--workers="):
            words.append(word)
    return words


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """The exit code, 128 + n for signal n as in a shell."""
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:  # the workers got it too, and save their work before they end
            continue
        if code < 0:
            return 128 - code
        return code
