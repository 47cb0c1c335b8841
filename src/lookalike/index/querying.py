"""Queries of several pictures, and what happens to their hits: near-duplicates, diversity and confidence.

A query of positive and negative examples is Rocchio's: with the means p and n of their vectors,

    q = p - NEGATIVE n          each vector and the result of length 1 where the distance is the cosine

Near-duplicates are grouped under their first hit: pictures closer to it than DUPLICATE times the typical distance of
two pictures of the index. Diversity reorders by maximal marginal relevance (MMR). The next hit is the one with the
smallest

    (1 - diversity) * distance to the query - diversity * distance to the nearest hit that was chosen before

References: Rocchio, "Relevance feedback in information retrieval", 1971; Carbonell and Goldstein, "The Use of MMR",
SIGIR 1998.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lookalike.index.base import MOST, Index
from lookalike.index.calibrating import ERROR_RATE, find_references, score
from lookalike.index.exact_rescoring import distances
from lookalike.index.filters import Where
from lookalike.index.items import Hit, Item, Vectors
from lookalike.index.reranking import search_reranked
from lookalike.retrieval.calibration import Calibration, check_confidence

NEGATIVE = 0.25  # weight of the negative examples; Rocchio's 0.15 against 0.75 is 0.2
DUPLICATE = 0.045  # of the typical distance: half of the copies with other sizes, crops or compression, on CUB
TYPICAL_SAMPLE = 200  # pictures whose distances give the typical one
COPY_DISTANCE = 0.01  # a file that is farther away cannot be the same
COPY_CANDIDATES = 8  # nearest files that are compared byte by byte
CANDIDATES = 100  # hits that are grouped or reordered, at least
NOT_CALIBRATED = "no probabilities: they are calibrated for searches with one whole picture"


@dataclass
class Options:
    """Options of a search.

    Attributes:
        k: Number of results.
        where: A filter.
        rerank: A method of ``lookalike.index.reranking``.
        without: Ids of items to leave out.
        group: Group near-duplicates.
        diversity: From 0, nearest first, to below 1.
        confidence: Leave out results with a smaller P(same); None: none.
        error_rate: How often "nothing here looks the same" may be said wrongly.
        one_picture: Whether the query is one whole picture. Only then there are probabilities.
    """

    k: int = 10
    where: Where = None
    rerank: str = "none"
    without: tuple[str, ...] = ()
    group: bool = False
    diversity: float = 0.0
    confidence: float | None = None
    error_rate: float = ERROR_RATE
    one_picture: bool = True

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: If one is out of range.
        """
        check_confidence("error_rate", self.error_rate)
        if self.confidence is not None:
            check_confidence("confidence", self.confidence)
        if not 0 <= self.diversity < 1:
            raise ValueError(f"diversity must be at least 0 and below 1, got {self.diversity:g}")


class Result(NamedTuple):
    """One result.

    Attributes:
        hit: The item and its distance.
        probability: P(same); None without a calibration.
        duplicates: Near-duplicates of the item, nearest first.
    """

    hit: Hit
    probability: float | None
    duplicates: list[Item]


class Results(NamedTuple):
    """The results of a search.

    Attributes:
        results: In order.
        p_value: See ``calibrating.Scores``, as for the next two.
        nothing: Whether nothing here looks the same.
        note: Where the probabilities come from, or why there are none.
    """

    results: list[Result]
    p_value: float | None
    nothing: bool
    note: str


def compose_query(positives: Any, negatives: Any = None, *, distance: str = "cosine") -> Vectors:
    """Make one query of several pictures.

    Args:
        positives: Vectors (p, D) of pictures that the results should look like.
        negatives: Vectors (n, D) of pictures that they should not look like.
        distance: "cosine" or "l2".

    Returns:
        The query (D,).

    Raises:
        ValueError: If there are no positive examples, or the examples cancel out.
    """
    positives = np.asarray(positives, np.float32)
    if not len(positives):
        raise ValueError("a query needs at least one positive example: negative ones alone do not say what to look for")
    if len(positives) == 1 and (negatives is None or not len(negatives)):
        only: Vectors = positives[0]
        return only
    query = _unit(positives, distance).mean(0)
    if negatives is not None and len(negatives):
        query = query - NEGATIVE * _unit(np.asarray(negatives, np.float32), distance).mean(0)
    if distance == "cosine" and np.linalg.norm(query) < 1e-6:
        raise ValueError("the positive and negative examples cancel out: nothing is left to look for")
    composed: Vectors = _unit(query, distance).astype(np.float32)
    return composed


