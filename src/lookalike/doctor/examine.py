"""Examines labelled pictures and lists what looks wrong, the most certain first."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lookalike.data.pictures import Pictures
from lookalike.doctor.duplicates import Duplicate, exact_duplicates, group, make_thumbnails, near_duplicates
from lookalike.doctor.labels import judge_labels
from lookalike.retrieval import neighbours

Kind = Literal[
    "broken",
    "exact duplicate",
    "near duplicate",
    "doubtful label",
    "outlier",
    "tiny",
    "few pictures",
    "confused classes",
]
Action = Literal["keep", "drop", "relabel"]
DOUBTFUL = 0.3  # probability that a label is wrong, from which it is shown
FEW = 5  # pictures of a class
TINY = 32  # pixels of the shorter side
CONFUSED = 0.2  # share of two classes' pictures that are taken for the other
SEARCHED = 50  # nearest pictures, among which one of the likely class is shown
NEIGHBOURS = 5  # whose mean distance makes an outlier
WHISKERS = 3.0  # quartile distances beyond the upper quartile


@dataclass(frozen=True)
class Finding:
    """Something that looks wrong.

    Attributes:
        kind: What it is.
        picture: Position of the picture; -1 for a finding about classes or a file that is not among the pictures.
        name: Name of the picture, or of the class or classes.
        label: Its label.
        partner: Position of the picture that it is compared with; -1: none.
        score: How certain it is, 0 to 1.
        action: What is suggested.
        new_label: The likely label, if the suggestion is to relabel.
        reason: One sentence.
        shown: Positions of the pictures that show it side by side.
    """

    kind: Kind
    picture: int
    name: str
    label: str
    partner: int = -1
    score: float = 0.0
    action: Action = "keep"
    new_label: str = ""
    reason: str = ""
    shown: tuple[int, ...] = ()


@dataclass(frozen=True)
class Examination:
    """All findings of an examination.

    Attributes:
        pictures: What was examined.
        vectors: Their vectors, (n, D).
        findings: By kind, the most certain first.
    """

    pictures: Pictures
    vectors: NDArray[np.floating]
    findings: list[Finding] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Number of findings of each kind."""
        return dict(Counter(finding.kind for finding in self.findings))


def examine(
    pictures: Pictures, vectors: NDArray[np.floating], *, tick: Callable[[int], None] = lambda _: None
) -> Examination:
    """Look for duplicates, doubtful labels, outliers, and classes that are confused or too small.

    Args:
        pictures: The pictures. Those of a class without a name have no label.
        vectors: One for each, (n, D), from any model.
        tick: Called with the number of finished pictures; every picture counts twice.

    Returns:
        The findings. Labels are judged without the later copies of duplicates, which would vouch for each other.
    """
    if len(vectors) != len(pictures):
        raise ValueError(f"there are {len(pictures)} pictures but {len(vectors)} vectors")
    findings = [
        Finding("broken", -1, problem.name, "", score=1.0, action="drop", reason=problem.reason)
        for problem in pictures.problems
    ]
    exact = exact_duplicates(pictures, tick)
    thumbnails, unreadable = make_thumbnails(pictures, tick)
    near = sorted(near_duplicates(thumbnails, vectors, exact), key=lambda duplicate: -duplicate.similarity)
    for i, reason in unreadable:
        findings.append(Finding("broken", i, pictures.names[i], _label(pictures, i), -1, 1.0, "drop", reason=reason))
    findings += [_duplicate(pictures, duplicate, "exact duplicate") for duplicate in exact]
    findings += [_duplicate(pictures, duplicate, "near duplicate") for duplicate in near]
    first_of = group([*exact, *near])
    single = np.array([i for i in range(len(pictures)) if first_of.get(i, i) == i])
    labelled = single[_has_label(pictures)[single]]
    if len(np.unique(pictures.labels[labelled])) > 1 and len(labelled) > 2:
        findings += _labels(pictures, vectors, labelled)
    findings += _outliers(pictures, vectors, single)
    findings += _tiny(pictures)
    findings += _small_classes(pictures)
    return Examination(pictures, vectors, findings)


def _label(pictures: Pictures, i: int) -> str:
    return pictures.classes[pictures.labels[i]]


def _has_label(pictures: Pictures) -> NDArray[np.bool_]:
    is_named = np.array([bool(name) for name in pictures.classes], bool)
    return is_named[pictures.labels]


def _duplicate(pictures: Pictures, duplicate: Duplicate, kind: Kind) -> Finding:
    first, second, similarity = duplicate
    reason = f"the same as {pictures.names[first]}"
    action: Action = "drop"
    if pictures.splits is not None and pictures.splits[first] != pictures.splits[second]:
        reason += f", which is in {pictures.splits[first]}; this one is in {pictures.splits[second]}"
    name, label = pictures.names[second], _label(pictures, second)
    new_label = ""
    if pictures.labels[first] != pictures.labels[second]:
        new_label = _label(pictures, first)
        reason += f", which is labelled {new_label}" if new_label else ", which has no label"
    return Finding(kind, second, name, label, first, similarity, action, new_label, reason, (second, first))


