"""The report of a benchmark folder: reads the cells, groups them into rows, and compares the rows.

The way of a result: ``lookalike benchmark`` writes result.json (``experiments.cells``), ``experiments.results`` reads
it as a ``CellResult``, and ``experiments.sections`` groups these into rows. This module adds comparisons, joined models
and published numbers to each ``Row``. ``benchmark_tables``, ``benchmark_page``, ``benchmark_plot`` and
``benchmark_json`` format the rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lookalike._util.suggestions import did_you_mean
from lookalike.data.files import counted
from lookalike.experiments.joined import MOST, JoinError, check_joinable, join_row
from lookalike.experiments.protocol import built_in_protocol
from lookalike.experiments.results import RESULTS_VERSION, CellResult, read_results
from lookalike.experiments.rows import Row
from lookalike.experiments.sections import Section, group_sections
from lookalike.experiments.significance import compare
from lookalike.report.published_numbers import find_published

DEFAULT_METRICS = ("MAP@R", "P@1")
COUNTS = ("queries", "left_out")  # among the test metrics, but not metrics


@dataclass(frozen=True)
class Report:
    """Everything that tables, page and JSON show.

    Attributes:
        folder: results folder.
        metrics: the first one decides comparisons.
        cells: all that could be read, finished or not.
        unreadable: cell folders that could not be read, with the reason.
        sections: the tables.
    """

    folder: Path
    metrics: tuple[str, ...]
    cells: list[CellResult]
    unreadable: list[tuple[Path, str]]
    sections: list[Section]

    @property
    def outdated_note(self) -> str:
        """One line about results of another RESULTS_VERSION; empty if there are none."""
        count = sum(cell.status == "done" and cell.is_outdated for cell in self.cells)
        if not count:
            return ""
        return (
            f"{counted(count, 'result')} of another version than {RESULTS_VERSION}, in tables of their own: "
            "outdated, lookalike benchmark computes them again."
        )


def build_report(
    folder: Path,
    metric: str = DEFAULT_METRICS[0],
    baseline: str | None = None,
    *,
    join: bool = True,
    bar: Callable[[int], Any] | None = None,
) -> Report:
    """Read a results folder and compare its rows.

    Args:
        folder: the ``--out`` of ``lookalike benchmark``.
        metric: the metric that rows are compared by.
        baseline: title of the row to compare with; None: the same loss with average pooling.
        join: measure the joined models of all folds, too.
        bar: ``bar(n)`` opens a context with a progress bar over n combinations.

    Raises:
        ValueError: there are no results, or no such metric or row.
    """
    cells, unreadable = read_results(folder)
    finished = [cell for cell in cells if cell.status == "done"]
    if not any(cell.status in ("done", "failed") for cell in cells):
        raise ValueError(_describe_empty(folder, len(cells), unreadable))
    sections = group_sections(cells, planned_folds(cell.protocol for cell in finished))
    rows = [row for section in sections for row in section.rows]
    _check_metric(metric, finished)
    if baseline is not None:
        _check_baseline(baseline, rows)
    metrics = tuple(dict.fromkeys((metric, *DEFAULT_METRICS)))
    if join:
        _join_rows(rows, folder, bar)
    for section in sections:
        for row in section.rows:
            row.baseline = section.baseline_of(row, baseline)
            if row.baseline is not row:
                row.comparison = compare(row, row.baseline, metric)
            for name in metrics:
                row.published[name] = find_published(row, name, row.dim or 0)
                if row.joined is not None:
                    row.published_joined[name] = find_published(row, name, row.joined.dim)
    return Report(folder, metrics, cells, unreadable, sections)


def planned_folds(protocol_names: Iterable[str]) -> dict[str, int]:
    """How many folds each protocol trains, for those that come with the package."""
    folds = {}
    for name in set(protocol_names):
        protocol = built_in_protocol(name)
        if protocol is not None:
            folds[name] = protocol.split.models
    return folds


def reports_best(protocol_name: str) -> bool:
    """Whether this protocol reports the best repeat, as its published numbers do."""
    protocol = built_in_protocol(protocol_name)
    return protocol is not None and protocol.report == "best"


def has_tables(protocol_name: str) -> bool:
    """Whether there are published tables to print beside the results of this protocol."""
    protocol = built_in_protocol(protocol_name)
    return protocol is not None and bool(protocol.tables)


def _describe_empty(folder: Path, unfinished: int, unreadable: Sequence[tuple[Path, str]]) -> str:
    if unreadable:
        path, reason = unreadable[0]
        return f"{folder} has no results that can be read: {path.name}: {reason}"
    if unfinished == 1:
        return f"{folder} has no results yet: 1 model is unfinished"
    if unfinished:
        return f"{folder} has no results yet: {unfinished} models are unfinished"
    return f"{folder} has no results: give the --out folder of lookalike benchmark"


def _check_metric(metric: str, results: Sequence[CellResult]) -> None:
    for result in results:
        if metric not in result.test or metric in COUNTS:
            names = [name for name in results[0].test if name not in COUNTS]
            raise ValueError(f"metric must be one of {', '.join(names)}, got {metric!r}{did_you_mean(metric, names)}")


def _check_baseline(baseline: str, rows: Sequence[Row]) -> None:
    titles: list[str] = []
    for row in rows:
        titles += [row.cell.title, row.title]
    if baseline not in titles:
        names = list(dict.fromkeys(titles))
        hint = did_you_mean(baseline, names) or f"; there are: {', '.join(names)}"
        raise ValueError(f"no row is called {baseline!r}{hint}")


def _join_rows(rows: Sequence[Row], folder: Path, bar: Callable[[int], Any] | None) -> None:
    """Set ``joined`` of every row whose models can be joined, and ``not_joined`` of the others."""
    joinable = []
    for row in rows:
        try:
            check_joinable(row)
            joinable.append(row)
        except JoinError as reason:
            row.not_joined = str(reason)

    def join_all(tick: Callable[[int], None]) -> None:
        for row in joinable:
            try:
                row.joined = join_row(row, folder, tick)
            except JoinError as reason:
                row.not_joined = str(reason)

    if bar is None or not joinable:
        join_all(lambda _: None)
        return
    with bar(sum(len(row.combinations(MOST)) for row in joinable)) as tick:
        join_all(tick)
