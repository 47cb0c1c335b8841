"""``lookalike tune --data DATA --search "NAME=VALUES; ..." --out DIR``: search for good settings."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.executor import ExecutorOptions
from lookalike.cli.output import print_result, print_status
from lookalike.cli.train import changed_settings, train_command

if TYPE_CHECKING:
    from lookalike.executors import Executor
    from lookalike.tuning.plans import TuningPlan
    from lookalike.tuning.results import StudyResults
    from lookalike.tuning.study import Tuning
    from lookalike.tuning.task import Task

DESCRIPTION = """Search for good settings with Optuna. A trial trains every run of the protocol with the proposed
settings. It is judged by the monitored metric on held-out classes, never on the test classes. Trials run in --workers
processes of this machine or on a Ray cluster; after an interruption the same command continues."""
EXAMPLE = (
    "lookalike tune --data glyphs --protocol quick --loss c2 --pooling gsp --trials 30 --out tuning/glyphs "
    '--search "pooling_settings.num_prototypes=[16,32,64,128]; pooling_settings.sharpness=log(0.5,20)"'
)


@dataclass
class TuneSettings(ExecutorOptions):
    """Options of ``lookalike tune``."""

    data: str = setting(REQUIRED, "a data set, as for lookalike train")
    out: Path = setting(REQUIRED, "folder of the search; with Ray, one that all nodes see")
    search: str | None = setting(
        None, "the search space: name=[a, b, c]; name=uniform(a, b); name=log(a, b); name=int(a, b)"
    )
    plan: str | None = setting(
        None, "prototypes-x-sharpness, pull-x-proxies, factorial, centre-gap, or a YAML file; other options override it"
    )
    protocol: str | None = setting(
        None, "quick (default), tuning, ablation, fair, or a YAML file; null: that of --plan"
    )
    loss: str | None = setting(None, "name, optionally with settings: c2(negative_margin=0.5); default c2")
    pooling: str | None = setting(None, "name, in the same form; default gsp")
    methods: str | None = setting(None, "additions to the loss: none (default), zero-shot, xbm, ccp, xbm+zero-shot")
    variant: str = setting("L", "S or L: size of the memory, CCP and SoftTriple")
    set: str = setting("", 'settings of lookalike train for all trials: "steps=2000, weights=FILE"')
    seeds: int | None = setting(None, "repeats of every trial with other seeds; null: given by the protocol", least=1)
    sampler: str | None = setting(None, "tpe, gp, random or grid; auto: grid for lists if the trials suffice, else tpe")
    trials: int | None = setting(None, "number of trials; null: every point of a grid or plan, else 30", least=1)
    prune: bool | None = setting(None, "end trials below the median early; default: yes with tpe, gp and random")
    seed: int = setting(0, "seed of the search; the protocol has those of the runs", least=0)
    storage: str | None = setting(
        None, "Optuna's storage, for example sqlite:///tuning.db or postgresql://...; null: a journal in --out"
    )
    check: bool = setting(True, "decode every picture once before the first trial")


def run(argv: list[str]) -> int:
    """Run ``lookalike tune`` with the words after its name, and return the exit code."""
    settings, flags = parse(TuneSettings, argv, "tune", DESCRIPTION, EXAMPLE, flags=JSON)
    if settings.search is None and settings.plan is None:
        raise UsageError('missing --search (for example "lr=log(1e-5, 1e-3)") or --plan')
    from lookalike._util.files import require_writable
    from lookalike.report.tuning import describe_best, write_report
    from lookalike.tuning.study import Tuning
    from lookalike.tuning.task import make_task

    require_writable(settings.out)
    plan = _load_plan(settings)
    task, trials = make_task(
        plan,
        settings.data,
        check=settings.check,
        seeds=settings.seeds,
        seed=settings.seed,
        variant=settings.variant,
    )
    task.check()
    _require_weights(task)
    executor = settings.create_executor()
    tuning = Tuning(task, settings.out, settings.storage)
    if tuning.is_outdated:
        print_status("this search began with another version of the results: its trials may not be comparable")
    _print_plan(tuning, trials, executor)
    tuning.work(trials, print_status, executor)
    results = _collect_results(tuning, plan)
    written = write_report(results, settings.out)
    if "--json" in flags:
        print(json.dumps(results.as_dict()))
    else:
        print_result(describe_best(results))
        if results.best is not None:
            config_file = settings.out / "best.yaml"
            print(f"\n{results.train}\n\n# the same for --config, in {config_file}\n{results.config}", end="")
    print_status(f"wrote {', '.join(map(str, written))}")
    return int(results.best is None)


def _require_weights(task: "Task") -> None:
    """Raise ValueError if a backbone of the search has no weights, or some that do not fit."""
    from lookalike.experiments.requirements import missing_weights

    choices = []
    for point in task.extreme_points():
        settings = task.plan(point).cells[0].settings
        choices.append((settings.backbone, settings.weights))
    problems = missing_weights(choices)
    if problems:
        raise ValueError("\n".join(problems))


def _load_plan(settings: TuneSettings) -> "TuningPlan":
    """The named plan or an empty one, overridden by the command line."""
    from lookalike.experiments.choices import parse_settings, split_top_level
    from lookalike.experiments.layers import merge
    from lookalike.tuning.plans import TuningPlan, load_plan
    from lookalike.tuning.space import as_overrides

    plan = TuningPlan()
    if settings.plan is not None:
        plan = load_plan(settings.plan)
    overrides: dict[str, Any] = {}
    for name in ("protocol", "loss", "pooling", "methods", "sampler", "trials", "prune"):
        value = getattr(settings, name)
        if value is not None:
            overrides[name] = value
    if settings.search is not None:
        overrides |= {"search": settings.search, "runs": [], "published": ""}
    fixed = as_overrides(parse_settings(split_top_level(settings.set, ",")))
    return replace(plan, **overrides, set=merge(plan.set, fixed))


def _print_plan(tuning: "Tuning", trials: int, executor: "Executor") -> None:
    from lookalike.data.files import counted
    from lookalike.experiments.estimate import describe_estimate, estimate

    task = tuning.task
    finished = len([trial for trial in tuning.trials() if trial.state != "running"])
    cells_plan = task.plan(next(task.extreme_points()))
    runs = len(cells_plan.cells)
    print_status(
        f"{task.protocol.title}: {counted(trials, 'trial')} of {counted(runs, 'run')} each by {task.sampler}; "
        f"{finished} finished"
    )
    for name, axis in task.space.items():
        print_status(f"  {name}: {axis}")
    if finished >= trials:
        return
    cell = cells_plan.cells[0]
    guess = estimate(cell, cells_plan.pictures_of(cell), executor.threads)
    print_status(describe_estimate(guess, (trials - finished) * runs, "run", executor.slots))


def _collect_results(tuning: "Tuning", plan: "TuningPlan") -> "StudyResults":
    import yaml

    from lookalike.tuning.results import best_trial, collect_results

    trials = tuning.trials()
    best = best_trial(trials)
    command, config = "", ""
    if best is not None:
        settings = tuning.task.plan(best.params).cells[0].settings
        command = train_command(settings, tuning.task.source)
        config = yaml.safe_dump(changed_settings(settings), sort_keys=False, allow_unicode=True)
    return collect_results(tuning.task, plan, trials, tuning.importance(), command, config)
