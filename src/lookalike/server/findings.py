"""The findings of the doctor as the routes use them: which are open, what was decided, and what that changes.

A finding is open as long as its picture, its label and the picture beside it are those of the examination. Until
somebody decides, the suggestion counts. Nothing in the index changes before ``apply``.
"""

from collections import Counter
from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from lookalike.index.decisions import Choice, Decision, Decisions
from lookalike.index.findings_file import FILE, Record, read_records
from lookalike.index.items import Item
from lookalike.server.errors import ApiError, invalid
from lookalike.server.marking import Marking, refusals
from lookalike.server.schemas_doctor import Applied, Effect, FindingList, FindingsOfKind, OneFinding

MOST_QUERIES = 2_000  # pictures that are searched for to measure an effect
BATCH = 500


class OpenFinding(NamedTuple):
    """A finding that is open.

    Attributes:
        record: What was found.
        shown: The items that show it.
        decision: What somebody decided; None: the suggestion counts.
    """

    record: Record
    shown: list[Item]
    decision: Decision | None

    @property
    def choice(self) -> Choice:
        """What to do about it now."""
        if self.decision is not None:
            return self.decision.choice
        return Choice(self.record.key, self.record.action, self.record.new_label)  # type: ignore[arg-type]


class Findings:
    """The findings about one collection.

    Args:
        marking: Has the collection and its labels.
    """

    def __init__(self, marking: Marking) -> None:
        self._marking, self._collection = marking, marking.collection
        self._path = marking.collection.idx.path
        self._decisions = Decisions(self._path)
        self._lock = Lock()
        self._open: tuple[Any, list[tuple[Record, list[Item]]]] | None = None

    def close(self) -> None:
        """Close the files."""
        self._decisions.close()

    def counts(self) -> list[FindingsOfKind]:
        """Count the open findings of each kind."""
        findings = self._findings()
        total = Counter(finding.record.kind for finding in findings)
        decided = Counter(finding.record.kind for finding in findings if finding.decision is not None)
        return [FindingsOfKind(kind=kind, open=total[kind], decided=decided[kind]) for kind in total]

    def page(self, kind: str, offset: int, limit: int) -> FindingList:
        """List the open findings of a kind, the most certain first."""
        of_kind = [finding for finding in self._findings() if finding.record.kind == kind]
        page = [
            OneFinding.of(finding.record, finding.shown, finding.choice, finding.decision)
            for finding in of_kind[offset : offset + limit]
        ]
        return FindingList(findings=page, total=len(of_kind))

    def decide(self, key: str, action: str, label: str, by: str) -> OneFinding:
        """Store what to do about a finding. It is on the disk when this returns.

        Raises:
            ApiError: 404 if the finding is not open, 422 if the action is not possible for it.
        """
        finding = next((finding for finding in self._findings() if finding.record.key == key), None)
        if finding is None:
            raise ApiError(404, "not_found", "there is no open finding with this key")
        record = finding.record
        if action not in actions_of(record):
            raise invalid(f"action must be one of {', '.join(actions_of(record))}")
        choice = Choice(key, action, label.strip() or record.new_label)  # type: ignore[arg-type]
        with refusals():
            self._decisions.add([choice], by)
            decision = self._decisions.latest()[key]
        return OneFinding.of(record, finding.shown, decision.choice, decision)

    def effect(self) -> Effect:
        """Measure what the present choices do to MAP@R, with the vectors of the index."""
        from lookalike.doctor.fixes import measure_effect  # loads slowly

        changes = self._changes()
        idx = self._collection.idx
        items, vectors = idx.with_vectors(idx.items())
        stays = [number for number, item in enumerate(items) if changes.get(item.id, "") is not None]
        new_labels = [changes.get(items[number].id) or items[number].label for number in stays]
        labels = [item.label for item in items]
        measured = measure_effect(vectors, labels, np.array(stays), new_labels, idx.distance, MOST_QUERIES)
        relabelled, dropped = _sizes(changes)
        return Effect(
            before=measured["before"] if measured else None,
            after=measured["after"] if measured else None,
            queries=int(measured["queries"]) if measured else 0,
            relabelled=relabelled,
            dropped=dropped,
        )

    def pending(self) -> tuple[int, int]:
        """Return how many pictures the present choices relabel and drop."""
        return _sizes(self._changes())

    def apply(self, by: str) -> Applied:
        """Relabel and drop in the index what is chosen. If it is killed in between, applying again completes it."""
        changes = self._changes()
        labels = {item_id: label for item_id, label in changes.items() if label is not None}
        edited = self._marking.edit(lambda store: store.set_labels(labels, by)) if labels else None
        with refusals():
            dropped = self._collection.delete_all([item_id for item_id, label in changes.items() if label is None])
        if dropped:
            self._marking.labels.write_table()
        return Applied(relabelled=edited.changed if edited else 0, dropped=dropped, edit=edited.edit if edited else 0)

    def corrected_csv(self) -> bytes:
        """Return the table for ``lookalike train`` with the present choices."""
        with refusals():
            return self._marking.labels.as_csv(self._changes()).encode("utf-8", "surrogateescape")

    def _changes(self) -> dict[str, str | None]:
        """Id of an item -> its new label, or None if it is to be dropped."""
        changes: dict[str, str | None] = {}
        for finding in self._findings():
            item_id, choice = finding.record.id, finding.choice
            if not item_id or choice.action == "keep" or changes.get(item_id, "") is None:
                continue
            changes[item_id] = None if choice.action == "drop" else choice.new_label
        return changes

    def _findings(self) -> list[OpenFinding]:
        with refusals():
            decisions = self._decisions.latest()
            return [OpenFinding(record, shown, decisions.get(record.key)) for record, shown in self._current()]

    def _current(self) -> Sequence[tuple[Record, list[Item]]]:
        """The open findings with their items. They are looked up again only after a change."""
        with self._lock:
            try:
                changed = (self._path / FILE).stat().st_mtime_ns
            except OSError:
                return []
            state = (changed, self._collection.state())
            if self._open is None or self._open[0] != state:
                records = read_records(self._path)
                ids = list({item_id for record in records for item_id in (record.id, *record.shown) if item_id})
                items: dict[str, Item] = {}
                for start in range(0, len(ids), BATCH):
                    found = self._collection.idx.get(ids[start : start + BATCH])
                    items.update({item.id: item for item in found if item is not None})
                current = [
                    (record, [items[item_id] for item_id in record.shown if item_id in items])
                    for record in records
                    if _is_open(record, items)
                ]
                self._open = (state, current)
            return self._open[1]


def actions_of(record: Record) -> list[str]:
    """What may be done about a finding; nothing about one of classes."""
    if not record.id:
        return []
    return ["relabel", "drop", "keep"]


def _is_open(record: Record, items: dict[str, Item]) -> bool:
    if not record.id:
        return True
    if record.id not in items or items[record.id].label != record.label:
        return False
    return not record.kind.endswith("duplicate") or record.partner in items


def _sizes(changes: dict[str, str | None]) -> tuple[int, int]:
    dropped = sum(label is None for label in changes.values())
    return len(changes) - dropped, dropped
