"""``lookalike benchmark --data DATA --out DIR``: train and test many combinations under one protocol."""

import json
import shlex
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, REQUIRED, parse
from lookalike.cli.output import print_status
from lookalike.cli.processes import is_worker, run_workers, threads_per_worker

if TYPE_CHECKING:
    from lookalike.experiments.plan import Plan
    from lookalike.experiments.workers import Progress

DESCRIPTION = """Train and test every combination of losses, poolings and methods on the data, under one protocol, and
write the results to --out. Finished results are not repeated, and interrupted ones continue. Several workers can share
the work, on this machine or on others that see the folder. lookalike report DIR makes the table."""
EXAMPLE = 'lookalike benchmark --data glyphs --losses c2 --poolings "average,gsp,gsp(keep=0.5)" --out tables/glyphs'
FLAGS = {
    **JSON,
    "--plan": "print the combinations and an estimate of the time, and exit",
    "--retry-failed": "repeat combinations that failed before",
}


@dataclass
class BenchmarkSettings:
    """Options of ``lookalike benchmark``."""

    data: str = setting(REQUIRED, "data sets as for lookalike train, separated by commas")
    out: Path = setting(REQUIRED, "folder for the results; may be shared with other workers")
    poolings: str = setting("average,gsp", 'names, optionally with settings: "average,gsp(keep=0.2)"; * and ? match')
    losses: str = setting("c2", "names, in the same form")
    methods: str = setting(
        "none", "additions to the loss: none, zero-shot, xbm, ccp, centres(weight=0.1), xbm+zero-shot"
    )
    variant: str = setting("L", "S or L: size of the memory, CCP and SoftTriple")
    protocol: str = setting("quick", "quick, fair, fair-ccp, conventional, tuning, ablation, or a YAML file")
    seeds: int | None = setting(None, "repeats with other seeds; null: given by the protocol")
    set: str = setting("", 'settings of lookalike train that override the protocol: "steps=2000, size=128"')
    workers: int = setting(1, "processes on this machine that share the work", least=1)
    check: bool = setting(True, "decode every picture once before the first run")
    expires: float = setting(180.0, "seconds without a sign of life after which a worker counts as dead")


def run(argv: list[str]) -> int:
    """Run ``lookalike benchmark`` with the words after its name, and return the exit code."""
    settings, flags = parse(BenchmarkSettings, argv, "benchmark", DESCRIPTION, EXAMPLE, flags=FLAGS)
    from lookalike._util.files import require_writable
    from lookalike.experiments.workers import read_progress, work

    require_writable(settings.out)
    plan = _make_plan(settings)
    if not is_worker():
        progress = read_progress(plan.cells, settings.out, settings.expires)
        _print_plan(plan, progress, settings.workers)
        _print_outdated(settings.out)
        if "--plan" in flags:
            if "--json" in flags:
                print(_as_json(plan, progress))
            return 0
        _log_command(argv, settings.out)
    failure = 1
    if settings.workers > 1:
        failure = run_workers(settings.workers, "benchmark", argv) or 1
        progress = read_progress(plan.cells, settings.out, settings.expires)
    else:
        progress = work(
            plan.cells,
            settings.out,
            plan.pictures_of,
            keep_vectors=plan.protocol.concatenate,
            retry_failed="--retry-failed" in flags,
            expires=settings.expires,
            say=print_status,
        )
    if not is_worker():
        if "--json" in flags:
            print(_as_json(plan, progress))
        counts = f"{len(progress.done)} of {len(plan.cells)} done, {len(progress.failed)} failed"
        print_status(f"{counts}; next: lookalike report {shlex.quote(str(settings.out))}")
    if progress.failed or progress.open or progress.running:
        return failure
    return 0


def _make_plan(settings: BenchmarkSettings) -> "Plan":
    from lookalike import pooling
    from lookalike.experiments.choices import parse_choices, parse_settings, split_top_level
    from lookalike.experiments.plan import (
        load_sources,
        loss_names,
        make_plan,
        parse_methods,
        with_seeds,
    )
    from lookalike.experiments.protocol import load_protocol

    protocol = with_seeds(load_protocol(settings.protocol), settings.seeds)
    losses = parse_choices(settings.losses, loss_names(), "loss")
    poolings = parse_choices(settings.poolings, pooling.names(), "pooling")
    methods = parse_methods(settings.methods)
    overrides = parse_settings(split_top_level(settings.set, ","))
    sources = load_sources(split_top_level(settings.data, ","), check=settings.check)
    plan = make_plan(protocol, sources, losses, poolings, methods, variant=settings.variant, overrides=overrides)
    if not is_worker():
        for combination, reason in plan.impossible:
            print_status(f"left out: {combination}: {reason}")
    if not plan.cells:
        raise ValueError("the plan is empty: no combination is possible")
    return plan


def _print_plan(plan: "Plan", progress: "Progress", workers: int) -> None:
    from lookalike.data.files import counted
    from lookalike.experiments.estimate import describe_estimate, estimate

    models_per_row = Counter((cell.data, cell.title) for cell in plan.cells)
    print_status(f"{plan.protocol.title}: {counted(len(models_per_row), 'row')}, {counted(len(plan.cells), 'model')}")
    for (data, title), models in models_per_row.items():
        print_status(f"  {data}: {title}, {counted(models, 'model')}")
    print_status(
        f"{len(progress.done)} done, {len(progress.running)} running, {len(progress.failed)} failed, "
        f"{len(progress.open)} open"
    )
    unfinished = [*progress.open, *progress.running, *(cell for cell, _ in progress.failed)]
    if unfinished:
        cell = unfinished[0]
        threads = None
        if workers > 1:
            threads = threads_per_worker(workers)
        guess = estimate(cell, plan.pictures_of(cell), threads)
        print_status(describe_estimate(guess, len(plan.cells) - len(progress.done), workers=workers))


def _print_outdated(out: Path) -> None:
    from lookalike.data.files import counted
    from lookalike.experiments.results import RESULTS_VERSION, count_outdated

    outdated = count_outdated(out)
    if outdated:
        results = counted(outdated, "outdated result")
        print_status(f"{results} in {out} not used: another version than {RESULTS_VERSION}")


def _log_command(argv: list[str], out: Path) -> None:
    """Append the command to commands.txt. One write per line, so that several machines do not mix."""
    from lookalike.experiments.results import RESULTS_VERSION

    out.mkdir(parents=True, exist_ok=True)
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    with (out / "commands.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{when}, version {RESULTS_VERSION}: {shlex.join(['lookalike', 'benchmark', *argv])}\n")


def _as_json(plan: "Plan", progress: "Progress") -> str:
    failed = {cell.key: reason for cell, reason in progress.failed}
    standings = dict.fromkeys(failed, "failed")
    for cell in progress.done:
        standings[cell.key] = "done"
    cells = []
    for cell in plan.cells:
        cells.append({**cell.description(), "standing": standings.get(cell.key, "open")})
    return json.dumps({"cells": cells, "failed": failed, "impossible": plan.impossible})
