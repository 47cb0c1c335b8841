"""What is known about the pictures of an index: labels, marked pairs, and which of both are held out.

Held-out marks and classes decide how far training may change the model, so nothing trains on them.
A held-out mark must not follow from those that train: if a is the same as b and b as c, then a is the same as c. Apart
from that it may share pictures with them. Marks on other pictures only would say nothing about what was marked: with
200 marks on CUB, they hardly notice a gain of two points of MAP@R. Which marks are held out depends on the seed and on
the contents of the pictures alone.
"""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.index.base import Index
from lookalike.index.contents import content_of_stamp
from lookalike.index.items import Item
from lookalike.index.marks import MarkedPair, Marks

FEWEST_MARKS = 20
FEWEST_OF_A_KIND = 5  # marks "same", and marks "different"
HELD_OUT = 0.25  # share of marks and of classes
FEWEST_CLASSES = 4  # with two pictures or more, for some to be held out
MOST_HELD_OUT_PICTURES = 1_000  # of held-out classes
MOST_MARKED_PICTURES = 8_000  # all pairs of them are kept in memory

Positions = NDArray[np.int64]


class NotEnoughMarks(ValueError):  # noqa: N818 - names the state
    """There are too few marks to learn from and to measure with."""


class Evidence(NamedTuple):
    """Pictures and what is known about them. Pictures have positions: the items, then kept pictures without an item.

    Attributes:
        items: The items (n,).
        stamps: Their stamps.
        kept: Files of marked pictures that are not in the index.
        labels: (n + kept,) class of each picture; -1 without a label.
        classes: Names of the classes.
        pairs: Positions (m, 2) of the pictures of each mark.
        same: (m,) bool.
        contradictions: Number of contradictory marks, which are left out.
        expired: Number of marks on pictures that are gone.
    """

    items: list[Item]
    stamps: list[str]
    kept: list[Path]
    labels: Positions
    classes: list[str]
    pairs: Positions
    same: NDArray[np.bool_]
    contradictions: int = 0
    expired: int = 0


class Split(NamedTuple):
    """What trains and what is held out.

    Attributes:
        training: Marks that train, as rows of ``Evidence.pairs``.
        held_out: Marks that are held out.
        training_labels: (pictures,) labels that train; -1 otherwise.
        held_out_pictures: Positions of the pictures of the held-out classes. Those that training marks name are left
            out, unless they are most of them.
        held_out_classes: Number of these classes.
        independent: Whether no held-out mark follows from training ones.
    """

    training: Positions
    held_out: Positions
    training_labels: Positions
    held_out_pictures: Positions
    held_out_classes: int
    independent: bool


def gather(idx: Index) -> Evidence:
    """Read items, labels and marks of an index."""
    items = idx.items()
    stamp_of = idx.stamps([item.id for item in items])
    stamps = [stamp_of.get(item.id, "") for item in items]
    with Marks(idx.path) as marks:
        review = marks.review(idx)
        pairs = _latest(review.pairs)
        positions, kept = _locate(idx, marks, items, pairs)
    names = sorted({item.label for item in items if item.label})
    number_of = {name: number for number, name in enumerate(names)}
    labels = [number_of.get(item.label, -1) for item in items] + [-1] * len(kept)
    located = [pair for pair in pairs if pair.first in positions and pair.second in positions]
    places = [(positions[pair.first], positions[pair.second]) for pair in located]
    contradictory: set[int] = set()
    for contradiction in review.contradictions:
        contradictory.update(contradiction.marks)
    return Evidence(
        items,
        stamps,
        kept,
        np.array(labels, np.int64),
        names,
        np.array(places, np.int64).reshape(-1, 2),
        np.array([pair.same for pair in located], bool),
        len(contradictory),
        review.expired + len(pairs) - len(located),
    )


def require_enough(evidence: Evidence) -> None:
    """Raise ``NotEnoughMarks`` if there are too few marks to learn from and to measure with."""
    total, same = len(evidence.same), int(evidence.same.sum())
    if total >= FEWEST_MARKS and min(same, total - same) >= FEWEST_OF_A_KIND:
        return
    left_out = []
    if evidence.contradictions:
        left_out.append(f"{evidence.contradictions:,} contradict each other")
    if evidence.expired:
        left_out.append(f"{evidence.expired:,} are on pictures that are gone")
    more = f" ({' and '.join(left_out)}, and are left out)" if left_out else ""
    raise NotEnoughMarks(
        f"improve needs at least {FEWEST_MARKS} marks, {FEWEST_OF_A_KIND} of them same and {FEWEST_OF_A_KIND} "
        f"different; there are {total:,}: {same:,} same and {total - same:,} different{more}. "
        "Mark more results on the page of lookalike serve"
    )


