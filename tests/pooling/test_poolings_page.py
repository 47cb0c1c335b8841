"""docs/concepts/poolings.md agrees with the code about every pooling."""

import ast
import re
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

from lookalike import pooling as poolings
from lookalike.models import Head
from lookalike.pooling import Pooling

PAGE = (Path(__file__).parents[2] / "docs" / "concepts" / "poolings.md").read_text()
CHANNELS, DIM = 2048, 128
Row = dict[str, str]


def rows(section: str) -> list[Row]:
    """The rows of all tables below a heading, by the names of their columns."""
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert text is not None, section
    found: list[Row] = []
    for table in re.findall(r"(?:^\|.*\n)+", text[1], re.MULTILINE):
        head, _, *lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
        found += [dict(zip(head, line, strict=True)) for line in lines]
    return found


def by_name(section: str) -> dict[str, Row]:
    found = {row["name"].strip("`"): row for row in rows(section)}
    assert len(found) == len(rows(section)), "a name stands twice"
    return found


DEFINITIONS = by_name("Definitions")
SETTINGS = by_name("Settings")
SIZES = by_name("Capabilities and sizes")


def defaults(kind: type[Pooling]) -> dict[str, Any]:
    if kind.__init__ is Pooling.__init__:  # its out_dim is for subclasses
        return {}
    return {one.name: one.default for one in signature(kind).parameters.values() if one.name != "dim"}


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def head_of(name: str, channels: int = CHANNELS, dim: int = DIM, **settings: Any) -> Head:
    with torch.device("meta" if name == "bilinear" else "cpu"):  # its projection has a gigabyte
        return Head(channels, dim, name, settings)


def by_formula(formula: str, channels: int, dim: int, settings: dict[str, Any]) -> int:
    assert re.fullmatch(r"`[\w\s()+*/]+`", formula), formula
    value = eval(formula.strip("`"), {"C": channels, "D": dim, **settings})
    assert isinstance(value, int)
    return value


@pytest.mark.parametrize("table", [DEFINITIONS, SETTINGS, SIZES], ids=["definitions", "settings", "sizes"])
def test_every_pooling_has_its_row(table: dict[str, Row]) -> None:
    assert sorted(table) == poolings.names()


def test_the_number_of_poolings_is_right() -> None:
    assert f"There are {len(poolings.names())} poolings" in PAGE


@pytest.mark.parametrize("name", poolings.names())
def test_settings_and_defaults(name: str) -> None:
    cell = SETTINGS[name]["settings with their defaults"]
    if cell == "those of `gsp`":
        assert defaults(poolings.find(name)) == defaults(poolings.find("gsp"))
        return
    named = {setting: ast.literal_eval(value) for setting, value in re.findall(r"`(\w+)=([^`]*)`", cell)}
    assert named == defaults(poolings.find(name))
    assert cell == (" ".join(f"`{setting}={value!r}`" for setting, value in named.items()) or "none")


@pytest.mark.parametrize("name", poolings.names())
def test_values_that_authors_use_are_taken(name: str) -> None:
    for setting, value in re.findall(r"`(\w+)=([^`]*)`", SETTINGS[name]["the authors use"]):
        poolings.create(name, 8, **{setting: ast.literal_eval(value)})


@pytest.mark.parametrize("name", poolings.names())
def test_flags(name: str) -> None:
    kind, row = poolings.find(name), SIZES[name]
    place = "backbone" if kind.on_backbone else "both" if kind.sees_both else "projected"
    assert row["on"] == place + (", as a map" if kind.needs_map else "")
    assert (row["weights"], row["attributes"]) == tuple(
        "yes" if has else "no" for has in (kind.has_weights, kind.has_attributes)
    )


@pytest.mark.parametrize("name", poolings.names())
def test_flags_are_what_the_pooling_does(name: str) -> None:
    seen = poolings.create(name, 16)(torch.rand(2, 16, 3, 3), details=True)
    assert (seen.weights.shape[1] > 0) == (SIZES[name]["weights"] == "yes")
    assert (seen.attributes.shape[1] > 0) == (SIZES[name]["attributes"] == "yes")


