"""Names with settings, as they are typed: ``gsp(keep=0.2, sharpness=10)``, lists of them, and wildcards."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import yaml

from lookalike._util.suggestions import did_you_mean


@dataclass(frozen=True)
class Choice:
    """One of several named things, with what is set otherwise than usual."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={_plain(value)}" for name, value in sorted(self.settings.items()))
        return f"{self.name}({inside})" if inside else self.name

    def __hash__(self) -> int:
        return hash(str(self))


def parse_choices(text: str, known: Sequence[str], what: str) -> list[Choice]:
    """``a,b(x=1),c*`` -> choices; names may have the wildcards * and ?, and must be known.

    >>> chosen = parse_choices("max, gsp(keep=0.2), a*", ["average", "attention", "gsp", "max"], "pooling")
    >>> [str(choice) for choice in chosen]
    ['max', 'gsp(keep=0.2)', 'average', 'attention']
    """
    chosen: dict[str, Choice] = {}
    for piece in split_top_level(text, ","):
        name, settings = _parse_one(piece, what)
        matching = [one for one in known if fnmatchcase(one, name)] if set(name) & set("*?") else [name]
        if not matching:
            raise ValueError(f"no {what} is called like {name!r}; there are: {', '.join(known)}")
        for one in matching:
            if one not in known:
                hint = did_you_mean(one, known) or f"; there are: {', '.join(known)}"
                raise ValueError(f"there is no {what} {one!r}{hint}")
            choice = Choice(one, settings)
            chosen.setdefault(str(choice), choice)
    if not chosen:
        raise ValueError(f"name at least one {what}, got nothing")
    return list(chosen.values())


def split_top_level(text: str, separator: str) -> list[str]:
    """Pieces between separators that stand outside of brackets, stripped; empty ones are dropped."""
    pieces, depth, current = [], 0, ""
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == separator and depth == 0:
            pieces.append(current)
            current = ""
        else:
            current += letter
    return [piece.strip() for piece in [*pieces, current] if piece.strip()]


def parse_settings(pieces: Iterable[str]) -> dict[str, Any]:
    """``["a=1", "b=[2, 3]"]`` -> {"a": 1, "b": [2, 3]}, values as YAML reads them."""
    settings = {}
    for piece in pieces:
        name, equals, value = piece.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise ValueError(f"a setting must be given as name=value, got {piece!r}")
        try:
            settings[name.strip()] = _value(yaml.safe_load(value))
        except yaml.YAMLError:
            raise ValueError(f"the value of {name.strip()} cannot be read: {value!r}") from None
    return settings


def _parse_one(text: str, what: str) -> tuple[str, dict[str, Any]]:
    name, bracket, rest = text.partition("(")
    if not bracket:
        return name.strip(), {}
    if not rest.endswith(")"):
        raise ValueError(f"the bracket of {what} {text!r} is not closed")
    return name.strip(), parse_settings(split_top_level(rest[:-1], ","))


def _value(value: Any) -> Any:
    """YAML 1.1 takes 1e-4 and inf for words."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
