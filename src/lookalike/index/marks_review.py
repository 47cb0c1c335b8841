"""What follows from all marks: those that count, and why others do not."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from lookalike.index.contents import MarkedPicture
from lookalike.index.contradictions import Contradiction, MarkedPair, find_contradictions
from lookalike.index.marks_file import Mark

State = Literal["in force", "overruled", "undone", "skipped", "contradictory", "expired"]


class Review(NamedTuple):
    """What follows from all marks.

    Attributes:
        pairs: Marks in force that do not contradict each other, one for each two pictures, in order of their marks.
        contradictions: Marks that cannot all be true; all of them are left out.
        expired: Number of marks in force on pictures that are gone.
        states: Number of a mark -> what has become of it.
    """

    pairs: list[MarkedPair]
    contradictions: list[Contradiction]
    expired: int
    states: dict[int, State]


def review_marks(marks: Sequence[Mark], missing_of: Callable[[Sequence[MarkedPicture]], set[str]]) -> Review:
    """Review marks.

    Args:
        marks: In order of their numbers, undone ones included.
        missing_of: Returns the contents of those pictures that are gone.

    Returns:
        The review.
    """
    states: dict[int, State] = {}
    last: dict[tuple[str, str], Mark] = {}
    for mark in marks:
        if mark.undone_time is not None:
            states[mark.number] = "undone"
            continue
        if mark.pair in last:
            states[last[mark.pair].number] = "overruled"
        last[mark.pair] = mark
    pictures: dict[MarkedPicture, None] = {}
    for mark in last.values():
        pictures.update({mark.query: None, mark.result: None})
    missing = missing_of(list(pictures))
    pairs = []
    for (first, second), mark in last.items():
        if mark.verdict == "skip":
            states[mark.number] = "skipped"
        elif first in missing or second in missing:
            states[mark.number] = "expired"
        else:
            states[mark.number] = "in force"
            pairs.append(MarkedPair(first, second, mark.verdict == "same", mark.number))
    contradictions = find_contradictions(pairs)
    for contradiction in contradictions:
        states.update(dict.fromkeys(contradiction.marks, "contradictory"))
    good = sorted((pair for pair in pairs if states[pair.mark] == "in force"), key=lambda pair: pair.mark)
    return Review(good, contradictions, list(states.values()).count("expired"), states)
