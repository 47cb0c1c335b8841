"""Bring an index up to date with a folder of pictures: new ones in, changed ones again, vanished ones out.

A file is the same if its size and time are, else if its content is. Batches are committed as they are embedded, so an
interrupted run goes on where it stopped. Pictures that cannot be read are listed, and leave the index if they were in
it: what it held of them is no longer there. Labels and metadata that came from a table stay until another table comes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from lookalike import data
from lookalike._util.checks import check_count
from lookalike.data.files import counted, raise_problems
from lookalike.data.folder import SPLIT_NAMES, list_pictures
from lookalike.data.names import as_text
from lookalike.data.pictures import BrokenData, Problem, UnreadablePicture
from lookalike.index.base import FileRecord, Index
from lookalike.index.items import Item, check_items, file_item

BATCH = 64  # pictures committed together
BLOCK = 1 << 20
NAMED = "*"


@dataclass
class Changes:
    """What a sync did; ``unreadable`` names each picture that was left out, and why."""

    added: int = 0
    updated: int = 0
    removed: int = 0
    unchanged: int = 0
    unreadable: list[Problem] = field(default_factory=list)
    notes: tuple[str, ...] = ()


class Found(NamedTuple):
    """A picture in the folder."""

    item: Item
    file: Path
    named: bool  # its label is from a table, not from its class folder


def sync(
    idx: Index,
    model: Any,
    folder: str | Path,
    *,
    progress: Callable[[int], None] = lambda _: None,
    total: Callable[[int], None] = lambda _: None,
    strict: bool = False,
    batch: int = BATCH,
    metadata: dict[str, dict[str, Any]] | None = None,
) -> Changes:
    """Make the index hold the pictures below ``folder`` as they are now.

    model: a ``TrainedModel``, the one that the index was made with.
    total, progress: told once how many pictures there are, then how many are done, batch by batch; either may raise
        to stop, after which another sync goes on.
    strict: raise at the first picture that cannot be read.
    metadata: by the path within the folder, e.g. {"wren/1.jpg": {"year": 2020}}; a "label" in it goes before the
        name of the class folder. It takes the place of what was given before, an empty one too; with None pictures that
        the index knows keep their label and metadata.
    """
    check_count("batch", batch)
    idx.check_model(model)
    root = Path(folder).expanduser().absolute()
    if not root.is_dir():
        raise ValueError(f"{folder} is not a folder of pictures")
    changes = Changes()
    with idx.writing():
        found = _listed(root, metadata or {}, changes)
        check_items([each.item for each in found])
        if strict:
            raise_problems(str(folder), changes.unreadable)
        top = as_text(str(root))
        known = idx.files_below(top)
        if metadata is None:
            found = [_as_known(each, known.get(each.item.id)) for each in found]
        hidden = [as_text(str(root / problem.name)) for problem in changes.unreadable]  # folders that cannot be listed
        total(len(found))
        idx.add_folder(top)
        work = _Work(idx, model, strict, changes, progress)
        for start in range(0, len(found), batch):
            work.do(found[start : start + batch], known)
        here = {each.item.id for each in found}
        vanished = [
            each
            for each, kept in known.items()
            if each not in here and not any(kept.path.startswith(f"{name}/") for name in hidden)
        ]
        for start in range(0, len(vanished), 1000):
            changes.removed += idx.delete(vanished[start : start + 1000])
        idx.save()
    return changes


def _listed(root: Path, metadata: dict[str, dict[str, Any]], changes: Changes) -> list[Found]:
    if data.benchmarks.recognise(root) is not None:
        pictures = data.load(str(root), check=False)
        names = list(pictures.names)
        labels = [pictures.classes[label] for label in pictures.labels]
        splits: list[str | None] = (
            [None] * len(names) if pictures.splits is None else [str(each) for each in pictures.splits]
        )
        base = pictures.root or root
    else:
        listing = list_pictures(root)
        names, base = listing.pictures, root
        changes.unreadable, changes.notes = list(listing.unreadable), listing.notes()
        labels, splits = _classes(names)
    if not names:
        raise ValueError(
            f"{root} has no pictures, so nothing was changed: is a disk not mounted? "
            "An index that is to be emptied can be deleted"
        )
    unknown = sorted(set(metadata) - set(names))
    if unknown and len(unknown) == len(metadata):
        raise ValueError(f"the metadata name no picture that is in {root}, but for instance {unknown[0]!r}")
    if unknown:  # vanished since, perhaps
        note = f"{counted(len(unknown), 'row')} of the metadata without a picture; the first: {unknown[0]}"
        changes.notes = (*changes.notes, note)
    found = []
    for name, label, split in zip(names, labels, splits, strict=True):
        more = {**({} if split is None else {"split": split}), **metadata.get(name, {})}
        file, named = base / name, "label" in more
        found.append(Found(file_item(file, str(more.pop("label", label)), more), file, named))
    return found


def _as_known(found: Found, before: FileRecord | None) -> Found:
    if before is None:
        return found
    named = before.stamp.endswith(NAMED)
    label, metadata = before.label if named else found.item.label, {**found.item.metadata, **before.metadata}
    return found._replace(item=found.item._replace(label=label, metadata=metadata), named=named)


def _classes(names: list[str]) -> tuple[list[str], list[str | None]]:
    """The class folder of each picture, "" for one that lies in none, and the split where the folders are splits."""
    parts = [name.split("/") for name in names]
    tops = {part[0] for part in parts if len(part) > 1}
    if tops and all(top.lower() in SPLIT_NAMES for top in tops) and any(len(part) > 2 for part in parts):
        labels = [part[1] if len(part) > 2 else "" for part in parts]
        return labels, [SPLIT_NAMES[part[0].lower()] if len(part) > 1 else None for part in parts]
    return [part[0] if len(part) > 1 else "" for part in parts], [None] * len(parts)


class _Work:
    def __init__(self, idx: Index, model: Any, strict: bool, changes: Changes, progress: Callable[[int], None]) -> None:
        self.idx, self.model, self.strict, self.changes, self.progress = idx, model, strict, changes, progress

    def do(self, found: list[Found], known: dict[str, FileRecord]) -> None:
        """One batch: those that need it are embedded, and what came of it is committed."""
        again: dict[str, str] = {}  # id -> stamp, of those whose time alone has changed
        as_before: list[tuple[Item, str]] = []  # the same pictures under a new label or with new metadata
        fresh: list[tuple[Found, str]] = []
        for each in found:
            before = known.get(each.item.id)
            try:
                stamp, same = _compare(each, before)
            except OSError as error:
                self._unreadable(each, error.strerror or str(error), before)
                continue
            if before is None or not same:
                fresh.append((each, stamp))
            elif (before.label, before.metadata) != (each.item.label, each.item.metadata):
                as_before.append((each.item, stamp))
            else:
                self.changes.unchanged += 1
                if stamp != before.stamp:
                    again[each.item.id] = stamp
        if again:
            self.idx.restamp(again)
        if as_before:
            items = [item for item, _ in as_before]
            self.idx.add(items, self.idx.vectors([item.id for item in items]), [stamp for _, stamp in as_before])
            self.changes.updated += len(items)
        self._embed(fresh, known)
        self.progress(len(found))

    def _embed(self, fresh: list[tuple[Found, str]], known: dict[str, FileRecord]) -> None:
        while fresh:
            try:
                vectors = self.model.embed([each.file for each, _ in fresh])
            except UnreadablePicture as failure:
                bad = [each for each, _ in fresh if str(each.file) == failure.name]
                if not bad:
                    raise
                self._unreadable(bad[0], failure.reason, known.get(bad[0].item.id))
                fresh = [(each, stamp) for each, stamp in fresh if each is not bad[0]]
                continue
            items = [each.item for each, _ in fresh]
            new = self.idx.add(items, vectors, [stamp for _, stamp in fresh])
            self.changes.added += new
            self.changes.updated += len(items) - new
            return

    def _unreadable(self, found: Found, reason: str, before: FileRecord | None) -> None:
        problem = Problem(str(found.file), reason)
        if self.strict:
            raise BrokenData(f"a picture cannot be used: {problem}")
        self.changes.unreadable.append(problem)
        if before is not None:
            self.changes.removed += self.idx.delete([found.item.id])


def _compare(found: Found, before: FileRecord | None) -> tuple[str, bool]:
    """The stamp of a file, "size:time:digest of its content", and whether the content is that of before.

    A NAMED at its end: the label is from a table.
    """
    status = found.file.stat()
    outside, named = f"{status.st_size}:{status.st_mtime_ns}", NAMED if found.named else ""
    known, _, known_content = ("" if before is None else before.stamp.removesuffix(NAMED)).rpartition(":")
    if known == outside:
        return f"{known}:{known_content}{named}", True
    digest = blake2b(digest_size=16)
    with found.file.open("rb") as content:
        while block := content.read(BLOCK):
            digest.update(block)
    return f"{outside}:{digest.hexdigest()}{named}", known_content == digest.hexdigest()
