"""Checks a data set: are its files, its counts and its pictures complete and readable?"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from lookalike.data.datasets.layout import DatasetSpec
from lookalike.data.datasets.registry import get, hint_below, recognise
from lookalike.data.files import FileReader, counted, equal_files, find_contradictions, problems_of
from lookalike.data.folder import read_folder
from lookalike.data.pictures import SPLITS, Pictures, Problem
from lookalike.data.reading import verify_all
from lookalike.data.splits import lacking_role, singletons
from lookalike.data.table import read_table

CLASSES_SHOWN = 3  # of the largest and smallest classes
NAMES_SHOWN = 5  # in a question
FEW = 4  # a class this many times smaller than the median is asked about
TINY = 32  # pixels of the shorter side
ELONGATED = 5  # times as long as wide
# Names of folders that are usually no classes.
NO_CLASS = re.compile(
    r"archives?|assets?|backups?|banners?|cache|css|docs?|exports?|icons?|images?|imgs?|js|lib|logos?|media|misc|new|old"
    r"|originals?|others?|output|photos?|pics?|pictures?|previews?|private|public|samples?|screenshots?|src|static|temp"
    r"|thumb(nail)?s?|tmp|todo|trash|unknown|unsorted|uploads?",
    re.IGNORECASE,
)


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
        questions: What only its owner can answer, as whether a folder is a class.
        problems: Every picture that cannot be used.
    """

    name: str | None
    title: str
    path: Path
    counts: tuple[Count, ...] = ()
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    questions: tuple[str, ...] = ()

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
            "questions": list(self.questions),
            "problems": [problem._asdict() for problem in self.problems],
        }

    def __str__(self) -> str:
        verdict = "good" if self.good else "NOT good"
        if self.good and self.questions:
            verdict = "complete and readable, but please look at the questions below"
        lines = [f"{self.title} in {self.path}: {verdict}"]
        width = max((len(count.what) for count in self.counts), default=0)
        for what, found, expected in self.counts:
            line = f"  {what:<{width}}  {found:>9,}"
            if expected is not None and expected != found:
                line += f"   expected {expected:,}"
            lines.append(line)
        lines += [f"  fault: {fault}" for fault in self.faults]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  question: {question}" for question in self.questions]
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
    broken_names = {problem.name for problem in problems}
    readable = pictures.take([i for i, name in enumerate(pictures.names) if name not in broken_names])
    notes = [*pictures.notes, *_class_sizes(readable)]
    questions = _odd_classes(readable)
    if decode:
        questions += [*_equal_pictures(readable), *_odd_sizes(readable)]
        notes.append(f"near-duplicates, outliers and doubtful labels: lookalike doctor {shlex.quote(str(path))}")
    faults = (*_role_faults(pictures), *_summarise(problems))
    return Report(None, title, path, tuple(counts), faults, tuple(notes), problems, tuple(questions))


def _read_folder(path: Path) -> Pictures:
    hint = hint_below(path)
    if hint is not None:
        raise ValueError(hint)
    return read_folder(path)


def _class_sizes(pictures: Pictures) -> list[str]:
    """The largest and smallest classes."""
    ordered = _by_size(pictures)
    if len(ordered) < 2:
        return []
    largest = ", ".join(f"{name} {count:,}" for name, count in ordered[:CLASSES_SHOWN])
    smallest = ", ".join(f"{name} {count:,}" for name, count in ordered[: -CLASSES_SHOWN - 1 : -1])
    return [f"largest classes: {largest}", f"smallest classes: {smallest}"]


def _by_size(pictures: Pictures) -> list[tuple[str, int]]:
    """Classes and their numbers of pictures, the largest first."""
    return Counter(pictures.classes[label] for label in pictures.labels.tolist()).most_common()


def _odd_classes(pictures: Pictures) -> list[str]:
    """Classes that may be none: by their name, or by how few pictures they have."""
    ordered = _by_size(pictures)
    if len(ordered) < 2:
        return []
    questions = []
    sizes = dict(ordered)
    median = ordered[len(ordered) // 2][1]
    named = [name for name in pictures.classes if NO_CLASS.fullmatch(name)]
    for name in named[:NAMES_SHOWN]:
        pictures_of_it = counted(sizes[name], "picture")
        questions.append(f"is {name} a class? It has {pictures_of_it} (the median is {median:,}). If not, move it away")
    small = [name for name, count in ordered if count * FEW <= median and name not in named]
    if small:
        listed = ", ".join(f"{name} {sizes[name]:,}" for name in small[: -NAMES_SHOWN - 1 : -1])
        more = f" and {len(small) - NAMES_SHOWN} more" if len(small) > NAMES_SHOWN else ""
        questions.append(f"far fewer pictures than other classes (median {median:,}), really classes? {listed}{more}")
    return questions


def _equal_pictures(pictures: Pictures) -> list[str]:
    """Exact duplicates, first those with several labels."""
    questions = list(find_contradictions(pictures))
    groups = equal_files(pictures)
    if groups:
        copies = sum(len(group) - 1 for group in groups)
        first = " = ".join(pictures.names[i] for i in groups[0][:2])
        kept = (
            "1 picture is an exact copy of another"
            if copies == 1
            else f"{copies:,} pictures are exact copies of others"
        )
        questions.append(f"{kept}, keep both? {first}")
    return questions


def _odd_sizes(pictures: Pictures) -> list[str]:
    """Pictures that are tiny or very elongated: icons, lines and banners."""
    reader = pictures.reader
    if not isinstance(reader, FileReader):
        return []
    tiny, elongated = [], []
    for name, path in zip(pictures.names, reader.paths(pictures.origins), strict=True):
        try:
            with Image.open(path) as image:
                short, long = sorted(image.size)
        except (OSError, ValueError, Image.DecompressionBombError):  # it was decoded a moment ago
            continue
        if short < TINY:
            tiny.append(name)
        elif long > ELONGATED * short:
            elongated.append(name)
    questions = []
    if tiny:
        smaller = f"smaller than {TINY} pixels, icons?"
        questions.append(f"{counted(len(tiny), 'picture')} {smaller} {', '.join(tiny[:CLASSES_SHOWN])}")
    if elongated:
        longer = f"more than {ELONGATED} times as long as wide, banners?"
        questions.append(f"{counted(len(elongated), 'picture')} {longer} {', '.join(elongated[:CLASSES_SHOWN])}")
    return questions


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
