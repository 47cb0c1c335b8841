"""Files of a study: figures (PNG, SVG, JSON), tables (CSV), all measurements (JSON) and one page."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import numpy as np

from lookalike._util.files import write_text
from lookalike.report import html
from lookalike.report.theme import save
from lookalike_studies.framework.figure_data import read_figure
from lookalike_studies.framework.study import Differences, Study, StudyResult

PAGE, NUMBERS = "index.html", "numbers.json"
TRACES = (NUMBERS, "parts", "benchmark")  # a folder with one of these belongs to a study
MINIATURE = "--miniature: this shows that everything runs; verdicts and figures mean nothing."


def check_folder(out: Path, study: Study, scale: str) -> None:
    """Refuse with ValueError a folder of another study, or of a longer run that a miniature would replace."""
    try:
        numbers = json.loads((out / NUMBERS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if numbers.get("study") != study.name:
        raise ValueError(f"{out} holds the study {numbers.get('study')}: choose another --out")
    if scale == "miniature" and numbers.get("scale") != scale:
        longer = f"{out} holds a run with --{numbers.get('scale')}"
        raise ValueError(f"{longer}, which a miniature would replace: choose another --out")


def write_outputs(study: Study, settings: Any, result: StudyResult, out: Path, run: dict[str, Any]) -> list[Path]:
    """Write all files of a study and return their paths; ``run`` says how it was run."""
    numbers = {
        "study": study.name,
        "settings": asdict(settings),
        **describe_differences(study, settings, result),
        "claims": [asdict(claim) for claim in result.claims],
        **run,
        **result.numbers,
    }
    write_text(out / NUMBERS, as_json(numbers, indent=2) + "\n")
    written = []
    pictures = {}  # drawing one takes seconds
    for name, (figure, _) in result.figures.items():
        write_text(out / f"{name}.json", as_json(read_figure(figure)) + "\n")
        written += [*save(figure, out / name), out / f"{name}.json"]
        pictures[name] = (out / f"{name}.png").read_bytes()
    for name, table in result.tables.items():
        write_text(out / f"{name}.csv", table.csv())
        written.append(out / f"{name}.csv")
    write_text(out / PAGE, render_page(study, settings, result, run, pictures))
    return [*written, out / NUMBERS, out / PAGE]


def describe_differences(study: Study, settings: Any, result: StudyResult) -> dict[str, Any]:
    """List for JSON where the settings, and what they name, differ from the papers."""
    described: dict[str, Any] = {"reduced": _paper_and_here(study.reduced(settings))}
    if result.protocol_differences:
        described["behind"] = {
            title: _paper_and_here(changes) for title, changes in result.protocol_differences.items()
        }
    return described


def as_json(values: Any, indent: int | None = None) -> str:
    """Write strict JSON: NaN becomes null, infinite numbers become "inf" and "-inf".

    >>> as_json({"a": float("nan"), "b": [np.float32(1.5), float("inf")]})
    '{"a": null, "b": [1.5, "inf"]}'
    """
    return json.dumps(_to_json(values), indent=indent, allow_nan=False)


def summarize(study: Study, settings: Any, result: StudyResult, out: Path, run: Mapping[str, Any]) -> str:
    """Write the summary for the terminal; the arguments are those of ``write_outputs``."""
    lines = [study.title, ""]
    for table in result.tables.values():
        lines += [table.text(), ""]
    for claim in result.claims:
        lines += [f"{claim.verdict}: {claim.paper}", f"  here: {claim.here}"]
    lines += [*result.notes, *reduced_in_words(study, settings), *differences_in_words(result)]
    if run["miniature"]:
        lines.append(MINIATURE)
    lines.append(f"To look at: {out / PAGE}")
    return "\n".join(lines)


def reduced_in_words(study: Study, settings: Any) -> list[str]:
    """Return one line about reduced settings, or none."""
    reduced = study.reduced(settings)
    if not reduced:
        return []
    return [f"Not the full setting: {_list_changes(reduced, 'full')}"]


def differences_in_words(result: StudyResult) -> list[str]:
    """Return one line for each protocol or axis that differs from the papers."""
    return [
        f"Not as in the papers: {title}: {_list_changes(each, 'paper')}"
        for title, each in result.protocol_differences.items()
    ]


def render_page(
    study: Study, settings: Any, result: StudyResult, run: dict[str, Any], pictures: Mapping[str, bytes]
) -> str:
    """Render the HTML page; the arguments are those of ``write_outputs``, and the figures as PNG by name."""
    blocks = []
    if run["miniature"]:
        blocks.append(html.paragraph(MINIATURE))
    blocks += [html.paragraph(study.about), html.paragraph(f"Source: {study.source}", faint=True)]
    blocks.append(html.heading("Claims of the papers, and results here"))
    for claim in result.claims:
        blocks.append(html.heading(claim.verdict, 3))
        blocks.append(html.pairs({"papers": claim.paper, "here": claim.here}))
    blocks += [html.paragraph(note) for note in result.notes]
    for name, (_, caption) in result.figures.items():
        blocks.append(html.picture(pictures[name], "png", caption or name, caption, large=True))
    blocks += [table.html() for table in result.tables.values()]
    blocks.append(html.heading("Settings"))
    reduced = study.reduced(settings)
    if reduced:
        blocks.append(html.paragraph("Not the full setting; what differs from it:"))
        blocks.append(html.pairs(_instead_of(reduced)))
    for title, changes in result.protocol_differences.items():
        blocks.append(html.paragraph(f"Not as in the papers: {title}; what differs:"))
        blocks.append(html.pairs(_instead_of(changes)))
    if reduced or result.protocol_differences:
        blocks.append(html.paragraph("All settings of the study:"))
    blocks.append(html.pairs({name: _text(value) for name, value in asdict(settings).items()}))
    blocks.append(html.heading("How it was run"))
    blocks.append(html.pairs(run))
    return html.document(study.title, blocks)


def _paper_and_here(differences: Differences) -> dict[str, Any]:
    return {name: {"paper": papers, "here": here} for name, (papers, here) in differences.items()}


def _list_changes(differences: Differences, other: str) -> str:
    return ", ".join(f"{name} {_text(here)} ({other}: {_text(full)})" for name, (full, here) in differences.items())


def _instead_of(differences: Differences) -> dict[str, str]:
    return {name: f"{_text(here)} instead of {_text(full)}" for name, (full, here) in differences.items()}


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


def _to_json(value: Any) -> Any:
    """Convert to lists, dictionaries, strings, finite numbers and None."""
    if isinstance(value, Mapping):
        return {str(key): _to_json(entry) for key, entry in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return _to_json(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_to_json(entry) for entry in value]
    if isinstance(value, float) and isnan(value):
        return None
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
