"""One picture in two classes is noted, and nothing else is."""

import shutil
from pathlib import Path

import pytest

from lookalike import data
from lookalike.data import files
from lookalike.data.files import find_contradictions


@pytest.fixture
def folder(class_folders: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(class_folders, tmp_path / "pictures"))


def test_one_picture_in_two_classes_is_noted(folder: Path) -> None:
    shutil.copy(folder / "class0" / "0.png", folder / "class0" / "again.png")
    assert find_contradictions(data.load(folder)) == (), "twice in one class contradicts nothing"
    shutil.copy(folder / "class0" / "0.png", folder / "class2" / "wrong.png")
    shutil.copy(folder / "class1" / "1.png", folder / "class3" / "wrong.png")
    pictures = data.load(folder)
    (note,) = pictures.notes
    assert note == (
        "2 pictures with the same content in more than one class; "
        "the first: class0/0.png = class0/again.png = class2/wrong.png"
    )
    report = data.datasets.check(folder)
    assert report.good
    assert note in report.questions
    assert data.load(folder, check=False).notes == ()


def test_alike_at_the_beginning_is_not_alike(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BEGINNING", 8)  # the signature that all PNGs share
    same = (folder / "class0" / "0.png").read_bytes()
    (folder / "class2" / "wrong.png").write_bytes(same[:-1] + bytes([same[-1] ^ 1]))
    assert find_contradictions(data.load(folder, check=False)) == ()


def test_what_has_vanished_contradicts_nothing(folder: Path) -> None:
    shutil.copy(folder / "class0" / "0.png", folder / "class2" / "wrong.png")
    pictures = data.load(folder, check=False)
    (folder / "class2" / "wrong.png").unlink()
    assert find_contradictions(pictures) == ()
    assert (
        find_contradictions(data.load("glyphs(cells=1, size=32, train_classes=2, test_classes=0, per_class=2)")) == ()
    )
