"""What a search has found: a table, plots as PNG and SVG, and a page."""

from dataclasses import replace
from pathlib import Path
from statistics import stdev

from lookalike._util.files import write_text
from lookalike.report import html, theme
from lookalike.report.tables import Column, Entry, Line, Table, number, words
from lookalike.report.tuning_plots import effects_of, plots
from lookalike.tuning.results import Findings
from lookalike.tuning.space import format_value, searched, short_names

HOW_TO_READ = """Figures are of classes that were held out from training, in percent, and the best of many: they
flatter. The test classes had no part in it; measure the settings that were chosen on those, once."""
ORDER = ("done", "pruned", "running", "failed")


def write(found: Findings, out: Path) -> list[Path]:
    """tuning.html, trials.csv, best.yaml, and the plots."""
    drawn = plots(found)
    written = [path for name, (each, _) in drawn.items() for path in theme.save(each, out / name)]
    parts = [html.paragraph(" ".join(HOW_TO_READ.split()))]
    if found.best is not None:
        parts += [html.heading("The best settings"), html.paragraph(best_in_words(found)), html.code(found.train)]
        parts += [html.heading("For --config", 3), html.code(found.config)]
    parts += [html.heading("Plots")] if drawn else []
    for name, (_, caption) in drawn.items():
        parts.append(html.picture((out / f"{name}.svg").read_bytes(), "svg", f"{name}: {caption}", caption))
    if effects := effects_table(found):
        parts += [html.heading("Main effects"), effects.html()]
    parts += [html.heading("Trials"), trials_table(found).html()]
    parts += [html.heading("What was run"), html.pairs({**found.about, **searched(found.space)})]
    if found.open:
        parts += [html.heading("What the source leaves open", 3), html.listing(found.open)]
    files = {"tuning.html": html.document(found.title, parts), "trials.csv": trials_table(found, every=True).csv()}
    files |= {"best.yaml": found.config} if found.best is not None else {}
    for name, text in files.items():
        write_text(out / name, text)
    return [*written, *(out / name for name in files)]


def trials_table(found: Findings, every: bool = False) -> Table:
    """The best first. every: also what only a machine wants to know."""
    short = short_names(found.space)
    columns = [Column("trial", "right"), *(Column(short[name]) for name in found.space)]
    columns += [Column(f"{found.monitor}, %", best="most"), Column("steps"), Column("seconds"), Column("", "left")]
    columns += [Column(found.published_as)] if found.published else []
    lines = []
    for record in sorted(found.records, key=lambda each: (ORDER.index(each.state), -(each.value or 0), each.number)):
        entries = [Entry(str(record.number), record.number)]
        for name in found.space:
            value = record.params.get(name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            entries.append(Entry(format_value(value), float(value) if is_number and value is not None else None))
        entries.append(number(None if record.value is None else 100 * record.value, _spread(record.runs)))
        entries.append(number(record.steps, digits=0, ranked=False))
        entries.append(number(record.seconds, digits=0, ranked=False))
        entries.append(words(record.error if record.error and every else record.state, record.error))
        if found.published:
            entries.append(number(found.published.get(record.number), ranked=False))
        lines.append(Line(entries))
    notes = [f"trial {record.number}: {record.error}" for record in found.records if record.error]
    return Table(columns, lines, notes=notes)


def effects_table(found: Findings) -> Table | None:
    """Of settings with two values, each tried: the mean at the second less the mean at the first."""
    names = [
        name
        for name, axis in found.space.items()
        if axis.kind == "list"
        and len(axis.values) == 2
        and all(any(each.params[name] == value for each in found.done) for value in axis.values)
    ]
    if not names:
        return None
    done = found.done
    columns = [Column("setting", "left"), Column("from"), Column("to"), Column(f"change of {found.monitor}, points")]
    has_all = bool(found.published) and all(record.number in found.published for record in found.records)
    columns += [Column(found.published_as)] if has_all else []
    theirs = [replace(record, value=found.published[record.number]) for record in found.records] if has_all else []
    lines, short = [], short_names(found.space)
    for name in names:
        values = found.space[name].values
        entries = [words(short[name]), *(words(format_value(value)) for value in values)]
        entries.append(number(100 * effects_of(done, name, values), sign=True, ranked=False))
        if has_all:
            entries.append(number(effects_of(theirs, name, values), sign=True, ranked=False))
        lines.append(Line(entries))
    lacking = len(found.records) - len(done)
    notes = [f"{lacking} trials have no figure: these effects are not those of the design"] if lacking else []
    return Table(columns, lines, notes=notes)


def best_in_words(found: Findings) -> str:
    best = found.best
    if best is None or best.value is None:
        return "no trial came to an end"
    spread = _spread(best.runs)
    figure = f"{100 * best.value:.2f}" if spread is None else f"{100 * best.value:.2f} ± {spread:.2f}"
    over = f", the mean of {len(best.runs)} runs" if len(best.runs) > 1 else ""
    return f"trial {best.number} of {len(found.records)}: {found.monitor} {figure} on held-out classes{over}"


def _spread(runs: list[float]) -> float | None:
    return 100 * stdev(runs) if len(runs) > 1 else None
