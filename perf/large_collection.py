"""Speed of lookalike embed in one process beside lookalike embed --executor local with several.

    python perf/large_collection.py [--json FILE] [--repeats N] [--backbone NAME] [--pictures N] [--processes N]

Both commands embed the same JPEGs of 500 x 375 pixels, in turns, as processes of their own with OMP_NUM_THREADS=1.
"plain" reads pictures with one more process and writes one file, without a cache of features. "shards" writes Parquet
parts. Both run the same engine.

A time is that of the whole command less that of the same command on a few pictures, which is its start: the least over
the repeats of each, because other work on the machine only adds to a time. The CPU time is that of the command and all
its processes. The ratio is plain over shards: above 1 shards are faster. The CPU ratio says what dividing the work
costs; the elapsed one also depends on free cores.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import measuring
import numpy as np
from PIL import Image

from lookalike.cli import main as main_of_lookalike

HOW = "\n\n".join((__doc__ or "").split("\n\n")[2:4])  # printed and stored beside the figures
FEW = 4  # pictures of the run that measures the start
PLAIN, SHARDS = "plain", "shards"


class Size(NamedTuple):
    backbone: str
    pictures: int
    processes: int

    def __str__(self) -> str:
        return f"{self.backbone}, {self.pictures} JPEGs of 500 x 375, {self.processes} processes"


class Times(NamedTuple):
    elapsed: float
    cpu: float


def draw_files(folder: Path, count: int) -> Path:
    """Smooth noise with some sharp noise on it takes about as many bytes as a photograph."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC)).astype(float)
        pixels = smooth + rng.normal(0, 6, smooth.shape)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number:05d}.jpg", quality=85)
    return folder


def run_command(words: Sequence[str], apart: bool) -> Times:
    """Run lookalike, in a process of its own or in this one; its time and the CPU time of it and its processes."""
    started = time.perf_counter()
    if not apart:
        cpu = time.process_time()
        with redirect_stdout(sys.stderr):
            if main_of_lookalike(list(words)):
                raise RuntimeError(f"lookalike {' '.join(words)} failed")
        return Times(time.perf_counter() - started, time.process_time() - cpu)
    process = subprocess.Popen([sys.executable, "-m", "lookalike", *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"lookalike {' '.join(words)} failed")
    return Times(time.perf_counter() - started, usage.ru_utime + usage.ru_stime)


def words_for(way: str, size: Size, pictures: Path, out: Path) -> list[str]:
    words = ["embed", size.backbone, str(pictures), "--device", "cpu", "--overwrite"]
    if way == PLAIN:
        return [*words, "--cache", "none", "--out", str(out / "plain.parquet")]
    return [*words, "--executor", "local", "--processes", str(size.processes), "--out", str(out / "shards")]


def check_vectors(out: Path) -> None:
    """Ways to the same vectors are compared in time only if they have them."""
    import pyarrow.parquet as pq

    plain = pq.read_table(out / "plain.parquet", columns=["path", "vector"]).sort_by("path")
    shards = pq.read_table(out / "shards", columns=["path", "vector"]).sort_by("path")
    if not plain.equals(shards):
        raise RuntimeError("the vectors differ: nothing to compare")


def compare(size: Size, repeats: int, apart: bool = True) -> dict[str, Any]:
    """Both commands, as one entry of the JSON."""
    times: dict[str, list[Times]] = {}
    with TemporaryDirectory() as folder:
        out = Path(folder)
        all_pictures = draw_files(out / "all", size.pictures)
        few_pictures = draw_files(out / "few", min(FEW, size.pictures - 1))
        run_command(words_for(PLAIN, size, few_pictures, out), apart)  # converts the network for the engine
        for _ in range(repeats):
            for way in (PLAIN, SHARDS):
                for name, pictures in ((f"{way}, start", few_pictures), (way, all_pictures)):
                    times.setdefault(name, []).append(run_command(words_for(way, size, pictures, out), apart))
            check_vectors(out)
    net = {way: _least(times[way], times[f"{way}, start"]) for way in (PLAIN, SHARDS)}
    computed = size.pictures - min(FEW, size.pictures - 1)
    return {
        "size": size._asdict(),
        "times": {name: [run._asdict() for run in runs] for name, runs in times.items()},
        "pictures_per_second": {way: computed / net[way].elapsed for way in net},
        "cpu_seconds_per_picture": {way: net[way].cpu / computed for way in net},
        "ratios": {
            "elapsed": net[PLAIN].elapsed / net[SHARDS].elapsed,
            "cpu": net[PLAIN].cpu / net[SHARDS].cpu,
        },
    }


def _least(runs: list[Times], starts: list[Times]) -> Times:
    elapsed = min(run.elapsed for run in runs) - min(start.elapsed for start in starts)
    cpu = min(run.cpu for run in runs) - min(start.cpu for start in starts)
    return Times(max(elapsed, 1e-3), max(cpu, 1e-3))


def print_comparison(size: Size, entry: dict[str, Any]) -> None:
    print(f"\n{size}")
    print("  the vectors of both are the same, bit for bit")
    print(f"  {'':8}{'pictures/s':>12}{'CPU s/picture':>16}{'start, s':>10}")
    for way, speed in entry["pictures_per_second"].items():
        start = min(run["elapsed"] for run in entry["times"][f"{way}, start"])
        print(f"  {way:8}{speed:12.1f}{entry['cpu_seconds_per_picture'][way]:16.4f}{start:10.1f}")
    print(f"  ratio: {entry['ratios']['elapsed']:.2f} elapsed, {entry['ratios']['cpu']:.2f} CPU")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = measuring.parser(__doc__, 5, "of every command")
    parser.add_argument("--backbone", default="efficientnet_lite0", help="with weights (default %(default)s)")
    parser.add_argument("--pictures", type=int, default=400, help="how many (default %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="of --executor local (default %(default)s)")
    options = measuring.parse(parser, arguments)
    for name, least in (("pictures", 2), ("processes", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(options, name)}")
    machine = measuring.describe_machine(options.quick)
    size = Size(options.backbone, options.pictures, options.processes)
    if options.quick:
        size = Size(options.backbone, 6, 1)
    entry = compare(size, options.repeats, apart=not options.quick)
    print_comparison(size, entry)
    measuring.write_report(options, machine, HOW, [entry])


if __name__ == "__main__":
    main()
