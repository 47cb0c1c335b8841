"""``lookalike benchmark --data DATA --out DIR``: train and test many combinations under one protocol."""

import json
import shlex
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from lookalike._util.settings import setting
from lookalike._util.signals import Stopped
from lookalike.cli.arguments import JSON, REQUIRED, parse
from lookalike.cli.executor import ExecutorOptions
from lookalike.cli.output import print_status

if TYPE_CHECKING:
    from lookalike.data.pictures import Pictures
    from lookalike.executors import Executor
    from lookalike.experiments.cells import Cell
    from lookalike.experiments.plan import Plan
    from lookalike.experiments.runner import Progress

DESCRIPTION = """Train and test every combination of losses, poolings and methods on the data, under one protocol, and
write the results to --out. Finished results are not repeated, and interrupted ones continue. The work runs in --workers
processes of this machine or on a Ray cluster. lookalike report DIR makes the table."""
EXAMPLE = 'lookalike benchmark --data glyphs --losses c2 --poolings "average,gsp,gsp(keep=0.5)" --out tables/glyphs'
FLAGS = {
    **JSON,
    "--plan": "check data, weights and combinations, print them with deviations from the papers and the time, and exit",
    "--retry-failed": "repeat combinations that failed before",
}


@dataclass
class BenchmarkSettings(ExecutorOptions):
    """Options of ``lookalike benchmark``."""

    data: str = setting(REQUIRED, "data sets as for lookalike train, separated by commas")
    out: Path = setting(REQUIRED, "folder for the results; with Ray, one that all nodes see")
    poolings: str | None = setting(
        None, 'names, optionally with settings: "average,gsp(keep=0.2)"; * and ? match; null: those of the protocol'
    )
    losses: str | None = setting(None, "names, in the same form; null: those of the protocol, mostly c2")
    methods: str | None = setting(
        None,
        "additions to the loss: none, zero-shot, xbm, ccp, centres(weight=0.1), xbm+zero-shot; null: those of the "
        "protocol, mostly none",
    )
    variant: str = setting("L", "S or L: size of the memory, CCP and SoftTriple")
    protocol: str = setting(
        "quick",
        "quick, fair, poolings, collage, fair-ccp, fair-ccp-released, conventional, libc, tuning, ablation, "
        "skewed-means, or a YAML file",
    )
    seeds: int | None = setting(None, "repeats with other seeds; null: given by the protocol")
    set: str = setting("", 'settings of lookalike train that override the protocol: "steps=2000, weights=FILE"')
    check: bool = setting(True, "decode every picture once before the first run")


def run(argv: list[str]) -> int:
    """Run ``lookalike benchmark`` with the words after its name, and return the exit code."""
    settings, flags = parse(BenchmarkSettings, argv, "benchmark", DESCRIPTION, EXAMPLE, flags=FLAGS)
    from lookalike._util.files import require_writable
    from lookalike.experiments.runner import read_progress, run_cells

    require_writable(settings.out)
    plan = _make_plan(settings)
    executor = settings.create_executor()
    progress = read_progress(plan.cells, settings.out)
    _print_rows(plan, progress)
    _require_weights(progress)
    _print_random_starts(progress)
    _print_small_batches(plan, progress)
    _print_estimate(plan, progress, executor)
    _print_outdated(settings.out)
    if "--plan" in flags:
        if "--json" in flags:
            print(_as_json(plan, progress))
        return 0
    _log_command(argv, settings.out)
    try:
        progress = run_cells(
            plan.cells,
            settings.out,
            plan.parts,
            keep_vectors=plan.protocol.concatenate,
            retry_failed="--retry-failed" in flags,
            executor=executor,
            say=print_status,
        )
    except (Stopped, KeyboardInterrupt):
        print_status("stopped; what was trained is saved, and the same command continues")
        raise
    if "--json" in flags:
        print(_as_json(plan, progress))
    counts = f"{len(progress.done)} of {len(plan.cells)} done, {len(progress.failed)} failed"
    print_status(f"{counts}; next: lookalike report {shlex.quote(str(settings.out))}")
    return int(bool(progress.failed or progress.open))


