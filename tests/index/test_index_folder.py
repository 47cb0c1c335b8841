"""A folder and its index: new, changed, vanished, unreadable, interrupted."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_helpers import make_model
from PIL import Image

from lookalike import index
from lookalike.data.pictures import BrokenData
from lookalike.inference.model import TrainedModel


def draw_picture(file: Path, seed: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (36, 40, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(file)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number, name in enumerate(["wren/1.png", "wren/2.png", "robin/1.png", "robin/deep/2.png", "alone.png"]):
        draw_picture(tmp_path / "pictures" / name, number)
    return tmp_path / "pictures"


class Counting:
    """A model that counts what it embeds."""

    def __init__(self, model: TrainedModel) -> None:
        self.model, self.embedder, self.embedded = model, model.embedder, list[str]()

    def embed(self, files: list[Path]) -> Any:
        vectors = self.model.embed(files)
        self.embedded += [file.name for file in files]
        return vectors


def counts(changes: index.Changes) -> tuple[int, ...]:
    return changes.added, changes.updated, changes.removed, changes.unchanged, len(changes.unreadable)


def test_new_changed_and_vanished_files(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    counting = Counting(model)
    with index.create(tmp_path / "i", model) as idx:
        assert counts(index.sync(idx, counting, pictures, batch=2)) == (5, 0, 0, 0, 0)
        assert idx.labels() == {"": 1, "robin": 2, "wren": 2}
        file = pictures / "robin" / "deep" / "2.png"
        (hit,) = idx.search(model.embed(file), 1)[0]
        assert (hit.item.id, hit.item.file, hit.item.label) == (index.file_id(file), file, "robin")
        assert hit.distance < 1e-9
        assert idx.info()["folders"] == [str(pictures)]

        counting.embedded.clear()
        assert counts(index.sync(idx, counting, pictures)) == (0, 0, 0, 5, 0)
        os.utime(pictures / "wren" / "1.png", (1, 1))  # only its time has changed
        assert counts(index.sync(idx, counting, pictures)) == (0, 0, 0, 5, 0)
        assert counting.embedded == []

        draw_picture(pictures / "wren" / "1.png", 77)
        draw_picture(pictures / "wren" / "3.png", 78)
        (pictures / "alone.png").unlink()
        assert counts(index.sync(idx, counting, pictures)) == (1, 1, 1, 3, 0)
        assert sorted(counting.embedded) == ["1.png", "3.png"]
        assert idx.search(model.embed(pictures / "wren" / "1.png"), 1)[0][0].distance < 1e-9
        assert idx.count() == 5


def test_items_from_elsewhere_stay(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    draw_picture(tmp_path / "pictures 2" / "x" / "1.png", 5)  # its name begins like the other's
    with index.create(tmp_path / "i", model) as idx:
        idx.add([index.Item("mine", str(pictures / "wren" / "none.png"))], np.ones((1, idx.dim)))
        index.sync(idx, model, tmp_path / "pictures 2")
        index.sync(idx, model, pictures)
        shutil.rmtree(pictures / "wren")
        assert counts(index.sync(idx, model, pictures)) == (0, 0, 2, 3, 0)
        assert idx.get(["mine"])[0] is not None
        assert idx.count("label=x") == 1
        assert counts(index.sync(idx, model, pictures / "robin")) == (0, 2, 0, 0, 0)  # within it, other labels
        assert idx.count() == 5


def test_unreadable_pictures_are_listed(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (pictures / "wren" / name).write_bytes(b"no picture")
    with index.create(tmp_path / "i", model) as idx:
        changes = index.sync(idx, model, pictures)
        assert counts(changes) == (5, 0, 0, 0, 2)
        assert changes.unreadable[0].reason == "not a picture in a known format"
        with pytest.raises(BrokenData, match=r"a\.jpg: not a picture"):
            index.sync(idx, model, pictures, strict=True)
        (pictures / "wren" / "1.png").write_bytes(b"")  # what the index holds of it is no longer there
        assert counts(index.sync(idx, model, pictures)) == (0, 0, 1, 4, 3)
        assert idx.count() == 4


def test_an_empty_or_missing_folder_changes_nothing(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    with index.create(tmp_path / "i", model) as idx:
        index.sync(idx, model, pictures)
        shutil.rmtree(pictures)
        with pytest.raises(ValueError, match="is not a folder of pictures"):
            index.sync(idx, model, pictures)
        pictures.mkdir()
        with pytest.raises(ValueError, match="has no pictures, so nothing was changed"):
            index.sync(idx, model, pictures)
        assert idx.count() == 5


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may read anything")
def test_unlisted_folders_keep_their_items(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    with index.create(tmp_path / "i", model) as idx:
        index.sync(idx, model, pictures)
        (pictures / "wren").chmod(0)
        try:
            assert counts(index.sync(idx, model, pictures)) == (0, 0, 0, 3, 1)
        finally:
            (pictures / "wren").chmod(0o700)
        assert idx.count() == 5


def test_an_interrupted_sync_continues(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    def stop(_: int) -> None:
        raise Stop

    counting = Counting(model)
    totals: list[int] = []
    with index.create(tmp_path / "i", model) as idx:
        with pytest.raises(Stop):
            index.sync(idx, counting, pictures, batch=2, total=totals.append, progress=stop)
        assert idx.count() == 2
        assert counts(index.sync(idx, counting, pictures, batch=2)) == (3, 0, 0, 2, 0)
        assert len(counting.embedded) == 5
    assert totals == [5]


def test_another_model_is_refused_first(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    with index.create(tmp_path / "i", model) as idx:
        with pytest.raises(index.WrongModel):
            index.sync(idx, make_model(seed=1), pictures)
        assert idx.count() == 0
        assert idx.about.folders == []


def test_metadata_and_splits(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    with index.create(tmp_path / "i", model) as idx:
        first = index.sync(idx, model, pictures, metadata={"wren/1.png": {"year": 2020, "label": "wren (young)"}})
        assert first.added == 5
        (item,) = idx.items("year=2020")
        assert (item.label, item.metadata) == ("wren (young)", {"year": 2020})
        counting = Counting(model)
        changes = index.sync(idx, counting, pictures, metadata={"wren/1.png": {"year": 2021}})
        assert counts(changes) == (0, 1, 0, 4, 0)
        assert counting.embedded == []  # the picture is the same
        assert idx.items("year=2021")[0].label == "wren"
        with pytest.raises(ValueError, match=r"no picture that is in .* 'wren/9\.png'"):
            index.sync(idx, model, pictures, metadata={"wren/9.png": {}})
    for split, name in (("train", "wren"), ("test", "robin")):
        draw_picture(tmp_path / "split" / split / name / "1.png", 3)
    with index.create(tmp_path / "j", model) as idx:
        index.sync(idx, model, tmp_path / "split")
        assert idx.labels() == {"robin": 1, "wren": 1}
        assert idx.items("split=train")[0].label == "wren"


def test_metadata_stay_until_replaced(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    table = {"wren/1.png": {"year": 2020, "label": "wren (young)"}, "robin/1.png": {"year": 2021}}
    with index.create(tmp_path / "i", model) as idx:
        index.sync(idx, model, pictures, metadata=table)
        assert counts(index.sync(idx, model, pictures)) == (0, 0, 0, 5, 0)
        draw_picture(pictures / "wren" / "1.png", 77)  # another picture in the same file
        draw_picture(pictures / "wren" / "3.png", 78)
        (pictures / "robin" / "1.png").unlink()
        assert counts(index.sync(idx, model, pictures)) == (1, 1, 1, 3, 0)
        (item,) = idx.items("year=2020")
        assert (item.file, item.label) == (pictures / "wren" / "1.png", "wren (young)")
        changes = index.sync(idx, model, pictures, metadata=table)  # which still has a row of the one that is gone
        assert counts(changes) == (0, 0, 0, 5, 0)
        assert changes.notes == ("1 row of the metadata without a picture; the first: robin/1.png",)
        assert counts(index.sync(idx, model, pictures, metadata={})) == (0, 1, 0, 4, 0)
        assert not idx.items("year=2020")
        assert idx.labels() == {"": 1, "robin": 1, "wren": 3}


def test_names_that_are_not_utf8(model: TrainedModel, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \\ 1.png")
    try:
        draw_picture(tmp_path / "p" / os.fsdecode(b"\xe9") / name, 1)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    with index.create(tmp_path / "i", model) as idx:
        assert counts(index.sync(idx, model, tmp_path / "p")) == (1, 0, 0, 0, 0)
        (item,) = idx.items()
        assert item.file.is_file()
        assert item.label == "\\xE9"
        assert counts(index.sync(idx, model, tmp_path / "p")) == (0, 0, 0, 1, 0)


def test_moved_and_renamed_files_are_not_embedded_again(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    counting = Counting(model)
    with index.create(tmp_path / "i", model) as idx:
        index.sync(idx, counting, pictures, metadata={"wren/1.png": {"year": 2020, "label": "winter wren"}})
        counting.embedded.clear()
        (pictures / "wren" / "1.png").rename(pictures / "robin" / "renamed.png")
        shutil.copy(pictures / "alone.png", pictures / "copy.png")
        changes = index.sync(idx, counting, pictures)
        assert (changes.moved, changes.added, changes.removed, changes.unchanged) == (1, 1, 0, 4)
        moved = idx.get([index.file_id(pictures / "robin" / "renamed.png")])[0]
        assert moved is not None
        assert (moved.label, moved.metadata) == ("winter wren", {"year": 2020})

        pictures.rename(tmp_path / "elsewhere")
        changes = index.sync(idx, counting, tmp_path / "elsewhere")
        assert (changes.moved, changes.added, changes.unchanged) == (6, 0, 0)
        assert counting.embedded == []
        assert idx.count() == 6
        files = [item.file for item in idx.items()]
        assert {file.parent.parent.name for file in files} <= {"elsewhere", tmp_path.name, "robin"}
        np.testing.assert_array_equal(idx.vectors([item.id for item in idx.items()]), model.embed(files))


def test_a_name_with_new_content_does_not_hand_on_its_vector(
    model: TrainedModel, pictures: Path, tmp_path: Path
) -> None:
    with index.create(tmp_path / "i", model) as idx:
        index.sync(idx, model, pictures)
        (pictures / "alone.png").rename(pictures / "z.png")
        draw_picture(pictures / "alone.png", 99)
        index.sync(idx, model, pictures, batch=1)
        files = [item.file for item in idx.items()]
        np.testing.assert_array_equal(idx.vectors([item.id for item in idx.items()]), model.embed(files))


def test_prune_and_remove(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    draw_picture(tmp_path / "disk" / "1.png", 50)
    with index.create(tmp_path / "i", model) as idx:
        index.sync(idx, model, pictures)
        index.sync(idx, model, tmp_path / "disk")
        (pictures / "wren" / "1.png").unlink()
        shutil.rmtree(tmp_path / "disk")
        pruned = index.prune(idx)
        assert pruned.paths == [str(pictures / "wren" / "1.png")]
        assert pruned.missing_folders == [str(tmp_path / "disk")]
        assert idx.count() == 5
        assert index.remove(idx, "*/robin/*") == [str(pictures / "robin" / n) for n in ("1.png", "deep/2.png")]
        with pytest.raises(ValueError, match=r"no picture of .* matches"):
            index.remove(idx, "*.gif")
        assert idx.count() == 3