@pytest.mark.parametrize("name", poolings.names())
def test_counts_of_parameters(name: str) -> None:
    head, row = head_of(name), SIZES[name]
    assert head.projection is not None
    assert row["at 2048, 128"] == f"{count(head.pooling):,}"
    assert row["projection"] == f"{head.projection.weight.numel():,}"
    assert by_formula(row["parameters"], CHANNELS, DIM, defaults(poolings.find(name))) == count(head.pooling)


OTHERS: dict[str, dict[str, Any]] = {
    "cbam": {"reduction": 5, "kernel": 3},
    "delf": {"hidden": 7},
    "gem+gsp": {"num_prototypes": 5},
    "gsop": {"reduced": 6},
    "gsp": {"num_prototypes": 5},
    "max+gsp": {"num_prototypes": 5},
    "netvlad": {"num_prototypes": 4},
    "otp": {"num_prototypes": 4},
    "solar": {"reduction": 3},
    "weighted-max+gsp": {"num_prototypes": 5},
}


@pytest.mark.parametrize("name", poolings.names())
def test_formulas_hold_at_other_sizes(name: str) -> None:
    given = OTHERS.get(name, {})
    settings = {**defaults(poolings.find(name)), **given}
    pooling = head_of(name, 40, 24, **given).pooling
    assert by_formula(SIZES[name]["parameters"], 40, 24, settings) == count(pooling)


def test_parameters_that_settings_add() -> None:
    attention = re.search(r"hidden layer `attention` has (`.*?`)", PAGE)
    assert attention is not None
    hidden = {"hidden": 7}
    assert by_formula(attention[1], 40, 24, hidden) == count(head_of("attention", 40, 24, **hidden).pooling)
    gsop = re.search(r"`gsop` with `spatial` has (`.*?`)", PAGE)
    assert gsop is not None
    both = {"reduced": 6, "side": 3, "spatial": True}
    assert by_formula(gsop[1], 40, 24, both) == count(head_of("gsop", 40, 24, **both).pooling)
    assert count(head_of("gem", 40, shared=False).pooling) == 40
    assert count(head_of("gem", 40, learn=False).pooling) == 0
    assert count(head_of("lse", 40, learn=True).pooling) == 1
    plain = count(head_of("gsp", 40).pooling)
    assert count(head_of("gsp", 40, learn_keep=True, learn_sharpness=True).pooling) == plain + 2


def test_both_sizes_of_poolings_with_a_vector_for_each_prototype() -> None:
    table = rows("Sizes of OTP and NetVLAD")
    assert [row["size"] for row in table] == ["8x16", "64x128"]
    for row in table:
        prototypes, local = map(int, row["size"].split("x"))
        dim = int(row["embedding"])
        for name in ("netvlad", "otp"):
            head = head_of(name, CHANNELS, dim, num_prototypes=prototypes)
            assert head.projection is not None
            assert (head.pooling.dim, head.pooling.out_dim, head.dim) == (local, dim, dim)
            assert row["local features"] == str(local)
            assert row[f"`{name}`"] == f"{count(head.pooling):,}"
            assert row["projection from 2048"] == f"{head.projection.weight.numel():,}"
    assert head_of("netvlad").pooling.out_dim == DIM  # the first command names no number of prototypes


@pytest.mark.parametrize("name", poolings.names())
def test_references_are_those_of_the_code(name: str) -> None:
    if name in ("average", "max", "average+max"):
        return  # nobody's invention: the code names none
    reference = DEFINITIONS[name]["reference"]
    if reference == "the same":
        reference = DEFINITIONS["gsp"]["reference"]
    pooling_class = poolings.find(name)
    docstrings = [sys.modules[pooling_class.__module__].__doc__ or "", pooling_class.__doc__ or ""]
    text = " ".join(" ".join(docstrings).split())
    authors, year = re.findall(r"[^\W\d_]{3,}", reference)[:2], re.findall(r"\d{4}", reference)
    assert len(year) == 1
    assert year[0] in text
    assert all(author in text for author in authors), authors


def test_top_k_of_the_page() -> None:
    shown = re.search(r"transport_top_k\(scores, k=2, sharpness=3.0\)\s+# (.*), 2 in all", PAGE)
    assert shown is not None
    chosen = poolings.transport_top_k(torch.tensor([0.1, 0.9, 0.5, 0.8]), k=2, sharpness=3.0)
    assert shown[1].split() == [f"{value:.2f}" for value in chosen.tolist()]