def _make_plan(settings: BenchmarkSettings) -> "Plan":
    from lookalike import pooling
    from lookalike.experiments.choices import parse_choices, parse_settings, split_top_level
    from lookalike.experiments.plan import (
        loss_names,
        make_plan,
        parse_methods,
        with_seeds,
    )
    from lookalike.experiments.protocol import load_protocol

    protocol = with_seeds(load_protocol(settings.protocol), settings.seeds)
    losses = parse_choices(settings.losses or ", ".join(protocol.default_losses), loss_names(), "loss")
    poolings = protocol.pooling_choices
    if settings.poolings is not None:
        poolings = parse_choices(settings.poolings, pooling.names(), "pooling")
    methods = parse_methods(settings.methods or ", ".join(protocol.default_methods))
    overrides = parse_settings(split_top_level(settings.set, ","))
    backbone = str(overrides.get("backbone", protocol.backbones[0]))
    sources = _load_sources(settings, backbone, str(overrides.get("weights", protocol.training.get("weights", "auto"))))
    plan = make_plan(protocol, sources, losses, poolings, methods, variant=settings.variant, overrides=overrides)
    for combination, reason in plan.impossible:
        print_status(f"left out: {combination}: {reason}")
    if not plan.cells:
        raise ValueError("the plan is empty: no combination is possible")
    return plan


def _load_sources(settings: BenchmarkSettings, backbone: str, weights: str) -> "dict[str, Pictures]":
    """Load every data set. If one cannot be loaded, name all that is missing, also weights."""
    from lookalike.experiments.choices import split_top_level
    from lookalike.experiments.plan import load_sources
    from lookalike.experiments.requirements import missing_weights

    sources: dict[str, Pictures] = {}
    problems: list[Exception] = []
    for name in split_top_level(settings.data, ","):
        try:
            sources |= load_sources([name], check=settings.check)
        except (ValueError, OSError) as problem:
            problems.append(problem)
    if problems:
        lines = [*map(str, problems), *missing_weights([(backbone, weights)])]
        raise type(problems[0])("\n".join(lines))
    return sources


def _require_weights(progress: "Progress") -> None:
    """Raise ValueError if a backbone of an unfinished model has no weights, or some that do not fit."""
    from lookalike.experiments.requirements import missing_weights

    choices = []
    for cell in _unfinished(progress):
        choices.append((cell.settings.backbone, cell.settings.weights))
    problems = missing_weights(choices)
    if problems:
        raise ValueError("\n".join(problems))


def _unfinished(progress: "Progress") -> "list[Cell]":
    failed = [cell for cell, _ in progress.failed]
    return [*progress.open, *failed]


def _print_rows(plan: "Plan", progress: "Progress") -> None:
    from lookalike.data.files import counted

    models_per_row = Counter((cell.data, cell.title) for cell in plan.cells)
    print_status(f"{plan.protocol.title}: {counted(len(models_per_row), 'row')}, {counted(len(plan.cells), 'model')}")
    for (data, title), models in models_per_row.items():
        print_status(f"  {data}: {title}, {counted(models, 'model')}")
    for subject, reason in plan.deviations.items():
        print_status(f"  not as printed: {subject}: {reason}")
    print_status(f"{len(progress.done)} done, {len(progress.failed)} failed, {len(progress.open)} open")


def _print_random_starts(progress: "Progress") -> None:
    """Warn about backbones that have no weights of their own, and say where to get some."""
    from lookalike.models import starts_random
    from lookalike.models.known_weights import files_for

    backbones = {cell.settings.backbone for cell in _unfinished(progress) if cell.settings.weights == "auto"}
    for backbone in sorted(backbones):
        if not starts_random(backbone):
            continue
        source = ""
        for known in files_for(backbone)[:1]:
            source = f", from {known.source}"
        print_status(f"warning: {backbone} starts from random weights; --set weights=FILE gives it others{source}")


def _print_small_batches(plan: "Plan", progress: "Progress") -> None:
    """Warn about models whose batches will be smaller than asked for."""
    from lookalike.training.resolve import fitting_batch_size

    titles_by_sizes: dict[tuple[int, int], list[str]] = {}
    for cell in _unfinished(progress):
        classes = len(plan.pictures_of(cell).split("train").classes)
        asked, size = cell.settings.batch_size, fitting_batch_size(cell.settings, classes)
        if size < asked:
            titles = titles_by_sizes.setdefault((size, asked), [])
            if cell.title not in titles:
                titles.append(cell.title)
    for (size, asked), titles in titles_by_sizes.items():
        reason = "too few training classes"
        print_status(f"warning: batches of {size} pictures instead of {asked}, {reason}: {', '.join(titles)}")


def _print_estimate(plan: "Plan", progress: "Progress", executor: "Executor") -> None:
    from lookalike.experiments.estimate import describe_estimate, estimate

    unfinished = _unfinished(progress)
    if unfinished:
        cell = unfinished[0]
        guess = estimate(cell, plan.pictures_of(cell), executor.threads)
        print_status(describe_estimate(guess, len(plan.cells) - len(progress.done), workers=executor.slots))


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
    content = {"cells": cells, "failed": failed, "impossible": plan.impossible, "deviations": plan.deviations}
    return json.dumps(content)
