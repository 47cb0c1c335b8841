"""The report of a hyperparameter search: a table, plots as PNG and SVG, and a page."""

from dataclasses import replace
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING

from lookalike._util.files import write_text
from lookalike.report import html, theme
from lookalike.report.tables import Column, Entry, Line, Table, number, words
from lookalike.report.tuning_plots import main_effect, make_plots
from lookalike.tuning.results import StudyResults, TrialResult
from lookalike.tuning.space import describe_space, format_value, is_number, short_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOW_TO_READ = """Figures are of classes that were held out from training, in percent, and the best of many: they
flatter. The test classes had no part in it; measure the settings that were chosen on those, once."""
STATE_ORDER = ("done", "pruned", "running", "failed")


def write_report(results: StudyResults, out: Path) -> list[Path]:
    """Write tuning.html, trials.csv, best.yaml and the plots into a folder."""
    plots = make_plots(results)
    paths = []
    for name, (figure, _) in plots.items():
        paths += theme.save(figure, out / name)
    files = {"tuning.html": _page(results, out, plots), "trials.csv": trials_table(results, with_errors=True).csv()}
    if results.best is not None:
        files["best.yaml"] = results.config
    for name, text in files.items():
        write_text(out / name, text)
        paths.append(out / name)
    return paths


def trials_table(results: StudyResults, with_errors: bool = False) -> Table:
    """A table of all trials, the best first.

    Args:
        results: of the search.
        with_errors: print the error of a failed trial instead of its state.
    """
    columns = [Column("trial", "right")]
    columns += map(Column, short_names(results.space).values())
    columns += [Column(f"{results.monitor}, %", best="most"), Column("steps"), Column("seconds"), Column("", "left")]
    if results.published:
        columns.append(Column(results.published_as))

    def order(trial: TrialResult) -> tuple[int, float, int]:
        return STATE_ORDER.index(trial.state), -(trial.value or 0), trial.number

    lines = []
    for trial in sorted(results.trials, key=order):
        entries = [Entry(str(trial.number), trial.number)]
        for name in results.space:
            value = trial.params.get(name)
            entries.append(Entry(format_value(value), float(value) if is_number(value) else None))
        entries.append(number(_percent(trial.value), _spread(trial.runs)))
        entries.append(number(trial.steps, digits=0, ranked=False))
        entries.append(number(trial.seconds, digits=0, ranked=False))
        ending = trial.error if with_errors and trial.error else trial.state
        entries.append(words(ending, trial.error))
        if results.published:
            entries.append(number(results.published.get(trial.number), ranked=False))
        lines.append(Line(entries))
    notes = [f"trial {trial.number}: {trial.error}" for trial in results.trials if trial.error]
    return Table(columns, lines, notes=notes)


def effects_table(results: StudyResults) -> Table | None:
    """The main effects of settings with two values: the mean at the second less the mean at the first.

    Returns:
        The table, or None if no setting has two values that were both tried.
    """
    short = short_names(results.space)
    published = _published_trials(results)
    lines = []
    for name, axis in results.space.items():
        tried = [trial.params[name] for trial in results.done]
        if axis.kind != "list" or len(axis.values) != 2 or not all(value in tried for value in axis.values):
            continue
        first, second = axis.values
        entries = [words(short[name]), words(format_value(first)), words(format_value(second))]
        entries.append(number(100 * main_effect(results.done, name, axis.values), sign=True, ranked=False))
        if published:
            entries.append(number(main_effect(published, name, axis.values), sign=True, ranked=False))
        lines.append(Line(entries))
    if not lines:
        return None
    columns = [Column("setting", "left"), Column("from"), Column("to"), Column(f"change of {results.monitor}, points")]
    if published:
        columns.append(Column(results.published_as))
    notes = []
    missing = len(results.trials) - len(results.done)
    if missing:
        notes.append(f"{missing} trials have no value, so these effects are not those of the full design")
    return Table(columns, lines, notes=notes)


def describe_best(results: StudyResults) -> str:
    """The best trial in one line."""
    best = results.best
    if best is None or best.value is None:
        return "no trial came to an end"
    value = number(100 * best.value, _spread(best.runs)).text
    text = f"trial {best.number} of {len(results.trials)}: {results.monitor} {value} on held-out classes"
    if len(best.runs) > 1:
        text += f", the mean of {len(best.runs)} runs"
    return text


def _page(results: StudyResults, out: Path, plots: dict[str, tuple["Figure", str]]) -> str:
    parts = [html.paragraph(" ".join(HOW_TO_READ.split()))]
    if results.best is not None:
        parts += [html.heading("The best settings"), html.paragraph(describe_best(results)), html.code(results.train)]
        parts += [html.heading("For --config", 3), html.code(results.config)]
    if plots:
        parts.append(html.heading("Plots"))
    for name, (_, caption) in plots.items():
        parts.append(html.picture((out / f"{name}.svg").read_bytes(), "svg", f"{name}: {caption}", caption, large=True))
    effects = effects_table(results)
    if effects is not None:
        parts += [html.heading("Main effects"), effects.html()]
    parts += [html.heading("Trials"), trials_table(results).html()]
    parts += [html.heading("What was run"), html.pairs({**results.about, **describe_space(results.space)})]
    if results.open:
        parts += [html.heading("What the source leaves open", 3), html.listing(results.open)]
    return html.document(results.title, parts)


def _published_trials(results: StudyResults) -> list[TrialResult]:
    """The trials with their published values; [] unless every trial has one."""
    trials = []
    for trial in results.trials:
        if trial.number not in results.published:
            return []
        trials.append(replace(trial, value=results.published[trial.number]))
    return trials


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _spread(runs: list[float]) -> float | None:
    """Standard deviation over the runs, in percent."""
    return 100 * stdev(runs) if len(runs) > 1 else None
