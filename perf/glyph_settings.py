"""What GSP needs on glyphs: the demo's race between other settings of it, attention, and the oracle.

    python perf/glyph_settings.py [--seeds 4] [--only WORDS] [--json FILE]

Every setting is trained with every rate and seed of the demo, from the same networks. The rate is the one that is best
on held-out classes, over all seeds; MAP@R in percent there and on the test, mean and standard deviation over seeds.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lookalike.demo.race import CONTESTANTS, LEARNT_SHARE, Budget, Contestant
from lookalike.demo.races import Result, chosen, race_all
from lookalike.report.seeds import entry
from lookalike.report.tables import Column, Line, Table, words

AVERAGE, _, _, ATTENTION, ORACLE = CONTESTANTS


def main(argv: Sequence[str] | None = None, budget: Budget | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="how many, each with a network of its own")
    parser.add_argument("--only", default="", help="settings whose names have these words in them")
    parser.add_argument("--json", type=Path, help="file for the figures of every rate and seed")
    asked = parser.parse_args(argv)
    if asked.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {asked.seeds}")
    contestants = [each for each in settings() if asked.only in each.name]
    if not contestants:
        parser.error(f"no setting has {asked.only!r} in its name; there are: {', '.join(e.name for e in settings())}")
    budget = replace(budget or Budget(), seeds=tuple(range(asked.seeds)))
    _, outcomes = race_all(contestants, budget)
    print(table([chosen(each, outcomes, budget) for each in contestants]).text())
    if asked.json:
        runs: list[dict[str, Any]] = [
            {"name": o.contestant, "rate": o.rate, "seed": o.seed, "held_out": o.curve[-1][1], **o.figures}
            for o in outcomes
        ]
        asked.json.write_text(json.dumps(runs, indent=2) + "\n")


def settings() -> list[Contestant]:
    """The papers' setting first, then one change after another up to the demo's, and others from there."""
    first = Contestant("GSP: 64 prototypes, keep 0.3, sharpness 5", "gsp")
    sharper = _gsp(first, "128 prototypes, keep 0.25, sharpness 20", num_prototypes=128, keep=0.25, sharpness=20.0)
    small = _gsp(sharper, "8 prototypes, keep 0.05, sharpness 20", num_prototypes=8, keep=0.05)
    fast = replace(small, name=f"{small.name}, ten times the rate", pooling_rate=10)
    learnt = _gsp(fast, "... learnt", learn_keep=True, learn_sharpness=True)
    short = replace(learnt, name="GSP: ... learnt, features of median length 0.7", median_norm=0.7)
    demo = replace(LEARNT_SHARE, name="GSP: ... learnt, radius 20, sharpness 40: the demo's")
    return [
        replace(AVERAGE, name="average"),
        *(first, sharper, small, fast, learnt, short, demo),
        _gsp(demo, "the demo's, not learnt", learn_keep=False, learn_sharpness=False),
        _gsp(demo, "the demo's, 1 prototype", num_prototypes=1),
        _gsp(demo, "the demo's, 32 prototypes", num_prototypes=32),
        _gsp(demo, "the demo's, radius 100, sharpness 200", radius=100.0, sharpness=200.0),
        _gsp(demo, "the demo's, prototypes for the background, keep 0.75", background=True, keep=0.75),
        # the same choice at the start by other means: what differs is the size of the projection that learns
        replace(_gsp(demo, "the demo's by features of median length 0.1, radius 1", radius=1.0), median_norm=0.1),
        replace(_gsp(short, "length 0.7 by features of median length 2, radius 2.86", radius=2 / 0.7), median_norm=2.0),
        replace(ATTENTION, name="attention"),
        replace(ATTENTION, name="attention, three times the rate", pooling_rate=3),
        replace(ORACLE, name="oracle"),
    ]


def _gsp(before: Contestant, name: str, **changes: Any) -> Contestant:
    return replace(before, name=f"GSP: {name}", settings={**before.settings, **changes})


def table(results: list[Result]) -> Table:
    columns = [
        Column("setting", "left"),
        Column("held out"),
        Column("test"),
        Column("weight in the cell"),
        Column("rate"),
    ]
    lines = [
        Line(
            [
                words(result.contestant.name),
                entry([100 * outcome.curve[-1][1] for outcome in result.outcomes], digits=1),
                entry([100 * outcome.figures["MAP@R"] for outcome in result.outcomes], digits=1),
                words(f"{result.on_letter:.0%}"),
                words(f"{result.rate:g}"),
            ]
        )
        for result in results
    ]
    return Table(columns, lines)


if __name__ == "__main__":
    main()
