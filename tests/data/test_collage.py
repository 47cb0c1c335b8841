"""The collage of CIFAR-100, on stand-ins whose colours say which class and which picture they are."""

import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from lookalike import data
from lookalike.data.collage import BACKGROUND, BLANK, FOREGROUND, SUPER_CLASSES, CollageReader, collage, sub_classes
from lookalike.data.pictures import BrokenData, Pictures
from lookalike.training.settings import Settings
from lookalike.training.split import divide

# The super-class of each class, both counted in alphabetical order, as the files of CIFAR-100 number them.
OFFICIAL = (
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1),
    *(10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12),
    *(12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0),
    *(17, 8, 14, 13),
)
NAMES = sorted(name for names in SUPER_CLASSES.values() for name in names)
SUPER_OF = {name: group for group, names in SUPER_CLASSES.items() for name in names}
TRAIN, TEST = 3, 1  # pictures of each class in the official parts
SMALL = "4/2/2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-100 in class folders: picture p of class c is of the colour (2c, 40p, 99)."""
    root = tmp_path_factory.mktemp("cifar100")
    for number, name in enumerate(NAMES):
        for picture in range(TRAIN + TEST):
            place = root / ("train" if picture < TRAIN else "test") / name
            place.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (2 * number, 40 * picture, 99)).save(place / f"{picture}.png")
    return root


@pytest.fixture(scope="module")
def pictures(folder: Path) -> Pictures:
    return data.load(f"collage(  {folder}, pictures=8/3/8)")


def reader_of(pictures: Pictures) -> CollageReader:
    assert isinstance(pictures.reader, CollageReader)
    return pictures.reader


def pixels(pictures: Pictures, index: int) -> NDArray[np.uint8]:
    return np.asarray(pictures.image(index))


