import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lookalike import data
from lookalike.data.files import natural_order
from lookalike.data.folder import list_pictures, read_folder


def put(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), "red").save(path, format="PNG")
    return root


def test_class_folders(tmp_path: Path) -> None:
    put(tmp_path, "c10/a.png", "c2/b.PNG", "c2/deep/er/c.jpg", "ünïcode klasse/d é.png", "c2/a10.png", "c2/a9.png")
    table = data.load(tmp_path)
    assert table.classes == ("c2", "c10", "ünïcode klasse")
    assert table.names == (
        *("c2/a9.png", "c2/a10.png", "c2/b.PNG", "c2/deep/er/c.jpg", "c10/a.png"),
        "ünïcode klasse/d é.png",
    )
    assert table.labels.tolist() == [0, 0, 0, 0, 1, 2]
    assert table.splits is None
    assert table.root == tmp_path
    assert table.image(3).getpixel((0, 0)) == (255, 0, 0)


def test_what_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "a/1.png", "b/2.png", ".hidden/3.png", "a/.4.png", "a/._1.png", "__MACOSX/a/1.png")
    for name in ("a/Thumbs.db", "a/notes.txt", "b/more.txt", "README", "b/.DS_Store"):
        (tmp_path / name).touch()
    (tmp_path / "empty class").mkdir()
    listing = list_pictures(tmp_path)
    assert listing.pictures == ["a/1.png", "b/2.png"]
    assert listing.others == {".txt": 2, "README": 1}
    assert read_folder(tmp_path).classes == ("a", "b")


def test_unreadable_pictures_are_listed(tmp_path: Path) -> None:
    put(tmp_path, "a/1.png", "a/2.png", "b/3.png", "b/4.png", "stray.png")
    (tmp_path / "a/2.png").write_bytes((tmp_path / "a/2.png").read_bytes()[:40])
    (tmp_path / "b/loop.png").symlink_to("loop.png")
    table = data.load(tmp_path)
    assert table.names == ("a/1.png", "b/3.png", "b/4.png")
    assert [problem.name for problem in table.problems] == ["stray.png", "a/2.png", "b/loop.png"]
    assert "no class folder" in table.problems[0].reason
    assert len(data.load(tmp_path, check=False)) == 5
    for check in (True, False):
        with pytest.raises(ValueError, match=r"the first: stray\.png"):
            data.load(tmp_path, strict=True, check=check)


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", "x.png")
    root = put(tmp_path / "root", "a/1.png")
    (root / "b").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (root / "a/up").symlink_to(root, target_is_directory=True)
    (root / "a/self").symlink_to(root / "a/self")
    assert read_folder(root).names == ("a/1.png", "b/x.png")


@pytest.mark.parametrize("names", [("train", "val", "test"), ("Training", "Valid", "TEST")])
def test_splits(tmp_path: Path, names: tuple[str, ...]) -> None:
    train, validation, test = names
    put(tmp_path, f"{train}/a/1.png", f"{train}/b/2.png", f"{validation}/a/3.png", f"{test}/c/x/4.png", f"{test}/5.png")
    table = read_folder(tmp_path)
    assert table.classes == ("a", "b", "c")
    assert set(table.splits.tolist()) == {"train", "validation", "test"}
    assert table.split("train").names == (f"{train}/a/1.png", f"{train}/b/2.png")
    assert table.split("validation").classes == ("a",)
    assert table.split("test").names == (f"{test}/c/x/4.png",)
    assert [problem.name for problem in table.problems] == [f"{test}/5.png"]


def test_classes_that_are_called_like_splits(tmp_path: Path) -> None:
    put(tmp_path, "train/1.png", "bus/2.png")
    table = read_folder(tmp_path)
    assert table.splits is None
    assert table.classes == ("bus", "train")
    with pytest.raises(ValueError, match="has no splits"):
        table.split("train")


def test_a_missing_split_names_those_there_are(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "test/b/2.png")
    with pytest.raises(ValueError, match="no split 'validation'; it has 'train', 'test'"):
        read_folder(tmp_path).split("validation")


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"has no pictures; expected a folder for each class"):
        data.load(tmp_path / "empty")
    (tmp_path / "empty/a.txt").touch()
    with pytest.raises(ValueError, match=r"no pictures \(but 1 other files\)"):
        data.load(tmp_path / "empty")
    with pytest.raises(ValueError, match=r"the 2 pictures in .* lie in no class folder; expected flat/CLASS/"):
        data.load(put(tmp_path / "flat", "1.png", "2.png"))
    with pytest.raises(ValueError, match=r"only one class, 'a'; expected at least two$"):
        data.load(put(tmp_path / "one", "a/1.png", "a/2.png"))
    with pytest.raises(ValueError, match=r"only one class, 'birds'.*did you mean .*/nested/birds\?"):
        data.load(put(tmp_path / "nested", "birds/wren/1.png", "birds/robin/2.png"))
    with pytest.raises(ValueError, match=r"the splits test, train but no class folders in them"):
        data.load(put(tmp_path / "bare", "train/1.png", "test/2.png"))
    (tmp_path / "a.zip").touch()
    with pytest.raises(ValueError, match="unpack it"):
        data.load(tmp_path / "a.zip")
    with pytest.raises(ValueError, match=r"is a file; expected a folder of class folders"):
        data.load(tmp_path / "flat/1.png")
    with pytest.raises(ValueError, match=r"there is no folder, CSV or data set '.*nowhere'; names of data sets: cub, "):
        data.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="did you mean 'glyphs'"):
        data.load("glyph")


