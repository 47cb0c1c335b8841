"""Help for filters that match nothing: unknown keys, and labels close to the ones asked for.

Finding the keys reads every item, so use them only after a search without hits.
"""

from collections.abc import Iterable

from lookalike._util.suggestions import closest
from lookalike.index.filters import Where, parse
from lookalike.index.items import RESERVED

MOST_KEYS = 20  # keys listed in an error


def check_keys(where: Where, keys: Iterable[str], columns: Iterable[str] = RESERVED) -> None:
    """Check that a filter uses existing keys only.

    Raises:
        ValueError: If it uses an unknown key; the message names the closest one.

    Examples:
        >>> check_keys("lable=robin", ["year"])
        Traceback (most recent call last):
        ValueError: no picture of the index has the key lable; did you mean label? There are id, path, label, year
    """
    allowed = [*columns, *sorted(set(keys))]
    for condition in parse(where):
        if condition.key in allowed:
            continue
        match = closest(condition.key, allowed)
        suggestion = f"; did you mean {match}?" if match else "."
        listed = ", ".join(allowed[:MOST_KEYS])
        if len(allowed) > MOST_KEYS:
            listed += ", ..."
        raise ValueError(f"no picture of the index has the key {condition.key}{suggestion} There are {listed}")


def nearest_labels(where: str | None, labels: Iterable[str]) -> dict[str, str]:
    """Suggest labels for those in a filter that no item has.

    Returns:
        Unknown label -> closest existing one, for those that have one.

    Examples:
        >>> nearest_labels("label in (Robbin, wren)", ["robin", "wren"])
        {'Robbin': 'robin'}
    """
    existing = set(labels)
    candidates = sorted(existing - {""})
    suggestions: dict[str, str] = {}
    for condition in parse(where):
        if condition.key != "label" or condition.operator != "in":
            continue
        for value in condition.values:
            if value.text in existing:
                continue
            match = closest(value.text, candidates)
            if match is not None:
                suggestions[value.text] = match
    return suggestions