def seen_in(pictures: Pictures, index: int, cells: int = 2) -> list[tuple[str, int]]:
    """(class, picture) of each cell, row by row, from the colours."""
    found = []
    for cell in range(cells**2):
        top, left = 32 * (cell // cells), 32 * (cell % cells)
        square = pixels(pictures, index)[top : top + 32, left : left + 32].reshape(-1, 3)
        assert (square == square[0]).all(), "a cell shows one picture"
        red, green, _ = square[0].tolist()
        found.append((NAMES[red // 2], green // 40))
    return found


def test_the_super_classes_are_those_of_cifar_100() -> None:
    groups = sorted(SUPER_CLASSES)
    assert len(NAMES) == len(set(NAMES)) == 100
    assert {len(names) for names in SUPER_CLASSES.values()} == {5}
    assert [groups.index(SUPER_OF[name]) for name in NAMES] == list(OFFICIAL)
    assert (len(FOREGROUND), len(BACKGROUND)) == (16, 4)


@pytest.mark.parametrize(
    ("split", "sizes"), [("2/1/2", (2, 1, 2)), ("3/1/1", (3, 1, 1)), ("3/2", (3, 3, 2)), ("4/0/1", (4, 4, 1))]
)
def test_sub_classes_are_divided(split: str, sizes: tuple[int, ...]) -> None:
    parts = sub_classes(split, seed=5)
    for name, members in SUPER_CLASSES.items():
        train, validation, test = (parts[part][name] for part in ("train", "validation", "test"))
        assert (len(train), len(validation), len(test)) == sizes
        assert {*train, *validation, *test} == set(members)
        assert not set(train) & set(test)
        assert not set(validation) & set(test)
    assert sub_classes("2/1/2", seed=1) != sub_classes("2/1/2", seed=2)


def test_listed_sub_classes_are_the_first_ones() -> None:
    parts = sub_classes("3/2", order="listed")
    assert parts == sub_classes("3/2", seed=7, order="listed")
    assert parts["train"]["fish"] == ("aquarium_fish", "flatfish", "ray")
    assert parts["test"]["fish"] == ("shark", "trout")
    assert parts["test"]["trees"] == ("pine_tree", "willow_tree")
    with pytest.raises(ValueError, match="order must be one of seeded, listed, got 'drawn'"):
        sub_classes("3/2", order="drawn")


def test_the_released_collages(folder: Path) -> None:
    """Two numbers: no validation; all pictures of a sub-class, of both official parts, once in the true cell."""
    per_class = TRAIN + TEST
    counts = f"{3 * per_class}/{2 * per_class}"
    pictures = data.load(f"collage({folder}, split=3/2, order=listed, pictures={counts})")
    parts = sub_classes("3/2", order="listed")
    assert pictures.names[0] == "collage-32-0-2-listed-joined/train/aquatic_mammals/0000"
    assert pictures.splits is not None
    assert set(pictures.splits.tolist()) == {"train", "test"}
    for split in ("train", "test"):
        part = pictures.split(split)
        true: Counter[tuple[str, int]] = Counter()
        for index in range(len(part)):
            shown = seen_in(part, index)
            true[shown.pop(reader_of(part).cell_of(int(part.origins[index])))] += 1
            assert all(name in parts[split][SUPER_OF[name]] and SUPER_OF[name] in BACKGROUND for name, _ in shown)
        wanted = [name for group in FOREGROUND for name in parts[split][group]]
        assert true == Counter({(name, number): 1 for name in wanted for number in range(per_class)})


def test_every_collage_shows_one_picture_of_its_class_among_background(pictures: Pictures) -> None:
    parts = sub_classes()
    assert pictures.splits is not None
    assert len(pictures) == 16 * (8 + 3 + 8)
    for index in range(len(pictures)):
        label, split = pictures.classes[pictures.labels[index]], str(pictures.splits[index])
        shown = [name for name, _ in seen_in(pictures, index)]
        true = shown.pop(reader_of(pictures).cell_of(index))
        assert true in parts[split][label]
        for name in shown:
            assert SUPER_OF[name] in BACKGROUND
            assert name in parts[split][SUPER_OF[name]]


def test_all_labels_are_in_all_splits_and_training_takes_them_as_they_are(pictures: Pictures) -> None:
    for split, count in (("train", 8), ("validation", 3), ("test", 8)):
        assert pictures.split(split).classes == FOREGROUND
        assert set(pictures.split(split).counts().tolist()) == {count}
    train, held_out, notes = divide(pictures, Settings())
    assert held_out is not None
    assert (train.names, held_out.names) == (pictures.split("train").names, pictures.split("validation").names)
    assert "own validation split" in notes[-1]


def test_chance_is_fair(folder: Path) -> None:
    many = collage(folder, pictures="100/1/1").split("train")
    cells = Counter(reader_of(many).cell_of(int(origin)) for origin in many.origins)
    groups: Counter[str] = Counter()
    for index in range(0, len(many), 4):
        groups.update(SUPER_OF[name] for name, _ in seen_in(many, index) if SUPER_OF[name] in BACKGROUND)
    for counted, share in ((cells, 400), (groups, 300)):
        assert len(counted) == 4
        assert all(abs(count - share) < 5 * share**0.5 for count in counted.values())


def test_no_picture_comes_twice_before_all_have_come(pictures: Pictures) -> None:
    test = pictures.split("test")  # 8 collages of 2 sub-classes of 4 pictures
    fish = [index for index in range(len(test)) if test.classes[test.labels[index]] == "fish"]
    true = [seen_in(test, i)[reader_of(test).cell_of(int(test.origins[i]))] for i in fish]
    assert sorted(true) == sorted((name, each) for name in sub_classes()["test"]["fish"] for each in range(4))
    assert [name for name, _ in true[::2]] == [sub_classes()["test"]["fish"][0]] * 4


def test_more_collages_leave_the_old_ones_as_they_were(folder: Path, pictures: Pictures) -> None:
    fewer = collage(folder, pictures=SMALL)
    place = {name: index for index, name in enumerate(pictures.names)}
    for index, name in enumerate(fewer.names):
        assert np.array_equal(pixels(fewer, index), pixels(pictures, place[name]))
        assert fewer.key(index) == pictures.key(place[name])
    assert len({fewer.key(i) for i in range(len(fewer))}) == len(fewer)


def test_the_seed_decides_everything(folder: Path) -> None:
    first, again, other = (collage(folder, pictures=SMALL, seed=seed) for seed in (3, 3, 4))
    assert first.names == again.names
    assert not set(first.names) & set(other.names)
    assert np.array_equal(reader_of(first).true_cells, reader_of(again).true_cells)
    assert all(np.array_equal(pixels(first, i), pixels(again, i)) for i in range(len(first)))
    assert not np.array_equal(reader_of(first).true_cells, reader_of(other).true_cells)
    copy = pickle.loads(pickle.dumps(first.reader))
    assert np.array_equal(copy.draw(7), reader_of(first).draw(7))


def test_distilled_is_the_same_without_background(folder: Path) -> None:
    plain, distilled = (collage(folder, pictures=SMALL, distilled=distilled) for distilled in (False, True))
    assert not set(plain.names) & set(distilled.names)
    for index in range(len(plain)):
        cell = reader_of(plain).cell_of(index)
        assert reader_of(distilled).cell_of(index) == cell
        expected = np.full((64, 64, 3), BLANK, dtype=np.uint8)
        here = np.s_[32 * (cell // 2) : 32 * (cell // 2) + 32, 32 * (cell % 2) : 32 * (cell % 2) + 32]
        expected[here] = pixels(plain, index)[here]
        assert np.array_equal(pixels(distilled, index), expected)


@pytest.mark.parametrize("split", ["2/1/2", "3/2"])
def test_apart_keeps_the_official_test_pictures_for_validation_and_test(folder: Path, split: str) -> None:
    pictures = collage(folder, split=split, pictures=SMALL, apart=True)
    assert pictures.names[0].split("/")[0].endswith("-apart")
    assert pictures.splits is not None
    for index, part in enumerate(pictures.splits.tolist()):
        for _, picture in seen_in(pictures, index):
            assert (picture < TRAIN) == (part == "train")


def test_apart_needs_the_official_parts(tmp_path: Path) -> None:
    for part, names in (("train", NAMES), ("test", NAMES[1:])):
        for name in names:
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(tmp_path / part / name / "0.png")
    with pytest.raises(BrokenData, match="apart=true needs pictures of 'apple' for test"):
        collage(tmp_path, pictures=SMALL, apart=True)


@pytest.mark.parametrize("cells", [1, 3])
def test_other_grids(folder: Path, cells: int) -> None:
    pictures = collage(folder, pictures="2/1/1", cells=cells)
    for index in range(len(pictures)):
        shown = seen_in(pictures, index, cells)
        assert pixels(pictures, index).shape == (32 * cells, 32 * cells, 3)
        label = pictures.classes[pictures.labels[index]]
        assert [SUPER_OF[name] in BACKGROUND for name, _ in shown].count(False) == 1
        assert SUPER_OF[shown[reader_of(pictures).cell_of(index)][0]] == label


def test_without_sub_classes_for_validation_other_pictures_validate(folder: Path) -> None:
    pictures = collage(folder, split="3/2", pictures="9/9/1")
    shown: dict[str, set[tuple[str, int]]] = {}
    for split in ("train", "validation"):
        part = pictures.split(split)
        shown[split] = {each for index in range(len(part)) for each in seen_in(part, index)}
    assert {name for name, _ in shown["train"]} == {name for name, _ in shown["validation"]}
    assert not shown["train"] & shown["validation"]


def test_collages_with_unreadable_pictures_are_left_out(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "cifar100"
    for file in folder.rglob("*.png"):
        (copy / file.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
        (copy / file.relative_to(folder)).hardlink_to(file)
    whole = collage(folder, pictures=SMALL)
    name, number = seen_in(whole, 5)[2]
    broken = copy / ("train" if number < TRAIN else "test") / name / f"{number}.png"
    broken.unlink()
    broken.write_bytes(b"no picture")
    found = collage(copy, pictures=SMALL)
    lost = [i for i in range(len(whole)) if (name, number) in seen_in(whole, i)]
    assert found.names == tuple(each for i, each in enumerate(whole.names) if i not in lost)
    assert [problem.name for problem in found.problems] == [str(broken.relative_to(copy))]
    for index in (0, len(found) - 1):
        assert np.array_equal(pixels(found, index), pixels(whole, whole.names.index(found.names[index])))
    with pytest.raises(BrokenData, match="collage has 1 picture that cannot be used"):
        data.load(f"collage({copy}, pictures={SMALL})", strict=True)


def test_how_it_is_named(folder: Path) -> None:
    assert data.load("collage", root=folder).names == data.load(f"collage:{folder}").names
    named = data.load(f"collage({folder}, split=3/2, seed=7, pictures={SMALL}, cells=1, distilled=true)")
    called = collage(folder, split="3/2", seed=7, pictures=SMALL, cells=1, distilled=True)
    assert named.names == called.names
    assert named.names[0] == "collage-32-7-1-distilled/train/aquatic_mammals/0000"


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("split=2/2/2", "split must divide 5 sub-classes"),
        ("split=0/5", "split must divide 5 sub-classes"),
        ("split=five", "split must be whole numbers as 2/1/2"),
        ("pictures=100", "pictures must be whole numbers as 600/150/300"),
        ("pictures=1/0/1", "pictures must be whole numbers"),
        ("pictures=3/2", "pictures '3/2' leave out the validation, to which split '2/1/2' gives sub-classes"),
        ("order=drawn", "order must be one of seeded, listed"),
        ("cells=0", "cells must be at least 1, got 0"),
        ("seed=-1", "the collage is written collage.FOLDER, split=2/1/2, order=seeded.*got 'seed=-1'"),
        ("distilled=maybe", "got 'distilled=maybe'"),
        ("apart=1", "got 'apart=1'"),
        ("colour=2", "got 'colour=2'"),
    ],
)
def test_wrong_settings_are_named(folder: Path, inside: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        data.load(f"collage({folder}, {inside})")


def test_wrong_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the collage needs the folder of CIFAR-100: write collage:FOLDER"):
        data.load("collage")
    with pytest.raises(ValueError, match="there is no folder"):
        data.load(f"collage:{tmp_path / 'nowhere'}")
    with pytest.raises(ValueError, match="does not hold CIFAR-100"):
        data.load(f"collage:{tmp_path}")
    with pytest.raises(ValueError, match="did you mean 'collage'"):
        data.load("colage")


def test_an_index_beyond_the_end_is_an_error(pictures: Pictures) -> None:
    for index in (-1, len(pictures)):
        with pytest.raises(IndexError, match=r"index must lie in 0\.\."):
            reader_of(pictures).draw(index)
        with pytest.raises(IndexError, match=r"index must lie in 0\.\."):
            reader_of(pictures).cell_of(index)
