"""JSON and YAML of strangers are bounded: what they stand for, not only what they are."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lookalike._util import untrusted
from lookalike._util.checksums import FILE, DamagedFile, read_checksums, read_manifest
from lookalike._util.untrusted import parse_json, parse_yaml, read_json, read_yaml

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 80))

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(plain_values)
def test_plain_values_are_read_as_they_are(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value
    text = yaml.safe_dump(value, allow_unicode=True)
    assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "more than 100,000 values"),
        (MERGES, "more than 100,000 values"),
        (CHAIN, "nested deeper than 64"),
        ("a: &a [*a]", "contains it"),
        ("[" * 100_000, "nested deeper than 64"),
        ("- " * 5000, "nested deeper than 64"),
        ("[" * 65 + "]" * 65, "nested deeper than 64"),
        ("x" * 2**18 + "x", "longer than 262,144"),
        ("a: " + "1:" * 50_000 + "1", "a number of more than 400"),
    ],
)
def test_yaml_that_stands_for_too_much_is_refused(text: str, message: str) -> None:
    with pytest.raises(yaml.YAMLError, match=message):
        parse_yaml(text)


def test_aliases_within_bounds_work() -> None:
    assert parse_yaml("base: &b {steps: 5}\nother: {<<: *b, seed: 1}") == {
        "base": {"steps": 5},
        "other": {"steps": 5, "seed": 1},
    }
    assert parse_yaml("") is None


@pytest.mark.parametrize("depth", [65, 900, 100_000])
@pytest.mark.parametrize("brackets", ["[]", '{"a":}'])
def test_json_that_nests_too_deeply_is_refused(depth: int, brackets: str) -> None:
    opening, closing = brackets[:-1], brackets[-1]
    with pytest.raises(ValueError, match="nested deeper than 64 levels"):
        parse_json(opening * depth + "1" + closing * depth)
    assert parse_json(opening * 64 + "1" + closing * 64)


def test_only_so_much_of_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="is larger than 4,194,304 bytes"):
        read_json(tmp_path / "endless.json")
    with pytest.raises(ValueError, match="is larger than 262,144 bytes"):
        read_yaml(tmp_path / "endless.json")


def test_nothing_else_parses_yaml() -> None:
    """Every other reader would have to repeat the bounds."""
    package = Path(untrusted.__file__).parents[1]
    pattern = re.compile(r"yaml\.(safe_load|load|compose)|json\.load\(|json\.loads\(.*read_text")
    readers = [file.name for file in package.rglob("*.py") if pattern.search(file.read_text(encoding="utf-8"))]
    assert readers == []


def test_deep_lists_of_checksums_are_damaged(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("[" * 100_000)
    assert read_checksums(tmp_path / FILE) == []
    with pytest.raises(DamagedFile, match="is damaged"):
        read_manifest(tmp_path)
