"""Checks a data set: are its files, its counts and its pictures complete and readable?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lookalike.data.datasets.layout import DatasetSpec
from lookalike.data.datasets.registry import get, hint_below, recognise
from lookalike.data.files import FileReader, find_contradictions, problems_of
from lookalike.data.folder import list_pictures, read_folder
from lookalike.data.pictures import SPLITS, Pictures, Problem
from lookalike.data.reading import verify_all
from lookalike.data.splits import lacking_role, singletons
from lookalike.data.table import read_table


class Count(NamedTuple):
    """A count, and the expected value if there is one."""

    what: str
    found: int
    expected: int | None = None


@dataclass(frozen=True)
class Report:
    """Result of ``check``.

    Attributes:
        name: Name of the public data set; None for other folders and tables.
        title: Kind of data, for messages.
        path: Checked folder or file.
        counts: Classes and pictures, in all and per split.
        faults: What has to be repaired; empty for good data.
        notes: What is good to know.
        problems: Every picture that cannot be used.
    """

    name: str | None
    title: str
    path: Path
    counts: tuple[Count, ...] = ()
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def good(self) -> bool:
        """Whether there are no faults."""
        return not self.faults

    def as_dict(self) -> dict[str, Any]:
        """Return the report, ready for JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "path": str(self.path),
            "good": self.good,
            "figures": [count._asdict() for count in self.counts],
            "faults": list(self.faults),
            "notes": list(self.notes),
            "problems": [problem._asdict() for problem in self.problems],
        }

    def __str__(self) -> str:
        verdict = "good" if self.good else "NOT good"
        lines = [f"{self.title} in {self.path}: {verdict}"]
        width = max((len(count.what) for count in self.counts), default=0)
        for what, found, expected in self.counts:
            line = f"  {what:<{width}}  {found:>9,}"
            if expected is not None and expected != found:
                line += f"   expected {expected:,}"
            lines.append(line)
        lines += [f"  fault: {fault}" for fault in self.faults]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def check(path: str | Path, name: str | None = None, *, decode: bool = True, progress: bool = False) -> Report:
    """Check whether a data set is complete and readable. Faults are reported, not raised.

    Args:
        path: Folder or CSV.
        name: Public data set that ``path`` should hold. None recognises it; other folders and CSVs are summarised.
        decode: Decode every picture; False only checks that files exist and are not empty.
        progress: Show a progress bar.

    Returns:
        The report.

    Raises:
        ValueError: If ``path`` does not exist or ``name`` is unknown.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise ValueError(f"there is no folder or file {path}")
    if name is None:
        name = recognise(path)
    if name is None:
        return _check_ordinary(path, decode, progress)
    return _check_dataset(get(name), path, decode, progress)


def _check_dataset(spec: DatasetSpec, path: Path, decode: bool, progress: bool) -> Report:
    root = spec.find(path)
    if root is None:
        expected = "; ".join(spec.files)
        fault = f"none of its files is here; expected {expected}. Download it from {spec.page}"
        return Report(spec.name, spec.title, path, faults=(fault,))
    faults = [f"{file} is missing" for file in spec.missing(root)]
    if faults:
        return Report(spec.name, spec.title, root, faults=tuple(faults))
    try:
        pictures = spec.read(root)
    except ValueError as error:
        return Report(spec.name, spec.title, root, faults=(str(error),))
    counts = _dataset_counts(spec, pictures)
    for what, actual, expected_count in counts:
        if actual != expected_count:
            faults.append(f"{what}: expected {expected_count:,}, found {actual:,}")
    problems = _problems(pictures, decode, progress)
    faults += _summarise(problems)
    return Report(spec.name, spec.title, root, tuple(counts), tuple(faults), problems=problems)


def _check_ordinary(path: Path, decode: bool, progress: bool) -> Report:
    is_folder = path.is_dir()
    title = "folder of class folders" if is_folder else "table"
    try:
        pictures = _read_folder(path) if is_folder else read_table(path)
    except ValueError as error:
        return Report(None, title, path, faults=(str(error),))
    problems = _problems(pictures, decode, progress)
    broken = len(problems) - len(pictures.problems)  # the others are not in the table
    counts = [Count("classes", len(pictures.classes)), Count("pictures", len(pictures) - broken)]
    for split in _present_splits(pictures):
        counts += _split_counts(split, pictures.split(split))
    counts.append(Count("classes with one picture", len(singletons(pictures))))
    counts.append(Count("left out", len(problems)))
    notes = list(pictures.notes)
    if decode:
        notes += find_contradictions(pictures)
    if is_folder:
        notes += _other_files(path)
    faults = (*_role_faults(pictures), *_summarise(problems))
    return Report(None, title, path, tuple(counts), faults, tuple(notes), problems)


def _read_folder(path: Path) -> Pictures:
    hint = hint_below(path)
    if hint is not None:
        raise ValueError(hint)
    return read_folder(path)


def _other_files(folder: Path) -> list[str]:
    others = list_pictures(folder).others
    if not others:
        return []
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(others.items()))
    return [f"files that are not pictures were skipped: {kinds}"]


def _present_splits(pictures: Pictures) -> list[str]:
    if pictures.splits is None:
        return []
    return [split for split in SPLITS if split in pictures.splits]


def _role_faults(pictures: Pictures) -> list[str]:
    """Measured splits that lack queries or a gallery; training needs neither."""
    tables = {"": pictures}
    measured = [split for split in _present_splits(pictures) if split != "train"]
    if measured:
        tables = {f"{split} ": pictures.split(split) for split in measured}
    faults = []
    for prefix, table in tables.items():
        fault = lacking_role(table)
        if fault is not None:
            faults.append(prefix + fault)
    return faults


def _dataset_counts(spec: DatasetSpec, pictures: Pictures) -> list[Count]:
    counts = [
        Count("classes", len(pictures.classes), spec.classes),
        Count("pictures", len(pictures), spec.pictures),
    ]
    for name, size in spec.sizes.items():
        column = pictures.splits if name in SPLITS else pictures.roles
        selected = pictures.take(np.flatnonzero(column == name))  # none if there is no such column
        counts += _split_counts(name, selected, size.classes, size.pictures)
    return counts


def _split_counts(split: str, pictures: Pictures, classes: int | None = None, count: int | None = None) -> list[Count]:
    return [Count(f"{split} classes", len(pictures.classes), classes), Count(f"{split} pictures", len(pictures), count)]


def _problems(pictures: Pictures, decode: bool, progress: bool) -> tuple[Problem, ...]:
    reader = pictures.reader
    if not isinstance(reader, FileReader):
        return pictures.problems
    paths = reader.paths(pictures.origins)
    if decode:
        reasons = verify_all(paths, pixel_limit=reader.pixel_limit, progress=progress)
    else:
        reasons = list(map(_missing_or_empty, paths))
    return (*pictures.problems, *problems_of(pictures, reasons))


def _missing_or_empty(path: Path) -> str | None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if size == 0:
        return "empty file (0 bytes)"
    return None


def _summarise(problems: tuple[Problem, ...]) -> list[str]:
    """A line for each kind of problem; the kind is the reason without its details."""
    by_kind: dict[str, list[Problem]] = {}
    for problem in problems:
        kind = re.split(r"\s*[:(]|\d", problem.reason)[0].strip()
        by_kind.setdefault(kind, []).append(problem)
    return [f"{len(members):,} x {kind}; the first: {members[0]}" for kind, members in by_kind.items()]
