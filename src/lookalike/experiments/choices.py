"""Parses names with settings, as they are typed: ``gsp(keep=0.2, sharpness=10)``, lists of them, and wildcards."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import yaml

from lookalike._util.suggestions import did_you_mean
from lookalike._util.untrusted import parse_yaml


@dataclass(frozen=True)
class Choice:
    """A loss, pooling or method by name, with the settings that differ from its defaults."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.settings:
            return self.name
        inside = ", ".join(f"{name}={_format_value(value)}" for name, value in sorted(self.settings.items()))
        return f"{self.name}({inside})"

    def __hash__(self) -> int:
        return hash(str(self))


def parse_choices(text: str, names: Sequence[str], kind: str) -> list[Choice]:
    """Parse ``a,b(x=1),c*`` into choices.

    Args:
        text: names, separated by commas, that may have the wildcards * and ?.
        names: all that exist.
        kind: what they are, for messages.

    Raises:
        ValueError: a name does not exist, or the text cannot be read.

    Examples:
        >>> chosen = parse_choices("max, gsp(keep=0.2), a*", ["average", "attention", "gsp", "max"], "pooling")
        >>> [str(choice) for choice in chosen]
        ['max', 'gsp(keep=0.2)', 'average', 'attention']
    """
    choices: dict[str, Choice] = {}
    for piece in split_top_level(text, ","):
        pattern, settings = _parse_choice(piece, kind)
        for name in _matching_names(pattern, names, kind):
            choice = Choice(name, settings)
            choices.setdefault(str(choice), choice)
    if not choices:
        raise ValueError(f"name at least one {kind}, got nothing")
    return list(choices.values())


def split_top_level(text: str, separator: str) -> list[str]:
    """Split a text at separators outside of brackets; pieces are stripped, and empty ones dropped."""
    pieces, current, depth = [], "", 0
    for letter in text:
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        if letter == separator and depth == 0:
            pieces.append(current)
            current = ""
        else:
            current += letter
    stripped = map(str.strip, [*pieces, current])
    return list(filter(None, stripped))


def parse_settings(pieces: Iterable[str]) -> dict[str, Any]:
    """Parse ``["a=1", "b=[2, 3]"]`` into {"a": 1, "b": [2, 3]}, with values as YAML reads them.

    Raises:
        ValueError: a piece has no name, no value or a value that YAML cannot read.
    """
    settings = {}
    for piece in pieces:
        name, equals, value = piece.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise ValueError(f"a setting must be given as name=value, got {piece!r}")
        try:
            settings[name.strip()] = read_number(parse_yaml(value))
        except yaml.YAMLError:
            raise ValueError(f"the value of {name.strip()} cannot be read: {value!r}") from None
    return settings


def check_names(fault: str, names: Iterable[str], allowed: Sequence[str]) -> None:
    """Raise ValueError for the first name that is not allowed: the fault, the name, and the closest allowed one."""
    for name in names:
        if name not in allowed:
            raise ValueError(f"{fault} {name!r}{did_you_mean(str(name), allowed)}")


def _parse_choice(text: str, kind: str) -> tuple[str, dict[str, Any]]:
    name, bracket, rest = text.partition("(")
    if not bracket:
        return name.strip(), {}
    if not rest.endswith(")"):
        raise ValueError(f"the bracket of {kind} {text!r} is not closed")
    return name.strip(), parse_settings(split_top_level(rest[:-1], ","))


def _matching_names(pattern: str, names: Sequence[str], kind: str) -> list[str]:
    if "*" in pattern or "?" in pattern:
        matching = [name for name in names if fnmatchcase(name, pattern)]
        if not matching:
            raise ValueError(f"no {kind} is called like {pattern!r}; there are: {', '.join(names)}")
        return matching
    if pattern not in names:
        hint = did_you_mean(pattern, names) or f"; there are: {', '.join(names)}"
        raise ValueError(f"there is no {kind} {pattern!r}{hint}")
    return [pattern]


def read_number(value: Any) -> Any:
    """Convert texts that YAML 1.1 does not read as numbers, such as 1e-4 and inf; other values stay."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
