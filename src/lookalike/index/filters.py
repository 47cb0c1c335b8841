"""Filters as people write them: ``label=robin``, ``label in (robin, wren), year>=2020``. A comma means and.

Keys are ``label``, ``id``, ``path``, or names of metadata. Operators are ``= != < <= > >=``, ``in`` and ``not in``.
A value stands as it is, or in quotes if it holds any of ``,()=<>!`` or quotes; within quotes a backslash takes the
next character as it is.

What a condition means, in every backend:

    label, id, path     texts, compared as texts, by code points
    metadata            a text equals the value's text; a number equals a value that is a number and not in quotes;
                        true and false equal these words, not in quotes; all else (null, lists) counts as not there
    < <= > >=           compare numbers with a number, and texts with any other value; the other kind never fits
    != and not in       hold exactly where = and in do not, so also where the key is not there
"""

import re
from typing import Literal, NamedTuple

from lookalike.index.items import KEY, RESERVED

Operator = Literal["in", "not in", "<", "<=", ">", ">="]

_KEY_AND_OPERATOR = re.compile(r"\s*([^\s,()=<>!\"']+)\s*(==|=|!=|<=|>=|<|>|(?:not\s+)?in\s*(?=\())\s*", re.IGNORECASE)
_QUOTED = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'", re.DOTALL)
_BARE = re.compile(r"[^,()=<>!\"']+")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?")
MOST_VALUES = 1000
LONGEST_TEXT = 16_384
EXACT = 2**53  # whole numbers up to here are the same in every backend


class Value(NamedTuple):
    """``number`` and ``truth`` are there where the text, not in quotes, is one."""

    text: str
    number: int | float | None = None
    truth: bool | None = None


class Condition(NamedTuple):
    """= is ``in`` with one value, != is ``not in``."""

    key: str
    operator: Operator
    values: tuple[Value, ...]

    @property
    def is_metadata(self) -> bool:
        return self.key not in RESERVED


def parse(text: str | None) -> tuple[Condition, ...]:
    """All conditions, each of which must be met; none for an empty text.

    >>> parse("label in (robin, 'wren, winter'), year>=2020")[0].values[1].text
    'wren, winter'
    """
    if text is None or not text.strip():
        return ()
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"a filter must be at most {LONGEST_TEXT:,} characters, got {len(text):,}")
    found: list[Condition] = []
    place = 0
    while True:
        condition, place = _condition(text, place)
        found.append(condition)
        if place >= len(text):
            return tuple(found)
        if text[place] != ",":
            raise _wrong(text, place, "expected a comma before the next condition")
        place += 1


def _condition(text: str, place: int) -> tuple[Condition, int]:
    match = _KEY_AND_OPERATOR.match(text, place)
    if match is None:
        raise _wrong(text, place, "expected a condition like label=robin or label in (robin, wren)")
    key, operator = match[1], " ".join(match[2].lower().split())
    if not KEY.fullmatch(key):
        raise _wrong(text, place, "a key is a letter or _ and then letters, digits, _ or -, at most 64")
    if operator in ("in", "not in"):
        values, place = _list(text, match.end())
        return Condition(key, "in" if operator == "in" else "not in", tuple(dict.fromkeys(values))), place
    value, place = _value(text, match.end())
    if operator in ("=", "==", "!="):
        return Condition(key, "not in" if operator == "!=" else "in", (value,)), place
    assert operator in ("<", "<=", ">", ">=")
    return Condition(key, operator, (value,)), place  # type: ignore[arg-type]  # which the line above has narrowed


def _list(text: str, place: int) -> tuple[list[Value], int]:
    values: list[Value] = []
    place += 1  # the bracket, which the operator saw
    while True:
        value, place = _value(text, place)
        values.append(value)
        if len(values) > MOST_VALUES:
            raise ValueError(f"a list in a filter must have at most {MOST_VALUES:,} values")
        if place >= len(text) or text[place] not in ",)":
            raise _wrong(text, place, "expected a comma or a closing bracket")
        place += 1
        if text[place - 1] == ")":
            return values, place + len(text[place:]) - len(text[place:].lstrip())


def _value(text: str, place: int) -> tuple[Value, int]:
    place += len(text[place:]) - len(text[place:].lstrip())
    if quoted := _QUOTED.match(text, place):
        inner = quoted[1] if quoted[1] is not None else quoted[2]
        end = quoted.end() + len(text[quoted.end() :]) - len(text[quoted.end() :].lstrip())
        return Value(_text(re.sub(r"\\(.)", r"\1", inner, flags=re.DOTALL))), end
    bare = _BARE.match(text, place)
    if bare is None or not bare[0].strip():
        raise _wrong(text, place, 'expected a value; quotes hold what is not plain: label="a, b", label=""')
    word = _text(bare[0].strip())
    return Value(word, _number(word), {"true": True, "false": False}.get(word.lower())), bare.end()


def _text(word: str) -> str:
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ValueError("a filter must be a text that UTF-8 can hold") from None
    if "\0" in word:
        raise ValueError("a filter must not hold the character NUL")
    return word


def _number(word: str) -> int | float | None:
    if not _NUMBER.fullmatch(word):
        return None
    number = float(word)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"a number in a filter must be finite, got {word}")
    return int(number) if number.is_integer() and abs(number) <= EXACT else number


def _wrong(text: str, place: int, what: str) -> ValueError:
    rest = text[place : place + 40].strip()
    return ValueError(f"the filter cannot be read {f'at {rest!r}' if rest else 'at its end'}: {what}")


def quote(text: str) -> str:
    """A text as a value of a filter, whatever it holds.

    >>> quote('the "big" one')
    '"the \\\\"big\\\\" one"'
    """
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
