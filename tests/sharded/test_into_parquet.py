"""Vectors in Parquet files: the same as those of ``embed``, every picture once, whenever the work was interrupted."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from collection_helpers import BAD, COPIES, names_of, plain_vectors, stored_rows, stored_vectors
from PIL import Image

from lookalike import sharded
from lookalike._util.checksums import DamagedFile, hash_content
from lookalike._util.folder_lock import FolderInUse, FolderLock
from lookalike.data.pictures import BrokenData
from lookalike.executors.local import LocalExecutor
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, create_backbone


class Enough(Exception):  # noqa: N818 - stops the work
    pass


def embed(pictures: Path | str, model: TrainedModel, out: Path, **options: Any) -> sharded.into_parquet.Embedded:
    return sharded.embed_collection(str(pictures), model, out, LocalExecutor(), **options)


def contents(root: Path) -> set[str]:
    return {hash_content(root / name) for name in names_of(root)}


@pytest.mark.parametrize("shard_size", [None, 5, 1])
def test_rows_are_those_of_embed_and_equal_files_are_computed_once(
    model: TrainedModel, pictures: Path, tmp_path: Path, shard_size: int | None
) -> None:
    done = embed(pictures, model, tmp_path / "v", shard_size=shard_size)
    assert stored_vectors(tmp_path / "v") == plain_vectors(model, pictures)
    assert done.computed == len(contents(pictures)) == len(names_of(pictures)) - len(COPIES)
    assert [problem.name for problem in done.unreadable] == [BAD]
    assert "truncated" in done.unreadable[0].reason
    rows = stored_rows(tmp_path / "v")
    for name, row in rows.items():
        assert (row["label"], row["size"]) == (name[0], (pictures / name).stat().st_size)
        assert row["digest"] == hash_content(pictures / name)
    assert sorted(pq.read_table(tmp_path / "v")["path"].to_pylist()) == sorted(rows)  # the folder is one table
    assert json.loads((tmp_path / "v" / "_embedding.json").read_text())["finished"]


def test_what_is_done_is_not_done_again(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    first = embed(pictures, model, tmp_path / "v", shard_size=4)
    parts = {part: part.stat().st_mtime_ns for part in (tmp_path / "v").glob("*.parquet")}
    again = embed(pictures, model, tmp_path / "v", shard_size=4)
    assert (again.computed, again.done_before, again.pictures) == (0, first.pictures, first.pictures)
    assert again.unreadable == first.unreadable
    assert {part: part.stat().st_mtime_ns for part in (tmp_path / "v").glob("*.parquet")} == parts


@pytest.mark.parametrize("after", [1, 6, 13])
def test_a_stopped_work_continues(model: TrainedModel, pictures: Path, tmp_path: Path, after: int) -> None:
    ticks = 0

    def tick(_: int) -> None:
        nonlocal ticks
        ticks += 1
        if ticks > after:
            raise Enough

    with pytest.raises(Enough):
        embed(pictures, model, tmp_path / "v", shard_size=2, total=lambda _: tick)
    assert not json.loads((tmp_path / "v" / "_embedding.json").read_text())["finished"]
    computed = len({row["digest"] for row in stored_rows(tmp_path / "v").values()})
    done = embed(pictures, model, tmp_path / "v", shard_size=3)
    assert done.computed + computed == len(contents(pictures))
    assert stored_vectors(tmp_path / "v") == plain_vectors(model, pictures)


def test_new_changed_and_vanished_files(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    embed(pictures, model, tmp_path / "v", shard_size=4)
    Image.effect_noise((30, 30), 50).convert("RGB").save(pictures / "a" / "new.png")
    shutil.copyfile(pictures / "a" / "3.png", pictures / "c" / "copied later.png")
    Image.effect_noise((31, 30), 60).convert("RGB").save(pictures / "a" / "4.png")
    os.utime(pictures / "a" / "4.png", ns=(1, 1))
    (pictures / "a" / "5.png").unlink()
    done = embed(pictures, model, tmp_path / "v")
    assert (done.computed, done.removed) == (2, 2)  # the later copy has a vector already
    assert stored_vectors(tmp_path / "v") == plain_vectors(model, pictures)


def test_another_model_or_collection_is_refused(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    embed(pictures, model, tmp_path / "v")
    before = stored_vectors(tmp_path / "v")
    backbone = create_backbone("resnet8-half", weights="none")
    other = TrainedModel(Embedder(backbone, 8, "average", input_spec=backbone.spec.resized(32)), "torch", model.source)
    with pytest.raises(ValueError, match=r"holds other vectors: fingerprint was \w+ and is"):
        embed(pictures, other, tmp_path / "v")
    with pytest.raises(ValueError, match="holds other vectors: source was"):
        embed(pictures / "a", model, tmp_path / "v")
    assert stored_vectors(tmp_path / "v") == before
    embed(pictures / "a", model, tmp_path / "v", overwrite=True)
    assert stored_vectors(tmp_path / "v") == plain_vectors(model, pictures / "a")


def test_bad_input_changes_nothing(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(ValueError, match="exists and is no folder of vectors"):
        embed(pictures, model, tmp_path / "used")
    with pytest.raises(ValueError, match="is not a folder of pictures"):
        embed(tmp_path / "none", model, tmp_path / "v")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BrokenData, match="has no pictures"):
        embed(tmp_path / "empty", model, tmp_path / "v")
    with pytest.raises(BrokenData, match=r"a picture cannot be used: b/torn\.png"):
        embed(pictures, model, tmp_path / "strict", strict=True)
    with FolderLock(tmp_path / "v"), pytest.raises(FolderInUse):
        embed(pictures, model, tmp_path / "v")


def test_only_unreadable_pictures_are_an_error(model: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.png").write_bytes(b"")
    (tmp_path / "p" / "b.png").write_bytes(b"no picture")
    os.mkfifo(tmp_path / "p" / "pipe.png")  # reading it would never end
    with pytest.raises(BrokenData, match="not one of 3 pictures"):
        embed(tmp_path / "p", model, tmp_path / "v")


def test_a_damaged_part_is_named(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    embed(pictures, model, tmp_path / "v", shard_size=9)
    part = tmp_path / "v" / "part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(DamagedFile, match=r"part-00001\.parquet is damaged: delete it"):
        embed(pictures, model, tmp_path / "v")
    part.unlink()
    embed(pictures, model, tmp_path / "v")
    assert stored_vectors(tmp_path / "v") == plain_vectors(model, pictures)


def test_a_copy_of_a_finished_picture_takes_its_vector(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    embed(pictures, model, tmp_path / "v")
    vectors = stored_vectors(tmp_path / "v")
    for name in COPIES:
        (pictures / name).unlink()
    embed(pictures, model, tmp_path / "v")
    for copy, original in COPIES.items():
        shutil.copyfile(pictures / original, pictures / copy)
    assert embed(pictures, model, tmp_path / "v", shard_size=2).computed == 0
    assert stored_vectors(tmp_path / "v") == vectors
    assert np.frombuffer(vectors["c/copy.png"], np.float32).shape == (8,)
