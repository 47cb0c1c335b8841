"""Filters and metadata for Milvus, with the meaning that ``filters.py`` defines.

How Milvus compares JSON of different types, and how it treats a missing key, depends on its version. So metadata are
stored twice: as they are, and by type, {"n:year": 2020, "t:name": "wren", "b:wild": "true"}. Filters use the second
form, where a key has values of one type only.
"""

import json
from collections.abc import Sequence
from typing import Any

from lookalike.index.filters import EXACT, Condition, Value

FIELD = "sorted"


def by_type(metadata: dict[str, Any]) -> dict[str, Any]:
    """Prefix the keys of metadata by the type of their values.

    Returns:
        Texts as ``t:key``, numbers as ``n:key``, booleans as ``b:key``; other values are left out.

    Examples:
        >>> by_type({"year": 2020, "name": "wren", "wild": True, "seen": None})
        {'n:year': 2020, 't:name': 'wren', 'b:wild': 'true'}
    """
    typed: dict[str, Any] = {}
    for key, value in metadata.items():
        if isinstance(value, bool):
            typed[f"b:{key}"] = str(value).lower()
        elif isinstance(value, int) and abs(value) > EXACT:
            typed[f"n:{key}"] = float(value)
        elif isinstance(value, (int, float)):
            typed[f"n:{key}"] = value
        elif isinstance(value, str):
            typed[f"t:{key}"] = value
    return typed


def as_expression(where: Sequence[Condition]) -> str:
    """Translate a filter into an expression of Milvus.

    Examples:
        >>> from lookalike.index.filters import parse
        >>> as_expression(parse("label in (robin, wren), year>=2020"))
        '(label in ["robin", "wren"]) and (sorted["n:year"] >= 2020)'
    """
    clauses = []
    for condition in where:
        clause = _metadata_clause(condition) if condition.is_metadata else _column_clause(condition)
        clauses.append(f"({clause})")
    return " and ".join(clauses)


def as_literal(value: str | int | float) -> str:
    """Quote a value for an expression."""
    return json.dumps(value, ensure_ascii=False)


def _column_clause(condition: Condition) -> str:
    literals = [as_literal(value.text) for value in condition.values]
    if condition.operator == "in":
        return f"{condition.key} in [{', '.join(literals)}]"
    if condition.operator == "not in":
        return f"not ({condition.key} in [{', '.join(literals)}])"
    return f"{condition.key} {condition.operator} {literals[0]}"


def _metadata_clause(condition: Condition) -> str:
    if condition.operator not in ("in", "not in"):
        (value,) = condition.values
        if value.number is None:
            return f"{_field('t', condition.key)} {condition.operator} {as_literal(value.text)}"
        return f"{_field('n', condition.key)} {condition.operator} {as_literal(value.number)}"
    clauses = []
    for value in condition.values:
        for kind, literal in _typed_literals(value):
            field = _field(kind, condition.key)
            if condition.operator == "in":
                clauses.append(f"({field} == {literal})")
            else:  # a missing key equals nothing; comparing it would give "unknown"
                clauses.append(f"((not exists {field}) or ({field} != {literal}))")
    joiner = " or " if condition.operator == "in" else " and "
    return joiner.join(clauses)


def _field(kind: str, key: str) -> str:
    return f'{FIELD}["{kind}:{key}"]'


def _typed_literals(value: Value) -> list[tuple[str, str]]:
    """Every type that the value may equal, with the literal to compare."""
    literals = [("t", as_literal(value.text))]
    if value.number is not None:
        literals.append(("n", as_literal(value.number)))
    if value.truth is not None:
        literals.append(("b", as_literal(str(value.truth).lower())))
    return literals