def test_pictures_beside_a_single_class_folder_are_named(tmp_path: Path) -> None:
    """As in a folder of holiday pictures with one folder in it."""
    (tmp_path / "beach").mkdir()
    for name in ("beach/1.jpg", "2.jpg", "3.jpg"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"'beach'; expected at least two; 2 pictures in no class folder\. To search"):
        read_folder(tmp_path)


def test_parts_of_a_table(tmp_path: Path) -> None:
    table = read_folder(put(tmp_path, "a/1.png", "b/2.png", "b/3.png", "c/4.png"))
    part = table.take([3, 1])
    assert (part.names, part.classes, part.labels.tolist()) == (("c/4.png", "b/2.png"), ("b", "c"), [1, 0])
    assert part.key(0) == table.key(3)
    assert part.take(np.array([True, False])).classes == ("c",)
    assert len(table.take([])) == 0
    assert table.with_classes({"c", "a"}).names == ("a/1.png", "c/4.png")
    with pytest.raises(ValueError, match="no class 'd'"):
        table.with_classes(["a", "d"])
    with pytest.raises(TypeError, match="single text"):
        table.with_classes("abc")
    with pytest.raises(IndexError, match=r"must lie in 0\.\.3"):
        table.take([4])
    with pytest.raises(ValueError, match="mask"):
        table.take(np.array([True]))
    with pytest.raises(TypeError, match="integers"):
        table.take([0.5])


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=20))
def test_numbers_are_ordered_as_numbers(numbers: list[int]) -> None:
    names = [f"class {number}" for number in numbers]
    assert natural_order(names) == [f"class {number}" for number in sorted(numbers)]


@given(st.lists(st.text("aAbBé019 .", max_size=6), unique=True, max_size=10), st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_where_it_starts(names: list[str], random: object) -> None:
    shuffled = list(names)
    random.shuffle(shuffled)
    assert natural_order(shuffled) == natural_order(names)


def test_hidden_folders_with_pictures_are_noted(tmp_path: Path) -> None:
    put(tmp_path, "a/1.png", "b/2.png", ".one/3.png", "a/.two/4.png", ".git/deep/5.png", ".6.png")
    (tmp_path / ".empty").mkdir()
    note = "hidden folders are skipped, 2 of them with pictures: .one, a/.two"
    assert data.load(tmp_path).notes[:1] == (note,)  # then that they are all alike
    (tmp_path / "b/2.png").write_bytes(b"broken")
    assert data.load(tmp_path).notes == (note,)  # also where a picture is left out
    put(tmp_path, "b/.three/1.png", "b/.four/1.png")
    assert read_folder(tmp_path).notes[0].endswith("4 of them with pictures: .one, a/.two, b/.four, ...")
    with pytest.raises(ValueError, match=r"has no pictures; .*; hidden folders are skipped, 1 of .*: \.a$"):
        data.load(put(tmp_path / "all", ".a/1.png"))


def test_classes_within_classes_are_noted(tmp_path: Path) -> None:
    put(tmp_path, "owls/barn/1.png", "owls/snowy/2.png", "wrens/house/3.png")
    note = "no picture lies directly in a class folder but all deeper, as in owls/barn: the class is owls"
    assert read_folder(tmp_path).notes == (note,)
    put(tmp_path, "wrens/4.png")
    assert read_folder(tmp_path).notes == ()
    put(tmp_path / "split", "train/owls/barn/1.png", "test/wrens/house/3.png")
    assert len(read_folder(tmp_path / "split").notes) == 1


def test_a_benchmark_one_level_below(tmp_path: Path) -> None:
    put(tmp_path, "birds/images/wren/1.png", "birds/images/robin/2.png", "other/3.png")
    for name in ("images.txt", "classes.txt"):
        (tmp_path / "birds" / name).touch()
    hint = f"holds CUB-200-2011 (birds): did you mean cub:{tmp_path}/birds?"
    with pytest.raises(ValueError, match=re.escape(hint)):
        data.load(tmp_path)
    assert data.datasets.check(tmp_path).faults[0].endswith(hint)
    put(tmp_path, *(f"class{number}/1.png" for number in range(15)))  # as many are classes, whatever is in one
    assert len(data.load(tmp_path).classes) == 17


def test_other_files_are_counted_by_kind(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.cr2", "c.cr2", "d.txt"):
        (tmp_path / name).write_bytes(b"x")
    (note,) = list_pictures(tmp_path).notes()
    assert note == "files that are not read as pictures: .cr2 2, .txt 1"
