import json
from pathlib import Path

import pytest
from PIL import Image

from lookalike import data
from lookalike.data import datasets


def put(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), "red").save(path, format="JPEG")


def make_cub(root: Path) -> Path:
    """The official numbers, with one picture on the disk under all names."""
    images, labels, classes = [], [], []
    put(root / "images", "picture.jpg")
    sizes = [58] * 99 + [5_864 - 99 * 58] + [59] * 99 + [5_924 - 99 * 59]
    for number, size in enumerate(sizes, start=1):
        classes.append(f"{number} {number:03d}.Bird")
        for _ in range(size):
            images.append(f"{len(images) + 1} picture.jpg")
            labels.append(f"{len(images)} {number}")
    for name, lines in (("images.txt", images), ("image_class_labels.txt", labels), ("classes.txt", classes)):
        (root / name).write_text("\n".join(lines) + "\n")
    return root


def test_a_whole_benchmark_is_good(tmp_path: Path) -> None:
    report = datasets.check(make_cub(tmp_path), decode=False)
    assert report.good
    assert report.name == "cub"
    assert [(figure.what, figure.found) for figure in report.counts] == [
        ("classes", 200),
        ("pictures", 11_788),
        ("train classes", 100),
        ("train pictures", 5_864),
        ("test classes", 100),
        ("test pictures", 5_924),
    ]
    assert str(report).startswith("CUB-200-2011 (birds) in")
    assert "good" in str(report)


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    root = make_cub(tmp_path)
    lines = (root / "images.txt").read_text().splitlines()
    lines[0], lines[1], lines[2] = "1 absent.jpg", "2 empty.jpg", "3 absent too.jpg"
    (root / "images.txt").write_text("\n".join(lines[:-10]) + "\n")
    (root / "images/empty.jpg").touch()
    report = datasets.check(root, decode=False)
    assert not report.good
    assert report.faults == (
        "pictures: expected 11,788, found 11,778",
        "test pictures: expected 5,924, found 5,914",
        "2 x no such file; the first: absent.jpg: no such file",
        "1 x empty file; the first: empty.jpg: empty file (0 bytes)",
    )
    assert [problem.name for problem in report.problems] == ["absent.jpg", "empty.jpg", "absent too.jpg"]
    assert "expected 5,924" in str(report)
    assert json.loads(json.dumps(report.as_dict()))["good"] is False


def test_missing_lists_and_unreadable_lists(tmp_path: Path) -> None:
    root = make_cub(tmp_path)
    (root / "image_class_labels.txt").write_text("1 1\n2\n")
    assert "line 2 must have 2 fields" in datasets.check(root).faults[0]
    (root / "image_class_labels.txt").unlink()
    assert datasets.check(root).faults == ("image_class_labels.txt is missing",)
    assert "none of its files is here; expected Ebay_train.txt" in datasets.check(root, "sop").faults[0]
    with pytest.raises(ValueError, match="there is no folder or file"):
        datasets.check(root / "absent")
    with pytest.raises(ValueError, match="no data set called 'cubs'; did you mean 'cub'"):
        datasets.check(root, "cubs")


def test_inshop_counts_its_roles(tmp_path: Path) -> None:
    put(tmp_path / "img", "1.jpg")
    rows = ["img/1.jpg id_1 train", "img/1.jpg id_2 query", "img/1.jpg id_2 query", "img/1.jpg id_2 gallery"]
    (tmp_path / "list_eval_partition.txt").write_text("\n".join(["4", "image_name item_id evaluation_status", *rows]))
    report = datasets.check(tmp_path)
    figures = {figure.what: (figure.found, figure.expected) for figure in report.counts}
    assert figures["classes"] == (2, 7_982)
    assert figures["pictures"] == (4, 52_712)
    assert figures["train pictures"] == (1, 25_882)
    assert figures["train classes"] == (1, 3_997)
    assert figures["query pictures"] == (2, 14_218)
    assert figures["gallery pictures"] == (1, 12_612)
    assert figures["gallery classes"] == (1, 3_985)


