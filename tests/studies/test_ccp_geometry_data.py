"""Which pictures are trained on and which are looked at, and what a folder is for."""

from pathlib import Path

import numpy as np
import pytest
import torch
from lookalike_studies.ccp_geometry.data import drawn_with_unseen_classes, features_of, sources, with_shared_classes
from lookalike_studies.framework.context import Context
from PIL import Image

from lookalike import data
from lookalike._util.progress import Display
from lookalike._util.signals import StopRequest
from lookalike.cli import main
from lookalike.data.arrays import table_of_arrays


def _digits(tmp_path: Path) -> tuple[np.ndarray, np.ndarray, Path]:
    labels = np.tile(np.arange(10), 12)
    pixels = np.arange(120, dtype=np.uint8)[:, None, None].repeat(28, 1).repeat(28, 2)
    return pixels, labels, tmp_path


def test_parts_share_classes_but_no_picture(tmp_path: Path) -> None:
    pixels, labels, root = _digits(tmp_path)
    table = table_of_arrays(
        "mnist",
        root,
        tuple("0123456789"),
        {"train": (pixels[:100], labels[:100]), "test": (pixels[100:], labels[100:])},
    )
    parts, names = with_shared_classes(table, 3, train=6, validation=2, test=1)
    assert names == list("0123456789")
    assert [np.bincount(part.labels).tolist() for part in parts] == [[6] * 10, [2] * 10, [1] * 10]
    seen = [{int(value) for value in part.inputs[:, 0, 0, 0]} for part in parts]
    assert [len(each) for each in seen] == [60, 20, 10]
    assert len(set.union(*seen)) == 90
    assert max(seen[2]) >= 100 > max(seen[0] | seen[1])
    assert all(
        int(value) % 10 == label
        for value, label in zip(parts.train.inputs[:, 0, 0, 0], parts.train.labels, strict=True)
    )
    with pytest.raises(ValueError, match=r"validation.*must be less than the 10 training pictures .* '0', got 10"):
        with_shared_classes(table, 3, train=6, validation=10, test=1)


def test_drawn_parts() -> None:
    parts, names = with_shared_classes(None, 3, train=4, validation=2, test=2)
    assert len(names) == 3
    assert [np.bincount(part.labels).tolist() for part in parts] == [[4] * 3, [2] * 3, [2] * 3]
    assert parts.train.inputs.shape == (12, 32, 32, 3)
    unseen = drawn_with_unseen_classes(6, 3)
    assert [len(np.unique(part.labels)) for part in unseen] == [4, 2, 2]


def test_sources_are_one_of_each_kind(tmp_path: Path) -> None:
    assert sources(None) == (None, None)
    drawn = "glyphs(cells=1, size=32, train_classes=4, test_classes=2, per_class=2)"
    shared, unseen = sources(drawn)
    assert shared is None
    assert unseen is not None
    assert len(unseen) == 12
    with pytest.raises(ValueError, match="one too many"):
        sources(f"{drawn}, {drawn}")
    with pytest.raises(ValueError, match="no folder"):
        sources(f"mnist:{tmp_path / 'nowhere'}")


def _folder(root: Path, **classes: str) -> Path:
    """Two pictures of every class, a letter, in each split."""
    for split, letters in classes.items():
        for letter in letters:
            (root / split / letter).mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (8, 8)).save(root / split / letter / f"{number}.png")
    return root


def test_classes_decide_what_a_folder_is_for(tmp_path: Path) -> None:
    same = _folder(tmp_path / "same", train="abc", test="abc")
    apart = _folder(tmp_path / "apart", train="abc", test="de")
    untested = _folder(tmp_path / "untested", train="abc")
    found = [tuple(each is not None for each in sources(str(folder))) for folder in (same, apart, untested)]
    assert found == [(True, False), (False, True), (False, True)]  # the disc, or unseen classes
    assert all(sources(f"{apart}, {same}"))
    with pytest.raises(ValueError, match="same is one too many"):
        sources(f"{same}, {same}")


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"train": "abc", "test": "bcd"}, "folder pictures: 2 of 4 classes are both in train and in test; the disc"),
        ({"train": "abc", "test": "bc"}, "folder pictures: 2 of 3 classes are both in train and in test; the disc"),
        ({"test": "abc"}, "folder pictures has no split 'train'"),
    ],
)
def test_mixed_classes_are_one_line_before_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], classes: dict[str, str], message: str
) -> None:
    folder, out = _folder(tmp_path / "pictures", **classes), tmp_path / "out"
    assert main(["study", "ccp-geometry", "--miniature", "--data", str(folder), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lookalike study: {message}")
    assert said.count("\n") == 1
    assert not out.exists()


def test_photographs_without_a_test_part_are_tested_on_classes_of_their_own(
    class_folders: Path, tmp_path: Path
) -> None:
    context = Context(tmp_path, Display(StopRequest(), quiet=True))
    parts = features_of(data.load(str(class_folders)), "efficientnet_lite0", 32, context)
    assert [len(np.unique(part.labels)) for part in parts] == [3, 1, 4]
    assert not torch.equal(parts.validation.inputs[:8], parts.test.inputs[:8])
