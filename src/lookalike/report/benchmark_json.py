"""The report of a benchmark for scripts. Figures are fractions; published numbers percent, as printed."""

from dataclasses import asdict
from typing import Any

from lookalike.experiments.published import Published
from lookalike.report.benchmark import Entry, Part, Report


def as_dict(report: Report) -> dict[str, Any]:
    return {
        "folder": str(report.folder),
        "metric": report.metrics[0],
        "sections": [_part(part) for part in report.parts],
        "unreadable": [{"cell": path.name, "reason": reason} for path, reason in report.found.unreadable],
    }


def _part(part: Part) -> dict[str, Any]:
    section = part.section
    return {
        **{name: getattr(section, name) for name in ("protocol", "data", "code", "tested")},
        "rows": [_entry(entry) for entry in part.entries],
        "failed": [
            {"title": about.title, "fold": about.fold, "repeat": about.repeat, "error": error}
            for about, error in section.failed
        ],
        "unfinished": [
            {"title": about.title, "fold": about.fold, "repeat": about.repeat} for about in section.unfinished
        ],
    }


def _entry(entry: Entry) -> dict[str, Any]:
    row, joint = entry.row, entry.joined
    steered = row.steered()
    return {
        "title": row.title,
        "loss": str(row.about.loss),
        "pooling": str(row.about.pooling),
        "methods": [str(method) for method in row.about.methods],
        "models": len(row.results),
        "missing": [{"fold": fold, "repeat": repeat} for fold, repeat in row.missing],
        "differing_settings": list(row.mixed),
        "dim": row.results[0].dim if row.results else None,
        "figures": {metric: summary._asdict() for metric, summary in entry.figures.items()},
        "best_repeat": {metric: steered.test[metric] for metric in entry.figures} if steered else None,
        "joined": joint and {"dim": joint.dim, **{metric: joint.summary(metric)._asdict() for metric in entry.figures}},
        "not_joined": entry.not_joined,
        "baseline": entry.baseline.title,
        "against_baseline": entry.against and asdict(entry.against),
        "relative_change_in_percent": entry.relative and entry.relative[0],
        "published": _published(entry.published),
        "published_joined": _published(entry.published_joined),
        "best_step": entry.best_step and {"mean": entry.best_step[0], "std": entry.best_step[1]},
        "cost": asdict(entry.cost),
    }


def _published(found: dict[str, tuple[Published, ...]]) -> list[dict[str, Any]]:
    return [
        {
            "metric": metric,
            "table": each.table,
            "method": each.method,
            "mean": each.mean,
            "std": each.std,
            "note": each.note,
        }
        for metric, several in found.items()
        for each in several
    ]
