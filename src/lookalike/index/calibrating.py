"""What a distance in an index means: P(same | distance), and whether anything here looks the same as the query.

An index uses its own calibration, made by ``calibrate`` from its labels, or else the one that came with its model.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.index.base import MOST, Index
from lookalike.index.items import Hit, Vectors
from lookalike.index.storage import MODEL
from lookalike.retrieval.calibration import (
    NEIGHBOURS,
    RANK,
    SEED,
    Calibration,
    Neighbourhoods,
    conformal_p_value,
    fit,
    last_finite,
)

MOST_QUERIES = 2_000
LABELLED = 0.9  # share of labelled pictures from which on labels tell how large classes are
OWN_SAMPLE = 300  # pictures of the index that take part in the test for "nothing"
ERROR_RATE = 0.05
NO_CALIBRATION = (
    "no probabilities: neither this index nor its model was calibrated on labels. "
    "With labels in the index, lookalike calibrate does it"
)

LIMITS = (
    "for unlike pictures only a guide, off by up to 60 points where measured; "
    "with labels in the index, lookalike calibrate fits it to them"
)


class ModelCalibration(Calibration):
    """The calibration of a model in an index: the test for "nothing" also asks the pictures of the index.

    Args:
        calibration: The calibration of the model.
        find_nearest: Finds the nearest distances of pictures of the index, ascending. Called once, if at all.
    """

    def __init__(self, calibration: Calibration, find_nearest: Callable[[], NDArray[np.float64]]) -> None:
        super().__init__(**vars(calibration))
        vars(self)["_find_nearest"] = find_nearest  # the class is frozen

    @cached_property
    def _own_nearest(self) -> NDArray[np.float64]:
        nearest: NDArray[np.float64] = vars(self)["_find_nearest"]()
        return nearest

    def describe(self) -> str:
        """One line for people, with what the probabilities are worth."""
        return f"{super().describe()}; {LIMITS}"

    def p_value_here(self, nearest: float) -> float:
        """The p-value of "a picture of the query's class is here", from the index's own pictures."""
        return conformal_p_value(self._own_nearest, nearest)


class Scores(NamedTuple):
    """What the distances of hits mean.

    Attributes:
        probabilities: P(same) of each hit; None without a calibration.
        p_value: Of "a picture of the query's class is here"; None without a calibration or hits. The pictures of the
            index are only asked where the calibration alone would say "nothing".
        nothing: Whether the p-value is at most the error rate: nothing here looks the same.
        note: Where the probabilities come from and what they are worth, or why there are none.
    """

    probabilities: list[float] | None
    p_value: float | None
    nothing: bool
    note: str


def load_calibration(idx: Index) -> Calibration | None:
    """Read the calibration of an index: its own, or that of its model adapted to pictures and sizes of classes.

    Raises:
        ValueError: If the file is damaged.
    """
    own = Calibration.read(idx.home)
    if own is not None:
        return own.adapted(idx.count())
    of_model = Calibration.read(idx.home / MODEL)
    if of_model is not None:
        return ModelCalibration(of_model.adapted(idx.count(), class_size(idx)), partial(find_own_nearest, idx))
    return None


def class_size(idx: Index) -> float | None:
    """The mean number of other pictures with the label of a picture; None if too few pictures have labels to tell."""
    sizes = np.array([count for label, count in idx.labels().items() if label], np.float64)
    if len(sizes) < 2 or sizes.sum() < LABELLED * idx.count():
        return None
    return float((sizes * (sizes - 1)).sum() / sizes.sum())


def find_own_nearest(idx: Index) -> NDArray[np.float64]:
    """The distances of up to 300 pictures of an index to their nearest other picture, ascending."""
    items = idx.sample(OWN_SAMPLE, SEED)
    nearest = []
    if len(items) > 1:
        found = idx.search(idx.vectors([item.id for item in items]), 2)
        for item, hits in zip(items, found, strict=True):
            nearest.append(next(hit.distance for hit in hits if hit.item.id != item.id))
    return np.sort(np.array(nearest, np.float64))


def find_references(idx: Index, vectors: Vectors, rank: int, without: Sequence[str] = ()) -> NDArray[np.float64]:
    """The distances (q,) of queries (q, D) to their neighbour of this rank, or to the last one if there are fewer.

    Args:
        idx: The index.
        vectors: The queries.
        rank: Of a calibration; 0 means that it needs none.
        without: Ids of items that do not count.
    """
    if not rank:
        return np.ones(len(vectors))
    found = idx.search(vectors, min(MOST, rank + len(without)))
    left_out = set(without)
    distances = np.full((len(vectors), rank), np.inf)
    for row, hits in enumerate(found):
        near = [hit.distance for hit in hits if hit.item.id not in left_out][:rank]
        distances[row, : len(near)] = near
    return last_finite(distances)


def score(
    calibration: Calibration | None,
    hits: Sequence[Hit],
    error_rate: float = ERROR_RATE,
    *,
    reference: float | None = None,
) -> Scores:
    """Score the hits of one query.

    Args:
        calibration: From ``load_calibration``.
        hits: The hits, in any order.
        error_rate: How often "nothing here looks the same" may be said wrongly.
        reference: Of the query, from ``find_references``; not needed without hits, a calibration or its rank.

    Returns:
        The scores.
    """
    if calibration is None:
        return Scores(None, None, False, NO_CALIBRATION)
    if not hits:
        return Scores([], None, False, calibration.describe())
    distances = [hit.distance for hit in hits]
    p_value = calibration.p_value(min(distances))
    if p_value <= error_rate:
        p_value = max(p_value, calibration.p_value_here(min(distances)))
    probabilities = calibration.probability(distances, reference).tolist()
    return Scores(probabilities, p_value, p_value <= error_rate, calibration.describe())


def calibrate(idx: Index) -> Calibration:
    """Fit P(same | distance) on the labels of an index, and store it there.

    Up to 2,000 labelled pictures are searched in the index.

    Args:
        idx: The index.

    Returns:
        The calibration.

    Raises:
        ValueError: If the index has too few labels.
        IndexInUse: If another process is writing.
    """
    items = [item for item in idx.items() if item.label]
    if not items:
        raise ValueError(f"{idx.path} has no labels: without them there is nothing to calibrate on")
    counts = idx.labels()
    if len(items) > MOST_QUERIES:
        chosen = np.random.default_rng(SEED).choice(len(items), MOST_QUERIES, replace=False)
        items = [items[i] for i in np.sort(chosen)]
    items, vectors = idx.with_vectors(items)
    distances = np.full((len(items), RANK), np.inf)
    same = np.zeros((len(items), RANK), bool)
    for row, (item, hits) in enumerate(zip(items, idx.search(vectors, RANK + 1), strict=True)):
        others = [hit for hit in hits if hit.item.id != item.id][:RANK]
        for column, hit in enumerate(others):
            distances[row, column] = hit.distance
            same[row, column] = hit.item.label == item.label
    references = last_finite(distances)
    distances, same = distances[:, :NEIGHBOURS], same[:, :NEIGHBOURS]
    labels = np.array([item.label for item in items])
    same_sizes = np.array([counts[label] - 1 for label in labels])
    neighbourhoods = Neighbourhoods(
        distances=distances,
        same=same,
        labels=labels,
        present=same_sizes > 0,
        nearest_other=np.where(same, np.inf, distances).min(1),
        references=references,
        same_size=float(same_sizes.mean()),
        other_size=float((idx.count() - 1 - same_sizes).mean()),
    )
    calibration = fit(neighbourhoods, "the labels of this index", unseen=False)
    with idx.writing():
        calibration.write(idx.home)
    return calibration
