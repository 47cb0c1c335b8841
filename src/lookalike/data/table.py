"""A CSV that lists pictures.

    path,label,split,role
    a/1.jpg,wren,train,
    b/2.jpg,robin,test,query

``path`` (relative to the CSV's folder, or absolute; backslashes are taken for slashes) and ``label`` are needed.
``split`` is train, val or test; ``role`` is query, gallery, both or nothing. Other columns are passed over. The
delimiter may be a comma, a semicolon or a tab; the encoding is UTF-8, or UTF-16 with its mark.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from lookalike.data.files import table_of_files
from lookalike.data.folder import SPLIT_NAMES
from lookalike.data.pictures import ROLES, BrokenData, Pictures, Problem

TABLES = (".csv", ".tsv", ".txt")
ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")
COLUMNS = ("path", "label", "split", "role")
DELIMITERS = ",;\t"
FAULTS_SHOWN = 3


class Row(NamedTuple):
    line: int
    path: str
    label: str
    split: str | None
    role: str | None


def read_table(file: str | Path, root: Path | None = None, fewest_classes: int = 2) -> Pictures:
    """The pictures that a CSV lists, as a table; ``root`` takes the place of the CSV's folder. No picture is opened.

    A row that says again what an earlier one said goes to ``problems``; one that contradicts it raises.
    """
    file = Path(file)
    if file.suffix.lower() in ARCHIVES:
        raise ValueError(f"{file} is an archive: unpack it and give the folder")
    if file.suffix.lower() not in TABLES:
        raise ValueError(f"{file} is a file; expected a folder of class folders, or a list that ends in .csv")
    faults: list[str] = []
    rows: dict[str, Row] = {}
    problems: list[Problem] = []
    for row in _rows(file, faults):
        first = rows.setdefault(row.path, row)
        if first is row:
            continue
        if first[2:] == row[2:]:
            problems.append(Problem(row.path, f"stands there twice (lines {first.line} and {row.line})"))
        else:
            faults.append(f"line {row.line}: {row.path} is {_said(row)}, but in line {first.line} it is {_said(first)}")
    if faults:
        more = f" (and {len(faults) - FAULTS_SHOWN:,} more)" if len(faults) > FAULTS_SHOWN else ""
        raise BrokenData(f"{file}: {'; '.join(faults[:FAULTS_SHOWN])}{more}")
    if not rows:
        raise ValueError(f"{file} lists no pictures: there is nothing below its header")
    kept = list(rows.values())
    if len({row.label for row in kept}) < fewest_classes:
        raise ValueError(f"{file} has only one class, {kept[0].label!r}; at least two are needed to tell apart")
    pictures = table_of_files(
        f"table {file.name}",
        file.parent if root is None else Path(root),
        [row.path for row in kept],
        [row.label for row in kept],
        splits=[row.split for row in kept if row.split is not None] or None,
        roles=[row.role for row in kept if row.role is not None] or None,
    )
    return replace(pictures, problems=tuple(problems))


def _rows(file: Path, faults: list[str]) -> Iterator[Row]:
    text = _text(file)
    header = text.lstrip("\r\n").split("\n", 1)[0]
    delimiter = max(DELIMITERS, key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns: dict[str, int] | None = None
    width = 0
    try:
        for fields in reader:
            line, fields = reader.line_num, [field.strip() for field in fields]
            if not any(fields):
                continue
            if columns is None:
                columns, width = _columns(file, fields), len(fields)
            elif len(fields) != width:
                faults.append(f"line {line}: expected {width} fields as in the header, got {len(fields)}")
            else:
                row = _row(line, {name: fields[place] for name, place in columns.items()}, faults)
                if row is not None:
                    yield row
    except csv.Error as error:
        faults.append(f"line {reader.line_num}: {error}")
    if columns is None and not faults:
        raise ValueError(f"{file} is empty; expected a header with the columns path and label")


def _row(line: int, fields: dict[str, str], faults: list[str]) -> Row | None:
    split, role = fields.get("split"), fields.get("role")
    count = len(faults)
    faults += [f"line {line}: {column} is empty" for column in ("path", "label") if not fields[column]]
    if split is not None and split.lower() not in SPLIT_NAMES:
        faults.append(f"line {line}: split must be train, val or test, got {split!r}")
    if role is not None and role.lower() not in ROLES:
        faults.append(f"line {line}: role must be query, gallery, both or empty, got {role!r}")
    if len(faults) > count:
        return None
    return Row(
        line,
        str(PurePosixPath(fields["path"].replace("\\", "/"))),
        fields["label"],
        None if split is None else SPLIT_NAMES[split.lower()],
        None if role is None else role.lower(),
    )


def _columns(file: Path, header: list[str]) -> dict[str, int]:
    names = [name.lower() for name in header]
    for column in COLUMNS:
        if names.count(column) > 1:
            raise ValueError(f"{file}: the column {column} stands twice in the header")
    for column in COLUMNS[:2]:
        if column not in names:
            near = get_close_matches(column, names, n=1)
            hint = f"; did you mean {near[0]!r} to be it?" if near else ""
            shown = ", ".join(header)[:80]
            raise ValueError(f"{file}: the first line must name the columns path and label, got {shown!r}{hint}")
    return {column: names.index(column) for column in COLUMNS if column in names}


def _text(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BrokenData(f"{file} cannot be read: {error.strerror}") from error
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BrokenData(
            f"{file}: line {line} is not {encoding.removesuffix('-sig').upper()}; save the file as UTF-8"
        ) from error


def _said(row: Row) -> str:
    return " ".join(repr(part) for part in row[2:] if part)
