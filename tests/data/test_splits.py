from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lookalike.data.files import table_of_files
from lookalike.data.pictures import ROLES, Pictures
from lookalike.data.splits import (
    class_folds,
    hold_out_classes,
    hold_out_pictures,
    lacking_role,
    measurable_classes,
    singletons,
)


def table(counts: list[int]) -> Pictures:
    class_of = [f"class {i}" for i, count in enumerate(counts) for _ in range(count)]
    return table_of_files("t", Path(), [f"{i}.png" for i in range(len(class_of))], class_of)


counts = st.lists(st.integers(1, 9), min_size=2, max_size=12)
shares = st.floats(0.01, 0.99)


def parts_are_whole(whole: Pictures, *parts: Pictures) -> None:
    names = [name for part in parts for name in part.names]
    assert sorted(names) == sorted(whole.names)
    label_of = dict(zip(whole.names, (whole.classes[label] for label in whole.labels), strict=True))
    for part in parts:
        assert [part.classes[label] for label in part.labels] == [label_of[name] for name in part.names]


@settings(max_examples=40)
@given(counts, shares, st.sampled_from(["contiguous", "seeded"]), st.integers(0, 5))
def test_classes_are_held_out_whole(sizes: list[int], share: float, order: str, seed: int) -> None:
    whole = table(sizes)
    train, held = hold_out_classes(whole, share, order=order, seed=seed)
    parts_are_whole(whole, train, held)
    assert not set(train.classes) & set(held.classes)
    assert len(held.classes) == min(max(round(share * len(sizes)), 1), len(sizes) - 1)
    if order == "contiguous":
        assert train.classes + held.classes == whole.classes
    again = hold_out_classes(whole, share, order=order, seed=seed)
    assert (again[0].names, again[1].names) == (train.names, held.names)


def test_the_seed_matters_and_the_order_of_the_files_does_not() -> None:
    whole = table([2] * 30)
    chosen = {hold_out_classes(whole, 0.3, seed=seed)[1].classes for seed in range(8)}
    assert len(chosen) == 8
    turned = whole.take(np.arange(len(whole))[::-1])
    assert hold_out_classes(turned, 0.3, seed=1)[1].classes == hold_out_classes(whole, 0.3, seed=1)[1].classes
    assert set(hold_out_pictures(turned, 0.3, 1)[1].names) == set(hold_out_pictures(whole, 0.3, 1)[1].names)


def test_a_choice_that_must_not_change_between_versions() -> None:
    assert hold_out_classes(table([1] * 8), 0.25, seed=0)[1].classes == ("class 3", "class 4")


def test_folds_are_contiguous_ranges() -> None:
    folds = class_folds(table([3] * 10), 4)
    assert [held.classes for _, held in folds] == [
        ("class 0", "class 1"),
        ("class 2", "class 3", "class 4"),
        ("class 5", "class 6"),
        ("class 7", "class 8", "class 9"),
    ]
    for train, held in folds:
        parts_are_whole(table([3] * 10), train, held)
        assert not set(train.classes) & set(held.classes)
    assert [len(held.classes) for _, held in class_folds(table([2] * 100), 4)] == [25] * 4


@settings(max_examples=40)
@given(counts, shares, st.integers(0, 5))
def test_pictures_are_held_out_of_every_class(sizes: list[int], share: float, seed: int) -> None:
    whole = table(sizes)
    if max(sizes) == 1:
        with pytest.raises(ValueError, match="a single picture"):
            hold_out_pictures(whole, share, seed)
        return
    train, held = hold_out_pictures(whole, share, seed)
    parts_are_whole(whole, train, held)
    assert train.classes == whole.classes
    for i, size in enumerate(sizes):
        found = int(held.counts()[held.classes.index(f"class {i}")]) if f"class {i}" in held.classes else 0
        assert found == (0 if size == 1 else min(max(round(share * size), 1), size - 1))


def test_singletons() -> None:
    assert singletons(table([2, 1, 3, 1])) == ["class 1", "class 3"]


def test_bad_settings() -> None:
    whole = table([2, 2, 2])
    for share in (0, 1, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"share must lie in \(0, 1\)"):
            hold_out_classes(whole, share)
        with pytest.raises(ValueError, match=r"share must lie in \(0, 1\)"):
            hold_out_pictures(whole, share)
    with pytest.raises(TypeError, match="share must be a number"):
        hold_out_classes(whole, "0.5")
    with pytest.raises(ValueError, match="order must be"):
        hold_out_classes(whole, 0.5, order="random")
    with pytest.raises(ValueError, match="at least two"):
        hold_out_classes(whole.with_classes(["class 0"]), 0.5)
    with pytest.raises(ValueError, match="folds must be at most the number of classes, 3"):
        class_folds(whole, 4)
    with pytest.raises(ValueError, match="folds must be at least 2"):
        class_folds(whole, 1)
    with pytest.raises(ValueError, match="seed must be at least 0"):
        hold_out_classes(whole, 0.5, seed=-1)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(ROLES)), min_size=1, max_size=8))
def test_what_can_be_measured(rows: list[tuple[int, str]]) -> None:
    def pairs(queries: tuple[str, ...], gallery: tuple[str, ...]) -> set[int]:
        return {
            label
            for i, (label, role) in enumerate(rows)
            for j, (other, other_role) in enumerate(rows)
            if i != j and label == other and role in queries and other_role in gallery
        }

    labels = sorted({label for label, _ in rows})
    table = Pictures(
        name="numbers",
        names=tuple(map(str, range(len(rows)))),
        labels=np.array([labels.index(label) for label, _ in rows], np.int64),
        classes=tuple(map(str, labels)),
        reader=None,  # type: ignore[arg-type]  # no pixels here
        origins=np.arange(len(rows)),
        roles=np.array([role for _, role in rows], np.str_),
    )
    said = {role for _, role in rows}
    expected = pairs(("query", "both"), ("gallery", "both")) if said != {""} else pairs(("",), ("",))
    assert measurable_classes(table) == len(expected)
    assert (lacking_role(table) is not None) == (said - {""} in ({"query"}, {"gallery"}))
    assert measurable_classes(replace(table, roles=None)) == len(pairs(ROLES, ROLES))
    assert lacking_role(replace(table, roles=None)) is None
