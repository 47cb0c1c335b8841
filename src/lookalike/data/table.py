"""A CSV that lists pictures.

    path,label,split,role
    a/1.jpg,wren,train,
    b/2.jpg,robin,test,query

``path`` (relative to the CSV's folder, or absolute; backslashes count as slashes) and ``label`` are required.
``split`` is train, val or test; ``role`` is query, gallery, both or nothing. Other columns are ignored. The
delimiter may be a comma, a semicolon or a tab; the encoding is UTF-8, or UTF-16 with a byte order mark.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from lookalike._util.outside_text import unescape_formula
from lookalike._util.suggestions import closest
from lookalike.data.files import table_of_files
from lookalike.data.folder import SPLIT_NAMES
from lookalike.data.pictures import ROLES, BrokenData, Pictures, Problem

TABLES = (".csv", ".tsv", ".txt")
ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")
REQUIRED, OPTIONAL = ("path", "label"), ("split", "role")  # columns
DELIMITERS = ",;\t"
FAULTS_SHOWN = 3


class Row(NamedTuple):
    """One line of the CSV."""

    line: int
    path: str
    label: str
    split: str | None
    role: str | None

    def describe(self) -> str:
        """Return label, split and role, for messages."""
        return " ".join(map(repr, filter(None, self[2:])))


def read_table(file: str | Path, root: Path | None = None, fewest_classes: int = 2) -> Pictures:
    """Read the pictures that a CSV lists; no picture is opened.

    Args:
        file: The CSV.
        root: Folder that the paths start from (default: that of the CSV).
        fewest_classes: Smallest number of classes.

    Returns:
        The table of pictures; repeated rows are in ``problems``.

    Raises:
        ValueError: If the file is not such a list, is empty or has too few classes.
        BrokenData: If lines are faulty or contradict each other.
    """
    file = Path(file)
    if file.suffix.lower() in ARCHIVES:
        raise ValueError(f"{file} is an archive: unpack it and give the folder")
    if file.suffix.lower() not in TABLES:
        raise ValueError(f"{file} is a file; expected a folder of class folders, or a list that ends in .csv")
    faults: list[str] = []
    problems: list[Problem] = []
    rows: dict[str, Row] = {}
    for row in _read_rows(file, faults):
        first = rows.setdefault(row.path, row)
        if first is row:
            continue
        if first[2:] == row[2:]:
            problems.append(Problem(row.path, f"listed twice (lines {first.line} and {row.line})"))
        else:
            faults.append(
                f"line {row.line}: {row.path} is {row.describe()}, but in line {first.line} it is {first.describe()}"
            )
    if faults:
        message = f"{file}: {'; '.join(faults[:FAULTS_SHOWN])}"
        if len(faults) > FAULTS_SHOWN:
            message += f" (and {len(faults) - FAULTS_SHOWN:,} more)"
        raise BrokenData(message)
    if not rows:
        raise ValueError(f"{file} lists no pictures: there are no lines after its header")
    pictures = _make_table(file, root or file.parent, rows.values())
    if len(pictures.classes) < fewest_classes:
        raise ValueError(f"{file} has only one class, {pictures.classes[0]!r}; expected at least two")
    return replace(pictures, problems=tuple(problems))


def _make_table(file: Path, root: Path, rows: Iterable[Row]) -> Pictures:
    class_of: list[str] = []
    names: list[str] = []
    splits: list[str] = []
    roles: list[str] = []
    for row in rows:
        names.append(row.path)
        class_of.append(row.label)
        if row.split is not None:
            splits.append(row.split)
        if row.role is not None:
            roles.append(row.role)
    # a column is in every row or in none
    return table_of_files(f"table {file.name}", root, names, class_of, splits=splits or None, roles=roles or None)


def _read_rows(file: Path, faults: list[str]) -> Iterator[Row]:
    """Yield the valid rows and append the faults of the others."""
    text = _text(file)
    header = text.lstrip("\r\n").split("\n", 1)[0]
    delimiter = max(DELIMITERS, key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns: dict[str, int] | None = None
    width = 0
    try:
        for line_fields in reader:
            line = reader.line_num
            fields = list(map(str.strip, line_fields))
            if not any(fields):
                continue
            if columns is None:
                columns, width = _columns(file, fields), len(fields)
                continue
            if len(fields) != width:
                faults.append(f"line {line}: expected {width} fields as in the header, got {len(fields)}")
                continue
            values = {name: unescape_formula(fields[position]) for name, position in columns.items()}
            row_faults = _row_faults(values)
            if row_faults:
                faults += [f"line {line}: {fault}" for fault in row_faults]
            else:
                yield _make_row(line, values)
    except csv.Error as error:
        faults.append(f"line {reader.line_num}: {error}")
    if columns is None and not faults:
        raise ValueError(f"{file} is empty; expected a header with the columns path and label")


def _row_faults(values: dict[str, str]) -> list[str]:
    faults = [f"{column} is empty" for column in REQUIRED if not values[column]]
    split, role = values.get("split"), values.get("role")
    if split is not None and split.lower() not in SPLIT_NAMES:
        faults.append(f"split must be train, val or test, got {split!r}")
    if role is not None and role.lower() not in ROLES:
        faults.append(f"role must be query, gallery, both or empty, got {role!r}")
    return faults


def _make_row(line: int, values: dict[str, str]) -> Row:
    split, role = values.get("split"), values.get("role")
    if split is not None:
        split = SPLIT_NAMES[split.lower()]
    if role is not None:
        role = role.lower()
    path = PurePosixPath(values["path"].replace("\\", "/"))
    return Row(line, str(path), values["label"], split, role)


def _columns(file: Path, header: list[str]) -> dict[str, int]:
    """Position of each column that is used."""
    names = list(map(str.lower, header))
    for column in REQUIRED:
        if column in names:
            continue
        message = f"{file}: the first line must name the columns path and label, got {', '.join(header)[:80]!r}"
        similar = closest(column, names)
        if similar is not None:
            message += f"; rename {similar!r} to {column!r}?"
        raise ValueError(message)
    positions = {}
    for column in (*REQUIRED, *OPTIONAL):
        if names.count(column) > 1:
            raise ValueError(f"{file}: the column {column} occurs twice in the header")
        if column in names:
            positions[column] = names.index(column)
    return positions


def _text(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BrokenData(f"{file} cannot be read: {error.strerror}") from error
    encoding, name = "utf-8-sig", "UTF-8"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding, name = "utf-16", "UTF-16"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BrokenData(f"{file}: line {line} is not {name}; save the file as UTF-8") from error
