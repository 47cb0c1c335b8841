"""Filters and metadata for Milvus, so that they mean there what ``filters.py`` says.

How Milvus compares JSON of different types, and what it makes of a key that is missing, depends on its version. So the
metadata are kept twice: as they are, and sorted by type, {"n:year": 2020, "t:name": "wren", "b:wild": "true"}. Filters
ask the second, where a key has values of one type only.
"""

import json
from collections.abc import Sequence
from typing import Any

from lookalike.index.filters import EXACT, Condition, Value

FIELD = "sorted"


def by_type(metadata: dict[str, Any]) -> dict[str, Any]:
    """
    >>> by_type({"year": 2020, "name": "wren", "wild": True, "seen": None})
    {'n:year': 2020, 't:name': 'wren', 'b:wild': 'true'}
    """
    found: dict[str, Any] = {}
    for key, value in metadata.items():
        if isinstance(value, bool):
            found[f"b:{key}"] = "true" if value else "false"
        elif isinstance(value, (int, float)):
            found[f"n:{key}"] = value if isinstance(value, float) or abs(value) <= EXACT else float(value)
        elif isinstance(value, str):
            found[f"t:{key}"] = value
    return found


def as_expression(where: Sequence[Condition]) -> str:
    """
    >>> from lookalike.index.filters import parse
    >>> as_expression(parse("label in (robin, wren), year>=2020"))
    '(label in ["robin", "wren"]) and (sorted["n:year"] >= 2020)'
    """
    return " and ".join(f"({_metadata(each) if each.is_metadata else _column(each)})" for each in where)


def _column(condition: Condition) -> str:
    texts = [as_literal(value.text) for value in condition.values]
    if condition.operator == "in":
        return f"{condition.key} in [{', '.join(texts)}]"
    if condition.operator == "not in":
        return f"not ({condition.key} in [{', '.join(texts)}])"
    return f"{condition.key} {condition.operator} {texts[0]}"


def _metadata(condition: Condition) -> str:
    if condition.operator == "in":
        return " or ".join(
            f"({_key(kind, condition.key)} == {literal})"
            for value in condition.values
            for kind, literal in _comparable(value)
        )
    if (
        condition.operator == "not in"
    ):  # what is not there equals nothing, and a comparison with it must not say unknown
        return " and ".join(
            f"((not exists {_key(kind, condition.key)}) or ({_key(kind, condition.key)} != {literal}))"
            for value in condition.values
            for kind, literal in _comparable(value)
        )
    (value,) = condition.values
    kind, literal = ("t", as_literal(value.text)) if value.number is None else ("n", as_literal(value.number))
    return f"{_key(kind, condition.key)} {condition.operator} {literal}"


def _key(kind: str, key: str) -> str:
    return f'{FIELD}["{kind}:{key}"]'


def _comparable(value: Value) -> list[tuple[str, str]]:
    kinds = [("t", as_literal(value.text))]
    kinds += [] if value.number is None else [("n", as_literal(value.number))]
    return kinds + ([] if value.truth is None else [("b", as_literal("true" if value.truth else "false"))])


def as_literal(value: str | int | float) -> str:
    return json.dumps(value, ensure_ascii=False)
