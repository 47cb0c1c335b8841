"""What a study leaves behind: figures as PNG and SVG, tables as CSV, numbers as JSON, and one page with everything."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.files import write_text
from lookalike.report import page
from lookalike.report.look import as_bytes, save
from lookalike.report.tables import Column, Line, Table, words
from lookalike.studies.study import Findings, Study

PAGE, NUMBERS = "index.html", "numbers.json"
SHOWN = 60  # letters of a value on the page


def leave(study: Study, settings: Any, found: Findings, out: Path, run: dict[str, Any]) -> list[Path]:
    """Write all of it into ``out``; ``run`` says how it was run: command, seconds and the like."""
    written = [path for name, (drawn, _) in found.figures.items() for path in save(drawn, out / name)]
    for name, table in found.tables.items():
        write_text(out / f"{name}.csv", table.csv())
        written.append(out / f"{name}.csv")
    numbers = {
        "study": study.name,
        "settings": asdict(settings),
        "reduced": {name: {"paper": full, "here": here} for name, (full, here) in study.reduced(settings).items()},
        "claims": [asdict(claim) for claim in found.claims],
        **run,
        **found.numbers,
    }
    write_text(out / NUMBERS, json.dumps(numbers, indent=2, default=_plain) + "\n")
    write_text(out / PAGE, as_page(study, settings, found, run))
    return [*written, out / NUMBERS, out / PAGE]


def claims_table(found: Findings) -> Table:
    columns = [Column("the papers", "left"), Column("here", "left"), Column("", "left")]
    lines = [Line([words(claim.paper), words(claim.here), words(claim.verdict)]) for claim in found.claims]
    return Table(columns, lines)


def in_words(study: Study, settings: Any, found: Findings, out: Path) -> str:
    """For the terminal."""
    lines = [study.title, ""]
    for table in found.tables.values():
        lines += [table.text(), ""]
    for claim in found.claims:
        lines += [f"{claim.verdict}: {claim.paper}", f"  here: {claim.here}"]
    lines += found.notes
    reduced = study.reduced(settings)
    if reduced:
        changes = ", ".join(f"{name} {_short(here)} (full: {_short(full)})" for name, (full, here) in reduced.items())
        lines.append(f"Not the full setting: {changes}")
    return "\n".join([*lines, f"To look at: {out / PAGE}"])


def as_page(study: Study, settings: Any, found: Findings, run: dict[str, Any]) -> str:
    parts = [page.paragraph(study.about), page.paragraph(f"Source: {study.source}", faint=True)]
    parts.append(page.heading("What the papers saw, and what was seen here"))
    for claim in found.claims:
        parts.append(page.heading(claim.verdict, 3))
        parts.append(page.pairs({"papers": claim.paper, "here": claim.here}))
    parts += [page.paragraph(note) for note in found.notes]
    for name, (drawn, caption) in found.figures.items():
        parts.append(page.picture(as_bytes(drawn, "png"), "png", caption or name, caption))
    parts += [table.html() for table in found.tables.values()]
    parts.append(page.heading("Settings"))
    reduced = study.reduced(settings)
    if reduced:
        parts.append(page.paragraph("Not the full setting; what differs from it:"))
        changed = {name: f"{_short(here)} instead of {_short(full)}" for name, (full, here) in reduced.items()}
        parts.append(page.pairs(changed))
    parts.append(page.pairs({name: _short(each) for name, each in asdict(settings).items()}))
    parts.append(page.heading("How it was run"))
    parts.append(page.pairs(run))
    return page.page(study.title, parts)


def _short(each: Any) -> str:
    text = ", ".join(map(str, each)) if isinstance(each, (list, tuple)) else str(each)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


def _plain(each: Any) -> Any:
    if isinstance(each, np.ndarray):
        return each.tolist()
    if isinstance(each, np.generic):
        return each.item()
    return str(each)
