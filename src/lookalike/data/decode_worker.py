"""A process that decodes pictures from strangers; ``lookalike.server.decoding`` starts it.

It reads jobs from its standard input and writes results to its standard output until the input ends. A message is a
line of JSON and bytes whose number the line names. Nothing is unpickled, so a decoder that a crafted file has taken
over cannot make the server run code. Memory and, per job, processor time are limited by the operating system.
"""

import json
import math
import os
import signal
import sys
import warnings
from contextlib import suppress
from typing import IO, Any

from PIL import AvifImagePlugin

from lookalike.data.cropping import CropSize, Region
from lookalike.data.safe_decode import Bounds, Costly, Job, Refused, run

try:
    import resource
except ImportError:  # Windows: only the parent's clock limits a job
    resource = None  # type: ignore[assignment]

LONGEST_LINE = 100_000
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Work until the input ends."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the server ends its workers
    die_with_parent()
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    jobs = sys.stdin.buffer
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a decoder that prints must not break the protocol
    _limit_memory(int(sys.argv[1]) * 1_000_000)
    while True:
        message = read_message(jobs)
        if message is None:
            return
        _limit_cpu(message[0].pop("cpu_seconds"))
        answer = _answer(*message)
        del message
        return_memory()
        write_message(results, *answer)
        del answer


def _answer(header: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        decoded = run(_job(header), data)
    except Refused as refused:
        return {"refused": [refused.status, refused.code, refused.message]}, b""
    except Costly as costly:
        return {"costly": True, "decoded_bytes": costly.decoded_bytes}, b""
    except MemoryError:
        return {"out_of_memory": True}, b""
    pixels = b""
    shape: tuple[int, ...] = ()
    if decoded.pixels is not None:
        pixels, shape = decoded.pixels.tobytes(), decoded.pixels.shape
    return {"size": decoded.size, "pixel_bytes": len(pixels), "shape": shape}, pixels + (decoded.jpeg or b"")


def _job(header: dict[str, Any]) -> Job:
    job = Job(**header)
    if job.bounds is not None:
        job = job._replace(bounds=Bounds(*job.bounds))
    if job.crop is not None:
        job = job._replace(crop=CropSize(*job.crop))
    return job._replace(region=Region(*job.region))


def read_message(file: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Read a message; None at the end of the file, also in the middle of a message."""
    line = file.readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        return None
    header: dict[str, Any] = json.loads(line)
    length = header.pop("bytes")
    data = file.read(length)
    if len(data) < length:
        return None
    return header, data


def write_message(file: IO[bytes], header: dict[str, Any], data: bytes) -> None:
    """Write a message."""
    file.write(json.dumps({**header, "bytes": len(data)}).encode() + b"\n")
    file.write(data)
    file.flush()


def die_with_parent() -> None:
    """Ask Linux to kill this process with its parent; elsewhere it ends when its input does."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def return_memory() -> None:
    """Give freed memory back to the system, where the C library keeps it."""
    if sys.platform == "linux":
        import ctypes

        with suppress(AttributeError):  # another library than glibc
            ctypes.CDLL(None).malloc_trim(0)


def _limit_memory(size: int) -> None:
    if resource is None:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def _limit_cpu(seconds: int) -> None:
    """Let the system kill this process (SIGXCPU) once it has used ``seconds`` more."""
    if resource is None:
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = math.ceil(usage.ru_utime + usage.ru_stime)
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
