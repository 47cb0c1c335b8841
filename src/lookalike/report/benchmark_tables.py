"""The tables of a benchmark: metrics, costs, and one of everything for a spreadsheet."""

from collections.abc import Sequence
from typing import Any

from lookalike.experiments.published import Published
from lookalike.experiments.rows import Row, Summary
from lookalike.experiments.sections import Section, frozen_features
from lookalike.experiments.significance import Comparison
from lookalike.report.benchmark import Report, has_tables, reports_best
from lookalike.report.benchmark_notes import INCOMPLETE, OTHERWISE, notes
from lookalike.report.published_numbers import (
    NONE,
    describe_published,
    differences_from_protocol,
    explain_published,
    has_published,
)
from lookalike.report.tables import Column, Entry, Line, Table, number, words


def metrics_table(section: Section, metrics: tuple[str, ...]) -> Table:
    """The table of a section: metrics, comparison by the first of them with the baseline, and published numbers.

    Rows that are not complete are never marked as best.
    """
    rows = section.rows
    dim_suffix = _dim_suffix([row.dim for row in rows], otherwise="")
    joined_suffix = _dim_suffix([_joined_dim(row) for row in rows], otherwise=" joined")
    has_joined = any(row.joined for row in rows)
    shows_best_repeat = reports_best(section.protocol)
    published = [metric for metric in metrics if any(row.published[metric] for row in rows)]
    published_joined = [metric for metric in metrics if any(row.published_joined.get(metric) for row in rows)]

    columns = [Column("method", "left")]
    columns += _metric_columns(f"{{}}{dim_suffix}, %", metrics)
    if shows_best_repeat:
        columns += _metric_columns("{} of the best repeat", metrics)
    if has_joined:
        columns += _metric_columns(f"{{}}{joined_suffix}, %", metrics)
    columns += [Column(f"{metrics[0]} against baseline, points"), Column("p, t-test"), Column("p, Wilcoxon")]
    columns.append(Column("best step"))
    for metric in published:
        columns.append(Column(f"published {metric}{dim_suffix}", "left"))
    for metric in published_joined:
        columns.append(Column(f"published {metric}{joined_suffix}", "left"))

    compares_losses = len({str(row.cell.loss) for row in rows}) == len(rows)  # one row for each loss
    lines = []
    for title, frozen in frozen_features(section).items():
        entries = [words(title)]
        entries += [number(100 * frozen["metrics"][metric], ranked=False) for metric in metrics]
        entries += [words("")] * (len(columns) - len(entries))
        lines.append(Line(entries, title))
    for row in rows:
        entries = [words(row.title if row.is_complete else f"{row.title} {INCOMPLETE}")]
        for metric in metrics:
            entries.append(_percent(row.summary(metric), row.is_complete))
        if shows_best_repeat:
            entries += _best_repeat_entries(row, metrics)
        if has_joined:
            entries += _joined_entries(row, metrics)
        entries += _comparison_entries(row.comparison)
        entries.append(number(*row.best_step(), digits=0, ranked=False))
        for metric in published:
            entries.append(_published_entry(row.published[metric], row))
        for metric in published_joined:
            entries.append(_published_entry(row.published_joined.get(metric, ()), row))
        lines.append(Line(entries, "" if compares_losses else str(row.cell.loss)))

    all_notes = notes(section)
    if not published and not published_joined and has_tables(section.protocol):
        all_notes.append(f"Beside these rows there is {NONE}.")
    return Table(columns, lines, section.title, tuple(all_notes))


