"""The report of a benchmark as JSON for scripts. Metrics are fractions; published numbers are percent, as printed."""

from dataclasses import asdict
from typing import Any

from lookalike.experiments.published import Published
from lookalike.experiments.results import CellResult
from lookalike.experiments.rows import Row
from lookalike.experiments.sections import Section, frozen_features
from lookalike.report.benchmark import Report
from lookalike.report.published_numbers import differences_from_protocol, has_published


def as_dict(report: Report) -> dict[str, Any]:
    """The whole report as values that JSON can hold."""
    return {
        "folder": str(report.folder),
        "metric": report.metrics[0],
        "sections": [_section_dict(section, report.metrics) for section in report.sections],
        "unreadable": [{"cell": path.name, "reason": reason} for path, reason in report.unreadable],
    }


def _section_dict(section: Section, metrics: tuple[str, ...]) -> dict[str, Any]:
    return {
        "protocol": section.protocol,
        "data": section.data,
        "version": section.version,
        "tested": section.tested,
        "frozen": frozen_features(section),
        "rows": [_row_dict(row, metrics) for row in section.rows],
        "failed": [{**_cell_dict(cell), "error": cell.error} for cell in section.failed],
        "unfinished": [_cell_dict(cell) for cell in section.unfinished],
    }


def _cell_dict(cell: CellResult) -> dict[str, Any]:
    return {"title": cell.title, "fold": cell.fold, "repeat": cell.repeat}


def _row_dict(row: Row, metrics: tuple[str, ...]) -> dict[str, Any]:
    assert row.baseline is not None
    best_step, best_step_std = row.best_step()
    change = row.change()
    return {
        "title": row.title,
        "loss": str(row.cell.loss),
        "pooling": str(row.cell.pooling),
        "methods": list(map(str, row.cell.methods)),
        "models": len(row.results),
        "missing": [{"fold": fold, "repeat": repeat} for fold, repeat in row.missing],
        "differing_settings": list(row.differing),
        "dim": row.dim,
        "figures": _summaries(row, metrics),
        "best_repeat": _best_repeat(row, metrics),
        "joined": _joined(row, metrics),
        "not_joined": row.not_joined if row.joined is None else None,
        "baseline": row.baseline.title,
        "against_baseline": asdict(row.comparison) if row.comparison is not None else None,
        "change_in_points": change[0] if change is not None else None,
        "published": _published(row.published),
        "published_joined": _published(row.published_joined),
        "not_as_published": differences_from_protocol(row) if has_published(row) else [],
        "best_step": {"mean": best_step, "std": best_step_std} if best_step is not None else None,
        "cost": row.cost()._asdict(),
    }


def _summaries(row: Row, metrics: tuple[str, ...]) -> dict[str, Any]:
    summaries = {}
    for metric in metrics:
        summary = row.summary(metric)
        if summary is not None:
            summaries[metric] = summary._asdict()
    return summaries


def _best_repeat(row: Row, metrics: tuple[str, ...]) -> dict[str, float] | None:
    best = row.best_repeat()
    if best is None:
        return None
    return {metric: best.test[metric] for metric in metrics}


def _joined(row: Row, metrics: tuple[str, ...]) -> dict[str, Any] | None:
    if row.joined is None:
        return None
    joined: dict[str, Any] = {"dim": row.joined.dim}
    for metric in metrics:
        joined[metric] = row.joined.summary(metric)._asdict()
    return joined


def _published(by_metric: dict[str, tuple[Published, ...]]) -> list[dict[str, Any]]:
    entries = []
    for metric, numbers in by_metric.items():
        for number in numbers:
            entries.append(
                {
                    "metric": metric,
                    "table": number.table,
                    "method": number.method,
                    "mean": number.mean,
                    "std": number.std,
                    "note": number.note,
                }
            )
    return entries
