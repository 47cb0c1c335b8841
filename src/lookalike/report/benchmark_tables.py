"""The tables of a benchmark: metrics, costs, and one of everything for a spreadsheet."""

from collections.abc import Sequence

from lookalike.experiments.joined import Joined
from lookalike.experiments.published import Published
from lookalike.experiments.rows import Row, Section, Summary
from lookalike.experiments.significance import Comparison
from lookalike.report.benchmark import Report, reports_best
from lookalike.report.benchmark_notes import INCOMPLETE, notes
from lookalike.report.published_numbers import NONE, describe_published, explain_published
from lookalike.report.tables import Column, Entry, Line, Table, number, words


def metrics_table(section: Section, metrics: tuple[str, ...]) -> Table:
    """The table of a section: metrics, comparison with the baseline, and published numbers.

    Rows that are not complete are never marked as best.

    Args:
        section: of a report.
        metrics: names of test metrics; the first one is compared with the baseline.
    """
    rows = section.rows
    dim_suffix = _dim_suffix({row.dim for row in rows if row.dim is not None}, otherwise="")
    joined_dims = {row.joined.dim for row in rows if row.joined is not None}
    joined_suffix = _dim_suffix(joined_dims, otherwise=" joined")
    shows_best_repeat = reports_best(section.protocol)
    published = [metric for metric in metrics if any(row.published[metric] for row in rows)]
    published_joined = [metric for metric in metrics if any(row.published_joined.get(metric) for row in rows)]

    columns = [Column("method", "left")]
    columns += [Column(f"{metric}{dim_suffix}, %", best="most") for metric in metrics]
    if shows_best_repeat:
        columns += [Column(f"{metric} of the best repeat", best="most") for metric in metrics]
    if joined_dims:
        columns += [Column(f"{metric}{joined_suffix}, %", best="most") for metric in metrics]
    columns += [Column(f"{metrics[0]} against baseline, points"), Column("p, t-test"), Column("p, Wilcoxon")]
    columns.append(Column("best step"))
    columns += [Column(f"published {metric}{dim_suffix}", "left") for metric in published]
    columns += [Column(f"published {metric}{joined_suffix}", "left") for metric in published_joined]

    losses = [str(row.cell.loss) for row in rows]
    compares_losses = len(set(losses)) == len(losses)  # one row for each loss
    lines = []
    for row in rows:
        ranked = row.is_complete
        entries = [words(row.title if row.is_complete else f"{row.title} {INCOMPLETE}")]
        entries += [_percent(row.summary(metric), ranked) for metric in metrics]
        if shows_best_repeat:
            entries += _best_repeat_entries(row, metrics)
        if joined_dims:
            hint = row.not_joined if row.joined is None else ""
            entries += [_percent(_joined_summary(row.joined, metric), ranked, hint) for metric in metrics]
        entries += _comparison_entries(row.comparison)
        entries.append(number(*row.best_step(), digits=0, ranked=False))
        entries += [_published_entry(row.published[metric], row) for metric in published]
        entries += [_published_entry(row.published_joined.get(metric, ()), row) for metric in published_joined]
        lines.append(Line(entries, "" if compares_losses else str(row.cell.loss)))

    all_notes = notes(section)
    if not published and not published_joined:
        all_notes.append(f"Beside these rows there is {NONE}.")
    return Table(columns, lines, section.title, tuple(all_notes))


def costs_table(section: Section) -> Table:
    """Parameters, time and memory of each row."""
    columns = [
        Column("method", "left"),
        Column("parameters of the pooling"),
        Column("of the whole head"),
        Column("ms per step", best="least"),
        Column("memory at most, MB", best="least"),
        Column("minutes per model"),
        Column("models"),
    ]
    lines = []
    for row in section.rows:
        cost = row.cost()
        minutes = cost.seconds / 60 if cost.seconds is not None else None
        entries = [
            words(row.title),
            number(cost.pooling_parameters, digits=0, ranked=False),
            number(cost.head_parameters, digits=0, ranked=False),
            number(cost.milliseconds_per_step, digits=1),
            number(cost.megabytes, digits=0),
            number(minutes, digits=1, ranked=False),
            number(len(row.results), digits=0, ranked=False),
        ]
        lines.append(Line(entries))
    machines = {f"{result.device}, {result.threads} threads" for result in section.results}
    table_notes: tuple[str, ...] = ()
    if len(machines) > 1:
        table_notes = (f"Made on different machines ({'; '.join(sorted(machines))}): times do not compare.",)
    return Table(columns, lines, f"Costs: {section.title}", table_notes)


