"""``lookalike tune --data DATA --search "NAME=VALUES; ..." --out DIR``"""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.train import changed_settings, train_command

DESCRIPTION = """Search for good settings with Optuna. A trial trains every run of the protocol with the settings that
are proposed, and is judged by the monitored figure on held-out classes, never on the test classes. Several workers, on
this machine or on others that see the folder, share the trials; the same command goes on with what was interrupted."""
EXAMPLE = (
    "lookalike tune --data glyphs --protocol quick --loss c2 --pooling gsp --trials 30 --out tuning/glyphs "
    '--search "pooling_settings.num_prototypes=[16,32,64,128]; pooling_settings.sharpness=log(0.5,20)"'
)
TRIALS = 30  # where the sampler could go on for ever
MOST_POINTS = 1000  # of a grid that nobody has set a number of trials for


@dataclass
class Tune:
    data: str | None = setting(None, "a data set, as for lookalike train")
    search: str | None = setting(
        None, "what is searched: name=[a, b, c]; name=uniform(a, b); name=log(a, b); name=int(a, b)"
    )
    plan: str | None = setting(
        None, "prototypes-x-sharpness, pull-x-proxies, factorial, or a YAML file of yours; other options go before it"
    )
    protocol: str | None = setting(None, "tuning (default), quick, ablation, fair, or a YAML file of yours")
    loss: str | None = setting(None, "with settings if you like: c2(negative_margin=0.5); default c2")
    pooling: str | None = setting(None, "in the same way; default gsp")
    methods: str | None = setting(None, "what is added to the loss: none (default), zero-shot, xbm, ccp, xbm+zero-shot")
    variant: str = setting("L", "S or L: the size of memory, CCP and SoftTriple")
    set: str = setting("", 'settings of lookalike train that all trials have: "steps=2000, pooling_settings.keep=0.2"')
    seeds: int | None = setting(None, "repeats of every trial with other seeds; null: as many as the protocol says")
    sampler: str | None = setting(None, "tpe, gp, random or grid; auto: grid for lists if the trials suffice, else tpe")
    trials: int | None = setting(None, "how many; null: every point of a grid or plan, else 30")
    prune: bool | None = setting(None, "end trials below the median early; default: yes with tpe, gp and random")
    seed: int = setting(0, "of the search; those of the runs are the protocol's")
    out: Path | None = setting(None, "folder of the search, seen by every worker")
    storage: str | None = setting(
        None, "where Optuna keeps its records, as sqlite:///tuning.db or postgresql://...; null: a journal in --out"
    )
    workers: int = setting(1, "processes on this machine that share the trials")
    check: bool = setting(True, "decode every picture once before anything starts")
    expires: float = setting(180.0, "seconds after which a worker that gives no sign counts as dead")


def run(argv: list[str]) -> int:
    options, flags = parse(Tune, argv, prog="lookalike tune", description=DESCRIPTION, example=EXAMPLE, flags=JSON)
    _refuse(options)
    assert options.out is not None
    from lookalike._util.files import require_writable
    from lookalike.cli.workers import is_worker, run_workers
    from lookalike.report.tuning import best_in_words, write

    try:
        from lookalike.tuning.study import Tuning
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise UsageError('lookalike tune needs Optuna: pip install "lookalike[train]"') from None
    require_writable(options.out)
    plan = _plan(options)
    task, trials = _task(options, plan)
    task.check()
    tuning = Tuning(task, options.out, options.storage, options.expires)
    if is_worker():
        tuning.work(trials, _say)
        return 0
    if tuning.changed_code:
        _say("the code has changed since this search began: its trials may not compare")
    _announce(tuning, trials, options.workers)
    if options.workers > 1:
        code = run_workers(options.workers, "tune", argv)
        if code:
            return code
    else:
        tuning.work(trials, _say)
    found = _findings(tuning, plan)
    written = write(found, options.out)
    if "--json" in flags:
        print(json.dumps(_as_dict(found)))
    else:
        print(best_in_words(found))
        if found.best is not None:
            print(f"\n{found.train}\n\n# the same for --config, in {options.out / 'best.yaml'}\n{found.config}", end="")
    _say(f"written: {', '.join(map(str, written))}")
    return 0 if found.best is not None else 1


