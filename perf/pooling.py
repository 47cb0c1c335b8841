"""What poolings cost: generalized sum pooling beside the paper's ways to it, and every pooling beside the average.

    python perf/pooling.py [--json FILE] [--figure FILE.png] [--repeats N] [--quick] [--compile] [--device cuda]
                                 [--table both|gsp|poolings] [--poolings "gem,gsp(keep=0.5),*bilinear"] [--cpu-time]

The first table, "gsp", is measured by gsp_ways.py, the second, "poolings", by every_pooling.py; training_steps.py says
how. The poolings of the second table have their default settings unless others are given with their name.

On a machine that does other work, OMP_NUM_THREADS=1 in the environment and --cpu-time give steadier times.
"""

import argparse
import json
import os
import platform
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import every_pooling
import gsp_ways
import measuring
import torch
from gsp_ways import COMPILED, CONTESTANTS, ITERATIONS, KEEP, SHARPNESS
from pooling_tables import draw_rounds, print_comparison, print_poolings, print_rounds
from training_steps import HOW, Procedure

from lookalike.experiments.choices import parse_choices
from lookalike.pooling import create, names


def describe_machine(device: torch.device) -> dict[str, Any]:
    return {
        "processor": processor_name(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "torch": torch.__version__,
        "device": str(device),
    }


def processor_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    found = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor() or platform.machine()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = measuring.parser(__doc__, 31, "of every measurement")
    parser.add_argument("--figure", type=Path, metavar="FILE.png", help="draw time and memory against k")
    parser.add_argument(
        "--compile", action="store_true", help="also the layer under torch.compile (needs a C++ compiler)"
    )
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="cpu (default) or cuda")
    parser.add_argument("--table", choices=("both", "gsp", "poolings"), default="both", help="which (default both)")
    parser.add_argument("--poolings", metavar="NAMES", default="*", help="of the second table (default all)")
    parser.add_argument("--cpu-time", action="store_true", help="CPU time, of all threads, not the time that goes by")
    options = parser.parse_args(arguments)
    if options.repeats is None:  # measuring.parse insists on /proc besides, which is not needed here
        options.repeats = 1 if options.quick else options.usual_repeats
    if options.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {options.repeats}")
    if options.device.type not in ("cpu", "cuda"):
        parser.error(f"--device must be cpu or cuda, got {options.device}")
    if options.device.type == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device {options.device} was asked for, but torch sees no GPU on this machine")
    if options.device.type == "cuda" and options.cpu_time:
        parser.error("--cpu-time would miss what the GPU does: leave it out with --device cuda")
    if options.table == "poolings" and (options.figure or options.compile):
        parser.error("--figure and --compile belong to the first table: leave out --table poolings")
    if options.compile and not any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++")):
        parser.error("--compile needs a C++ compiler, and neither g++ nor clang++ was found")
    try:
        options.poolings = parse_choices(options.poolings, names(), "pooling")
        for choice in options.poolings:
            create(choice.name, every_pooling.QUICK_SIZES[0].dim, **choice.settings)
    except (TypeError, ValueError) as error:
        parser.error(f"--poolings: {error}")
    return options


def measure_gsp(options: argparse.Namespace, procedure: Procedure) -> dict[str, Any]:
    """The first table, printed, as a part of the JSON."""
    contestants = CONTESTANTS | ({COMPILED: gsp_ways.compiled_layer} if options.compile else {})
    sizes, rounds = gsp_ways.SIZES, gsp_ways.ROUNDS
    if options.quick:
        sizes, rounds = gsp_ways.QUICK_SIZES, gsp_ways.QUICK_ROUNDS
    entries = []
    for size in sizes:
        entries.append(gsp_ways.compare(size, contestants, procedure, first=size == sizes[0]))
        print_comparison(entries[-1])
    sweep = gsp_ways.sweep_rounds(sizes[0], rounds, procedure)
    print_rounds(sweep)
    return {"sizes": entries, "rounds": sweep}


def measure_poolings(options: argparse.Namespace, procedure: Procedure) -> dict[str, Any]:
    """The second table, printed, as a part of the JSON."""
    entries = []
    for size in every_pooling.QUICK_SIZES if options.quick else every_pooling.SIZES:
        entries.append(every_pooling.compare_all(size, options.poolings, procedure))
        print_poolings(entries[-1])
    return {"poolings": entries}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    machine = describe_machine(options.device)
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    clock = "CPU time" if options.cpu_time else "elapsed time"
    procedure = Procedure(options.repeats, options.device, time.process_time if options.cpu_time else time.perf_counter)
    print(f"fp32, {clock}, medians of {options.repeats} interleaved repeats")
    if options.quick:
        print("--quick: this shows that the script runs. The sizes are too small for the times to mean anything.")
    elif (machine["load_average"] or 0) > 0.5:
        print("Other work is running on this machine, see the load average: the times are provisional.")

    settings = {"keep": KEEP, "sharpness": SHARPNESS, "iterations": ITERATIONS, "repeats": options.repeats}
    report: dict[str, Any] = {"machine": machine, "settings": {**settings, "clock": clock}, "how": HOW}
    if options.table != "poolings":
        print(f"keep {KEEP}, sharpness {SHARPNESS}, k = {ITERATIONS}")
        report |= measure_gsp(options, procedure)
    if options.table != "gsp":
        report |= measure_poolings(options, procedure)
    print(f"\n{HOW}")

    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.figure:
        draw_rounds(report["rounds"], machine, options.figure)


if __name__ == "__main__":
    main()