def find(idx: Index, query: Vectors, options: Options, calibration: Calibration | None = None) -> Results:
    """Search an index.

    Args:
        idx: The index.
        query: The vector (D,), for example from ``compose_query``.
        options: What to do with the hits.
        calibration: From ``calibrating.load_calibration``.

    Returns:
        At most ``options.k`` results.

    Raises:
        ValueError: If a confidence is asked for without a calibration, or an argument is invalid.
    """
    if options.confidence is not None and (calibration is None or not options.one_picture):
        reason = score(None, []).note if calibration is None else NOT_CALIBRATED
        raise ValueError(f"a confidence needs probabilities; {reason}")
    count = options.k
    if options.group or options.diversity:
        count = min(MOST - len(options.without), max(4 * options.k, CANDIDATES))
    (hits,) = search_reranked(idx, query[None], count, options.where, options.rerank, options.without)
    groups = [[hit] for hit in hits]
    if options.group and len(hits) > 1:
        groups = _group(idx, hits)
    if options.diversity and len(groups) > 1:
        groups = _diversify(idx, groups, options)
    groups = groups[: options.k]
    used = calibration if options.one_picture else None
    reference = None
    if used is not None:
        reference = float(find_references(idx, query[None], used.rank, options.without)[0])
    scores = score(used, [group[0] for group in groups], options.error_rate, reference=reference)
    note = scores.note if options.one_picture else NOT_CALIBRATED
    results = []
    for position, group in enumerate(groups):
        probability = None
        if scores.probabilities is not None:
            probability = scores.probabilities[position]
        if options.confidence is None or (probability is not None and probability >= options.confidence):
            results.append(Result(group[0], probability, [hit.item for hit in group[1:]]))
    return Results(results, scores.p_value, scores.nothing, note)


def find_copies(idx: Index, vector: Vectors, data: bytes) -> list[str]:
    """Find the indexed files with just these bytes; they must be among the nearest.

    Args:
        idx: The index.
        vector: The vector (D,) of the picture.
        data: The content of its file.

    Returns:
        Ids of items.
    """
    ids = []
    for item, distance in idx.search(vector[None], COPY_CANDIDATES)[0]:
        if not item.path or distance >= COPY_DISTANCE:
            continue
        with suppress(OSError):
            if item.file.stat().st_size == len(data) and item.file.read_bytes() == data:
                ids.append(item.id)
    return ids


def typical_distance(idx: Index) -> float:
    """The median distance between pictures of an index, from a sample."""
    _, vectors = idx.with_vectors(idx.items(limit=TYPICAL_SAMPLE))
    if len(vectors) < 2:
        return 0.0
    rows = [distances(vector, vectors, idx.distance) for vector in vectors]
    return float(np.median(np.stack(rows)[np.triu_indices(len(vectors), 1)]))


def _group(idx: Index, hits: Sequence[Hit]) -> list[list[Hit]]:
    """Groups of near-duplicates, by their first hit."""
    limit = DUPLICATE * typical_distance(idx)
    vectors = idx.vectors([hit.item.id for hit in hits])
    groups: list[list[Hit]] = []
    free = np.ones(len(hits), bool)
    for position, hit in enumerate(hits):
        if not free[position]:
            continue
        close = free & (distances(vectors[position], vectors, idx.distance) <= limit)
        close[position] = False
        groups.append([hit, *(hits[i] for i in np.flatnonzero(close).tolist())])
        free[close] = False
    return groups


def _diversify(idx: Index, groups: list[list[Hit]], options: Options) -> list[list[Hit]]:
    """Reorder groups by maximal marginal relevance of their first hits."""
    vectors = idx.vectors([group[0].item.id for group in groups])
    to_query = np.array([group[0].distance for group in groups])
    to_chosen = np.full(len(groups), np.inf)
    order: list[int] = []
    position = 0
    while len(order) < min(options.k, len(groups)):
        order.append(position)
        to_chosen = np.minimum(to_chosen, distances(vectors[position], vectors, idx.distance))
        costs = (1 - options.diversity) * to_query - options.diversity * to_chosen
        costs[order] = np.inf
        position = int(costs.argmin())
    return [groups[i] for i in order]


def _unit(vectors: Any, distance: str) -> Any:
    if distance != "cosine":
        return vectors
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
