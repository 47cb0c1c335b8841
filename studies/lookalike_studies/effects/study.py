"""Effects of the settings, one axis at a time, on the machinery of ``lookalike benchmark``.

    lookalike study effects --set axis=keep --data cub:CUB_200_2011
    lookalike study effects --set "axis=[keep, prototypes, zero-shot]"

An axis (``axes/AXIS.yaml``) says what is varied and what the papers claim. Its points are rows of a benchmark in
OUT/benchmark: finished models are not trained again, and several processes with the same OUT share the work.

Without --data letters are drawn, and a small network is trained that has learnt single letters before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from lookalike._util.signals import RunFailed
from lookalike.data.pictures import Pictures
from lookalike.experiments.cells import Cell
from lookalike.experiments.choices import parse_settings, split_top_level
from lookalike.experiments.estimate import describe_estimate, estimate
from lookalike.experiments.plan import Plan, load_sources
from lookalike.experiments.protocol import load_protocol
from lookalike.experiments.results import CellResult, read_cell
from lookalike.experiments.runner import run_cells
from lookalike.report.tables import Column, Table, number
from lookalike.training.checkpoint import RunFolder
from lookalike_studies.effects import iterated, plots
from lookalike_studies.effects.axis import Axis, Rows, axes, load_axis
from lookalike_studies.effects.claims import judge_axis, judge_costs, judge_steps
from lookalike_studies.effects.measured import Measured
from lookalike_studies.effects.runs import DRAWN, check_overrides, check_weights, differences, rows_for, single_letters
from lookalike_studies.framework.claims import JudgedClaim
from lookalike_studies.framework.context import Context, Part, Tick
from lookalike_studies.framework.outputs import differences_in_words
from lookalike_studies.framework.study import Study, StudyResult, StudySettings, setting
from lookalike_studies.framework.tables import tabulate

STEP_SIZE = (32, 49, 64, 128)  # bags, features, prototypes and dim of the timed step: a batch of CUB
ROUNDS = {"all": (1, 2, 5, 10, 25, 50, 100, 200), "some": (1, 2, 5, 10, 25, 50, 100, 200), "ends": (1, 25)}
REPEATS = {"all": 30, "some": 10, "ends": 1}
LONG = 3600.0  # seconds for an axis; beyond that a faster protocol is suggested
Results = dict[int, list[CellResult]]  # by the number of the point: results of its finished models


@dataclass(frozen=True)
class Effects(StudySettings):
    """Settings of the study."""

    axis: tuple[str, ...] = setting("one or several of the axes, or all")
    protocol: str = setting("axis: the papers', as in the file of the axis; or one of lookalike benchmark", budget=True)
    points: Literal["all", "some", "ends"] = setting("all values of the axis, some, or the ends", budget=True)
    seeds: int | None = setting("models of each point; null: as many as the protocol says", budget=True, least=1)
    first_seed: int = setting("is added to the seed of every model", budget=True, least=0)
    steps: int | None = setting("of each model at most; null: as the protocol says", budget=True, least=1)
    evaluate_every: int | None = setting("steps; null: as the protocol says", budget=True, least=1)
    drawn: str = setting("the drawn pictures that take the place of --data", budget=True)
    letters: str = setting("run of lookalike train on single letters, to start from; empty: it is trained")
    letter_steps: int = setting("of that run", budget=True, least=1)
    set: str = setting("other settings of lookalike train, as 'size=128; lr=0.001'")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.named:
            load_axis(name)
        if self.protocol != "axis":
            load_protocol(self.protocol)
        check_overrides(parse_settings(split_top_level(self.set, ";")))
        if self.letters and not (Path(self.letters) / "model.json").is_file():
            raise ValueError(f"letters must be a run of lookalike train, got {self.letters}")
        if not self.drawn.startswith(DRAWN):
            raise ValueError(f"drawn must be glyphs or glyphs(...), got {self.drawn!r}; use --data for other pictures")

    @property
    def named(self) -> tuple[str, ...]:
        """Names of the axes."""
        if self.axis == ("all",):
            return tuple(axes())
        return self.axis


def run(settings: Effects, context: Context) -> StudyResult:
    """Train the models of all axes, draw and judge them."""
    result = StudyResult(numbers={"axes": {}})
    source = context.data or settings.drawn
    is_drawn = source.startswith(DRAWN)
    pictures = load_sources([source], check=not is_drawn, progress=True)
    of_drawn = STUDY.read_yaml()["of_drawn"]
    weights, letters = "", None
    if is_drawn:
        result.notes.append(f"The pictures are drawn ({source}), not the papers'; the network knows single letters.")
        weights = settings.letters
        if not weights:
            letters = single_letters(source, of_drawn["set"], settings.letter_steps)
            weights = str(letters[0].folder(context.out / "benchmark") / "run")
    with iterated.registered():
        chosen, rows = {}, {}
        for name in settings.named:
            chosen[name] = load_axis(name)
            rows[name] = rows_for(chosen[name], settings, pictures, weights, of_drawn)
        result.protocol_differences = differences(chosen, rows, pictures, settings.points)
        if not is_drawn:
            for name, axis in chosen.items():
                check_weights(rows[name].planned(axis).cells[0].settings)
        for line in differences_in_words(result):
            context.display.say(line)
        if letters is not None:
            _train_letters(*letters, context)
        for name, axis in chosen.items():
            measured, results = _train(axis, settings, context, pictures, rows[name], result)
            if measured is not None:
                _conclude(measured, results, settings, context, rows[name], result)
    if not result.numbers["axes"]:
        raise RunFailed(f"every model failed: {result.notes[-1]}")
    return result


def _train_letters(cell: Cell, pictures: Pictures, context: Context) -> None:
    say, parts = context.display.say, {(cell.data, cell.fold): pictures}
    say(f"letters: {cell.settings.steps} steps on {cell.data}, once")
    end = run_cells([cell], context.out / "benchmark", parts, retry_failed=True, executor=context.executor, say=say)
    if end.failed:
        raise RunFailed(f"training on single letters failed: {end.failed[0][1]}")


def _train(
    axis: Axis, settings: Effects, context: Context, pictures: dict[str, Pictures], rows: Rows, result: StudyResult
) -> tuple[Measured | None, Results]:
    """Train the models of an axis; None if every model failed."""
    points, plan = axis.points(settings.points), rows.planned(axis)
    cells = list(chain.from_iterable(rows.cells.values()))
    time = _estimated_time(cells, plan, settings)
    context.display.say(f"{axis.title}: {len(points)} points, {len(cells)} models{time}")
    for point, reason in rows.impossible:
        result.notes.append(f"{axis.name}: left out: {point}: {reason}")

    def say(text: str) -> None:
        context.display.say(text)
        context.display.stop.check()

    out = context.out / "benchmark"
    end = run_cells(cells, out, plan.parts, executor=context.executor, say=say)
    for cell, reason in end.failed:
        result.notes.append(f"{axis.name}: failed: {cell.title}, {cell.run_label}: {reason}")
    if len(end.failed) == len(cells):
        return None, {}
    results: Results = {}
    metrics = np.full((len(points), max(1, *map(len, rows.cells.values()))), np.nan)
    improved: list[bool] = []
    stuck = set()
    for number_of_point, of_point in rows.cells.items():
        results[number_of_point] = []
        for block, cell in enumerate(of_point):
            model = read_cell(cell.folder(out))
            if model is None or model.status != "done":
                continue
            results[number_of_point].append(model)
            measures = getattr(model, axis.measure)
            if measures is not None:
                metrics[number_of_point, block] = 100 * measures[axis.metric]
        better = [bool(model.best_step) for model in results[number_of_point]]
        improved += better
        if better and not any(better):
            stuck.add(number_of_point)
    if stuck:
        names = "; ".join(str(points[i]) for i in sorted(stuck))
        result.notes.append(f"{axis.name}: training improved no model of: {names}; their metrics are of the start.")
    data_set = next(iter(pictures.values())).name
    return Measured(axis, points, metrics, data_set, float(np.mean(improved)), frozenset(stuck)), results


def _conclude(
    measured: Measured, results: Results, settings: Effects, context: Context, rows: Rows, result: StudyResult
) -> None:
    """Add figure, table, claims and numbers of an axis to the result."""
    axis, protocol = measured.axis, rows.planned(measured.axis).protocol
    figure, claims, numbers = _draw(measured, settings, context, rows, results)
    caption = f"{axis.title}: {axis.metric} by {measured.data_set}, protocol {protocol.name}"
    caption += f"; {plots.error_bars(measured)}. Source: {axis.source}."
    result.figures[axis.name] = (figure, caption)
    result.tables[axis.name] = _table(measured, results)
    result.claims += judge_axis(measured) + claims
    for series in axis.series:
        if "zero-shot" in series.methods and "zero-shot" not in series.name:
            result.notes.append(f"{axis.name}: with the zero-shot loss, as in the papers' tables: {series.name}.")
    points = []
    for point, row in zip(measured.points, measured.metrics, strict=True):
        points.append({"series": point.series, **point.values, axis.metric: row.tolist(), "mean": row.mean()})
    about = {"source": axis.source, "protocol": protocol.name, "margin": measured.margin}
    result.numbers["axes"][axis.name] = {**about, "points": points, **numbers}


def _estimated_time(cells: list[Cell], plan: Plan, settings: Effects) -> str:
    if settings.points == "ends":  # only a test that everything runs
        return ""
    guess = estimate(cells[0], plan.pictures_of(cells[0]))
    text = f"; {describe_estimate(guess, len(cells))}"
    if not cells[0].settings.freeze_backbone and len(cells) * guess.most > LONG:
        text += "; --set protocol=quick trains the head only"
    return text


def _draw(
    measured: Measured, settings: Effects, context: Context, rows: Rows, results: Results
) -> tuple[Figure, list[JudgedClaim], dict[str, Any]]:
    """Draw an axis; return the figure, and claims and numbers on more than the metric."""
    if measured.axis.draw == "iterations":
        costs = _costs(settings, context)
        numbers: dict[str, Any] = {"costs": [cost._asdict() for cost in costs]}
        return plots.iteration_costs(measured, costs), [judge_costs(costs)], numbers
    if measured.axis.draw == "alternating":
        best, last, problems = {}, {}, {}
        for number_of_point, point in enumerate(measured.points):
            finished = results[number_of_point]
            best[point.series] = [float(model.best_step or 0) for model in finished]
            last[point.series] = [float(model.steps) for model in finished]
            problems[point.series] = _problem_steps(rows.cells[number_of_point], context.out)
        numbers = {"best_step": best, "problem_steps": problems}
        return plots.problem_steps(measured, problems), judge_steps(best, last), numbers
    draw = {"heat": plots.heat, "bars": plots.bars, "effects": plots.effects, "line": plots.lines}
    return draw[measured.axis.draw](measured), [], {}


def _costs(settings: Effects, context: Context) -> list[iterated.Cost]:
    repeats, rounds = REPEATS[settings.points], ROUNDS[settings.points]

    def measure(tick: Tick) -> dict[str, Any]:
        return {"costs": iterated.costs(STEP_SIZE, rounds, repeats, tick)}

    steps = (1 + 2 * len(rounds)) * (repeats + iterated.WARM_UP)
    part = Part(f"costs of {rounds} rounds, {repeats} repeats", steps, measure, "time and memory")
    return [iterated.Cost(*cost) for cost in context.train(part)["costs"]]


def _problem_steps(cells: list[Cell], out: Path) -> list[int]:
    """Read how many steps the finished problems of some models took."""
    steps = []
    for cell in cells:
        folder = cell.folder(out / "benchmark") / "run"
        if (folder / "metrics.csv").exists():
            for row in RunFolder(folder).read_metrics():
                if row.get("problem steps"):
                    steps.append(int(float(row["problem steps"])))
    return steps


def _table(measured: Measured, results: Results) -> Table:
    axis = measured.axis
    kinds = {"test": "unseen test", "held_out": "held-out training"}
    (other,) = kinds.keys() - {axis.measure}
    rows = []
    for number_of_point, point in enumerate(measured.points):
        finished = results[number_of_point]
        others = [100 * getattr(model, other)[axis.metric] for model in finished if getattr(model, other)]
        steps = [model.best_step for model in finished if model.best_step is not None]
        values = str(replace(point, series="")).removeprefix(", ")
        metrics: Any = measured.metrics[number_of_point]
        if np.isnan(metrics).any():
            metrics = None
        count = number(len(finished), digits=0, ranked=False)
        rows.append([point.series, values, metrics, _mean(others), _mean(steps), count])
    columns = ["series", Column("point", "left"), Column(axis.metric, best="most")]
    columns += ["the other classes", "best step", "models"]
    note = f"{axis.metric} on {kinds[axis.measure]} classes; the other: {kinds[other]} classes"
    return tabulate(columns, rows, digits=(0, 2, 2, 0, 0), title=axis.title, notes=[note])


def _mean(values: Sequence[float]) -> float | None:
    if not values or np.isnan(values).any():
        return None
    return float(np.mean(values))


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
    data="data of lookalike benchmark; without it, letters are drawn",
    choices=f"--set axis=NAME: {', '.join(axes())}",
)
