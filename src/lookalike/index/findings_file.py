"""The findings of the doctor about an index, for the page: ``doctor-findings.json`` in its folder."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Literal, get_args

from lookalike._util.checksums import Finding, has_good_checksum, with_checksum
from lookalike._util.files import write_text
from lookalike._util.untrusted import LARGEST_LIST, read_json
from lookalike.index.items import ID

FILE = "doctor-findings.json"


Action = Literal["relabel", "drop", "keep"]


@dataclass(frozen=True)
class Record:
    """A finding as the page needs it.

    Attributes:
        key: Says which finding it is, also after the next examination.
        kind: What it is, as in ``lookalike.doctor.Finding``.
        id: Id of the item; empty for a finding about classes.
        name: Name of the class or classes; empty for a finding about a picture.
        label: Label of the item when it was examined.
        partner: Id of the item that it is compared with; empty: none.
        score: How certain it is, 0 to 1.
        action: What is suggested.
        new_label: The likely label.
        reason: Without folders.
        shown: Ids of the items that show it.
    """

    key: str
    kind: str
    id: str
    name: str
    label: str
    partner: str
    score: float
    action: str
    new_label: str
    reason: str
    shown: list[str]


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Write the findings, the most certain first."""
    write_text(path / FILE, with_checksum({"records": [asdict(record) for record in records]}))


def read_records(path: Path) -> list[Record]:
    """Read the findings; none if the index was not examined, or the file is damaged."""
    return _read(path)[0]


def check_records(path: Path) -> Finding | None:
    """Check the file; None if there is none."""
    if not (path / FILE).exists():
        return None
    _, status = _read(path)
    detail = {"ok": "", "no checksum": "an earlier version wrote it"}
    return Finding(FILE, status, detail.get(status, "lookalike doctor examines the pictures again"))


def _read(path: Path) -> tuple[list[Record], Literal["ok", "damaged", "no checksum"]]:
    try:
        content = read_json(path / FILE, LARGEST_LIST)
        status: Literal["ok", "no checksum"] = "no checksum"
        if isinstance(content, dict):  # earlier versions wrote a list
            if not has_good_checksum(content):
                return [], "damaged"
            content, status = content["records"], "ok"
        records = [Record(**entry) for entry in content]
    except (OSError, ValueError, TypeError, KeyError):
        return [], "damaged"
    if not all(map(_is_valid, records)):
        return [], "damaged"
    return records, status


def _is_valid(record: Record) -> bool:
    """Whether all values have their types: somebody else may have written the file."""
    for name, value in asdict(record).items():
        if name == "score":
            good = isinstance(value, (int, float)) and isfinite(value)
        elif name == "shown":
            good = isinstance(value, list) and all(isinstance(item_id, str) for item_id in value)
        else:
            good = isinstance(value, str)
        if not good:
            return False
    if record.action not in get_args(Action):
        return False
    return all(not item_id or ID.fullmatch(item_id) for item_id in (record.id, record.partner, *record.shown))