def _labels(pictures: Pictures, vectors: NDArray[np.floating], rows: NDArray[np.int64]) -> list[Finding]:
    """Doubtful labels, and pairs of classes that are taken for each other."""
    class_numbers, labels = np.unique(pictures.labels[rows], return_inverse=True)
    classes = [pictures.classes[number] for number in class_numbers]
    opinion = judge_labels(vectors[rows], labels, len(classes))
    findings = []
    doubtful = np.flatnonzero(opinion.wrong >= DOUBTFUL)
    ranked = np.asarray(neighbours(vectors[rows], k=min(SEARCHED, len(rows))).indices)
    for row in doubtful[np.argsort(-opinion.wrong[doubtful], kind="stable")].tolist():
        i, likely = int(rows[row]), int(opinion.likely[row])
        partner = _nearest(ranked[row], labels, likely, rows, i)
        of_own_class = _nearest(ranked[row], labels, int(labels[row]), rows, i)
        shown = tuple(position for position in (i, partner, of_own_class) if position >= 0)
        share = float(opinion.wrong[row])
        new_label = classes[likely]
        reason = f"the label is wrong with a probability of {100 * share:.0f} %; it looks like {new_label}"
        name = pictures.names[i]
        findings.append(
            Finding("doubtful label", i, name, _label(pictures, i), partner, share, "relabel", new_label, reason, shown)
        )
    return findings + _confused(classes, labels, opinion.predicted, rows)


def _nearest(
    ranked: NDArray[np.int64], labels: NDArray[np.int64], wanted: int, rows: NDArray[np.int64], without: int
) -> int:
    """Position of the nearest picture of a class; -1 if none is among the nearest."""
    for neighbour in ranked.tolist():
        if labels[neighbour] == wanted and rows[neighbour] != without:
            return int(rows[neighbour])
    return -1


def _confused(
    classes: list[str], labels: NDArray[np.int64], predicted: NDArray[np.int64], rows: NDArray[np.int64]
) -> list[Finding]:
    counts = np.bincount(labels, minlength=len(classes))
    taken = Counter(zip(labels.tolist(), predicted.tolist(), strict=True))
    shares = {}
    for a, b in taken:
        pair = (min(a, b), max(a, b))
        if a != b and pair not in shares:
            shares[pair] = (taken[pair] + taken[pair[::-1]]) / (counts[a] + counts[b])
    findings = []
    for (a, b), share in sorted(shares.items(), key=lambda entry: -entry[1]):
        if share >= CONFUSED:
            name = f"{classes[a]} / {classes[b]}"
            reason = f"{100 * share:.0f} % of their pictures are taken for the other class; are they one?"
            examples = _mistaken_first(labels, predicted, a, b)[:2] + _mistaken_first(labels, predicted, b, a)[:2]
            shown = tuple(int(rows[row]) for row in examples)
            findings.append(Finding("confused classes", -1, name, "", score=float(share), reason=reason, shown=shown))
    return findings


def _mistaken_first(labels: NDArray[np.int64], predicted: NDArray[np.int64], own: int, other: int) -> list[int]:
    """Rows of a class, first those that are taken for the other one."""
    members = np.flatnonzero(labels == own)
    order = np.argsort(predicted[members] != other, kind="stable")
    return [int(row) for row in members[order]]


def _outliers(pictures: Pictures, vectors: NDArray[np.floating], single: NDArray[np.int64]) -> list[Finding]:
    """Pictures that are much farther from their nearest pictures than others are."""
    if len(single) <= NEIGHBOURS:
        return []
    ranked = neighbours(vectors[single], k=NEIGHBOURS + 1)
    indices = np.asarray(ranked.indices)
    distances = 1 - np.asarray(ranked.scores, np.float64)[:, 1:].mean(axis=1)
    lower, upper = np.quantile(distances, (0.25, 0.75))
    limit = upper + WHISKERS * (upper - lower)
    findings = []
    for row in np.argsort(-distances, kind="stable").tolist():
        if distances[row] <= limit:
            break
        i = int(single[row])
        nearest = next(int(single[other]) for other in indices[row].tolist() if other != row)
        score = float(1 - limit / distances[row])
        reason = "unlike every other picture; the nearest one is beside it"
        name, label = pictures.names[i], _label(pictures, i)
        findings.append(Finding("outlier", i, name, label, nearest, score, reason=reason, shown=(i, nearest)))
    return findings


def _small_classes(pictures: Pictures) -> list[Finding]:
    findings = []
    for number, (label, count) in enumerate(zip(pictures.classes, pictures.counts(), strict=True)):
        if label and 0 < count < FEW:
            noun = "picture" if count == 1 else "pictures"
            reason = f"only {count} {noun}; {FEW} or more are better"
            shown = tuple(np.flatnonzero(pictures.labels == number).tolist())
            findings.append(
                Finding("few pictures", -1, label, label, score=1 - count / FEW, reason=reason, shown=shown)
            )
    return findings


def _tiny(pictures: Pictures) -> list[Finding]:
    """Pictures with a short side; only files, whose headers say their size."""
    if pictures.root is None:
        return []
    findings = []
    for i, name in enumerate(pictures.names):
        try:
            with Image.open(pictures.root / name) as image:
                width, height = image.size
        except (OSError, ValueError, Image.DecompressionBombError):
            continue
        side = min(width, height)
        if side < TINY:
            reason = f"{width} x {height} pixels"
            score = 1 - side / TINY
            label = _label(pictures, i)
            findings.append(Finding("tiny", i, name, label, -1, score, "drop", reason=reason, shown=(i,)))
    return sorted(findings, key=lambda finding: -finding.score)
