"""What a study leaves behind: figures as PNG, SVG and the numbers they show, tables as CSV, all that was measured as
JSON, and one page with everything."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import numpy as np

from lookalike._util.files import write_text
from lookalike.report import html
from lookalike.report.figure_data import read_figure
from lookalike.report.tables import Column, Line, Table, words
from lookalike.report.theme import as_bytes, save
from lookalike_studies.framework.study import Differences, Findings, Study

PAGE, NUMBERS = "index.html", "numbers.json"
TRACES = (NUMBERS, "parts", "benchmark")  # of which a folder has one as soon as a study has begun to fill it
MINIATURE = "--miniature: this shows that everything runs; verdicts and figures mean nothing."


def require_own_numbers(out: Path, study: Study, scale: str) -> None:
    """Refuse a folder that holds another study, or a longer run of this one where only a miniature is asked for."""
    try:
        known = json.loads((out / NUMBERS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if known.get("study") != study.name:
        raise ValueError(f"{out} holds the study {known.get('study')}: choose another --out")
    if scale == "miniature" and known.get("scale") != scale:
        longer = f"{out} holds a run with --{known.get('scale')}"
        raise ValueError(f"{longer}, which a miniature would replace: choose another --out")


def leave(study: Study, settings: Any, found: Findings, out: Path, run: dict[str, Any]) -> list[Path]:
    """Write all of it into ``out``; ``run`` says how it was run: command, scale, seconds and the like."""
    numbers = {
        "study": study.name,
        "settings": asdict(settings),
        **not_full(study, settings, found),
        "claims": [asdict(claim) for claim in found.claims],
        **run,
        **found.numbers,
    }
    write_text(out / NUMBERS, as_json(numbers, indent=2) + "\n")
    written = []
    for name, (drawn, _) in found.figures.items():
        written += [*save(drawn, out / name), out / f"{name}.json"]
        write_text(written[-1], as_json(read_figure(drawn)) + "\n")
    for name, table in found.tables.items():
        write_text(out / f"{name}.csv", table.csv())
        written.append(out / f"{name}.csv")
    write_text(out / PAGE, as_page(study, settings, found, run))
    return [*written, out / NUMBERS, out / PAGE]


def not_full(study: Study, settings: Any, found: Findings) -> dict[str, Any]:
    """For JSON: what differs from the papers' setting, in the study's settings and behind them."""

    def both(differences: Differences) -> dict[str, Any]:
        return {name: {"paper": full, "here": here} for name, (full, here) in differences.items()}

    behind = {title: both(each) for title, each in found.behind.items()}
    return {"reduced": both(study.reduced(settings)), **({"behind": behind} if behind else {})}


def as_json(values: Any, indent: int | None = None) -> str:
    """As any reader takes it: NaN becomes null, infinite numbers the words inf and -inf.

    >>> as_json({"a": float("nan"), "b": [np.float32(1.5), float("inf")]})
    '{"a": null, "b": [1.5, "inf"]}'
    """
    return json.dumps(_plain(values), indent=indent, allow_nan=False)


def claims_table(found: Findings) -> Table:
    columns = [Column("the papers", "left"), Column("here", "left"), Column("", "left")]
    lines = [Line([words(claim.paper), words(claim.here), words(claim.verdict)]) for claim in found.claims]
    return Table(columns, lines)


def in_words(study: Study, settings: Any, found: Findings, out: Path, run: Mapping[str, Any]) -> str:
    """For the terminal."""
    lines = [study.title, ""]
    for table in found.tables.values():
        lines += [table.text(), ""]
    for claim in found.claims:
        lines += [f"{claim.verdict}: {claim.paper}", f"  here: {claim.here}"]
    lines += [*found.notes, *reduced_in_words(study, settings), *behind_in_words(found)]
    lines += [MINIATURE] if run["miniature"] else []
    return "\n".join([*lines, f"To look at: {out / PAGE}"])


def reduced_in_words(study: Study, settings: Any) -> list[str]:
    """One line, or none."""
    reduced = study.reduced(settings)
    return [f"Not the full setting: {_changes(reduced, 'full')}"] if reduced else []


def behind_in_words(found: Findings) -> list[str]:
    return [f"Not as in the papers: {title}: {_changes(each, 'paper')}" for title, each in found.behind.items()]


def as_page(study: Study, settings: Any, found: Findings, run: dict[str, Any]) -> str:
    parts = [html.paragraph(MINIATURE)] if run["miniature"] else []
    parts += [html.paragraph(study.about), html.paragraph(f"Source: {study.source}", faint=True)]
    parts.append(html.heading("What the papers saw, and what was seen here"))
    for claim in found.claims:
        parts.append(html.heading(claim.verdict, 3))
        parts.append(html.pairs({"papers": claim.paper, "here": claim.here}))
    parts += [html.paragraph(note) for note in found.notes]
    for name, (drawn, caption) in found.figures.items():
        parts.append(html.picture(as_bytes(drawn, "png"), "png", caption or name, caption))
    parts += [table.html() for table in found.tables.values()]
    parts.append(html.heading("Settings"))
    reduced = study.reduced(settings)
    if reduced:
        parts.append(html.paragraph("Not the full setting; what differs from it:"))
        parts.append(html.pairs(_instead(reduced)))
    for title, each in found.behind.items():
        parts.append(html.paragraph(f"Not as in the papers: {title}; what differs:"))
        parts.append(html.pairs(_instead(each)))
    if reduced or found.behind:
        parts.append(html.paragraph("All settings of the study:"))
    parts.append(html.pairs({name: _text(each) for name, each in asdict(settings).items()}))
    parts.append(html.heading("How it was run"))
    parts.append(html.pairs(run))
    return html.document(study.title, parts)


def _changes(differences: Differences, other: str) -> str:
    return ", ".join(f"{name} {_text(here)} ({other}: {_text(full)})" for name, (full, here) in differences.items())


def _instead(differences: Differences) -> dict[str, str]:
    return {name: f"{_text(here)} instead of {_text(full)}" for name, (full, here) in differences.items()}


def _text(each: Any) -> str:
    if each is None:
        return "null"
    return ", ".join(map(str, each)) if isinstance(each, (list, tuple)) else str(each)


def _plain(each: Any) -> Any:
    """Of what JSON knows: lists, dicts, words, finite numbers, null."""
    if isinstance(each, Mapping):
        return {str(name): _plain(one) for name, one in each.items()}
    if isinstance(each, (np.ndarray, np.generic)):
        return _plain(each.tolist())
    if isinstance(each, (list, tuple)):
        return [_plain(one) for one in each]
    if isinstance(each, float) and not isfinite(each):
        return None if isnan(each) else str(each)
    return each if each is None or isinstance(each, (bool, int, float, str)) else str(each)
