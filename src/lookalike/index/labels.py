"""Labels edited in place: of one picture or several, renamed and merged, with history and undo.

    labels = Labels(idx)
    edit = labels.set_label(["a1", "b2"], "wren", by="anna")
    labels.undo(edit.number, by="anna")

Every change is written to the index, to the history (``labels.sqlite``) and to ``labels.csv``, all in the folder of the
index. ``lookalike train IDX/labels.csv`` reads the last one. An edited label stays when the folder is indexed again,
like one from a table.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

from lookalike._util.files import flush, replacing, write_text
from lookalike._util.outside_text import csv_line
from lookalike._util.suggestions import did_you_mean
from lookalike.index.base import Index
from lookalike.index.contents import file_of, split_of
from lookalike.index.folder import LABEL_FROM_TABLE
from lookalike.index.items import Item, check_items, metadata_as_json
from lookalike.index.labels_file import FILE, SCHEMA, Edit, LabelsFile
from lookalike.index.marks import check_name

TABLE = "labels.csv"


class Edited(NamedTuple):
    """What an edit did.

    Attributes:
        number: Its number, for ``undo``; 0 if nothing had to change.
        changed: Number of pictures that changed.
        skipped: Number of pictures that an undo left alone, because somebody has changed or deleted them since.
    """

    number: int
    changed: int
    skipped: int = 0


class EditSummary(NamedTuple):
    """One entry of the history.

    Attributes:
        edit: The first picture of the edit.
        pictures: Number of its pictures.
        undone: Whether it is undone now.
    """

    edit: Edit
    pictures: int
    undone: bool


class Labels:
    """The labels and metadata of one index. Threads may share it.

    Args:
        idx: The open index. Close this object before it.
    """

    def __init__(self, idx: Index) -> None:
        self.idx = idx
        self._threads = RLock()
        self._file: LabelsFile | None = None

    def set_label(self, ids: Sequence[str], label: str, by: str | None = None) -> Edited:
        """Give pictures a label; an empty one removes it.

        Args:
            ids: Ids of items.
            label: The label. Spaces at its ends are removed.
            by: Who does it.

        Returns:
            What has changed. It is on the disk.

        Raises:
            KeyError: If an item is missing.
            ValueError: If the label cannot be stored.
            IndexInUse: If another process is writing.
        """
        return self._change(lambda: self._items(ids), lambda item: item._replace(label=label.strip()), "label", by)

    def set_labels(self, labels: Mapping[str, str], by: str | None = None) -> Edited:
        """Give each picture a label of its own, as one edit; as ``set_label``.

        Args:
            labels: Id of the item -> label.
            by: Who does it.
        """
        return self._change(
            lambda: self._items(list(labels)), lambda item: item._replace(label=labels[item.id].strip()), "label", by
        )

    def set_metadata(self, item_id: str, metadata: Mapping[str, Any], by: str | None = None) -> Edited:
        """Replace the metadata of a picture; as ``set_label``."""
        values = dict(metadata)
        return self._change(lambda: self._items([item_id]), lambda item: item._replace(metadata=values), "metadata", by)

    def rename(self, label: str, new: str, by: str | None = None) -> Edited:
        """Rename a label; as ``set_label``.

        Raises:
            ValueError: If no picture has the label, or one has the new one: that is ``merge``.
        """
        if new.strip() in self.idx.labels() and new.strip() != label:
            raise ValueError(f"the label {new.strip()!r} exists: merge the two if they are the same")
        return self._relabel([label], new, "rename", by)

    def merge(self, labels: Sequence[str], into: str, by: str | None = None) -> Edited:
        """Give all pictures with any of some labels another label, which may exist; as ``set_label``."""
        if isinstance(labels, str) or not labels:
            raise ValueError("merge needs a list of at least one label")
        return self._relabel(labels, into, "merge", by)

    def undo(self, number: int, by: str | None = None) -> Edited:
        """Undo an edit, also an undo. Pictures that were changed or deleted since stay as they are.

        Args:
            number: The number of the edit.
            by: Who undoes it.

        Returns:
            What has changed.

        Raises:
            KeyError: If there is no such edit.
            ValueError: If it is undone already.
        """
        check_name("by", by)
        with self.idx.writing(), self._threads:
            self._complete()
            edits = self._batch(number)
            current = {item.id: item for item in self.idx.get([edit.id for edit in edits]) if item is not None}
            inverse = []
            for edit in edits:
                item = current.get(edit.id)
                if item is not None and _is(item, edit.new_label, edit.new_metadata):
                    inverse.append(_inverse(edit, by or ""))
            if not inverse:
                raise ValueError(f"edit {number} cannot be undone: its pictures were changed or deleted since")
            return Edited(self._apply(inverse), len(inverse), len(edits) - len(inverse))

    def history(self, limit: int = 100, before: int | None = None) -> list[EditSummary]:
        """Return edits, the last one first.

        Args:
            limit: Largest number of edits.
            before: Only edits with smaller numbers.
        """
        with self._threads:
            if not self._exists():
                return []
            file = self._opened()
            with file.reading():
                return [
                    EditSummary(edit, size, file.is_undone(edit.batch)) for edit, size in file.batches(limit, before)
                ]

    def write_csv(self, path: str | Path) -> int:
        """Write the labelled pictures as a table that ``lookalike train`` reads.

        Args:
            path: The file; written whole or not at all.

        Returns:
            The number of pictures. Those without a label, and names that a table cannot hold, are left out.
        """
        text, count = self._table({})
        write_text(Path(path), text)
        return count

    def write_table(self) -> None:
        """Write ``labels.csv`` again, after items were deleted."""
        self.write_csv(self.idx.path / TABLE)

    def as_csv(self, changes: Mapping[str, str | None] | None = None) -> str:
        """Return the text of the table; see ``write_csv``.

        Args:
            changes: Id of an item -> the label to write instead of its own, or None to leave it out.
        """
        return self._table(changes or {})[0]

    def close(self) -> None:
        """Close the history."""
        with self._threads:
            if self._file is not None:
                self._file.close()
                self._file = None

    def __enter__(self) -> "Labels":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- changing

    def _relabel(self, labels: Sequence[str], new: str, action: str, by: str | None) -> Edited:
        if not new.strip():
            raise ValueError("the new label is empty")
        counts = self.idx.labels()
        for label in labels:
            if not label or label not in counts:
                raise ValueError(f"no picture has the label {label!r}{did_you_mean(label, set(counts) - {''})}")

        def items() -> list[Item]:
            found = []
            for label in dict.fromkeys(labels):
                found += self.idx.items(f"label={_quoted(label)}")
            return found

        return self._change(items, lambda item: item._replace(label=new.strip()), action, by)

    def _items(self, ids: Sequence[str]) -> list[Item]:
        items = []
        ids = list(dict.fromkeys(ids))
        for item_id, item in zip(ids, self.idx.get(ids), strict=True):
            if item is None:
                raise KeyError(f"there is no item {item_id}")
            items.append(item)
        return items

    def _change(
        self, items: Callable[[], list[Item]], change: Callable[[Item], Item], action: str, by: str | None
    ) -> Edited:
        check_name("by", by)
        with self.idx.writing(), self._threads:
            self._complete()
            old_items = items()
            stamps = self.idx.stamps([item.id for item in old_items])
            edits = []
            for old in old_items:
                new = change(old)
                check_items([new])
                if new == old:
                    continue
                is_edited = stamps.get(old.id, "").endswith(LABEL_FROM_TABLE)
                texts = (old.label, new.label, metadata_as_json(old), metadata_as_json(new))
                edited = (int(is_edited), int(is_edited or old.label != new.label))
                edits.append(Edit(0, 0, time.time(), by or "", action, 0, old.id, old.path, *texts, *edited))
            if not edits:
                return Edited(0, 0)
            return Edited(self._apply(edits), len(edits))

    def _apply(self, edits: Sequence[Edit]) -> int:
        """Store edits, change the index, and write the table."""
        file = self._opened_for_writing()
        with file.writing():
            batch = file.insert(edits)
        self._update_index(edits)
        with file.writing():
            file.finish(batch)
        self.write_table()
        return batch

    def _update_index(self, edits: Sequence[Edit]) -> None:
        ids = [edit.id for edit in edits]
        stamps = self.idx.stamps(ids)
        items = []
        new_stamps = []
        for edit in edits:
            items.append(Item(edit.id, edit.path, edit.new_label, json.loads(edit.new_metadata)))
            stamp = stamps.get(edit.id, "").removesuffix(LABEL_FROM_TABLE)
            if stamp and edit.new_edited:
                stamp += LABEL_FROM_TABLE
            new_stamps.append(stamp)
        self.idx.add(items, self.idx.vectors(ids), new_stamps, self.idx.other_vectors(ids))

    def _complete(self) -> None:
        """Complete what a killed process has stored but perhaps not written to the index."""
        if not self._exists():
            return
        file = self._opened()
        with file.reading():
            edits = file.unfinished()
        if not edits:
            return
        current = {item.id: item for item in self.idx.get([edit.id for edit in edits]) if item is not None}
        pending = []
        for edit in edits:
            item = current.get(edit.id)
            if item is not None and _is(item, edit.old_label, edit.old_metadata):
                pending.append(edit)
        if pending:
            self._update_index(pending)
        with file.writing():
            for batch in {edit.batch for edit in edits}:
                file.finish(batch)
        self.write_table()

    # ---- files

    def _exists(self) -> bool:
        return self._file is not None or (self.idx.path / FILE).exists()

    def _batch(self, number: int) -> list[Edit]:
        """The edits of a batch that can be undone."""
        edits: list[Edit] = []
        if self._exists():
            file = self._opened()
            with file.reading():
                edits = file.batch(number)
                if edits and file.is_undone(number):
                    raise ValueError(f"edit {number} is undone already")
        if not edits:
            raise KeyError(f"there is no edit {number}")
        return edits

    def _opened(self) -> LabelsFile:
        if self._file is None:
            self._file = LabelsFile(self.idx.path / FILE)
        return self._file

    def _opened_for_writing(self) -> LabelsFile:
        path = self.idx.path / FILE
        if not self._exists():  # nobody else makes it: the lock of the index is held
            with replacing(path) as unfinished:
                LabelsFile.make_file(unfinished, SCHEMA)
            flush(self.idx.path)
        return self._opened()

    def _table(self, changes: Mapping[str, str | None]) -> tuple[str, int]:
        rows = []
        for item in self.idx.items():
            path = str(file_of(self.idx, item))
            label = (changes.get(item.id, item.label) or "").strip()
            if label and _fits_table(path):
                rows.append((path, label, split_of(item).replace("validation", "val")))
        with_splits = bool(rows) and all(split for *_, split in rows)
        lines = [csv_line(["path", "label", "split"] if with_splits else ["path", "label"])]
        for row in rows:
            lines.append(csv_line(row if with_splits else row[:2]))
        return "".join(lines), len(rows)


def _is(item: Item, label: str, metadata: str) -> bool:
    return item.label == label and item.metadata == json.loads(metadata)


def _inverse(edit: Edit, by: str) -> Edit:
    """The edit that undoes another one."""
    return edit._replace(
        time=time.time(),
        by=by,
        action="undo",
        undoes=edit.batch,
        old_label=edit.new_label,
        new_label=edit.old_label,
        old_metadata=edit.new_metadata,
        new_metadata=edit.old_metadata,
        old_edited=edit.new_edited,
        new_edited=edit.old_edited,
    )


def _quoted(label: str) -> str:
    escaped = label.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _fits_table(path: str) -> bool:
    """Whether a table gives this path back: it strips spaces, reads backslashes as slashes, and is UTF-8."""
    return path == path.strip() and "\\" not in path and path.isprintable()
