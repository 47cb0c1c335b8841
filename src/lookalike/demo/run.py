"""Runs the demo: trains all contestants, writes ``figures.json`` and the page, and summarizes them."""

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lookalike._util.files import check_output_folder, write_text
from lookalike._util.folder_lock import FolderLock
from lookalike.demo.page import WARNING, Story, make_page
from lookalike.demo.parallel import Selection, select_rate, train_all
from lookalike.demo.training import CONTESTANTS, Budget, Outcome
from lookalike.report.tables import Column, Line, Table, number, words

QUICK = Budget(  # shows only that everything runs
    steps=4,
    letter_steps=4,
    evaluate_every=2,
    rates=(3e-3,),
    train_classes=24,
    test_classes=8,
    pictures=8,
)
FIGURES = "figures.json"


def run_demo(out: Path, quick: bool = False, workers: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Run the demo.

    Args:
        out: Folder for ``index.html`` and ``figures.json``.
        quick: Show only that everything runs.
        workers: Number of processes; None: one for each usable core, at most 8.
        seed: The first seed.

    Returns:
        The contents of ``figures.json``.
    """
    budget = QUICK if quick else Budget()
    budget = replace(budget, seeds=tuple(range(seed, seed + len(budget.seeds))))
    check_output_folder(out, "demo", [FIGURES])
    with FolderLock(out):
        return _run(out, budget, quick, workers)


def _run(out: Path, budget: Budget, quick: bool, workers: int | None) -> dict[str, Any]:
    if not quick:
        print(
            "Drawing letters, learning them, and then twenty short trainings: three to six minutes on two cores.",
            file=sys.stderr,
        )
    started = time.monotonic()
    shots, outcomes = train_all(CONTESTANTS, budget, workers)
    selections = [select_rate(contestant, outcomes, budget) for contestant in CONTESTANTS]
    seconds = time.monotonic() - started
    table = results_table(selections, budget)
    figures = {
        "budget": asdict(budget),
        "seconds": seconds,
        "rows": [_describe_selection(selection) for selection in selections],
        "all_runs": [_describe_outcome(outcome) for outcome in outcomes],
        "table": table.text(),
    }
    story = Story(selections, outcomes, shots["test"], budget, seconds, table, is_quick=quick)
    write_text(out / FIGURES, json.dumps(figures, indent=2) + "\n")
    write_text(out / "index.html", make_page(story))
    return figures


def summarize(figures: dict[str, Any], out: Path, quick: bool = False) -> str:
    """Write the summary for the terminal: table, gain and next steps."""
    rows = {row["name"]: row for row in figures["rows"]}
    gain = 100 * (rows["GSP"]["MAP@R"] - rows["average pooling"]["MAP@R"])
    verb = "is worth" if gain > 0 else "costs"
    verdict = f"Leaving the background out, as GSP does, {verb} {abs(gain):.1f} points of MAP@R here."
    lines = [
        figures["table"],
        "",
        WARNING if quick else verdict,
        f"Page with heat maps and neighbours: {out / 'index.html'}",
        "Next, with your own pictures: lookalike train my_pictures/ --out runs/mine",
    ]
    return "\n".join(lines)


def results_table(selections: list[Selection], budget: Budget) -> Table:
    """Create the table of all contestants, each with its best learning rate."""
    columns = [
        Column("pooling", "left"),
        Column("MAP@R", best="most"),
        Column("P@1", best="most"),
        Column("weight in the letter's cell"),
        Column("rate"),
    ]
    lines = []
    for selection in selections:
        entries = [
            words(selection.contestant.name),
            _percent(selection, "MAP@R"),
            _percent(selection, "P@1"),
            words(f"{selection.on_letter:.0%}"),
            words(f"{selection.rate:g}"),
        ]
        group = "told" if selection.contestant.is_told else ""
        lines.append(Line(entries, group=group))
    seeds = "one seed"
    if len(budget.seeds) > 1:
        seeds = f"mean and standard deviation of {len(budget.seeds)} seeds"
    note = f"on unseen letters and symbols, in percent; {seeds}, {budget.steps} steps each"
    return Table(columns, lines, notes=[note])


def _describe_selection(selection: Selection) -> dict[str, Any]:
    by_seed = []
    for outcome in selection.outcomes:
        by_seed.append({"seed": outcome.seed, **outcome.metrics, "weight_on_letter": outcome.on_letter})
    return {
        "name": selection.contestant.name,
        "rate": selection.rate,
        "MAP@R": selection.mean("MAP@R"),
        "P@1": selection.mean("P@1"),
        "weight_on_letter": selection.on_letter,
        "by_seed": by_seed,
    }


def _describe_outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.contestant,
        "rate": outcome.rate,
        "seed": outcome.seed,
        "held_out": outcome.curve,
        "test": outcome.metrics,
    }


def _percent(selection: Selection, metric: str) -> Any:
    spread = selection.spread(metric)
    if spread is not None:
        spread *= 100
    return number(100 * selection.mean(metric), spread, digits=1)
