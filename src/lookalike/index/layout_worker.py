"""A process that computes a layout: ``python -m lookalike.index.layout_worker METHOD``.

It reads vectors as an array of numpy from its standard input. To its standard output it writes lines with the share
that is done, then the line ``points`` and the points as an array. It has a low priority and ends with its parent.
"""

import io
import os
import sys
import warnings
from typing import IO, cast

import numpy as np

from lookalike.data.decode_worker import die_with_parent
from lookalike.index.layout import Method, Points, Progress, arrange

DONE = b"points"
LEAST_STEP = 0.005  # of progress that is reported
NICE = 5


def main() -> None:
    """Compute one layout."""
    die_with_parent()
    if hasattr(os, "nice"):
        os.nice(NICE)
    warnings.simplefilter("ignore")
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print must not break the protocol
    vectors = np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False)
    points = arrange(vectors, cast(Method, sys.argv[1]), _reporting(results))
    content = io.BytesIO()
    np.save(content, points.astype(np.float32), allow_pickle=False)
    results.write(DONE + b"\n" + content.getvalue())
    results.flush()


def read_result(file: IO[bytes], progress: Progress) -> Points | None:
    """Read what the process writes.

    Args:
        file: Its standard output.
        progress: Called with the share that is done.

    Returns:
        The points (n, 2); None if the process ended before.
    """
    for line in file:
        word = line.strip()
        if word == DONE:
            content = io.BytesIO(file.read())
            try:
                points: Points = np.load(content, allow_pickle=False).astype(np.float64)
            except (ValueError, EOFError):  # it was killed while writing
                return None
            return points
        progress(float(word))
    return None


def _reporting(results: IO[bytes]) -> Progress:
    last = 0.0

    def report(share: float) -> None:
        nonlocal last
        if share - last >= LEAST_STEP:
            last = share
            results.write(f"{share:.4f}\n".encode())
            results.flush()

    return report


if __name__ == "__main__":
    main()
