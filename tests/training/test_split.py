"""Which pictures of a run are trained on and which are held out."""

from dataclasses import replace

import numpy as np
import pytest

from lookalike.data.arrays import ArrayReader
from lookalike.data.pictures import BrokenData, Pictures, Problem
from lookalike.training.settings import Settings
from lookalike.training.split import divide, fingerprint


def table(*counts: int, splits: list[str] | None = None) -> Pictures:
    """As many pictures of each class; ``splits``, one for each class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return Pictures(
        name="numbers",
        names=tuple(f"{label}/{i}" for i, label in enumerate(labels)),
        labels=labels.astype(np.int64),
        classes=tuple(f"class {label}" for label in range(len(counts))),
        reader=ArrayReader(np.arange(len(labels), dtype=np.uint8)[:, None, None]),
        origins=np.arange(len(labels)),
        splits=None if splits is None else np.repeat(np.array(splits, np.str_), counts),
    )


def test_classes_are_held_out() -> None:
    pictures = table(*8 * [5])
    train, held_out, notes = divide(pictures, Settings())
    assert held_out is not None
    assert (len(train), len(held_out)) == (30, 10)
    assert not set(train.classes) & set(held_out.classes)
    assert notes == [
        "training on 30 pictures of 6 classes, holding out 10 of 2; measured on classes that are not trained on"
    ]
    other = divide(pictures, Settings(seed=1))[1]
    assert other is not None
    assert other.classes != held_out.classes
    last = divide(pictures, Settings(validation_order="contiguous"))[1]
    assert last is not None
    assert last.classes == ("class 6", "class 7")


def test_the_datas_own_validation_split_goes_first() -> None:
    splits = ["train", "train", "validation", "test", "test"]
    train, held_out, notes = divide(table(3, 3, 2, 4, 4, splits=splits), Settings(validation=0.5))
    assert held_out is not None
    assert (train.classes, held_out.classes) == (("class 0", "class 1"), ("class 2",))
    assert "holding out 2 of 1; measured on the data's own validation split" in notes[0]


def test_without_one_classes_of_the_training_split_are_held_out() -> None:
    pictures = table(*8 * [3], *4 * [3], splits=8 * ["train"] + 4 * ["test"])
    train, held_out, _ = divide(pictures, Settings())
    assert held_out is not None
    assert (len(train.classes), len(held_out.classes)) == (6, 2)
    assert set(train.classes) | set(held_out.classes) == set(pictures.classes[:8])


def test_few_classes_hold_out_pictures() -> None:
    train, held_out, notes = divide(table(8, 8, 8), Settings())
    assert held_out is not None
    assert train.classes == held_out.classes
    assert (train.counts().tolist(), held_out.counts().tolist()) == ([6, 6, 6], [2, 2, 2])
    assert not set(train.names) & set(held_out.names)
    assert "too few classes to hold some out: measured on other pictures of the same classes" in notes[0]


def test_held_out_classes_without_pairs_are_not_used() -> None:
    # contiguous: the last two of eight classes have a single picture each, by which nothing can be measured
    train, held_out, notes = divide(table(*6 * [8], 1, 1), Settings(validation_order="contiguous"))
    assert held_out is not None
    assert len(train.classes) == 8
    assert held_out.counts().tolist() == 6 * [2]
    assert "other pictures of the same classes" in notes[0]
    assert notes[1] == "training classes with a single picture, which form no pair: 2"


@pytest.mark.parametrize("counts", [(2, 2), (3, 3), (1, 2), (1, 1, 1, 1, 1, 1, 1, 2), (8, 1)])
def test_too_few_pictures_hold_out_nothing(counts: tuple[int, ...]) -> None:
    pictures = table(*counts)
    train, held_out, notes = divide(pictures, Settings())
    assert held_out is None
    assert train.names == pictures.names
    assert "too few pictures to hold some out: the last weights are kept" in notes[0]
    alone = counts.count(1)
    assert notes[1:] == ([f"training classes with a single picture, which form no pair: {alone}"] if alone else [])


def test_nothing_is_held_out_if_so_asked() -> None:
    pictures = table(*8 * [5])
    train, held_out, notes = divide(pictures, Settings(validation=0))
    assert held_out is None
    assert train.names == pictures.names
    assert notes == [
        "training on 40 pictures of 8 classes; nothing is held out: the last weights are kept, without any metric"
    ]


def test_problems_are_told_but_not_all() -> None:
    problems = tuple(Problem(f"{i}.jpg", "empty file") for i in range(7))
    notes = divide(replace(table(8, 8, 8), problems=problems), Settings())[2]
    lines = notes[0].splitlines()
    assert lines[0] == "left out, 7 pictures that cannot be used:"
    assert lines[1] == "  0.jpg: empty file"
    assert lines[5:] == ["  4.jpg: empty file", "  and 2 more"]
    assert len(divide(replace(table(8, 8, 8), problems=problems[:5]), Settings())[2][0].splitlines()) == 6


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        (table(5), "training needs pictures of at least two classes, numbers has 1"),
        (table(5, 5, splits=["train", "test"]), "training needs pictures of at least two classes, numbers has 1"),
        (table(5, 5, splits=["test", "test"]), "numbers has splits but nothing to train on: no picture is marked"),
        (
            table(5, 5, 1, 1, splits=["train", "train", "validation", "validation"]),
            "the validation split of numbers: no class has two pictures, so nothing can be measured",
        ),
    ],
)
def test_data_that_cannot_be_trained_on(pictures: Pictures, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        divide(pictures, Settings())


def test_fingerprint() -> None:
    pictures = table(3, 3)
    same = fingerprint(table(3, 3))
    assert fingerprint(pictures) == same
    others = [
        pictures.take([1, 0, 2, 3, 4, 5]),
        pictures.take(range(5)),
        replace(pictures, labels=np.array([0, 0, 1, 1, 1, 1])),
        replace(pictures, classes=("class 0", "class 2")),
        replace(pictures, names=("x", *pictures.names[1:])),
        replace(pictures, names=("caf\udce9", *pictures.names[1:])),  # a file's name that is not UTF-8
        replace(pictures, reader=ArrayReader(np.full((6, 1, 1), 7, np.uint8))),
    ]
    assert len({same, *map(fingerprint, others)}) == 8


def test_one_picture_of_each_class_is_for_proxies_only() -> None:
    pictures = table(*8 * [1])
    for loss in ("multi-similarity", "c1", "triplet"):
        with pytest.raises(
            ValueError, match=f"^every training class of numbers has a single picture and {loss} learns"
        ):
            divide(pictures, Settings(loss=loss))
    train, held_out, notes = divide(pictures, Settings(loss="proxy-anchor"))
    assert (len(train), held_out) == (8, None)
    assert notes[1:] == ["every training class has a single picture: proxy-anchor only learns to tell them apart"]


def test_what_the_table_has_to_say_comes_first() -> None:
    assert divide(replace(table(8, 8, 8), notes=("hear", "this")), Settings())[2][:2] == ["hear", "this"]


def test_held_out_pictures_can_be_searched_by_their_roles() -> None:
    pictures = table(*8 * [6])
    roles = np.array(["query", "gallery"] * 24, np.str_)
    held_out = divide(replace(pictures, roles=roles), Settings())[1]
    assert held_out is not None
    assert len(held_out.classes) == 2
    train, held_out, notes = divide(replace(pictures, roles=np.array(48 * ["query"], np.str_)), Settings())
    assert (len(train), held_out) == (48, None)
    assert "pictures have the role query, but none has gallery or both" in notes[0]
    splits = np.array(["train"] * 24 + ["validation"] * 24, np.str_)
    with pytest.raises(BrokenData, match=r"^the validation split of numbers: pictures have the role query, but none"):
        divide(replace(pictures, roles=np.array(48 * ["query"], np.str_), splits=splits), Settings())