def spreadsheet_table(report: Report) -> Table:
    """Every row of every section with values in percent, for machines to read."""
    names = ["protocol", "data", "version", "method", "loss", "pooling", "methods", "models", "missing", "dim"]
    columns = [Column(name, "left") for name in names]
    for metric in report.metrics:
        columns += [Column(metric), Column(f"{metric} joined"), Column(f"{metric} published")]
    more_names = ["joined dim", "difference", "pairs", "p t-test", "p Wilcoxon", "baseline", "best step"]
    more_names += ["pooling parameters", "ms per step", "MB"]
    columns += [Column(name) for name in more_names]
    lines = []
    for section in report.sections:
        for row in section.rows:
            lines.append(Line(_spreadsheet_entries(row, report.metrics)))
    return Table(columns, lines)


def _spreadsheet_entries(row: Row, metrics: tuple[str, ...]) -> list[Entry]:
    assert row.baseline is not None
    cell, cost = row.cell, row.cost()
    comparison = row.comparison or Comparison(0)
    methods = " + ".join(map(str, cell.methods))
    texts = (cell.protocol, cell.data, cell.version, row.title, str(cell.loss), str(cell.pooling), methods)
    entries = [words(text) for text in texts]
    entries += [number(len(row.results)), number(len(row.missing)), number(row.dim)]
    for metric in metrics:
        entries.append(_percent(row.summary(metric)))
        entries.append(_percent(_joined_summary(row.joined, metric)))
        published = row.published[metric]
        if published:
            entries.append(number(published[0].mean, published[0].std))
        else:
            entries.append(number(None))
    entries += [
        number(row.joined.dim if row.joined is not None else None),
        number(_times_100(comparison.difference)),
        number(comparison.pairs),
        number(comparison.t_test),
        number(comparison.wilcoxon),
        words(row.baseline.title),
        number(*row.best_step()),
        number(cost.pooling_parameters),
        number(cost.milliseconds_per_step),
        number(cost.megabytes),
    ]
    return entries


def _dim_suffix(dims: set[int], otherwise: str) -> str:
    """The size of the embedding for a column title, if all rows have the same."""
    if len(dims) != 1:
        return otherwise
    return f" {next(iter(dims))}-D"


def _best_repeat_entries(row: Row, metrics: Sequence[str]) -> list[Entry]:
    best = row.best_repeat()
    if best is None:
        return [number(None) for _ in metrics]
    return [number(100 * best.test[metric], ranked=row.is_complete) for metric in metrics]


def _comparison_entries(comparison: Comparison | None) -> list[Entry]:
    if comparison is None:
        return [words("baseline"), number(None), number(None)]
    difference = number(_times_100(comparison.difference), _times_100(comparison.spread), sign=True, ranked=False)
    hint = comparison.reason or f"{comparison.pairs} pairs"
    return [difference, _p_value(comparison.t_test, hint), _p_value(comparison.wilcoxon, hint)]


def _published_entry(numbers: tuple[Published, ...], row: Row) -> Entry:
    return words(describe_published(numbers), explain_published(numbers, row))


def _p_value(value: float | None, hint: str) -> Entry:
    if value is None:
        return number(None, hint=hint)
    text = "< 0.001" if value < 0.001 else f"{value:.3f}"
    return Entry(text, value, hint=hint)


def _joined_summary(joined: Joined | None, metric: str) -> Summary | None:
    return None if joined is None else joined.summary(metric)


def _percent(summary: Summary | None, ranked: bool = True, hint: str = "") -> Entry:
    if summary is None:
        return number(None, hint=hint)
    return number(100 * summary.mean, _times_100(summary.std), ranked=ranked, hint=hint)


def _times_100(value: float | None) -> float | None:
    return None if value is None else 100 * value
