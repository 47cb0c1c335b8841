"""Start-up: wall and CPU seconds of commands that people wait for, each in a process of its own.

    python perf/startup.py --folder PICTURES [--run RUN] [--repeats 3] [--json]

An index of the pictures is made first and is not timed. The table has the fastest of the repeats. The last column says
which heavy packages the command imported. Other work on the machine counts: the load is printed.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

LIMITS = {"lookalike --help": 0.3, "search": 1.0, "serve": 3.0, "benchmark --plan": 3.0}
HEAVY = ("torch", "timm", "torchvision", "openvino", "onnxruntime", "faiss", "pymilvus", "pandas", "matplotlib")
PROBE = """import atexit, json, sys
atexit.register(lambda: print("IMPORTED", json.dumps([m for m in {heavy} if m in sys.modules]), file=sys.stderr))
from lookalike.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Timing(NamedTuple):
    """Seconds of one command, and the heavy packages that it imported."""

    wall: float
    cpu: float
    imported: list[str]


def measure(words: list[str], until_first_line: bool = False) -> Timing:
    """Run ``lookalike WORDS``; a server is timed until its first line on stdout."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    line = [sys.executable, "-c", PROBE.format(heavy=HEAVY), *words]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if until_first_line:
        process.stdout.readline()
        wall = time.perf_counter() - started
        process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    if not until_first_line:
        wall = time.perf_counter() - started
        if process.returncode:
            raise SystemExit(f"lookalike {' '.join(words)} failed: {errors}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    imported = [text for text in errors.splitlines() if text.startswith("IMPORTED")]
    return Timing(wall, cpu, json.loads(imported[-1].removeprefix("IMPORTED")) if imported else [])


def make_commands(folder: Path, run: str | None, work: Path) -> dict[str, list[str]]:
    """Make an index and return the commands to time, by name."""
    idx = str(work / "pictures.idx")
    source = [run] if run else []
    subprocess.run(
        [sys.executable, "-m", "lookalike", "index", *source, str(folder), "--out", idx],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    picture = min(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    plan = ["--data", "glyphs", "--losses", "c2", "--poolings", "average,gsp", "--plan", "--out", str(work / "table")]
    return {
        "lookalike --help": ["--help"],
        "search": ["search", idx, str(picture)],
        "search --engine torch": ["search", idx, str(picture), "--engine", "torch"],
        "serve": ["serve", idx, "--port", "0", "--json"],
        "benchmark --plan": ["benchmark", *plan],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="pictures to index and search")
    parser.add_argument("--run", help="folder of a run or name of a backbone; default: as lookalike index")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = {}
    with tempfile.TemporaryDirectory() as work:
        for name, words in make_commands(arguments.folder, arguments.run, Path(work)).items():
            timings = [measure(words, until_first_line=name == "serve") for _ in range(arguments.repeats)]
            wall, cpu = min(t.wall for t in timings), min(t.cpu for t in timings)
            report[name] = Timing(wall, cpu, timings[0].imported)
    load, cores = os.getloadavg()[0], os.cpu_count()
    if arguments.json:
        seconds = {name: {**timing._asdict(), "limit": LIMITS.get(name)} for name, timing in report.items()}
        print(json.dumps({"cores": cores, "load": load, "seconds": seconds}))
        return
    print(f"{'command':<24}{'wall s':>8}{'CPU s':>8}{'limit':>8}  imported")
    for name, timing in report.items():
        limit = LIMITS.get(name, "")
        print(f"{name:<24}{timing.wall:>8.2f}{timing.cpu:>8.2f}{limit:>8}  {', '.join(timing.imported)}")
    print(f"{cores} cores, load {load:.1f} (an idle machine has a load below 0.3 before the start)")


if __name__ == "__main__":
    main()
