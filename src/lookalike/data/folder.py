"""A folder of class folders.

    birds/wren/1.jpg                     the class is the first folder; what lies deeper belongs to it
    birds/wren/garden/2.jpg              also a wren
    birds/train/wren/1.jpg               folders called train, val and test are splits, if they hold class folders
    birds/test/robin/7.jpg

Hidden files and folders, Thumbs.db and __MACOSX are passed over, with a note if a hidden folder has pictures in it;
files that are not pictures (by their suffix) are passed over and counted.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from lookalike.data.files import natural_order, table_of_files
from lookalike.data.pictures import Pictures, Problem
from lookalike.data.reading import SUFFIXES

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
PASSED_OVER = frozenset({"thumbs.db", "desktop.ini", "__macosx"})
HIDDEN_SHOWN = 3


@dataclass
class Listing:
    """What lies in a folder: pictures by their path, and how many other files, by their suffix."""

    pictures: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    unreadable: list[Problem] = field(default_factory=list)  # folders that could not be listed
    hidden: list[str] = field(default_factory=list)  # folders with pictures that were passed over for their names

    def notes(self) -> tuple[str, ...]:
        """What a person should know of what was passed over."""
        if not self.hidden:
            return ()
        shown = ", ".join(self.hidden[:HIDDEN_SHOWN]) + (", ..." if len(self.hidden) > HIDDEN_SHOWN else "")
        return (f"hidden folders are passed over, {len(self.hidden):,} of them with pictures: {shown}",)


def list_pictures(root: str | Path) -> Listing:
    """All pictures below ``root``, at any depth, in natural order; by their suffixes, no file is opened.

    Linked folders are followed, except back into a folder that they lie in.
    """
    listing = Listing()
    _walk(Path(root), "", frozenset(), listing)
    return listing


def read_folder(root: str | Path, fewest_classes: int = 2) -> Pictures:
    """A folder of class folders, or of splits of class folders, as a table. No picture is opened."""
    root = Path(root)
    listing = list_pictures(root)
    if not listing.pictures:
        others = f" (but {sum(listing.others.values()):,} other files)" if listing.others else ""
        hidden = "".join(f"; {note}" for note in listing.notes())
        raise ValueError(
            f"{root} has no pictures{others}; expected a folder for each class with pictures in it{hidden}"
        )
    parts = [name.split("/") for name in listing.pictures]
    inside = [part for part in parts if len(part) > 1]
    if not inside:
        raise ValueError(
            f"the {len(parts):,} pictures in {root} lie in no class folder; expected {root.name}/CLASS/picture.jpg"
        )
    problems = listing.unreadable + [
        Problem(part[0], "lies in no class folder, so it has no class") for part in parts if len(part) == 1
    ]
    tops = {part[0] for part in inside}
    splits = None
    depth = 0
    if all(top.lower() in SPLIT_NAMES for top in tops):
        if all(len(part) == 2 for part in inside):
            raise ValueError(
                f"{root} has the splits {', '.join(natural_order(tops))} but no class folders in them; "
                f"expected {root.name}/{min(tops)}/CLASS/picture.jpg"
            )
        problems += [Problem("/".join(p), "lies in no class folder, so it has no class") for p in inside if len(p) == 2]
        inside = [part for part in inside if len(part) > 2]
        splits = [SPLIT_NAMES[part[0].lower()] for part in inside]
        depth = 1
    class_of = [part[depth] for part in inside]
    if len(set(class_of)) < fewest_classes:
        _complain_of_one_class(root, class_of[0], inside[0][:depth], [part[depth + 1 :] for part in inside])
    names = ["/".join(part) for part in inside]
    pictures = table_of_files(f"folder {root.name or root}", root, names, class_of, splits=splits)
    return replace(pictures, problems=tuple(problems), notes=(*listing.notes(), *_deep([p[depth:] for p in inside])))


def _deep(parts: list[list[str]]) -> list[str]:
    """Kinds within kinds, and perhaps the inner ones are meant: to be said, since it cannot be known."""
    if any(len(part) == 2 for part in parts):
        return []
    first = "/".join(parts[0][:2])
    return [f"no picture lies in a class folder itself but all deeper, as in {first}: the class is {parts[0][0]}"]


def _complain_of_one_class(root: Path, only: str, above: list[str], below: list[list[str]]) -> None:
    deeper = {rest[0] for rest in below if len(rest) > 1}
    hint = f"; did you mean {Path(root, *above, only)}?" if len(deeper) > 1 else ""
    raise ValueError(f"{root} has only one class, {only!r}; at least two are needed to tell apart{hint}")


def _walk(folder: Path, prefix: str, above: frozenset[tuple[int, int]], listing: Listing) -> None:
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
        if name.startswith(".") or name.lower() in PASSED_OVER:
            if name.startswith(".") and _holds_pictures(by_name[name]):
                listing.hidden.append(prefix + name)
            continue
        if _is_folder(by_name[name]):
            _walk(folder / name, f"{prefix}{name}/", above | {here}, listing)
        elif (suffix := Path(name).suffix.lower()) in SUFFIXES:
            listing.pictures.append(prefix + name)
        else:
            listing.others[suffix or name] += 1


def _holds_pictures(folder: os.DirEntry[str]) -> bool:
    """Directly, as a folder of a class does; nothing deeper is looked at."""
    try:
        with os.scandir(folder) as entries:
            return any(Path(each.name).suffix.lower() in SUFFIXES for each in entries)
    except OSError:  # a file, or nothing that we may list
        return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself; as a picture, it will be reported
        return False
