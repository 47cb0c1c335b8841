"""Filters: what can be written, and that SQL gives them the meaning they are said to have."""

import json
import sqlite3
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import meets

from lookalike.index import Item
from lookalike.index.database import SCHEMA, as_sql
from lookalike.index.filters import Condition, Value, parse, quote


def test_parse() -> None:
    assert parse(None) == parse("  ") == ()
    assert parse("label=robin") == (Condition("label", "in", (Value("robin"),)),)
    first, second, third = parse("label in (robin, 'a, \"b\"'), year>=2020 , wild != TRUE")
    assert first == ("label", "in", (Value("robin"), Value('a, "b"')))
    assert second == ("year", ">=", (Value("2020", 2020),))
    assert third == ("wild", "not in", (Value("TRUE", None, True),))
    assert parse("name not in (a b, -1.5e1)")[0].values == (Value("a b"), Value("-1.5e1", -15))
    assert parse("label=''")[0].values == (Value(""),)
    assert parse("label='2020'")[0].values == (Value("2020"),)
    assert parse("path==/a/b c.jpg")[0].values[0].text == "/a/b c.jpg"
    assert parse("label='in (x)'")[0].values[0].text == "in (x)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("robin", "expected a condition"),
        ("label=", "expected a value"),
        ("label=a,", "at its end"),
        ("label=a b=c", "expected a comma"),
        ("label in (a, b", "closing bracket"),
        ("label in ()", "expected a value"),
        ("label='a", "expected a value"),
        ("my key=3", "expected a condition"),
        ("1st=3", "a key is a letter"),
        ("k; drop table items=3", "expected a condition"),
        ("label=\0", "NUL"),
        ("label=\udce9", "valid Unicode"),
        ("year>1e999", "finite"),
        ("label in (" + "a, " * 1001 + "b)", "at most 1,000 values"),
        ("label=" + "a" * 20_000, "at most 16,384"),
    ],
)
def test_malformed_filters_are_explained(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20))
@settings(max_examples=50, deadline=None)
def test_any_text_can_be_quoted(text: str) -> None:
    assert parse(f"label={quote(text)}")[0].values == (Value(text),)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, 1.0, -2.5]),
    st.sampled_from(["", "1", "a", "B", "é", "true"]),
)
metadata = st.dictionaries(st.sampled_from(["k", "other"]), st.one_of(scalars, st.lists(st.integers(), max_size=1)))
values = st.sampled_from(["1", "'1'", "0", "0.5", "1.0", "true", "'true'", "False", "a", "B", "é", "''", "-2.5"])
conditions = st.one_of(
    st.tuples(st.sampled_from(["k", "label"]), st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), values).map("".join),
    st.tuples(st.sampled_from(["k", "label"]), st.sampled_from([" in ", " not in "]), st.lists(values, min_size=1)).map(
        lambda parts: f"{parts[0]}{parts[1]}({', '.join(parts[2])})"
    ),
)


@given(
    st.lists(st.tuples(metadata, st.sampled_from(["", "1", "a", "é", "true"])), min_size=1, max_size=8),
    st.lists(conditions, max_size=3),
)
@settings(max_examples=80, deadline=None)
def test_sql_agrees_with_the_definition(rows: list[tuple[dict[str, Any], str]], texts: list[str]) -> None:
    where = parse(", ".join(texts))
    items = [Item(f"i{i}", "/p", label, more) for i, (more, label) in enumerate(rows)]
    connection = sqlite3.connect(":memory:")
    connection.executescript(SCHEMA)
    for item in items:
        connection.execute(
            "INSERT INTO items (id, path, label, metadata, stamp) VALUES (?, ?, ?, ?, '')",
            (item.id, item.path, item.label, json.dumps(item.metadata)),
        )
    clause, given_values = as_sql(where)
    found = {each for (each,) in connection.execute(f"SELECT id FROM items WHERE {clause}", given_values)}
    connection.close()
    assert found == {item.id for item in items if all(meets(item, condition) for condition in where)}


def test_many_values() -> None:
    connection = sqlite3.connect(":memory:")
    connection.executescript(SCHEMA)
    connection.execute("INSERT INTO items (id, path, label, metadata, stamp) VALUES ('a', '', '7', '{\"k\": 7}', '')")
    for key in ("k", "label"):
        clause, given_values = as_sql(parse(f"{key} in ({', '.join(map(str, range(1000)))})"))
        assert connection.execute(f"SELECT count(*) FROM items WHERE {clause}", given_values).fetchone() == (1,)
    connection.close()
