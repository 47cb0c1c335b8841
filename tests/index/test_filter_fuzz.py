"""Filters by the thousand, written from a grammar or at random, against a plain evaluation. About 20 seconds in all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_helpers import draw, meets

from lookalike import index
from lookalike.index import Item
from lookalike.index.filters import MOST_CONDITIONS, parse

TEXTS = [
    "",
    "a",
    "A",
    "é",
    "z\u0301",
    "\U0001f426",
    "1",
    "1.0",
    "true",
    "a, b",
    "it's",
    'say "hi"',
    "back\\slash",
    "\n",
    "%_",
]
NUMBERS: list[int | float] = [0, 1, -1, 0.5, -0.0, 1e300, -1e-300, 2**53, 2**53 + 1, -(2**63) + 1, 2020]
OTHERS: list[Any] = [None, True, False, [], [1], {"k": 1}, ["a"]]
WORDS = ["0", "1", "1.0", "+1", "-1", ".5", "1e0", "0.5", "2020", "9007199254740993", "1e300", "true", "FALSE", "True"]
WORDS += ["a", "A", "é", "1_0", "\u0661", "nan", "inf", "0x1", "1e", "a b", "-", "%_", "null"]
KEYS = ["k", "other", "label", "id", "path", "missing", "k-2"]
SYMBOLS = {"=": "=", "==": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "in": "in", "not in": "not in"}


class Plain(NamedTuple):
    """A value as people write it: a quoted text, or a bare word that may also be a number or a boolean."""

    word: str
    quoted: bool

    def written(self) -> str:
        if not self.quoted:
            return self.word
        mark = "'" if '"' in self.word else '"'
        return mark + self.word.replace("\\", "\\\\").replace(mark, "\\" + mark) + mark


def number_of(plain: Plain) -> int | float | None:
    """The number of a bare word; a whole one up to 2**53 is an integer."""
    if plain.quoted or not set(plain.word) <= set("0123456789+-.eE"):
        return None
    try:
        number = float(plain.word)
    except ValueError:
        return None
    if number.is_integer() and abs(number) <= 2**53:
        return int(number)
    return number


def equal(stored: Any, plain: Plain) -> bool:
    if isinstance(stored, bool):
        return not plain.quoted and plain.word.lower() == str(stored).lower()
    if isinstance(stored, (int, float)):
        return number_of(plain) is not None and number_of(plain) == stored
    return isinstance(stored, str) and stored == plain.word


def holds(item: Item, key: str, symbol: str, plains: list[Plain]) -> bool:
    """The meaning of one condition, from what was written and not from what was parsed."""
    is_column = key in ("label", "id", "path")
    if is_column:
        stored: Any = getattr(item, key)
        plains = [Plain(plain.word, True) for plain in plains]
    else:
        stored = item.metadata.get(key)
    symbol = SYMBOLS[symbol]
    if symbol in ("=", "in"):
        return any(equal(stored, plain) for plain in plains)
    if symbol in ("!=", "not in"):
        return not any(equal(stored, plain) for plain in plains)
    (plain,) = plains
    number = number_of(plain)
    if number is not None:
        if isinstance(stored, bool) or not isinstance(stored, (int, float)):
            return False
        order = (stored > number) - (stored < number)
    elif isinstance(stored, str):
        order = (stored > plain.word) - (stored < plain.word)
    else:
        return False
    return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[symbol]


@pytest.fixture(scope="module")
def filled(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[index.Index, list[Item]]]:
    """One item for every value, under one key or the other."""
    items = []
    for i, value in enumerate([*TEXTS, *NUMBERS, *OTHERS]):
        label = TEXTS[i % len(TEXTS)]
        items.append(Item(f"i{i:02d}", f"/p/{label.replace(chr(0), '')}", label, {"k": value}))
        items.append(Item(f"o{i:02d}", "", "a", {"other": value, "k-2": i}))
    with index.create(tmp_path_factory.mktemp("fuzz") / "idx", run_folder) as idx:
        idx.add(items, draw(len(items)))
        yield idx, idx.items()


characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
plains = st.one_of(
    st.builds(Plain, st.sampled_from(WORDS), st.just(False)),
    st.builds(Plain, st.one_of(st.sampled_from([*TEXTS, *WORDS]), st.text(characters, max_size=8)), st.just(True)),
)
spaces = st.sampled_from(["", " ", "\t", "  \n"])


@st.composite
def conditions(draw_: st.DrawFn) -> tuple[str, str, str, list[Plain]]:
    """A condition as text, and what it consists of."""
    key = draw_(st.sampled_from(KEYS))
    symbol = draw_(st.sampled_from(list(SYMBOLS)))
    before, after, end = draw_(spaces), draw_(spaces), draw_(spaces)
    if "in" in symbol:
        values = draw_(st.lists(plains, min_size=1, max_size=6))
        word = symbol.upper() if draw_(st.booleans()) else symbol
        written = f"{after},{before}".join(value.written() for value in values)
        return f"{before}{key} {word}{after}({before}{written}{after}){end}", key, symbol, values
    value = draw_(plains)
    return f"{before}{key}{after}{symbol}{before}{value.written()}{end}", key, symbol, [value]


FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@given(st.lists(conditions(), min_size=1, max_size=4))
@settings(FUZZ, max_examples=7000)
def test_filters_mean_what_is_written(
    filled: tuple[index.Index, list[Item]], written: list[tuple[str, str, str, list[Plain]]]
) -> None:
    idx, items = filled
    where = ",".join(text for text, *_ in written)
    expected = []
    for item in items:
        if all(holds(item, key, symbol, values) for _, key, symbol, values in written):
            expected.append(item.id)
    assert [item.id for item in idx.items(where)] == expected
    assert idx.count(where) == len(expected)


tokens = st.sampled_from(
    [*KEYS, *WORDS, *SYMBOLS, *",()'\"\\ <>=!", "''", '""', "in(", "((", "))", "--", "$", ";", "\0", "\t"]
)
raw = st.one_of(
    st.text(max_size=60), st.lists(tokens, max_size=14).map("".join), st.lists(tokens, max_size=14).map(" ".join)
)


def problem_of(where: str) -> str | None:
    try:
        parse(where)
    except ValueError as error:
        return str(error)
    return None


@given(raw)
@settings(FUZZ, max_examples=9000)
def test_any_text_is_a_filter_or_a_clear_error(filled: tuple[index.Index, list[Item]], where: str) -> None:
    idx, items = filled
    problem = problem_of(where)
    if problem is not None:
        assert "filter" in problem
        assert len(problem) < 300
        return
    parsed = parse(where)
    assert len(parsed) <= MOST_CONDITIONS
    expected = [item.id for item in items if all(meets(item, condition) for condition in parsed)]
    assert [item.id for item in idx.items(where)] == expected


@pytest.mark.parametrize(
    "repeat", ["(", "'", '"', "\\", "k=1,", "k in (", "not ", " ", "k=", "k in (1),", ",", "k='\\'"]
)
def test_long_repetitions_end_at_once(filled: tuple[index.Index, list[Item]], repeat: str) -> None:
    """No nesting to recurse into, and nothing for a regular expression to try again and again."""
    idx, _ = filled
    for count in (99, 1000, 16_384 // len(repeat)):
        where = (repeat * count)[:16_384]
        problem = problem_of(where)
        if problem is None:
            idx.count(where)
        else:
            assert "filter" in problem
