"""What to label next: pictures whose marks would change the ranking most.

Every picture is searched among the others. Of its neighbours, the one about which the ranking is least sure is the one
to compare it with:

- With a calibration that is the neighbour whose P(same) p has the largest entropy -p log p - (1 - p) log(1 - p).
- Without, the margin between labels decides: with the distances a and b to the nearest neighbours of two labels, the
  picture is uncertain if (b - a) / (b + a) is small. A neighbour without a label counts as a label of its own.

Pairs that are marked already are left out, and pairs of labelled pictures come last: their labels answer the question.
Of the most uncertain pictures, greedy k-centre chooses those that lie far from each other.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike._util.checks import check_count
from lookalike.index.base import Index
from lookalike.index.calibrating import find_references, score
from lookalike.index.contents import MarkedPicture, marked_pictures
from lookalike.index.items import Hit, Item, Vectors
from lookalike.index.marks import Marks
from lookalike.retrieval.calibration import NEIGHBOURS, Calibration

QUEUE = 20
LONGEST_QUEUE = 100
MOST_PICTURES = 2_000  # that are searched; of larger indexes a sample
CANDIDATES = 5  # times as many as are chosen
BY_MARGIN = "by the margin between the labels of the neighbours, because there is no calibration on labels"


class Question(NamedTuple):
    """Two pictures to compare: are they the same thing?

    Attributes:
        item: The picture.
        other: One of its neighbours.
        distance: Between the two.
        probability: P(same); None without a calibration.
        uncertainty: From 0, certain, to 1.
    """

    item: Item
    other: Item
    distance: float
    probability: float | None
    uncertainty: float


class Queue(NamedTuple):
    """Questions, in the order of choice.

    Attributes:
        questions: Each picture at most once.
        note: How the pictures were chosen.
    """

    questions: list[Question]
    note: str


def choose_next(idx: Index, marks: Marks, k: int = QUEUE, calibration: Calibration | None = None) -> Queue:
    """Choose pictures to compare next.

    Args:
        idx: The index.
        marks: Its marks.
        k: Number of pictures.
        calibration: From ``calibrating.load_calibration``.

    Returns:
        At most ``k`` questions.

    Raises:
        ValueError: If ``k`` is not between 1 and 100.
    """
    check_count("k", k)
    if k > LONGEST_QUEUE:
        raise ValueError(f"k must be at most {LONGEST_QUEUE}, got {k}")
    items, vectors = idx.with_vectors(_sample(idx))
    questions: list[Question] = []
    rows: list[int] = []
    references = np.ones(len(items))
    if calibration is not None and calibration.rank:
        references = find_references(idx, vectors, calibration.rank + 1)  # the first neighbour is the picture itself
    asked = _Asked(idx, marks)
    for row, (item, hits) in enumerate(zip(items, idx.search(vectors, NEIGHBOURS + 1), strict=True)):
        others = asked.without([hit for hit in hits if hit.item.id != item.id], item)
        if others:
            questions.append(_least_sure(item, others, calibration, references[row]))
            rows.append(row)
    note = f"chosen {BY_MARGIN}" if calibration is None else f"chosen by P(same), {calibration.describe()}"
    candidates = vectors[rows]
    if idx.distance == "cosine":
        candidates = candidates / np.linalg.norm(candidates, axis=1, keepdims=True)
    return Queue(_spread(questions, candidates, k), note)


def entropy(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """The entropy of yes or no in bits, 0 to 1."""
    p = np.clip(probabilities, 1e-12, 1 - 1e-12)
    bits: NDArray[np.float64] = -p * np.log2(p) - (1 - p) * np.log2(1 - p)
    return bits


class _Asked:
    """Knows which pairs were judged already, also with "skip"."""

    def __init__(self, idx: Index, marks: Marks) -> None:
        self._idx = idx
        self._pairs = {mark.pair for mark in marks.history() if mark.undone_time is None}
        self._marked = {content for pair in self._pairs for content in pair}
        self._contents: dict[str, str] = {}

    def without(self, hits: Sequence[Hit], item: Item) -> list[Hit]:
        """The hits that were not compared with the item, and are not copies of it."""
        if not self._pairs:
            return list(hits)
        content = self._content(item)
        if content not in self._marked:
            return list(hits)
        kept = []
        for hit in hits:
            first, second = sorted((content, self._content(hit.item)))
            if first != second and (first, second) not in self._pairs:
                kept.append(hit)
        return kept

    def _content(self, item: Item) -> str:
        if item.id not in self._contents:
            self._contents[item.id] = _identified(self._idx, item).content
        return self._contents[item.id]


def _identified(idx: Index, item: Item) -> MarkedPicture:
    try:
        return marked_pictures(idx, [item.id])[0]
    except KeyError:  # deleted in between
        return MarkedPicture("", item.id)


def _sample(idx: Index) -> list[Item]:
    items = idx.items()
    if len(items) <= MOST_PICTURES:
        return items
    unlabelled = [item for item in items if not item.label]
    rng = np.random.default_rng()  # another part of a large index each time
    if len(unlabelled) >= MOST_PICTURES:
        items = unlabelled
    chosen = rng.choice(len(items), MOST_PICTURES, replace=False)
    return [items[i] for i in np.sort(chosen)]


def _least_sure(item: Item, hits: Sequence[Hit], calibration: Calibration | None, reference: float) -> Question:
    """The question about a picture and one of its neighbours, which are in order of their distance."""
    if calibration is None:
        return Question(item, hits[0].item, hits[0].distance, None, 1 - _margin(hits))
    open_hits = [hit for hit in hits if not _is_known(item, hit.item)] or hits
    probabilities = np.array(score(calibration, open_hits, reference=reference).probabilities)
    uncertainties = entropy(probabilities)
    place = int(uncertainties.argmax())
    hit = open_hits[place]
    return Question(item, hit.item, hit.distance, float(probabilities[place]), float(uncertainties[place]))


def _margin(hits: Sequence[Hit]) -> float:
    """From 0, two labels are equally near, to 1."""
    nearest = hits[0]
    for hit in hits[1:]:
        is_other = hit.item.label != nearest.item.label or not hit.item.label
        if is_other:
            total = nearest.distance + hit.distance
            return (hit.distance - nearest.distance) / total if total > 0 else 0.0
    return 1.0


def _is_known(item: Item, other: Item) -> bool:
    return bool(item.label and other.label)


def _spread(questions: Sequence[Question], vectors: Vectors, k: int) -> list[Question]:
    """Choose among the most uncertain; no picture is in two questions."""
    uncertainties = np.array([question.uncertainty for question in questions])
    known = np.array([_is_known(question.item, question.other) for question in questions], bool)
    order = np.lexsort((-uncertainties, known))  # open questions first, then by uncertainty
    used: set[str] = set()
    candidates: list[int] = []
    for row in order.tolist():
        question = questions[row]
        if {question.item.id, question.other.id} & used or len(candidates) == CANDIDATES * k:
            continue
        used.update((question.item.id, question.other.id))
        candidates.append(row)
    open_count = int((~known[candidates]).sum())
    if open_count >= k:
        candidates = candidates[:open_count]
    if len(candidates) <= k:
        return [questions[row] for row in candidates]
    import torch  # loads slowly

    from lookalike.geometry import greedy_k_centre

    chosen = greedy_k_centre(torch.from_numpy(vectors[candidates]), k).indices.tolist()
    return [questions[candidates[place]] for place in chosen]
