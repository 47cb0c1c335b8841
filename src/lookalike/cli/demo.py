"""``lookalike demo``: train and compare small models on drawn pictures."""

import json
from dataclasses import dataclass
from pathlib import Path

from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, parse
from lookalike.cli.output import print_result

DESCRIPTION = """Compare poolings on this machine, in minutes and without a download. Draws letters among symbols,
trains a small network with average pooling, generalized sum pooling and others, measures them on letters that none of
them has seen, prints a table and writes a page with pictures."""
EXAMPLE = "lookalike demo --out demo"
FLAGS = {**JSON, "--quick": "show in seconds that everything runs; the numbers mean nothing"}


@dataclass
class DemoSettings:
    """Options of ``lookalike demo``."""

    out: Path = setting(Path("demo"), "folder for the page and the numbers")
    workers: int | None = setting(None, "processes; null: the number of cores, at most 8", least=1)
    seed: int = setting(0, "first of two seeds; every seed has its own network", least=0)


def run(argv: list[str]) -> int:
    """Run ``lookalike demo`` with the words after its name, and return the exit code."""
    settings, flags = parse(DemoSettings, argv, "demo", DESCRIPTION, EXAMPLE, flags=FLAGS)
    from lookalike.demo.run import run_demo, summarize

    quick = "--quick" in flags
    figures = run_demo(settings.out, quick, settings.workers, settings.seed)
    if "--json" in flags:
        print(json.dumps(figures))
        return 0
    print_result(summarize(figures, settings.out, quick))
    return 0
