"""Effects of the settings: one study with a named axis, on the machinery of ``lookalike benchmark``.

    lookalike study effects --set axis=keep --data cub:CUB_200_2011
    lookalike study effects --set "axis=[keep, prototypes, zero-shot]"

An axis (``axes/AXIS.yaml``) says what is varied. Each of its points is a row of a benchmark that is kept in
OUT/benchmark: what is done is not done again, by this axis or another, and several processes with the same OUT share
the work. The rules by which claims are judged stand in ``effects_claims``.

Without --data letters are drawn, and a small network learns to pool them that has seen single letters before.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike._util.checks import check_count
from lookalike._util.signals import RunFailed
from lookalike.data.pictures import Pictures
from lookalike.experiments.cells import Cell
from lookalike.experiments.choices import parse_settings, split_top_level
from lookalike.experiments.estimate import describe_estimate, estimate
from lookalike.experiments.plan import Plan, load_sources
from lookalike.experiments.protocol import load_protocol
from lookalike.experiments.results import read_finished
from lookalike.experiments.workers import work
from lookalike.report.tables import Column, Line, Table, number, words
from lookalike.training.checkpoint import RunFolder
from lookalike_studies.effects import iterated as iterated
from lookalike_studies.effects import plots as plots
from lookalike_studies.effects.axis import Axis, Rows, axes, load_axis
from lookalike_studies.effects.claims import RULES, more_steps
from lookalike_studies.effects.measured import Measured
from lookalike_studies.effects.runs import DRAWN, check_overrides, check_weights, differences, rows_for, single_letters
from lookalike_studies.framework.claims import JudgedClaim, verdict_from_flags
from lookalike_studies.framework.context import Context
from lookalike_studies.framework.outputs import differences_in_words
from lookalike_studies.framework.study import Study, StudyResult, setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEP_SIZE = (32, 49, 64, 128)  # bags, features, prototypes and dim of the timed step: a batch of CUB
ROUNDS = (1, 2, 5, 10, 25, 50, 100, 200)
LONG = 3600.0  # seconds of an axis, from which on another way is named
REPEATS = {"all": 30, "some": 10, "ends": 1}


@dataclass(frozen=True)
class Effects:
    axis: tuple[str, ...] = setting("one or several of the axes, or all")
    protocol: str = setting(
        "axis: the paper's, as the axis's file names it; or another of lookalike benchmark", budget=True
    )
    points: str = setting("all values of the axis, some, or the ends", budget=True)
    seeds: int | None = setting("models of each point; null: as many as the protocol says", budget=True)
    first_seed: int = setting("is added to the seed of every model", budget=True)
    steps: int | None = setting("of each model at most; null: as the protocol says", budget=True)
    evaluate_every: int | None = setting("steps; null: as the protocol says", budget=True)
    drawn: str = setting("the drawn pictures that take the place of --data", budget=True)
    letters: str = setting(
        "a run of lookalike train on single letters to start from, for drawn pictures; empty: train it"
    )
    letter_steps: int = setting("of that run", budget=True)
    set: str = setting("other settings of lookalike train, as 'size=128; lr=0.001'")

    def __post_init__(self) -> None:
        if not self.axis:
            raise ValueError(f"axis must name at least one, got none; there are: {', '.join(axes())}")
        for name in self.named:
            load_axis(name)
        if self.protocol != "axis":
            load_protocol(self.protocol)
        if self.points not in ("all", "some", "ends"):
            raise ValueError(f"points must be all, some or ends, got {self.points!r}")
        for name in ("seeds", "steps", "evaluate_every", "letter_steps"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_count("first_seed", self.first_seed, least=0)
        check_overrides(parse_settings(split_top_level(self.set, ";")))
        if self.letters and not (Path(self.letters) / "model.json").is_file():
            raise ValueError(f"letters must be a run of lookalike train, got {self.letters}")
        if not self.drawn.startswith(DRAWN):
            raise ValueError(
                f"drawn must be glyphs or glyphs(...), got {self.drawn!r}; for other pictures there is --data"
            )

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(axes()) if self.axis == ("all",) else self.axis


def run(settings: Effects, context: Context) -> StudyResult:
    found = StudyResult(numbers={"axes": {}})
    source = context.data or settings.drawn
    is_drawn = source.startswith(DRAWN)
    pictures = load_sources([source], check=not is_drawn, progress=True)
    made = STUDY.read_yaml()["of_drawn"]
    weights, letters = settings.letters if is_drawn else "", None
    if is_drawn and not weights:
        letters = single_letters(source, made["set"], settings.letter_steps)
        weights = str(letters[0].folder(context.out / "benchmark") / "run")
    if is_drawn:
        found.notes.append(
            f"The pictures are drawn ({source}), not the papers'; the network began with single letters."
        )
    with iterated.known():
        along = {name: load_axis(name) for name in settings.named}
        rows = {name: rows_for(axis, settings, pictures, weights, made) for name, axis in along.items()}
        which: Any = settings.points
        found.behind = differences(along, rows, pictures, which)
        if not is_drawn:
            for name, axis in along.items():
                check_weights(rows[name].planned(axis).cells[0].settings)
        for line in differences_in_words(found):
            context.display.say(line)
        if letters is not None:
            _learn(*letters, context)
        for name, axis in along.items():
            _along(axis, settings, context, pictures, rows[name], found)
    if not found.numbers["axes"]:
        raise RunFailed(f"every model failed: {found.notes[-1]}")
    return found


def _learn(cell: Cell, pictures: Pictures, context: Context) -> None:
    """The single letters, if they were not learnt before; a cell of the benchmark like any other."""
    context.display.say(f"letters: {cell.settings.steps} steps on {cell.data}, once")
    out, say = context.out / "benchmark", context.display.say
    end = work([cell], out, lambda _: pictures, keep_vectors=False, retry_failed=True, say=say)
    if end.failed:
        raise RunFailed(f"the letters could not be learnt: {end.failed[0][1]}")


def _along(
    axis: Axis, settings: Effects, context: Context, pictures: dict[str, Pictures], rows: Rows, found: StudyResult
) -> None:
    """One axis: its models, its figure, its claims."""
    which: Any = settings.points
    points, plan = axis.points(which), rows.planned(axis)
    cells = [cell for own in rows.cells.values() for cell in own]
    context.display.say(f"{axis.title}: {len(points)} points, {len(cells)} models{_how_long(cells, plan, settings)}")
    for what, reason in rows.impossible:
        found.notes.append(f"{axis.name}: left out: {what}: {reason}")

    def say(text: str) -> None:
        context.display.say(text)
        context.display.stop.check()

    out = context.out / "benchmark"
    end = work(cells, out, plan.pictures_of, keep_vectors=False, say=say)
    for cell, reason in end.failed:
        found.notes.append(f"{axis.name}: failed: {cell.title}, {cell.run_label}: {reason}")
    if len(end.failed) == len(cells):
        return
    results = {number: [read_finished(cell.folder(out)) for cell in own] for number, own in rows.cells.items()}
    moved = {i: [bool(one.best_step) for one in own if one is not None] for i, own in results.items()}
    data_set = next(iter(pictures.values())).name
    learnt = float(np.mean([each for own in moved.values() for each in own]))
    stuck = frozenset(i for i, own in moved.items() if own and not any(own))
    measured = Measured(axis, points, _figures(axis, results, len(points)), data_set, learnt, stuck)
    if stuck:
        found.notes.append(
            f"{axis.name}: training made none of the models better than they began at: "
            f"{'; '.join(str(points[i]) for i in sorted(stuck))}. Their figures are those of the start."
        )
    claims = RULES[axis.name](measured)
    drawn, more, numbers = _drawn(measured, settings, context, rows, results)
    kept = plan.protocol
    caption = f"{axis.title}: {axis.metric} by {data_set}, protocol {kept.name}; {plots.error_bars(measured)}."
    found.figures[axis.name] = (drawn, f"{caption} Source: {axis.source}.")
    found.tables[axis.name] = _table(measured, results)
    found.claims += [*claims, *more]
    if unsaid := [each.name for each in axis.series if "zero-shot" in each.methods and "zero-shot" not in each.name]:
        found.notes.append(f"{axis.name}: with the zero-shot loss, as in the papers' tables: {', '.join(unsaid)}.")
    found.numbers["axes"][axis.name] = {
        "source": axis.source,
        "protocol": kept.name,
        "margin": measured.margin,
        "points": [
            {"series": p.series, **p.values, axis.metric: row.tolist(), "mean": row.mean()}
            for p, row in zip(points, measured.figures, strict=True)
        ],
        **numbers,
    }


def _how_long(cells: list[Cell], plan: Plan, settings: Effects) -> str:
    """Measured by a few steps; nothing where only the ends are looked at, which are for seeing that everything runs."""
    if settings.points == "ends":
        return ""
    guess = estimate(cells[0], plan.pictures_of(cells[0]))
    text = f"; {describe_estimate(guess, len(cells))}"
    if not cells[0].settings.freeze_backbone and len(cells) * guess.most > LONG:
        text += "; --set protocol=quick trains the head only"
    return text


def _figures(axis: Axis, results: dict[int, list[Any]], points: int) -> Any:
    """(points, blocks), in percent; NaN where a model is missing."""
    blocks = max((len(own) for own in results.values()), default=0)
    figures = np.full((points, max(1, blocks)), np.nan)
    for number_of, own in results.items():
        for block, result in enumerate(own):
            metrics = getattr(result, axis.measure, None)
            if metrics is not None:
                figures[number_of, block] = 100 * metrics[axis.metric]
    return figures


def _drawn(
    m: Measured, settings: Effects, context: Context, rows: Rows, results: dict[int, list[Any]]
) -> tuple["Figure", list[JudgedClaim], dict[str, Any]]:
    """The figure of the axis; where an axis measures more than one figure per model, claims and numbers of that."""
    if m.axis.draw == "heat":
        return plots.heat(m), [], {}
    if m.axis.draw == "bars":
        order = range(len(m.points))[::-1] if m.axis.name == "zero-shot" else None
        return plots.bars(m, order), [], {}
    if m.axis.draw == "effects":
        return plots.effects(m), [], {}
    if m.axis.draw == "iterations":
        costs = _costs(settings, context)
        claims = _cost_claims(costs)
        return plots.iteration_costs(m, costs), claims, {"costs": [cost._asdict() for cost in costs]}
    if m.axis.draw == "alternating":
        done = {i: [one for one in own if one is not None] for i, own in results.items()}
        best = {m.points[i].series: [float(one.best_step or 0) for one in own] for i, own in done.items()}
        last = {m.points[i].series: [float(one.steps) for one in own] for i, own in done.items()}
        steps = {m.points[i].series: _problem_steps(own, context.out) for i, own in rows.cells.items()}
        return plots.problem_steps(m, steps), more_steps(best, last), {"best_step": best, "problem_steps": steps}
    return plots.lines(m), [], {}


def _costs(settings: Effects, context: Context) -> list[iterated.Cost]:
    repeats = REPEATS[settings.points]
    rounds = ROUNDS if settings.points != "ends" else (1, 25)

    def compute() -> dict[str, Any]:
        total = (1 + 2 * len(rounds)) * (repeats + iterated.WARM_UP)
        with context.display.bar(total, "time and memory", " steps") as tick:
            found = iterated.costs(STEP_SIZE, rounds, repeats, tick)
        return {"ways": [cost.way for cost in found], "figures": np.array([cost[1:] for cost in found])}

    part = context.cached(f"costs of {rounds} rounds, {repeats} repeats", compute)
    return [iterated.Cost(way, int(k), ms, mb) for way, (k, ms, mb) in zip(part["ways"], part["figures"], strict=True)]


def _cost_claims(costs: list[iterated.Cost]) -> list[JudgedClaim]:
    """Rule: k has a marginal effect if a step at the most rounds takes less than 1.5 times that at the fewest, and a
    substantial one from twice on."""
    growth, here = {}, []
    for way in (iterated.CLOSED_FORM, iterated.AUTOGRAD):
        of = [cost for cost in costs if cost.way == way]
        first, last = of[0], of[-1]
        growth[way] = last.milliseconds / first.milliseconds
        memory = f"{first.megabytes:.1f} to {last.megabytes:.1f} MB"
        rounds = f"k {first.iterations} to {last.iterations}"
        here.append(f"{way}, {rounds}: {first.milliseconds:.1f} to {last.milliseconds:.1f} ms, {memory}")
    exact = next(cost for cost in costs if cost.way == iterated.EXACT)
    here.append(f"{iterated.EXACT}, which has no k: {exact.milliseconds:.1f} ms, {exact.megabytes:.1f} MB")
    said = verdict_from_flags([growth[iterated.CLOSED_FORM] < 1.5, growth[iterated.AUTOGRAD] >= 2])
    paper = "with closed-form gradients k has a marginal effect on the computation, with autograd a substantial one"
    return [JudgedClaim(f"{paper} (Figure 5.9, on a GPU)", "; ".join(here), said)]


def _problem_steps(cells: list[Cell], out: Path) -> list[int]:
    """How many steps the problems took that ended, of all models."""
    steps = []
    for cell in cells:
        run = cell.folder(out / "benchmark") / "run"
        if (run / "metrics.csv").exists():
            rows = RunFolder(run).read_metrics()
            steps += [int(float(row["problem steps"])) for row in rows if row.get("problem steps")]
    return steps


def _table(m: Measured, results: dict[int, list[Any]]) -> Table:
    columns = [Column("series", "left"), Column("point", "left"), Column(m.axis.metric, best="most")]
    columns += [Column("the other classes"), Column("best step"), Column("models")]
    other = "held_out" if m.axis.measure == "test" else "test"
    lines = []
    for i, point in enumerate(m.points):
        done = [one for one in results.get(i, []) if one is not None]
        beside = [100 * one[other][m.axis.metric] for one in done if one[other]]
        std = None if np.isnan(m.stds[i]) else float(m.stds[i])
        mean = None if np.isnan(m.means[i]) else float(m.means[i])
        steps = [one.best_step for one in done if one.best_step is not None]
        lines.append(
            Line(
                [
                    words(point.series),
                    words(str(replace(point, series="")).removeprefix(", ")),
                    number(mean, std),
                    number(float(np.mean(beside)) if beside else None),
                    number(float(np.mean(steps)) if steps else None, digits=0),
                    number(len(done), digits=0, ranked=False),
                ]
            )
        )
    kinds = ("unseen test", "held-out training") if m.axis.measure == "test" else ("held-out training", "unseen test")
    return Table(
        columns, lines, m.axis.title, notes=[f"{m.axis.metric} on {kinds[0]} classes; the other: {kinds[1]} classes"]
    )


STUDY = Study(
    name="effects",
    title="Effects of the settings, one axis at a time",
    about="One thing is varied, everything else stays: the share that is kept, the prototypes and their sharpness, the "
    "rounds of the iteration, the size of embedding and batch, what chance-constrained programming adds, the zero-shot "
    "loss, and the pooling itself. Every point is trained as a row of a benchmark, with the same classes held out and "
    "the same seeds.",
    source="Gürbüz's thesis, sections 3.3.2.3, 5.3.4.3 to 5.3.4.5 and 5.3.5; --set axis=NAME says which",
    settings=Effects,
    run=run,
    data="whatever lookalike benchmark takes; else letters are drawn",
    choices=f"--set axis=NAME: {', '.join(axes())}",
)
