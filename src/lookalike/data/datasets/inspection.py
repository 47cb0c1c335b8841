"""Is this data set whole? Its files, its counts and its pictures, held against what they should be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lookalike.data.contradictions import find_contradictions
from lookalike.data.datasets.layout import Benchmark
from lookalike.data.datasets.registry import get, hint_below, recognise
from lookalike.data.files import FileReader
from lookalike.data.folder import list_pictures, read_folder
from lookalike.data.pictures import SPLITS, Pictures, Problem
from lookalike.data.reading import verify_all
from lookalike.data.splits import lacking_role, singletons
from lookalike.data.table import read_table


class Figure(NamedTuple):
    """A count, and what it should be if that is known."""

    what: str
    found: int
    expected: int | None = None


@dataclass(frozen=True)
class Report:
    """What ``check`` found: ``faults`` to be mended, ``notes`` good to know, and every picture that is no good."""

    name: str | None  # of the benchmark, None for other folders and tables
    title: str
    path: Path
    figures: tuple[Figure, ...] = ()
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def good(self) -> bool:
        return not self.faults

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "path": str(self.path),
            "good": self.good,
            "figures": [figure._asdict() for figure in self.figures],
            "faults": list(self.faults),
            "notes": list(self.notes),
            "problems": [problem._asdict() for problem in self.problems],
        }

    def __str__(self) -> str:
        lines = [f"{self.title} in {self.path}: {'good' if self.good else 'NOT good'}"]
        width = max((len(figure.what) for figure in self.figures), default=0)
        for what, found, expected in self.figures:
            wanted = "" if expected is None or expected == found else f"   expected {expected:,}"
            lines.append(f"  {what:<{width}}  {found:>9,}{wanted}")
        lines += [f"  fault: {fault}" for fault in self.faults]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def check(path: str | Path, name: str | None = None, *, decode: bool = True, progress: bool = False) -> Report:
    """Whether ``path`` holds the benchmark ``name`` (default: the one it looks like), whole.

    A folder that looks like none, and a CSV, are summed up. decode=False only looks whether files are there and not
    empty, without opening them. What is wrong is reported, not raised.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise ValueError(f"there is no folder or file {path}")
    name = recognise(path) if name is None else name
    if name is None:
        return _check_ordinary(path, decode, progress)
    benchmark = get(name)
    root = benchmark.find(path)
    if root is None:
        wanted = "; ".join(benchmark.files)
        fault = f"none of its files is here; expected {wanted}. It is offered at {benchmark.page}"
        return Report(benchmark.name, benchmark.title, path, faults=(fault,))
    lacking = benchmark.missing(root)
    if lacking:
        faults = tuple(f"{file} is missing" for file in lacking)
        return Report(benchmark.name, benchmark.title, root, faults=faults)
    try:
        pictures = benchmark.read(root)
    except ValueError as error:
        return Report(benchmark.name, benchmark.title, root, faults=(str(error),))
    figures = _benchmark_figures(benchmark, pictures)
    faults = tuple(
        f"{what}: expected {expected:,}, found {found:,}" for what, found, expected in figures if found != expected
    )
    problems = _problems(pictures, decode, progress)
    return Report(
        benchmark.name, benchmark.title, root, figures, (*faults, *_summed_up(problems)), problems=tuple(problems)
    )


def _check_ordinary(path: Path, decode: bool, progress: bool) -> Report:
    title = "folder of class folders" if path.is_dir() else "table"
    hint = hint_below(path) if path.is_dir() else None
    if hint is not None:
        return Report(None, title, path, faults=(hint,))
    try:
        pictures = read_folder(path) if path.is_dir() else read_table(path)
    except ValueError as error:
        return Report(None, title, path, faults=(str(error),))
    problems = _problems(pictures, decode, progress)
    broken = len(problems) - len(pictures.problems)  # the others were never counted
    figures = [Figure("classes", len(pictures.classes)), Figure("pictures", len(pictures) - broken)]
    if pictures.splits is not None:
        for split in SPLITS:
            if split in pictures.splits:
                figures += _part_figures(split, pictures.split(split))
    figures.append(Figure("classes with one picture", len(singletons(pictures))))
    figures.append(Figure("left out", len(problems)))
    notes = [*pictures.notes, *(find_contradictions(pictures) if decode else ())]
    if path.is_dir():
        others = list_pictures(path).others
        if others:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(others.items()))
            notes.append(f"files that are not pictures were passed over: {kinds}")
    faults = (*_role_faults(pictures), *_summed_up(problems))
    return Report(None, title, path, tuple(figures), faults, tuple(notes), tuple(problems))


def _role_faults(pictures: Pictures) -> list[str]:
    """Where a search could not be measured for lack of queries or of a gallery; training asks for neither."""
    measured = [split for split in SPLITS[1:] if pictures.splits is not None and split in pictures.splits]
    parts = {f"{split} ": pictures.split(split) for split in measured} if measured else {"": pictures}
    return [f"{split}{fault}" for split, part in parts.items() if (fault := lacking_role(part))]


def _benchmark_figures(benchmark: Benchmark, pictures: Pictures) -> tuple[Figure, ...]:
    figures = [
        Figure("classes", len(pictures.classes), benchmark.classes),
        Figure("pictures", len(pictures), benchmark.pictures),
    ]
    for part, size in benchmark.parts.items():
        column = pictures.splits if part in SPLITS else pictures.roles
        chosen = np.zeros(len(pictures), dtype=bool) if column is None else column == part
        figures += _part_figures(part, pictures.take(chosen), size.classes, size.pictures)
    return tuple(figures)


def _part_figures(part: str, pictures: Pictures, classes: int | None = None, count: int | None = None) -> list[Figure]:
    return [Figure(f"{part} classes", len(pictures.classes), classes), Figure(f"{part} pictures", len(pictures), count)]


def _problems(pictures: Pictures, decode: bool, progress: bool) -> list[Problem]:
    reader = pictures.reader
    if not isinstance(reader, FileReader):
        return list(pictures.problems)
    paths = [reader.path(int(origin)) for origin in pictures.origins]
    reasons = (
        verify_all(paths, pixel_limit=reader.pixel_limit, progress=progress)
        if decode
        else [_glance(path) for path in paths]
    )
    found = [Problem(name, reason) for name, reason in zip(pictures.names, reasons, strict=True) if reason]
    return [*pictures.problems, *found]


def _glance(path: Path) -> str | None:
    try:
        return None if path.stat().st_size else "empty file (0 bytes)"
    except OSError as error:
        return "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"


def _summed_up(problems: list[Problem]) -> list[str]:
    """A line for each kind of problem; the kind is the reason up to its details."""
    kinds: dict[str, list[Problem]] = {}
    for problem in problems:
        kinds.setdefault(re.split(r"\s*[:(]|\d", problem.reason)[0].strip(), []).append(problem)
    return [f"{len(those):,} x {kind}; the first: {those[0]}" for kind, those in kinds.items()]