def costs_table(section: Section) -> Table:
    """Parameters, time and memory of each row."""
    on_gpu = any(result.device == "cuda" for result in section.results)
    clock = "" if on_gpu else "CPU "
    columns = [
        Column("method", "left"),
        Column("parameters of the pooling"),
        Column("of the whole head"),
        Column(f"{clock}ms per step"),
        Column("memory at most, MB"),
        Column(f"{clock}minutes per model"),
        Column("models"),
    ]
    lines = []
    for row in section.rows:
        cost = row.cost()
        minutes = None if cost.seconds is None else cost.seconds / 60
        entries = [
            words(row.title),
            number(cost.pooling_parameters, digits=0, ranked=False),
            number(cost.head_parameters, digits=0, ranked=False),
            number(cost.milliseconds_per_step, digits=1, ranked=False),
            number(cost.megabytes, digits=0, ranked=False),
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
    more_names += ["pooling parameters", "ms per step", "MB", "not as published"]
    columns += [Column(name) for name in more_names]
    lines = []
    for section in report.sections:
        for title, frozen in frozen_features(section).items():
            lines.append(Line(_frozen_entries(section, title, frozen, columns)))
        for row in section.rows:
            lines.append(Line(_spreadsheet_entries(row, report.metrics)))
    return Table(columns, lines)


def _frozen_entries(section: Section, title: str, frozen: dict[str, Any], columns: Sequence[Column]) -> list[Entry]:
    known: dict[str, Entry] = {
        "protocol": words(section.protocol),
        "data": words(section.data),
        "version": words(section.version),
        "method": words(title),
        "dim": number(frozen["dim"]),
    }
    for metric, value in frozen["metrics"].items():
        known[metric] = number(100 * value)
    return [known.get(column.title, words("")) for column in columns]


def _spreadsheet_entries(row: Row, metrics: tuple[str, ...]) -> list[Entry]:
    assert row.baseline is not None
    cell, cost = row.cell, row.cost()
    comparison = row.comparison or Comparison(0)
    methods = " + ".join(map(str, cell.methods))
    texts = (cell.protocol, cell.data, cell.version, row.title, str(cell.loss), str(cell.pooling), methods)
    entries = list(map(words, texts))
    entries += [number(len(row.results)), number(len(row.missing)), number(row.dim)]
    for metric in metrics:
        entries.append(_percent(row.summary(metric)))
        entries.append(_percent(row.joined.summary(metric) if row.joined else None))
        published = row.published[metric]
        if published:
            entries.append(number(published[0].mean, published[0].std))
        else:
            entries.append(number(None))
    entries += [
        number(_joined_dim(row)),
        number(_times_100(comparison.difference)),
        number(comparison.pairs),
        number(comparison.t_test),
        number(comparison.wilcoxon),
        words(row.baseline.title),
        number(*row.best_step()),
        number(cost.pooling_parameters),
        number(cost.milliseconds_per_step),
        number(cost.megabytes),
        words("; ".join(differences_from_protocol(row)) if has_published(row) else ""),
    ]
    return entries


def _metric_columns(title: str, metrics: Sequence[str]) -> list[Column]:
    return [Column(title.format(metric), best="most") for metric in metrics]


def _joined_dim(row: Row) -> int | None:
    return None if row.joined is None else row.joined.dim


def _dim_suffix(dims: Sequence[int | None], otherwise: str) -> str:
    """Size of the embedding for a column title; ``otherwise`` if rows differ in it."""
    distinct = set(dims) - {None}
    if len(distinct) != 1:
        return otherwise
    return f" {distinct.pop()}-D"


def _best_repeat_entries(row: Row, metrics: Sequence[str]) -> list[Entry]:
    best = row.best_repeat()
    if best is None:
        return [number(None)] * len(metrics)
    return [number(100 * best.test[metric], ranked=row.is_complete) for metric in metrics]


def _joined_entries(row: Row, metrics: Sequence[str]) -> list[Entry]:
    if row.joined is None:
        return [number(None, hint=row.not_joined)] * len(metrics)
    return [_percent(row.joined.summary(metric), row.is_complete) for metric in metrics]


def _comparison_entries(comparison: Comparison | None) -> list[Entry]:
    if comparison is None:
        return [words("baseline"), number(None), number(None)]
    difference = number(_times_100(comparison.difference), _times_100(comparison.spread), sign=True, ranked=False)
    hint = comparison.reason or f"{comparison.pairs} pairs"
    return [difference, _p_value(comparison.t_test, hint), _p_value(comparison.wilcoxon, hint)]


def _published_entry(numbers: tuple[Published, ...], row: Row) -> Entry:
    text = describe_published(numbers)
    if numbers and differences_from_protocol(row):
        text += f" {OTHERWISE}"
    return words(text, explain_published(numbers, row))


def _p_value(value: float | None, hint: str) -> Entry:
    if value is None:
        return number(None, hint=hint)
    text = "< 0.001" if value < 0.001 else f"{value:.3f}"
    return Entry(text, value, hint=hint)


def _percent(summary: Summary | None, ranked: bool = True) -> Entry:
    if summary is None:
        return number(None)
    return number(100 * summary.mean, _times_100(summary.std), ranked=ranked)


def _times_100(value: float | None) -> float | None:
    return None if value is None else 100 * value
