"""The same command in several processes of this machine, each with its share of the cores."""

import os
import subprocess
import sys
from collections.abc import Sequence

WORKER = "LOOKALIKE_WORKER"  # in the environment of those that are started here


def is_one_of_several() -> bool:
    """Whether this process was started by ``several``, and somebody else says what there is to say."""
    return WORKER in os.environ


def threads_of_each(count: int) -> int:
    """Of ``count`` workers: an equal share of the cores, unless the environment says how many."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdecimal() and int(told) else max(1, (os.cpu_count() or 1) // count)


def several(count: int, command: str, argv: Sequence[str]) -> int:
    """``lookalike COMMAND ARGV`` without its ``--workers``, ``count`` times at once; the exit code for all of them."""
    words, skip = [], False
    for word in argv:
        if not skip and word != "--workers" and not word.startswith("--workers="):
            words.append(word)
        skip = word == "--workers" and not skip
    environment = {"OMP_NUM_THREADS": str(threads_of_each(count)), **os.environ, WORKER: "1"}
    line = [sys.executable, "-m", "lookalike", command, *words, "--workers", "1"]
    started = [subprocess.Popen(line, env=environment) for _ in range(count)]
    codes = []
    for process in started:
        while True:
            try:
                codes.append(process.wait())
                break
            except KeyboardInterrupt:  # they have got it, too, and save what they have
                continue
    codes = [code if code >= 0 else 128 - code for code in codes]  # as a shell says it
    stopped = [code for code in codes if code not in (0, 1)]
    return stopped[0] if stopped else max(codes)
