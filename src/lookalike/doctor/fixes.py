"""Decisions about findings: written to a CSV, read back after somebody has edited it, and applied to the labels."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from lookalike._util.files import write_text
from lookalike._util.outside_text import csv_line, unescape_formula
from lookalike.data.pictures import Pictures
from lookalike.doctor.examine import Action, Examination, Finding
from lookalike.retrieval import retrieval_metrics

COLUMNS = ("action", "new_label", "path", "label", "kind", "score", "beside", "reason")
MOST_QUERIES = 10_000  # pictures that are searched for to measure an effect
CONFIDENCE = 0.9  # from which a relabelling is suggested
ACTIONS = get_args(Action)


class Fix(NamedTuple):
    """A decision about one picture."""

    name: str
    action: Action
    new_label: str = ""


class Corrected(NamedTuple):
    """Labels after fixes: positions of the pictures that stay, and a label for each."""

    positions: NDArray[np.int64]
    labels: list[str]


def decide(finding: Finding, confidence: float = CONFIDENCE) -> Action:
    """Return the action to suggest: an uncertain relabelling is only shown."""
    if finding.action == "relabel" and finding.score < confidence:
        return "keep"
    return finding.action


def suggested_fixes(examination: Examination, confidence: float = CONFIDENCE) -> list[Fix]:
    """Return the fixes that the findings suggest.

    Args:
        examination: The findings.
        confidence: Labels at least as doubtful as this are changed.
    """
    fixes = []
    for finding in examination.findings:
        action = decide(finding, confidence)
        if finding.picture >= 0 and action != "keep":
            fixes.append(Fix(finding.name, action, finding.new_label if action == "relabel" else ""))
    return fixes


def apply_fixes(pictures: Pictures, fixes: Iterable[Fix]) -> Corrected:
    """Apply fixes to a table; a picture that is dropped anywhere is dropped.

    Raises:
        ValueError: If a fix names no picture, or a relabelling has no label.
    """
    position_of = {name: i for i, name in enumerate(pictures.names)}
    left_out = {problem.name for problem in pictures.problems}
    labels = [pictures.classes[label] for label in pictures.labels]
    dropped = set()
    for fix in fixes:
        if fix.name in left_out:
            continue
        if fix.name not in position_of:
            raise ValueError(f"there is no picture {fix.name!r} in {pictures.name}")
        if fix.action == "drop":
            dropped.add(position_of[fix.name])
        elif fix.action == "relabel":
            if not fix.new_label:
                raise ValueError(f"{fix.name}: relabel needs a new_label")
            labels[position_of[fix.name]] = fix.new_label
    positions = np.array([i for i in range(len(pictures)) if i not in dropped], np.int64)
    return Corrected(positions, [labels[i] for i in positions])


def measure_effect(
    vectors: NDArray[np.floating],
    labels: Sequence[str],
    positions: NDArray[np.int64],
    new_labels: Sequence[str],
    distance: str = "cosine",
    most_queries: int = MOST_QUERIES,
) -> dict[str, float] | None:
    """Measure MAP@R of the same vectors before and after fixes.

    Args:
        vectors: (n, D).
        labels: Labels before, n; "" for pictures without one, which do not take part.
        positions: The pictures that stay, ascending.
        new_labels: A label for each of them.
        distance: Of the model, "cosine" or "l2".
        most_queries: Of more pictures a random sample is searched for, among all; the same one before and after.

    Returns:
        "before", "after" and "queries" before; None if there is nothing to measure.
    """
    old = np.array(labels)
    new = np.full(len(old), "", dtype=object)
    new[positions] = list(new_labels)
    sampled = np.random.default_rng(0).permutation(len(old))[:most_queries]
    queries = np.zeros(len(old), bool)
    queries[sampled] = True
    before = _map_at_r(vectors, old.astype(object), queries, distance)
    after = _map_at_r(vectors, new, queries, distance)
    if before is None or after is None:
        return None
    return {"before": before, "after": after, "queries": int((queries & (old != "")).sum())}


def _map_at_r(
    vectors: NDArray[np.floating], labels: NDArray[np.object_], queries: NDArray[np.bool_], distance: str
) -> float | None:
    has_label = labels != ""
    rows, asked = np.flatnonzero(has_label), np.flatnonzero(has_label & queries)
    _, counts = np.unique(labels[rows].astype(str), return_counts=True)
    if len(asked) == 0 or len(counts) < 2 or counts.max() < 2:
        return None
    try:
        metrics = retrieval_metrics(
            vectors[asked],
            labels[asked].astype(str),
            vectors[rows],
            labels[rows].astype(str),
            query_ids=asked,
            reference_ids=rows,
            distance=distance,
        )
    except ValueError:  # no sampled picture has a partner
        return None
    return metrics["MAP@R"]


def write_findings(examination: Examination, path: Path, confidence: float = CONFIDENCE) -> None:
    """Write all findings as CSV; the column ``action`` has the suggestion and is meant to be edited."""
    names = examination.pictures.names
    rows = []
    for finding in examination.findings:
        beside = names[finding.partner] if finding.partner >= 0 else ""
        score = f"{finding.score:.3f}"
        action = decide(finding, confidence)
        rows.append(
            (action, finding.new_label, finding.name, finding.label, finding.kind, score, beside, finding.reason)
        )
    _write(path, COLUMNS, rows)


def read_fixes(path: Path) -> list[Fix]:
    """Read the decisions of an edited findings file.

    Raises:
        ValueError: If columns are missing or an action is unknown.
    """
    fixes = []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = {"action", "path"} - set(reader.fieldnames or ())
        if missing:
            raise ValueError(f"{path} has no column {', '.join(sorted(missing))}")
        for number, row in enumerate(reader, start=2):
            action = (row["action"] or "").strip()
            if action not in ACTIONS:
                raise ValueError(f"{path}, line {number}: action must be one of {', '.join(ACTIONS)}, got {action!r}")
            if row.get("kind") in ("few pictures", "confused classes"):
                continue  # not about one picture
            new_label = unescape_formula(row.get("new_label") or "")
            fixes.append(Fix(unescape_formula(row["path"]), cast(Action, action), new_label))
    return fixes


def write_corrected(pictures: Pictures, corrected: Corrected, path: Path) -> None:
    """Write the corrected table as a CSV that ``lookalike train`` reads."""
    header = ["path", "label"]
    if pictures.splits is not None:
        header.append("split")
    rows = []
    for i, label in zip(corrected.positions, corrected.labels, strict=True):
        file = pictures.names[i]
        if pictures.root is not None:
            file = str((pictures.root / file).absolute())
        row = [file, label]
        if pictures.splits is not None:
            row.append(str(pictures.splits[i]).replace("validation", "val"))
        rows.append(row)
    _write(path, header, rows)


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    write_text(path, "".join(map(csv_line, [header, *rows])))