def split(evidence: Evidence, seed: int = 0) -> Split:
    """Hold out a share of the marks and of the classes."""
    names = _names(evidence)
    held_out, independent = _held_out_marks(evidence, names, seed)
    training = np.setdiff1d(np.arange(len(evidence.pairs)), held_out)
    classes = _held_out_classes(evidence, seed)
    is_held_out = np.isin(evidence.labels, classes)
    training_labels = np.where(is_held_out, -1, evidence.labels)
    training_labels[evidence.pairs[held_out]] = -1  # two labels would say what a held-out mark says
    pictures = np.flatnonzero(is_held_out)
    unmarked = np.setdiff1d(pictures, evidence.pairs[training])
    if len(unmarked) >= len(pictures) / 2:
        pictures = unmarked
    return Split(training, held_out, training_labels, pictures, len(classes), independent)


def known_relations(pairs: Positions, same: NDArray[np.bool_]) -> tuple[Positions, NDArray[np.int8]]:
    """Deduce all pairs that marks decide: what is the same as the same thing is the same.

    Args:
        pairs: Positions (m, 2), without contradictions.
        same: (m,).

    Returns:
        The marked pictures (M,), ascending, and (M, M): 1 the same, -1 different, 0 unknown or the same picture.

    Examples:
        >>> known_relations(np.array([[4, 7], [7, 9], [9, 5]]), np.array([True, True, False]))[1].tolist()
        [[0, -1, 1, 1], [-1, 0, -1, -1], [1, -1, 0, 1], [1, -1, 1, 0]]
    """
    pictures, places = np.unique(pairs, return_inverse=True)
    places = places.reshape(-1, 2)
    group = _components(len(pictures), places[same])
    count = int(group.max(initial=-1)) + 1
    differ = np.zeros((count, count), bool)
    ends = group[places[~same]]
    differ[ends[:, 0], ends[:, 1]] = differ[ends[:, 1], ends[:, 0]] = True
    relation = (group[:, None] == group).astype(np.int8) - differ[group][:, group].astype(np.int8)
    np.fill_diagonal(relation, 0)
    return pictures, relation


def _latest(pairs: Sequence[MarkedPair]) -> list[MarkedPair]:
    """The last marks, on at most ``MOST_MARKED_PICTURES`` pictures."""
    pictures: set[str] = set()
    chosen = []
    for pair in reversed(pairs):
        pictures.update((pair.first, pair.second))
        if len(pictures) > MOST_MARKED_PICTURES:
            break
        chosen.append(pair)
    return chosen[::-1]


def _locate(
    idx: Index, marks: Marks, items: Sequence[Item], pairs: Sequence[MarkedPair]
) -> tuple[dict[str, int], list[Path]]:
    """Content -> position, for marked pictures, and the files of those that are not in the index."""
    number_of = {item.id: number for number, item in enumerate(items)}
    positions: dict[str, int] = {}
    wanted = {content for pair in pairs for content in (pair.first, pair.second)}
    for item_id, stamp in sorted(idx.stamps(list(number_of)).items()):
        content = content_of_stamp(stamp)
        if content in wanted:
            positions.setdefault(content, number_of[item_id])
    return positions, _add_located(idx, marks, number_of, positions, wanted)


def _add_located(
    idx: Index, marks: Marks, number_of: dict[str, int], positions: dict[str, int], wanted: set[str]
) -> list[Path]:
    """Add uploads and kept pictures to ``positions``; return the files of the kept ones."""
    missing = wanted - positions.keys()
    if missing:
        from lookalike.index.contents import locate

        pictures = [end for mark in marks.history() for end in (mark.query, mark.result) if end.content in missing]
        for content, item_id in locate(idx, pictures).items():
            if content in missing and item_id in number_of:
                positions[content] = number_of[item_id]
    kept: list[Path] = []
    for content in sorted(wanted - positions.keys()):
        file = marks.picture(content)
        if file is not None:
            positions[content] = len(number_of) + len(kept)
            kept.append(file)
    return kept


