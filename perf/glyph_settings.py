"""Settings of GSP on glyphs: the demo's comparison with other settings of it, attention and the oracle.

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

from lookalike_studies.framework.tables import mean_entry

from lookalike.demo.parallel import Selection, select_rate, train_all
from lookalike.demo.training import CONTESTANTS, LEARNT_SHARE, Budget, Contestant
from lookalike.report.tables import Column, Line, Table, words

AVERAGE, _, _, ATTENTION, ORACLE = CONTESTANTS


def main(argv: Sequence[str] | None = None, budget: Budget | None = None, workers: int | None = None) -> None:
    """Train all settings, print the table and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="number of seeds, each with a network of its own")
    parser.add_argument("--only", default="", help="only settings whose names contain these words")
    parser.add_argument("--json", type=Path, help="file for the numbers of every rate and seed")
    options = parser.parse_args(argv)
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {options.seeds}")
    contestants = [contestant for contestant in settings() if options.only in contestant.name]
    if not contestants:
        names = ", ".join(contestant.name for contestant in settings())
        parser.error(f"no setting has {options.only!r} in its name; there are: {names}")
    budget = replace(budget or Budget(), seeds=tuple(range(options.seeds)))
    _, outcomes = train_all(contestants, budget, workers)
    print(table([select_rate(contestant, outcomes, budget) for contestant in contestants]).text())
    if options.json:
        runs: list[dict[str, Any]] = []
        for outcome in outcomes:
            run = {"name": outcome.contestant, "rate": outcome.rate, "seed": outcome.seed}
            runs.append({**run, "held_out": outcome.curve[-1][1], **outcome.metrics})
        options.json.write_text(json.dumps(runs, indent=2) + "\n")


def settings() -> list[Contestant]:
    """List the papers' setting, one change after another up to the demo's, and others from there."""
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


def table(selections: Sequence[Selection]) -> Table:
    """Create the table of all settings, each with its best learning rate."""
    titles = ("held out", "test", "weight in the cell", "rate")
    lines = []
    for selection in selections:
        entries = [
            words(selection.contestant.name),
            mean_entry([100 * outcome.curve[-1][1] for outcome in selection.outcomes], digits=1),
            mean_entry([100 * outcome.metrics["MAP@R"] for outcome in selection.outcomes], digits=1),
            words(f"{selection.on_letter:.0%}"),
            words(f"{selection.rate:g}"),
        ]
        lines.append(Line(entries))
    return Table([Column("setting", "left"), *map(Column, titles)], lines)


if __name__ == "__main__":
    main()
