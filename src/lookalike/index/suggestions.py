"""Where a filter leaves nothing: whether it asks for a key or a label that no item has, and which one is nearest to it.

Looking for the keys reads every item, so it is for searches that found nothing.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from lookalike.index.base import Index
from lookalike.index.filters import parse
from lookalike.index.items import RESERVED

PAGE = 10_000  # items read at a time
MOST_NAMED = 20  # keys that fit into a line


def metadata_keys(idx: Index) -> set[str]:
    """Of all items."""
    found: set[str] = set()
    after = None
    while some := idx.items(after=after, limit=PAGE):
        found.update(key for item in some for key in item.metadata)
        after = some[-1].id
    return found


def check_keys(where: str | None, keys: Iterable[str], columns: Iterable[str] = RESERVED) -> None:
    """Raise if the filter asks for what is neither one of ``keys``, the metadata's, nor of ``columns``.

    >>> check_keys("lable=robin", ["year"])
    Traceback (most recent call last):
    ValueError: no picture of the index has the key lable; did you mean label? There are id, path, label, year
    """
    known = [*columns, *sorted(set(keys))]
    for condition in parse(where):
        if condition.key not in known:
            meant = nearest(condition.key, known)
            named = ", ".join(known[:MOST_NAMED]) + (", ..." if len(known) > MOST_NAMED else "")
            raise ValueError(
                f"no picture of the index has the key {condition.key}"
                f"{f'; did you mean {meant}?' if meant else '.'} There are {named}"
            )


def nearest_labels(where: str | None, labels: Iterable[str]) -> dict[str, str]:
    """Each label that the filter asks for and nobody has -> the nearest there is, where one is near.

    >>> nearest_labels("label in (Robbin, wren)", ["robin", "wren"])
    {'Robbin': 'robin'}
    """
    known = list(labels)
    asked = [
        value.text for each in parse(where) if (each.key, each.operator) == ("label", "in") for value in each.values
    ]
    found = {text: nearest(text, known) for text in asked if text not in known}
    return {text: label for text, label in found.items() if label}


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Capitals do not count."""
    folded = {each.casefold(): each for each in known if each}
    close = get_close_matches(word.casefold(), folded, n=1)
    return folded[close[0]] if close else None
