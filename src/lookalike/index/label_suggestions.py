"""Labels that a picture may have, from its labelled neighbours."""

from typing import NamedTuple

from lookalike.index.base import Index
from lookalike.index.calibrating import find_references, score
from lookalike.retrieval.calibration import NEIGHBOURS, Calibration

MOST_SUGGESTIONS = 5


class LabelSuggestion(NamedTuple):
    """A label that a picture may have.

    Attributes:
        label: The label.
        probability: P(same) of the picture and its nearest neighbour with this label; None without a calibration.
        distance: Between these two.
        neighbour: Id of this neighbour.
        votes: Number of the neighbours with this label.
    """

    label: str
    probability: float | None
    distance: float
    neighbour: str
    votes: int


class LabelSuggestions(NamedTuple):
    """Suggestions, the nearest first.

    Attributes:
        suggestions: The suggestions.
        note: Where the probabilities come from, or why there are none.
    """

    suggestions: list[LabelSuggestion]
    note: str


def suggest_labels(
    idx: Index,
    item_id: str,
    calibration: Calibration | None = None,
    k: int = NEIGHBOURS,
) -> LabelSuggestions:
    """Suggest labels for a picture of an index.

    Args:
        idx: The index.
        item_id: Id of the picture. Its own label does not count.
        calibration: From ``calibrating.load_calibration``.
        k: Number of labelled neighbours to look at.

    Returns:
        At most five suggestions.

    Raises:
        KeyError: If there is no such item.
    """
    vectors = idx.vectors([item_id])
    (hits,) = idx.search(vectors, k + 1, 'label!=""')
    hits = [hit for hit in hits if hit.item.id != item_id][:k]
    reference = None
    if calibration is not None:
        reference = float(find_references(idx, vectors, calibration.rank, [item_id])[0])
    scores = score(calibration, hits, reference=reference)
    suggestions: dict[str, LabelSuggestion] = {}
    for position, hit in enumerate(hits):
        label = hit.item.label
        if label in suggestions:
            suggestions[label] = suggestions[label]._replace(votes=suggestions[label].votes + 1)
            continue
        probability = None
        if scores.probabilities is not None:
            probability = scores.probabilities[position]
        suggestions[label] = LabelSuggestion(label, probability, hit.distance, hit.item.id, 1)
    return LabelSuggestions(list(suggestions.values())[:MOST_SUGGESTIONS], scores.note)
