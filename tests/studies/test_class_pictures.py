from pathlib import Path

import numpy as np
import pytest
from lookalike_studies.framework.class_pictures import class_pictures
from PIL import Image

FEW = {"classes": 2, "pictures": 5, "training_pictures": 6, "fewest": 6}


def write_pictures(folder: Path, count: int) -> None:
    for name in ("cat", "dog", "emu"):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / name / f"{number}.png")


def test_pictures_to_learn_from_are_not_looked_at(tmp_path: Path) -> None:
    write_pictures(tmp_path, 12)
    known, shown = class_pictures(str(tmp_path), **FEW)
    assert known.classes == shown.classes == ("cat", "dog")
    assert not set(known.names) & set(shown.names)
    assert np.bincount(known.labels).tolist() == [6, 6]
    assert np.bincount(shown.labels).tolist() == [5, 5]
    named, _ = class_pictures(str(tmp_path), names=["emu", "cat"], **FEW)
    assert named.classes == ("cat", "emu")


def test_official_splits_are_used_where_both_have_the_classes(tmp_path: Path) -> None:
    write_pictures(tmp_path / "train", 7)
    write_pictures(tmp_path / "test", 6)
    known, shown = class_pictures(str(tmp_path), **{**FEW, "classes": 3})
    assert {name.split("/")[0] for name in known.names} == {"train"}
    assert {name.split("/")[0] for name in shown.names} == {"test"}


def test_too_few_are_told_by_the_right_class(tmp_path: Path) -> None:
    write_pictures(tmp_path, 11)
    (tmp_path / "emu" / "10.png").unlink()
    with pytest.raises(ValueError, match="the class emu has 5 training pictures, needs 6"):
        class_pictures(str(tmp_path), names=["emu", "cat"], **FEW)
    with pytest.raises(ValueError, match="names must be of different classes, got cat, cat"):
        class_pictures(str(tmp_path), names=["cat", "cat"], **FEW)