def test_ordinary_folders_and_tables_are_summed_up(tmp_path: Path) -> None:
    root = tmp_path / "birds"
    put(root, "wren/1.jpg", "wren/2.jpg", "robin/3.jpg", "robin/4.jpg", "owl/5.jpg")
    (root / "robin/4.jpg").write_bytes((root / "robin/4.jpg").read_bytes()[:-100])
    (root / "notes.txt").touch()
    report = datasets.check(root)
    assert report.name is None
    assert {figure.what: figure.found for figure in report.counts} == {
        "classes": 3,
        "pictures": 4,
        "classes with one picture": 1,
        "left out": 1,
    }
    assert report.faults[0].startswith("1 x truncated; the first: robin/4.jpg")
    same_content = "1 picture with the same content in more than one class; the first: owl/5.jpg ="
    assert any(question.startswith(same_content) for question in report.questions)
    assert any(question.startswith("3 pictures are exact copies of others") for question in report.questions)
    assert "note: largest classes: " in str(report)
    assert "note: smallest classes: " in str(report)
    assert "files that are not read as pictures: .txt 1" in report.notes
    assert datasets.check(root, decode=False).good  # it does not open them
    (tmp_path / "list.csv").write_text("path,label,split\nbirds/wren/1.jpg,a,train\nbirds/owl/5.jpg,b,test\n")
    figures = {figure.what: figure.found for figure in datasets.check(tmp_path / "list.csv").counts}
    assert figures["classes with one picture"] == 2
    assert figures["train pictures"] == figures["test classes"] == 1
    (tmp_path / "empty").mkdir()
    assert "has no pictures" in datasets.check(tmp_path / "empty").faults[0]


def test_descriptions_agree_with_themselves() -> None:
    rows = datasets.describe()
    assert [row["name"] for row in rows] == datasets.names()
    json.dumps(rows)
    for row in rows:
        parts = row["parts"]
        assert parts["train"]["pictures"] + parts["test"]["pictures"] == row["pictures"]
        assert row["page"].startswith("http")
        shared = row["name"].startswith(("cifar", "mnist", "fashion"))  # split by picture, not by class
        total = parts["train"]["classes"] + parts["test"]["classes"]
        assert total == (2 * row["classes"] if shared else row["classes"])


def test_names_without_a_folder_say_where_to_get_it() -> None:
    for name in datasets.names():
        with pytest.raises(
            ValueError, match=rf"{name} needs its folder: write {name}:FOLDER.*lookalike does not download it"
        ):
            data.load(name)


def test_tables_with_one_side_of_a_search(tmp_path: Path) -> None:
    put(tmp_path, *(f"{i}.jpg" for i in range(4)))

    def faults(*rows: str) -> tuple[str, ...]:
        lines = [f"{i}.jpg,{'ab'[i % 2]},{row}" for i, row in enumerate(rows)]
        (tmp_path / "list.csv").write_text("\n".join(["path,label,split,role", *lines]))
        return datasets.check(tmp_path / "list.csv").faults

    lacks_gallery = "pictures have the role query, but none has gallery or both, so nothing can be measured"
    lacks_query = "pictures have the role gallery, but none has query or both, so nothing can be measured"
    assert faults("train,", "train,", "test,query", "test,gallery") == ()
    assert faults("train,", "train,", "test,both", "test,both") == ()
    assert faults("train,query", "train,query", "test,query", "test,gallery") == ()  # nobody searches there
    assert faults("train,", "train,", "test,query", "test,query") == (f"test {lacks_gallery}",)
    assert faults("val,gallery", "val,", "test,query", "test,query") == (
        f"validation {lacks_query}",
        f"test {lacks_gallery}",
    )
    assert faults("train,query", "train,query", "train,query", "train,query") == (lacks_gallery,)


def test_the_owner_is_asked_about_folders_that_may_be_no_class(tmp_path: Path) -> None:
    for name, count in (("wren", 20), ("robin", 25), ("finch", 22), ("assets", 2), ("owl", 5)):
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"{number}.png").write_bytes(b"x")
    report = datasets.check(tmp_path, decode=False)
    assert "smallest classes: assets 2, owl 5, wren 20" in report.notes
    assert report.good
    assert report.questions == (
        "is assets a class? It has 2 pictures (the median is 20). If not, move it away",
        "far fewer pictures than other classes (median 20), really classes? owl 5",
    )
    assert str(report).splitlines()[0].endswith("complete and readable, but please look at the questions below")
    assert report.as_dict()["questions"] == list(report.questions)


def test_odd_pictures_are_asked_about(tmp_path: Path) -> None:
    for number, size in enumerate([(64, 64), (64, 60), (16, 16), (640, 60), (640, 128), (31, 400)]):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        Image.new("RGB", size, (number, 0, 0)).save(folder / f"{number}.png")
    questions = datasets.check(tmp_path).questions
    assert questions == (
        "2 pictures smaller than 32 pixels, icons? a/2.png, b/5.png",
        "1 picture more than 5 times as long as wide, banners? b/3.png",
    )


def test_copies_within_a_class_are_asked_about(tmp_path: Path) -> None:
    """Class a has red three times, class b blue twice."""
    for number, colour in enumerate(["red", "blue", "red", "green", "red", "blue"]):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (64, 64), colour).save(folder / f"{number}.png")
    assert datasets.check(tmp_path).questions == (
        "3 pictures are exact copies of others, keep both? a/0.png = a/2.png",
    )
