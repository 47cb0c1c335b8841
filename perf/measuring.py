"""What the benchmarks share: memory through /proc, processes of their own, and what is said about the machine."""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")
PEAK = Path("/proc/self/clear_refs")


def resident_bytes(reset_peak: bool = False) -> int:
    if reset_peak:
        PEAK.write_text("5")
    return _status("VmRSS")


def peak_bytes() -> int:
    return _status("VmHWM")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def run_apart(work: Callable[..., T], *arguments: Any, apart: bool = True) -> T:
    """The result of ``work``, which is the whole life of a process unless ``apart`` is False."""
    if not apart:
        return work(*arguments)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        return processes.submit(work, *arguments).result()


def parser(description: str | None, repeats: int, of_what: str) -> argparse.ArgumentParser:
    """With the options that every benchmark has."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    made.add_argument("--repeats", type=int, help=f"{of_what} (default {repeats}; 1 with --quick)")
    made.add_argument("--quick", action="store_true", help="tiny sizes in this process; the figures mean nothing")
    made.set_defaults(usual_repeats=repeats)
    return made


def parse(made: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    options = made.parse_args(arguments)
    if options.repeats is None:
        options.repeats = 1 if options.quick else options.usual_repeats
    if options.repeats < 1:
        made.error(f"--repeats must be at least 1, got {options.repeats}")
    if not PEAK.exists():
        made.error("memory is measured through /proc, which this system does not have: use Linux")
    return options


def describe_machine(quick: bool, **versions: str) -> dict[str, Any]:
    """Says what is measured on, and sets one thread for the processes to come, BLAS and faiss among them."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    load = os.getloadavg()[0]
    machine = {"cores": os.cpu_count(), "load_average": load, "torch": torch.__version__, **versions}
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    if quick:
        print("--quick: this shows that the script runs. The sizes are too small for the figures to mean anything.")
    elif load > 0.5:
        print("Other work is running on this machine, see the load average: the times are provisional.")
    return machine


def write_report(options: argparse.Namespace, machine: dict[str, Any], how: str, entries: list[dict[str, Any]]) -> None:
    """Say how it was measured, and write everything to ``--json``."""
    print(f"\n{how}")
    if options.json:
        report = {"machine": machine, "repeats": options.repeats, "how": how, "sizes": entries}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
