"""A folder of class folders.

    birds/wren/1.jpg                     the class is the first folder
    birds/wren/garden/2.jpg              also a wren
    birds/train/wren/1.jpg               folders called train, val and test are splits, if they hold class folders
    birds/test/robin/7.jpg

Hidden files and folders, Thumbs.db and __MACOSX are skipped, with a note if a hidden folder has pictures in it. Files
that are not pictures (by their suffix) are skipped and counted.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from lookalike.data.files import counted, natural_order, table_of_files
from lookalike.data.pictures import Pictures, Problem
from lookalike.data.reading import HEIF_SUFFIXES, READS_HEIF, SUFFIXES

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
SKIPPED = frozenset({"thumbs.db", "desktop.ini", "__macosx"})
HIDDEN_SHOWN = 3
KINDS_SHOWN = 8  # of other files
NO_CLASS = "lies in no class folder, so it has no class"


@dataclass
class Listing:
    """Content of a folder.

    Attributes:
        pictures: Paths of the pictures, relative to the folder.
        others: Number of other files, by suffix.
        unreadable: Folders that could not be listed.
        hidden: Hidden folders with pictures, which were skipped.
        links: Number of symbolic links, which were skipped.
    """

    pictures: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    unreadable: list[Problem] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    links: int = 0

    def notes(self) -> tuple[str, ...]:
        """Return notes on skipped links, files and hidden folders, if there are any."""
        links: tuple[str, ...] = ()
        if self.links:
            links = (f"symbolic links are skipped: {self.links:,}",)
        if self.others:
            links = (*links, self._others_by_kind())
        if not self.hidden:
            return links
        examples = self.hidden[:HIDDEN_SHOWN]
        if len(self.hidden) > HIDDEN_SHOWN:
            examples.append("...")
        hidden = f"hidden folders are skipped, {len(self.hidden):,} of them with pictures: {', '.join(examples)}"
        return (*links, hidden)

    def _others_by_kind(self) -> str:
        kinds = [f"{kind} {count:,}" for kind, count in self.others.most_common(KINDS_SHOWN)]
        if len(self.others) > KINDS_SHOWN:
            kinds.append("...")
        note = f"files that are not read as pictures: {', '.join(kinds)}"
        if not READS_HEIF and any(self.others[suffix] for suffix in HEIF_SUFFIXES):
            note += "; pip install pillow-heif reads .heic"
        return note


def list_pictures(root: str | Path, *, follow_symlinks: bool = True) -> Listing:
    """List all pictures below ``root``, recognised by their suffixes; no file is opened.

    Linked folders are followed, except back into a folder that contains them.
    Without ``follow_symlinks``, linked files and folders are skipped and counted; ``root`` itself may be a link.

    Raises:
        ValueError: If the folder cannot be listed.
    """
    listing = Listing()
    _walk(Path(root), "", frozenset(), listing, follow_symlinks)
    return listing


def read_folder(root: str | Path, fewest_classes: int = 2) -> Pictures:
    """Read a folder of class folders, or of splits of class folders, as a table; no picture is opened.

    Raises:
        ValueError: If there are no pictures, no class folders or too few classes.
    """
    root = Path(root)
    listing = list_pictures(root)
    if not listing.pictures:
        raise ValueError(_no_pictures(root, listing))
    paths = [name.split("/") for name in listing.pictures]
    deepest = max(map(len, paths))
    if deepest == 1:
        raise ValueError(
            f"the {len(paths):,} pictures in {root} lie in no class folder; expected {root.name}/CLASS/picture.jpg. "
            f"To search them without labels: lookalike index {root} --out IDX"
        )
    top_folders = {path[0] for path in paths if len(path) > 1}
    has_splits = set(map(str.lower, top_folders)) <= SPLIT_NAMES.keys()
    if has_splits and deepest == 2:
        raise ValueError(
            f"{root} has the splits {', '.join(natural_order(top_folders))} but no class folders in them; "
            f"expected {root.name}/{min(top_folders)}/CLASS/picture.jpg"
        )
    depth = int(has_splits)  # of the class folders
    problems = list(listing.unreadable)
    classified: list[list[str]] = []
    for path in paths:
        if len(path) > depth + 1:
            classified.append(path)
        else:
            problems.append(Problem("/".join(path), NO_CLASS))
    class_of = [path[depth] for path in classified]
    if len(set(class_of)) < fewest_classes:
        raise ValueError(_one_class(root, classified, depth, len(paths) - len(classified)))
    splits = None
    if has_splits:
        splits = [SPLIT_NAMES[path[0].lower()] for path in classified]
    names = list(map("/".join, classified))
    pictures = table_of_files(f"folder {root.name or root}", root, names, class_of, splits=splits)
    notes = (*listing.notes(), *_nested_classes(classified, depth))
    return replace(pictures, problems=tuple(problems), notes=notes)


def _nested_classes(paths: list[list[str]], depth: int) -> list[str]:
    """A note if all pictures lie in folders within class folders: perhaps those are the classes."""
    if min(map(len, paths)) == depth + 2:
        return []
    outer, inner = paths[0][depth : depth + 2]
    return [f"no picture lies directly in a class folder but all deeper, as in {outer}/{inner}: the class is {outer}"]


def _no_pictures(root: Path, listing: Listing) -> str:
    message = f"{root} has no pictures"
    if listing.others:
        message += f" (but {listing.others.total():,} other files)"
    return "; ".join([message, "expected a folder for each class with pictures in it", *listing.notes()])


def _one_class(root: Path, paths: list[list[str]], depth: int, without_class: int) -> str:
    class_folder = paths[0][: depth + 1]
    message = f"{root} has only one class, {class_folder[-1]!r}; expected at least two"
    inner_folders = {path[depth + 1] for path in paths if len(path) > depth + 2}
    if len(inner_folders) > 1:
        message += f"; did you mean {root.joinpath(*class_folder)}?"
    if without_class:
        message += f"; {counted(without_class, 'picture')} in no class folder. "
        message += f"To search them all without labels: lookalike index {root} --out IDX"
    return message


def _walk(folder: Path, prefix: str, above: frozenset[tuple[int, int]], listing: Listing, follow: bool) -> None:
    try:
        status = folder.stat()
        here = (status.st_dev, status.st_ino)
        if here in above:
            return
        with os.scandir(folder) as entries:
            by_name = {entry.name: entry for entry in entries}
    except OSError as error:
        if not prefix:
            raise ValueError(f"{folder} cannot be listed: {error.strerror}") from error
        listing.unreadable.append(Problem(prefix.rstrip("/"), f"folder cannot be listed: {error.strerror}"))
        return
    for name in natural_order(set(by_name)):
        if name.startswith(".") or name.lower() in SKIPPED:
            if name.startswith(".") and _holds_pictures(by_name[name]):
                listing.hidden.append(prefix + name)
            continue
        if not follow and by_name[name].is_symlink():
            listing.links += 1
            continue
        suffix = Path(name).suffix.lower()
        if _is_folder(by_name[name]):
            _walk(folder / name, f"{prefix}{name}/", above | {here}, listing, follow)
        elif suffix in SUFFIXES:
            listing.pictures.append(prefix + name)
        else:
            listing.others[suffix or name] += 1


def _holds_pictures(folder: os.DirEntry[str]) -> bool:
    """Whether a folder has pictures directly in it, as a class folder does."""
    try:
        with os.scandir(folder) as entries:
            return any(Path(entry.name).suffix.lower() in SUFFIXES for entry in entries)
    except OSError:  # a file, or not permitted
        return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; reported as an unreadable picture
        return False
