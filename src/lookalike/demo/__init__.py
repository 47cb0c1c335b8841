"""The demo: the whole story on this machine, without a download, in minutes.

Draws glyphs, trains a small network on them with each of the poolings of ``lookalike.demo.race``, measures on
letters and symbols that nobody has seen, prints a table, and leaves one page to look at. A seed is network and batches
both.
"""

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lookalike._util.files import require_own_folder, write_text
from lookalike.demo.page import WARNING, Story, make_page
from lookalike.demo.race import CONTESTANTS, Budget
from lookalike.demo.races import Result, chosen, race_all
from lookalike.report.tables import Column, Line, Table, number, words

QUICK = Budget(  # WARNING says what it is worth
    steps=4,
    letter_steps=4,
    evaluate_every=2,
    rates=(3e-3,),
    train_classes=24,
    test_classes=8,
    pictures=8,
)
FIGURES = "figures.json"


def run(out: Path, quick: bool = False, workers: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Leave ``index.html`` and ``figures.json`` in ``out``; returns what the latter holds."""
    budget = QUICK if quick else Budget()
    budget = replace(budget, seeds=tuple(seed + number for number in range(len(budget.seeds))))
    require_own_folder(out, "demo", [FIGURES])
    if not quick:
        print(
            "Drawing letters, learning them, and then twenty short trainings: three to six minutes on two cores.",
            file=sys.stderr,
        )
    started = time.monotonic()
    shots, outcomes = race_all(CONTESTANTS, budget, workers)
    results = [chosen(contestant, outcomes, budget) for contestant in CONTESTANTS]
    seconds = time.monotonic() - started
    figures = {
        "budget": asdict(budget),
        "seconds": seconds,
        "rows": [
            {
                "name": result.contestant.name,
                "rate": result.rate,
                "MAP@R": result.mean("MAP@R"),
                "P@1": result.mean("P@1"),
                "weight_on_letter": result.on_letter,
                "by_seed": [{"seed": o.seed, **o.figures, "weight_on_letter": o.on_letter} for o in result.outcomes],
            }
            for result in results
        ],
        "all_runs": [
            {"name": o.contestant, "rate": o.rate, "seed": o.seed, "held_out": o.curve, "test": o.figures}
            for o in outcomes
        ],
    }
    shown = table(results, budget)
    figures["table"] = shown.text()
    story = Story(results, outcomes, shots["test"], budget, seconds, shown, is_quick=quick)
    write_text(out / FIGURES, json.dumps(figures, indent=2) + "\n")
    write_text(out / "index.html", make_page(story))
    return figures


def in_words(figures: dict[str, Any], out: Path, quick: bool = False) -> str:
    """For the terminal, at the end."""
    rows = {row["name"]: row for row in figures["rows"]}
    gain = 100 * (rows["GSP"]["MAP@R"] - rows["average pooling"]["MAP@R"])
    lines = [figures["table"], ""]
    if quick:
        lines.append(WARNING)
    else:
        worth = f"{'is worth' if gain > 0 else 'costs'} {abs(gain):.1f} points"
        lines.append(f"Leaving the background out, as GSP does, {worth} of MAP@R here.")
    lines += [
        f"To look at what they look at: {out / 'index.html'}",
        "Next, with your own pictures: lookalike train my_pictures/ --out runs/mine",
    ]
    return "\n".join(lines)


def table(results: list[Result], budget: Budget) -> Table:
    columns = [
        Column("pooling", "left"),
        Column("MAP@R", best="most"),
        Column("P@1", best="most"),
        Column("weight in the letter's cell"),
        Column("rate"),
    ]
    lines = [
        Line(
            [
                words(result.contestant.name),
                _percent(result, "MAP@R"),
                _percent(result, "P@1"),
                words(f"{result.on_letter:.0%}"),
                words(f"{result.rate:g}"),
            ],
            group="told" if result.contestant.is_told else "",
        )
        for result in results
    ]
    seeds = f"mean and standard deviation of {len(budget.seeds)} seeds" if len(budget.seeds) > 1 else "one seed"
    note = f"on letters and symbols nobody has seen, in percent; {seeds}, {budget.steps} steps each"
    return Table(columns, lines, notes=[note])


def _percent(result: Result, name: str) -> Any:
    spread = result.spread(name)
    return number(100 * result.mean(name), None if spread is None else 100 * spread, digits=1)
