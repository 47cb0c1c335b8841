"""``lookalike benchmark --poolings A,B --losses A,B --data A,B --protocol NAME --out DIR``"""

import json
import shlex
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.workers import is_worker, run_workers, threads_per_worker

DESCRIPTION = """Train and test every combination of losses, poolings and methods on the data, under one protocol, and
leave the results in --out. What is done there already is not done again; what was interrupted goes on; several
workers, on this machine or on others that see the folder, share the work. ``lookalike report DIR`` makes the table."""
EXAMPLE = 'lookalike benchmark --data glyphs --losses c2 --poolings "average,gsp,gsp(keep=0.5)" --out tables/glyphs'
FLAGS = {
    **JSON,
    "--plan": "print what would be done and how long it may take, and stop",
    "--retry-failed": "try again what failed before",
}


@dataclass
class Benchmark:
    data: str | None = setting(None, "data sets, as for lookalike train, with commas between them")
    poolings: str = setting(
        "average,gsp", 'names, with settings if you like: "average,gsp(keep=0.2)"; * and ? match any'
    )
    losses: str = setting("c2", "names, in the same way")
    methods: str = setting(
        "none", "what is added to the loss: none, zero-shot, xbm, ccp, centres(weight=0.1), xbm+zero-shot"
    )
    variant: str = setting("L", "S or L: the size of memory, CCP and SoftTriple")
    protocol: str = setting("quick", "quick, fair, fair-ccp, conventional, tuning, ablation, or a YAML file of yours")
    seeds: int | None = setting(None, "repeats with other seeds; null: as many as the protocol says")
    set: str = setting("", 'settings of lookalike train that go before those of the protocol: "steps=2000, size=128"')
    out: Path | None = setting(None, "folder of the results; may be shared with other workers")
    workers: int = setting(1, "processes on this machine that share the work")
    check: bool = setting(True, "decode every picture once before anything starts")
    expires: float = setting(180.0, "seconds after which a worker that gives no sign counts as dead")


def run(argv: list[str]) -> int:
    options, flags = parse(
        Benchmark, argv, prog="lookalike benchmark", description=DESCRIPTION, example=EXAMPLE, flags=FLAGS
    )
    if options.data is None:
        raise UsageError("say on which data: --data glyphs, or a folder, or a benchmark")
    if options.out is None:
        raise UsageError("say where the results are to be left: --out DIR")
    if options.workers < 1:
        raise UsageError(f"--workers must be at least 1, got {options.workers}")

    from lookalike._util.files import require_writable
    from lookalike.experiments.workers import read_progress, work

    require_writable(options.out)
    plan = _plan(options)
    if not is_worker():  # who has started them says it
        now = read_progress(plan.cells, options.out, options.expires)
        _announce(plan, now, options.workers)
        _say_outdated(options.out)
        if "--plan" in flags:
            print(_as_json(plan, now)) if "--json" in flags else None
            return 0
        _remember(argv, options.out)
    code = 1
    if options.workers > 1:
        code = run_workers(options.workers, "benchmark", argv) or 1
        end = read_progress(plan.cells, options.out, options.expires)
    else:
        end = work(
            plan.cells,
            options.out,
            plan.pictures_of,
            keep_vectors=plan.protocol.concatenate,
            retry_failed="--retry-failed" in flags,
            expires=options.expires,
            say=_say,
        )
    if not is_worker():
        if "--json" in flags:
            print(_as_json(plan, end))
        done = f"{len(end.done)} of {_are(len(plan.cells), 'done')}, {len(end.failed)} failed"
        _say(f"{done}; next: lookalike report {shlex.quote(str(options.out))}")
    return code if end.failed or end.open or end.running else 0


def _plan(options: Benchmark) -> Any:
    from lookalike.experiments.choices import parse_choices, parse_settings, split_top_level
    from lookalike.experiments.plan import (
        load_sources,
        loss_names,
        make_plan,
        parse_methods,
        pooling_names,
        with_seeds,
    )
    from lookalike.experiments.protocol import load_protocol

    protocol = with_seeds(load_protocol(options.protocol), options.seeds)
    losses = parse_choices(options.losses, loss_names(), "loss")
    poolings = parse_choices(options.poolings, pooling_names(), "pooling")
    methods = parse_methods(options.methods)
    overrides = parse_settings(split_top_level(options.set, ","))
    sources = load_sources(split_top_level(options.data or "", ","), check=options.check)
    plan = make_plan(protocol, sources, losses, poolings, methods, variant=options.variant, overrides=overrides)
    for what, reason in () if is_worker() else plan.impossible:
        _say(f"left out: {what}: {reason}")
    if not plan.cells:
        raise ValueError("nothing is left of the plan: every combination was refused")
    return plan


def _announce(plan: Any, now: Any, workers: int) -> None:
    from lookalike.data.files import counted
    from lookalike.experiments.estimate import describe_estimate, estimate

    rows = list(dict.fromkeys((cell.data, cell.title) for cell in plan.cells))
    _say(f"{plan.protocol.title}: {counted(len(rows), 'row')}, {counted(len(plan.cells), 'model')}")
    for data, title in rows:
        runs = sum((cell.data, cell.title) == (data, title) for cell in plan.cells)
        _say(f"  {data}: {title}, {counted(runs, 'model')}")
    left = len(plan.cells) - len(now.done)
    counts = f"{_are(len(now.done), 'done')}, {_are(len(now.running), 'being done')}, {len(now.failed)} failed"
    _say(f"{counts}, {_are(len(now.open), 'open')}")
    if not left:
        return
    first = next(iter([*now.open, *now.running, *(cell for cell, _ in now.failed)]))
    guess = estimate(first, plan.pictures_of(first), threads_per_worker(workers) if workers > 1 else None)
    _say(describe_estimate(guess, left, workers=workers))


def _say_outdated(out: Path) -> None:
    from lookalike.data.files import counted
    from lookalike.experiments.results import RESULTS_VERSION, count_outdated

    outdated = count_outdated(out)
    if outdated:
        _say(f"{counted(outdated, 'result')} in {out} of another version than {RESULTS_VERSION}: outdated, not used")


def _remember(argv: list[str], out: Path) -> None:
    """What was typed, one line for each time: appended at once, so that machines do not mix."""
    from lookalike.experiments.results import RESULTS_VERSION

    out.mkdir(parents=True, exist_ok=True)
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    with (out / "commands.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{when}, version {RESULTS_VERSION}: {shlex.join(['lookalike', 'benchmark', *argv])}\n")


def _as_json(plan: Any, now: Any) -> str:
    failed = {cell.key: reason for cell, reason in now.failed}
    done = {cell.key for cell in now.done}
    rows = [
        {**cell.description(), "standing": "done" if cell.key in done else "failed" if cell.key in failed else "open"}
        for cell in plan.cells
    ]
    return json.dumps({"cells": rows, "failed": failed, "impossible": plan.impossible})


def _are(number: int, what: str) -> str:
    return f"{number} {'is' if number == 1 else 'are'} {what}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
