"""Suggestions for misspelt names."""

from collections.abc import Iterable
from difflib import get_close_matches


def closest(wrong: str, names: Iterable[str]) -> str | None:
    """Find the name most similar to ``wrong``, ignoring case, dashes and underscores; None if none is similar.

    Args:
        wrong: The misspelt name.
        names: Existing names.

    Examples:
        >>> closest("--poolling", ["--pooling", "--loss"]), closest("x", ["abc"])
        ('--pooling', None)
        >>> closest("Proxy_Anchor", ["proxy-anchor"])
        'proxy-anchor'
    """
    by_key = {_key(name): name for name in names}
    matches = get_close_matches(_key(wrong), list(by_key), n=1)
    if not matches:
        return None
    return by_key[matches[0]]


def did_you_mean(wrong: str, names: Iterable[str]) -> str:
    """Return the end of an error message, or an empty string.

    Args:
        wrong: The misspelt name.
        names: Existing names.

    Examples:
        >>> did_you_mean("poolling", ["pooling", "loss"]), did_you_mean("x", ["pooling"])
        (" (did you mean 'pooling'?)", '')
    """
    match = closest(wrong, names)
    if match is None:
        return ""
    return f" (did you mean {match!r}?)"


def _key(name: str) -> str:
    return str(name).strip("-").casefold().replace("_", "-")