def _names(evidence: Evidence) -> list[str]:
    """A name of each picture that stays when the index changes."""
    contents = [content_of_stamp(stamp) for stamp in evidence.stamps]
    names = [content or item.id for content, item in zip(contents, evidence.items, strict=True)]
    return names + [file.name for file in evidence.kept]


def _held_out_marks(evidence: Evidence, names: list[str], seed: int) -> tuple[Positions, bool]:
    """Marks to hold out, and whether none of them follows from the others.

    Some of each picture's marks, if they do not follow from each other; else all marks of some pictures.
    """
    spread = _spread_marks(evidence, names, seed)
    for held_out in (_without_implied(evidence, spread), _separate_marks(evidence, names, seed)):
        if len(held_out) >= HELD_OUT * len(evidence.same) / 2 and _has_both(evidence.same[held_out]):
            return held_out, True
    return spread, False


def _without_implied(evidence: Evidence, held_out: Positions) -> Positions:
    """Held-out marks without those that follow from the others."""
    while len(held_out):
        training = np.setdiff1d(np.arange(len(evidence.pairs)), held_out)
        pictures, relation = known_relations(evidence.pairs[training], evidence.same[training])
        if not len(pictures):
            break
        ends = evidence.pairs[held_out]
        places = np.searchsorted(pictures, ends).clip(max=len(pictures) - 1)
        is_implied = (pictures[places] == ends).all(1) & (relation[places[:, 0], places[:, 1]] != 0)
        if not is_implied.any():
            break
        held_out = held_out[~is_implied]
    return held_out


def _separate_marks(evidence: Evidence, names: list[str], seed: int) -> Positions:
    """Marks to hold out that share no picture with the others."""
    pictures, places = np.unique(evidence.pairs, return_inverse=True)
    places = places.reshape(-1, 2)
    group = _components(len(pictures), places)[places[:, 0]]
    first_name: dict[int, str] = {}
    for number, pair in zip(group.tolist(), evidence.pairs.tolist(), strict=True):
        name = min(names[pair[0]], names[pair[1]])
        first_name[number] = min(first_name.get(number, name), name)
    target = HELD_OUT * len(group)
    held_out: list[int] = []
    for number in sorted(first_name, key=lambda number: _rank(first_name[number], seed)):
        members = np.flatnonzero(group == number).tolist()
        if len(held_out) + len(members) <= 1.5 * target:
            held_out += members
        if len(held_out) >= target:
            break
    return np.sort(np.array(held_out, np.int64))


def _spread_marks(evidence: Evidence, names: list[str], seed: int) -> Positions:
    """A share of the marks of each kind."""
    held_out: list[int] = []
    for kind in (True, False):
        members = np.flatnonzero(evidence.same == kind).tolist()
        ends = evidence.pairs.tolist()
        members.sort(key=lambda mark: _rank(" ".join(sorted(names[end] for end in ends[mark])), seed))
        held_out += members[: max(1, round(HELD_OUT * len(members)))]
    return np.sort(np.array(held_out, np.int64))


def _held_out_classes(evidence: Evidence, seed: int) -> list[int]:
    counts = np.bincount(evidence.labels[evidence.labels >= 0], minlength=len(evidence.classes))
    usable = [number for number in range(len(evidence.classes)) if counts[number] >= 2]
    if len(usable) < FEWEST_CLASSES:
        return []
    usable.sort(key=lambda number: _rank(evidence.classes[number], seed))
    chosen: list[int] = []
    pictures = 0
    for number in usable[: max(2, round(HELD_OUT * len(usable)))]:
        pictures += int(counts[number])
        if pictures > MOST_HELD_OUT_PICTURES and len(chosen) >= 2:
            break
        chosen.append(number)
    return sorted(chosen)


def _components(count: int, edges: Positions) -> Positions:
    """The connected component (count,) of each node, numbered from 0."""
    parent = list(range(count))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for first, second in edges.tolist():
        parent[root(first)] = root(second)
    roots = [root(node) for node in range(count)]
    return np.unique(roots, return_inverse=True)[1].astype(np.int64)


def _has_both(same: NDArray[np.bool_]) -> bool:
    return bool(same.any()) and not bool(same.all())


def _rank(name: str, seed: int) -> str:
    return blake2b(f"{seed} {name}".encode(errors="surrogateescape"), digest_size=16).hexdigest()