def _refuse(options: Tune) -> None:
    if options.data is None:
        raise UsageError("say on which data: --data glyphs, or a folder, or a benchmark")
    if options.out is None:
        raise UsageError("say where the search is to be left: --out DIR")
    if options.search is None and options.plan is None:
        raise UsageError('say what is searched: --search "lr=log(1e-5, 1e-3)", or a --plan')
    for name in ("workers", "trials", "seeds"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be at least 1, got {value}")
    if not options.expires > 0:
        raise UsageError(f"--expires must be above 0, got {options.expires}")
    if options.seed < 0:
        raise UsageError(f"--seed must be at least 0, got {options.seed}")


def _plan(options: Tune) -> Any:
    """The named plan, or an empty one, with what was typed before it."""
    from lookalike.experiments.choices import parse_settings, split_top_level
    from lookalike.experiments.plan import _with
    from lookalike.tuning.plans import TuningPlan, load_plan
    from lookalike.tuning.space import as_overrides

    plan = TuningPlan() if options.plan is None else load_plan(options.plan)
    names = ("protocol", "loss", "pooling", "methods", "sampler", "trials", "prune")
    typed = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.search is not None:
        typed |= {"search": options.search, "runs": [], "published": ""}
    more = as_overrides(parse_settings(split_top_level(options.set, ",")))
    return replace(plan, **typed, set=_with(plan.set, more))


def _task(options: Tune, plan: Any) -> tuple[Any, int]:
    """What is searched, and by how many trials."""
    from math import prod

    from lookalike.experiments.choices import parse_choices
    from lookalike.experiments.plan import load_sources, loss_names, parse_methods, pooling_names, with_seeds
    from lookalike.experiments.protocol import load_protocol
    from lookalike.tuning.space import grid, parse_space, space_of
    from lookalike.tuning.task import Task

    space = space_of(plan.runs) if plan.runs else parse_space(plan.search)
    loss = _one(parse_choices(plan.loss, loss_names(), "loss"), "loss")
    pooling = _one(parse_choices(plan.pooling, pooling_names(), "pooling"), "pooling")
    [methods] = parse_methods(plan.methods)
    protocol = with_seeds(load_protocol(plan.protocol), options.seeds)
    if both := [name for name in space if _is_set(name, plan.set)]:
        raise UsageError(f"{both[0]} is both searched and set")
    points, sampler = plan.runs or None, plan.sampler
    if points is None:
        only_lists = all(axis.kind == "list" for axis in space.values())
        size = prod(len(axis.values) for axis in space.values())
        if sampler == "auto":
            sampler = "grid" if only_lists and (plan.trials or MOST_POINTS) >= size else "tpe"
        if sampler == "grid":
            if plan.trials is None and only_lists and size > MOST_POINTS:
                raise UsageError(f"the grid has {size:,} points: say how many of them to try with --trials")
            points = grid(space, options.seed)
    else:
        sampler = "list"
    trials = plan.trials or TRIALS if points is None else min(plan.trials or len(points), len(points))
    source = options.data or ""
    [pictures] = load_sources([source], check=options.check).values()
    task = Task(
        protocol,
        source,
        pictures,
        loss,
        pooling,
        methods,
        space,
        plan.set,
        points,
        sampler,
        options.seed,
        (points is None) if plan.prune is None else plan.prune,
        options.variant,
    )
    return task, trials


def _is_set(name: str, settings: dict[str, Any]) -> bool:
    outer, dot, inner = name.partition(".")
    return outer in settings and (not dot or inner in settings[outer])


def _one(choices: list[Any], what: str) -> Any:
    if len(choices) > 1:
        raise UsageError(f"name one {what}, got {', '.join(map(str, choices))}; to compare them, search {what}=[...]")
    return choices[0]


def _announce(tuning: Any, trials: int, workers: int) -> None:
    from lookalike.cli.workers import threads_per_worker
    from lookalike.experiments.estimate import describe_estimate, estimate

    task, over = tuning.task, sum(each.state != "running" for each in tuning.records())
    plan = task.plan(next(task.ends()))
    runs = f"{len(plan.cells)} {'run' if len(plan.cells) == 1 else 'runs'} each"
    _say(f"{task.protocol.title}: {trials} trials of {runs} by {task.sampler}; {over} are over")
    for name, axis in task.space.items():
        _say(f"  {name}: {axis}")
    left = max(0, trials - over) * len(plan.cells)
    if not left:
        return
    threads = threads_per_worker(workers) if workers > 1 else None
    guess = estimate(plan.cells[0], plan.pictures_of(plan.cells[0]), threads)
    _say(describe_estimate(guess, left, "run", workers))


def _findings(tuning: Any, plan: Any) -> Any:
    import yaml

    from lookalike.experiments.published import published
    from lookalike.tuning.results import Findings, best_of
    from lookalike.tuning.space import short_names

    task, records = tuning.task, tuning.records()
    best, train, config = best_of(records), "", ""
    if best is not None:
        settings = task.plan(best.params).cells[0].settings
        train = train_command(settings, task.source)
        config = yaml.safe_dump(changed_settings(settings), sort_keys=False, allow_unicode=True)
    theirs = {}
    if plan.published:
        short = short_names(task.space)
        for record in records:
            asked = {short[name]: value for name, value in record.params.items()}
            for one in published(table=plan.published, loss=task.loss.name, settings=asked, metric=task.monitor) or ():
                theirs[record.number] = one.mean
    about = {"protocol": task.protocol.title, "data": task.source, "loss": str(task.loss)}
    about |= {"pooling": str(task.pooling), "methods": " + ".join(map(str, task.methods)) or "none"}
    about |= {"sampler": task.sampler, "pruning": "below the median" if task.prune else "none"}
    about |= {f"set: {name}": str(value) for name, value in task.overrides.items()}
    return Findings(
        plan.title or f"Tuning of {task.loss} + {task.pooling}",
        about,
        task.monitor,
        task.space,
        records,
        tuning.importance(),
        train,
        config,
        plan.open,
        theirs,
        f"thesis Table {plan.published}, CUB" if theirs else "",
    )


def _as_dict(found: Any) -> dict[str, Any]:
    import yaml

    best = None
    if found.best is not None:
        best = {**vars(found.best), "train": found.train, "config": yaml.safe_load(found.config)}
    return {
        "monitor": found.monitor,
        "best": best,
        "trials": [vars(record) for record in found.records],
        "importance": found.importance,
        "searched": {name: str(axis) for name, axis in found.space.items()},
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
