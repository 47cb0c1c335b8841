"""Declarative settings: types, bounds and choices are checked from the declaration."""

from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any, Literal

import pytest

from lookalike._util.settings import check_settings, setting


@dataclass
class Example:
    steps: int = setting(1000, "training steps", least=1)
    seed: int = setting(0, "seed", least=0, below=10)
    port: int = setting(80, "port", least=0, up_to=65535)
    rate: float | None = setting(None, "learning rate", above=0)
    share: float = setting(0.5, "share", above=0, up_to=1)
    free: float = setting(0.0, "any number")
    name: str = setting("a", "a text")
    kind: Literal["flat", "ivf"] | None = setting(None, "kind of index")
    fast: bool = setting(True, "a switch")
    more: dict[str, Any] = setting({"a": 1}, "more settings")
    pair: tuple[float, float] = setting((0.0, 0.0), "two numbers", least=0)
    counts: list[int] | None = setting(None, "counts", least=1)
    search: str | dict[str, Any] = setting("", "a text or a dictionary")
    path: Path | None = setting(None, "not checked")
    plain: int = 3

    def __post_init__(self) -> None:
        check_settings(self)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", 0, "steps must be at least 1, got 0"),
        ("seed", 10, "seed must be below 10, got 10"),
        ("port", 70000, "port must be at most 65535, got 70000"),
        ("rate", 0.0, "rate must be finite and above 0, got 0.0"),
        ("rate", inf, "rate must be finite and above 0, got inf"),
        ("share", nan, r"share must be in \(0, 1\], got nan"),
        ("share", 1.5, r"share must be in \(0, 1\], got 1.5"),
        ("kind", "ifv", r"kind must be one of flat, ivf, got 'ifv' \(did you mean 'ivf'\?\)"),
        ("pair", (1.0,), r"pair must be 2 values, got \(1.0,\)"),
        ("pair", (1.0, -1.0), "every one of pair must be finite and at least 0, got -1.0"),
        ("counts", [1, 0], "every one of counts must be at least 1, got 0"),
    ],
)
def test_values_out_of_bounds_are_value_errors(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Example(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", 2.0, "steps must be a whole number, got 2.0"),
        ("steps", None, "steps must be a whole number, got None"),
        ("plain", True, "plain must be a whole number, got True"),
        ("rate", "1", "rate must be a number, got '1'"),
        ("name", 5, "name must be a text, got 5"),
        ("fast", 1, "fast must be true or false, got 1"),
        ("more", None, "more must be settings by name, got None"),
        ("search", 1, "search must be a text or settings by name, got 1"),
    ],
)
def test_wrong_types_are_type_errors(name: str, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        Example(**{name: value})


def test_good_values_pass() -> None:
    Example(rate=None, share=1, free=inf, kind="ivf", pair=(0, 1), counts=[3], search={"a": 1}, path=Path("x"))
    Example(name=Path("x"))  # type: ignore[arg-type]


def test_dictionaries_are_copied() -> None:
    Example().more["b"] = 2
    assert Example().more == {"a": 1}
