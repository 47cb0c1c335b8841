"""The pictures of an index for the doctor, and findings by the ids of its items for the page."""

from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.data.files import FileReader, natural_order
from lookalike.data.pictures import Pictures
from lookalike.doctor.examine import Examination, Finding
from lookalike.doctor.fixes import decide
from lookalike.index.base import Index
from lookalike.index.contents import file_of, marked_pictures, split_of
from lookalike.index.findings_file import Record
from lookalike.index.folder import STAMP
from lookalike.index.items import Item

MOST_OF_A_KIND = 10_000  # findings that the page has


class IndexedPictures(NamedTuple):
    """The pictures of an index.

    Attributes:
        pictures: With the class "" for those without a label.
        vectors: (n, D).
        items: (n,).
        changed: Findings about files that were changed since.
    """

    pictures: Pictures
    vectors: NDArray[np.floating]
    items: list[Item]
    changed: list[Finding]


class IndexReader(FileReader):
    """Reads the files of items. Their contents are known from the index."""

    def __init__(self, paths: list[Path], contents: list[str]) -> None:
        super().__init__(Path("/"), [str(path) for path in paths])
        self._contents = contents

    def key(self, index: int) -> str:
        """Return the hash of the content."""
        return self._contents[index]


def load_index(idx: Index) -> IndexedPictures:
    """Read the pictures and vectors of an index. Files are opened only for items without a stamp."""
    items = idx.items()
    if not items:
        raise ValueError(f"{idx.path} has no pictures")
    ids = [item.id for item in items]
    stamp_of = idx.stamps(ids)
    paths = [file_of(idx, item).absolute() for item in items]
    contents = [picture.content for picture in marked_pictures(idx, ids)]
    labels = [item.label for item in items]
    classes = natural_order(set(labels))
    number_of = {label: number for number, label in enumerate(classes)}
    splits = [split_of(item) for item in items]
    pictures = Pictures(
        name=idx.path.name,
        names=tuple(str(path).lstrip("/") for path in paths),
        labels=np.array([number_of[label] for label in labels], np.int64),
        classes=tuple(classes),
        reader=IndexReader(paths, contents),
        origins=np.arange(len(items)),
        splits=np.array(splits) if all(splits) else None,
        root=Path("/"),
    )
    changed = []
    for number, (item, path) in enumerate(zip(items, paths, strict=True)):
        if _has_changed(path, stamp_of.get(item.id, "")):
            reason = "the file has changed since it was indexed: lookalike index updates it"
            name = pictures.names[number]
            changed.append(Finding("broken", number, name, item.label, score=1.0, reason=reason, shown=(number,)))
    return IndexedPictures(pictures, idx.vectors(ids), items, changed)


def records_of(examination: Examination, items: list[Item], confidence: float) -> list[Record]:
    """Convert the findings for the page."""
    counts: Counter[str] = Counter()
    records = []
    for finding in examination.findings:
        counts[finding.kind] += 1
        if counts[finding.kind] <= MOST_OF_A_KIND:
            records.append(_record(finding, examination.pictures.names, items, confidence))
    return records


def _record(finding: Finding, names: tuple[str, ...], items: list[Item], confidence: float) -> Record:
    item_id, partner, name, reason = "", "", finding.name, finding.reason
    if finding.picture >= 0:
        item_id, name = items[finding.picture].id, ""
    if finding.partner >= 0:
        partner = items[finding.partner].id
        reason = reason.replace(names[finding.partner], Path(names[finding.partner]).name)  # folders are private
    identity = "\0".join((finding.kind, item_id, partner, name, finding.label, finding.new_label))
    key = blake2b(identity.encode(errors="surrogateescape"), digest_size=8).hexdigest()
    shown = [items[position].id for position in finding.shown]
    action = decide(finding, confidence)
    score = round(finding.score, 4)
    return Record(
        key, finding.kind, item_id, name, finding.label, partner, score, action, finding.new_label, reason, shown
    )


def _has_changed(path: Path, stamp: str) -> bool:
    """Whether the file of an item has another size than it had when it was indexed."""
    match = STAMP.fullmatch(stamp)
    try:
        return match is not None and int(match["size"]) != path.stat().st_size
    except OSError:  # the examination finds what cannot be read
        return False
