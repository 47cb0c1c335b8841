"""``lookalike demo``"""

import json
from dataclasses import dataclass
from pathlib import Path

from lookalike._util.checks import check_count
from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, parse

DESCRIPTION = """The whole story on this machine, in minutes and without a download: draws letters among symbols, trains
a small network with average pooling, with generalized sum pooling and with others, measures them on letters that
none of them has seen, prints a table and leaves a page to look at."""
EXAMPLE = "lookalike demo --out demo"
FLAGS = {**JSON, "--quick": "show in seconds that everything runs; the figures mean nothing"}


@dataclass
class Demo:
    out: Path = setting(Path("demo"), "folder for the page and the figures")
    workers: int | None = setting(None, "processes; null: as many as there are cores to use, at most 8")
    seed: int = setting(0, "the first of the two seeds, each of which has a network of its own")

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_count("workers", self.workers)
        check_count("seed", self.seed, least=0)


def run(argv: list[str]) -> int:
    options, flags = parse(Demo, argv, prog="lookalike demo", description=DESCRIPTION, example=EXAMPLE, flags=FLAGS)
    from lookalike import demo

    quick = "--quick" in flags
    figures = demo.run(options.out, quick, options.workers, options.seed)
    if "--json" in flags:
        print(json.dumps(figures))
        return 0
    print(demo.in_words(figures, options.out, quick))
    return 0
