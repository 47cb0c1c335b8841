"""Filters such as ``label=robin`` or ``label in (robin, wren), year>=2020``. A comma means and.

Keys are ``label``, ``id``, ``path``, or names of metadata. Operators are ``= != < <= > >=``, ``in`` and ``not in``.
A value that contains any of ``,()=<>!`` or quotes must be quoted; within quotes a backslash escapes the next character.
Conditions are not nested. Their number, their values and the length of the text are limited.

What a condition means, in every backend:

    label, id, path     texts, compared as texts, by code points
    metadata            a text equals the value's text; a number equals an unquoted value that is a number; true and
                        false equal these unquoted words; anything else (null, lists) counts as missing
    < <= > >=           compare numbers with a number, and texts with any other value; never across types
    != and not in       hold exactly where = and in do not, so also where the key is missing
"""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from lookalike.index.items import KEY, RESERVED

Operator = Literal["in", "not in", "<", "<=", ">", ">="]
OPERATORS: dict[str, Operator] = {
    "=": "in",
    "==": "in",
    "!=": "not in",
    "in": "in",
    "not in": "not in",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
BOOLEANS = {"true": True, "false": False}
MOST_CONDITIONS = 100
MOST_VALUES = 1000  # of all conditions together; Milvus takes milliseconds for each
LONGEST_TEXT = 16_384
EXACT = 2**53  # whole numbers up to here are the same in every backend

_KEY_AND_OPERATOR = re.compile(r"\s*([^\s,()=<>!\"']+)\s*(==|=|!=|<=|>=|<|>|(?:not\s+)?in\s*(?=\())\s*", re.IGNORECASE)
_QUOTED = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'", re.DOTALL)
_BARE = re.compile(r"[^,()=<>!\"']+")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)
_SPACE = re.compile(r"\s*")


class Value(NamedTuple):
    """A value of a condition.

    Attributes:
        text: The value as text.
        number: The number, if the text is an unquoted number.
        truth: The boolean, if the text is an unquoted true or false.
    """

    text: str
    number: int | float | None = None
    truth: bool | None = None


class Condition(NamedTuple):
    """One condition of a filter. ``=`` is stored as ``in`` with one value, ``!=`` as ``not in``."""

    key: str
    operator: Operator
    values: tuple[Value, ...]

    @property
    def is_metadata(self) -> bool:
        """Whether the key is a metadata key and not a column."""
        return self.key not in RESERVED


Where = str | tuple[Condition, ...] | None  # a filter as text, or its conditions


def parse(text: Where) -> tuple[Condition, ...]:
    """Parse a filter.

    Args:
        text: The filter; None or blank for no filter. Conditions stay as they are.

    Returns:
        The conditions, all of which must hold.

    Raises:
        ValueError: If it is malformed, with the position.

    Examples:
        >>> parse("label in (robin, 'wren, winter'), year>=2020")[0].values[1].text
        'wren, winter'
    """
    if isinstance(text, tuple):
        return text
    if text is None or not text.strip():
        return ()
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"a filter must be at most {LONGEST_TEXT:,} characters, got {len(text):,}")
    conditions: list[Condition] = []
    values = 0
    position = 0
    while True:
        condition, position = _parse_condition(text, position)
        conditions.append(condition)
        values += len(condition.values)
        if values > MOST_VALUES:
            raise ValueError(f"a filter must have at most {MOST_VALUES:,} values")
        if position >= len(text):
            return tuple(conditions)
        if len(conditions) == MOST_CONDITIONS:
            raise ValueError(f"a filter must have at most {MOST_CONDITIONS} conditions")
        if text[position] != ",":
            raise _error(text, position, "expected a comma before the next condition")
        position += 1


def among(ids: Iterable[str]) -> Condition:
    """Make the condition that an item is one of these; there may be any number."""
    return Condition("id", "in", tuple(Value(item_id) for item_id in ids))


def quote(text: str) -> str:
    """Quote a text for use as a value of a filter.

    Examples:
        >>> quote('the "big" one')
        '"the \\\\"big\\\\" one"'
    """
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


# The parsers below take the position where to start and return what they parsed with the position behind it.


def _parse_condition(text: str, position: int) -> tuple[Condition, int]:
    match = _KEY_AND_OPERATOR.match(text, position)
    if match is None:
        raise _error(text, position, "expected a condition like label=robin or label in (robin, wren)")
    key = match[1]
    if not KEY.fullmatch(key):
        raise _error(text, position, "a key is a letter or _ and then letters, digits, _ or -, at most 64")
    symbol = " ".join(match[2].lower().split())
    if symbol in ("in", "not in"):
        values, end = _parse_list(text, match.end() + 1)  # the operator was matched up to the opening bracket
        distinct = tuple(dict.fromkeys(values))
        return Condition(key, OPERATORS[symbol], distinct), end
    value, end = _parse_value(text, match.end())
    return Condition(key, OPERATORS[symbol], (value,)), end


def _parse_list(text: str, position: int) -> tuple[list[Value], int]:
    values: list[Value] = []
    while True:
        value, position = _parse_value(text, position)
        values.append(value)
        if len(values) > MOST_VALUES:
            raise ValueError(f"a list in a filter must have at most {MOST_VALUES:,} values")
        separator = text[position : position + 1]
        if separator not in (",", ")"):
            raise _error(text, position, "expected a comma or a closing bracket")
        position += 1
        if separator == ")":
            return values, _skip_space(text, position)


def _parse_value(text: str, position: int) -> tuple[Value, int]:
    position = _skip_space(text, position)
    quoted = _QUOTED.match(text, position)
    if quoted:
        content = quoted[2] if quoted[1] is None else quoted[1]
        unescaped = re.sub(r"\\(.)", r"\1", content, flags=re.DOTALL)
        _check_text(unescaped)
        return Value(unescaped), _skip_space(text, quoted.end())
    bare = _BARE.match(text, position)
    if bare is None or not bare[0].strip():
        raise _error(text, position, 'expected a value; use quotes for special characters: label="a, b", label=""')
    word = bare[0].strip()
    _check_text(word)
    return Value(word, _as_number(word), BOOLEANS.get(word.lower())), bare.end()


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()


def _check_text(word: str) -> None:
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ValueError("a filter must be valid Unicode") from None
    if "\0" in word:
        raise ValueError("a filter must not contain the character NUL")


def _as_number(word: str) -> int | float | None:
    if not _NUMBER.fullmatch(word):
        return None
    number = float(word)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"a number in a filter must be finite, got {word}")
    if number.is_integer() and abs(number) <= EXACT:
        return int(number)
    return number


def _error(text: str, position: int, expected: str) -> ValueError:
    rest = text[position : position + 40].strip()
    where = f"at {rest!r}" if rest else "at its end"
    return ValueError(f"the filter cannot be read {where}: {expected}")
