"""Indexing in shards does what ``index.sync`` does, and computes every content once."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collection_helpers import BAD, names_of, plain_vectors, stored_rows, stored_vectors
from PIL import Image

from lookalike import index, sharded
from lookalike._util.folder_lock import FolderInUse, FolderLock
from lookalike.data.pictures import BrokenData
from lookalike.executors.local import LocalExecutor
from lookalike.inference.model import TrainedModel
from lookalike.sharded.into_parquet import VectorFolder


def in_shards(idx: index.Index, model: TrainedModel, pictures: Path | str, **options: Any) -> Any:
    return sharded.index_collection(idx, model, str(pictures), LocalExecutor(), **options)


def contents(idx: index.Index) -> dict[str, tuple[Any, ...]]:
    """Everything that an index holds, by id."""
    items = {item.id: item for item in idx.items()}
    stamps, vectors = idx.stamps(list(items)), idx.vectors(list(items))
    held = {}
    for (item_id, item), vector in zip(items.items(), vectors, strict=True):
        held[item_id] = (item.path, item.label, item.metadata, stamps[item_id], vector.tobytes())
    return held


@pytest.fixture
def indexes(model: TrainedModel, tmp_path: Path) -> Iterator[tuple[index.Index, index.Index]]:
    with index.create(tmp_path / "plain", model) as plain, index.create(tmp_path / "shards", model) as shards:
        yield plain, shards


@pytest.mark.parametrize("shard_size", [None, 3])
def test_the_index_is_that_of_a_plain_sync(
    indexes: tuple[index.Index, index.Index], model: TrainedModel, pictures: Path, shard_size: int | None
) -> None:
    plain, shards = indexes
    metadata = {"a/1.png": {"year": 2020, "label": "other"}}
    expected = index.sync(plain, model, pictures, metadata=metadata)
    done = in_shards(shards, model, pictures, metadata=metadata, shard_size=shard_size)
    assert contents(shards) == contents(plain)
    assert done.changes == expected
    assert done.computed == len(names_of(pictures)) - 3
    assert index.sync(shards, model, pictures).unchanged == len(names_of(pictures))
    again = in_shards(shards, model, pictures)
    assert (again.computed, again.changes.unchanged) == (0, len(names_of(pictures)))


def test_changes_are_those_of_a_plain_sync(
    indexes: tuple[index.Index, index.Index], model: TrainedModel, pictures: Path
) -> None:
    plain, shards = indexes
    index.sync(plain, model, pictures)
    in_shards(shards, model, pictures, shard_size=4)
    (pictures / "d").mkdir()
    (pictures / "a" / "0.png").rename(pictures / "d" / "moved.png")
    shutil.copyfile(pictures / "a" / "2.png", pictures / "d" / "copied.png")
    shutil.copyfile(pictures / "a" / "3.png", pictures / "d" / "old content.png")
    Image.effect_noise((33, 31), 50).convert("RGB").save(pictures / "a" / "3.png")  # its old content is needed
    (pictures / "a" / "4.png").write_bytes(b"torn")
    (pictures / "a" / "5.png").unlink()
    os.utime(pictures / "a" / "6.png", ns=(5, 5))
    expected = index.sync(plain, model, pictures, metadata={"a/7.png": {"label": "other"}})
    done = in_shards(shards, model, pictures, metadata={"a/7.png": {"label": "other"}}, shard_size=2)
    assert contents(shards) == contents(plain)
    assert done.changes.moved == expected.moved == 1
    assert done.computed == 1
    for name in ("added", "updated", "removed", "unchanged"):
        assert getattr(done.changes, name) == getattr(expected, name), name
    assert set(done.changes.unreadable) == set(expected.unreadable)


def test_copies_in_other_folders_take_the_vector(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    with index.create(tmp_path / "i", model) as idx:
        in_shards(idx, model, pictures)
        shutil.copytree(pictures, tmp_path / "second")
        done = in_shards(idx, model, tmp_path / "second")
        assert (done.computed, done.changes.added, done.changes.moved) == (0, len(names_of(pictures)), 0)
        assert idx.count() == 2 * len(names_of(pictures))


def test_an_interrupted_work_continues(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    class Enough(Exception):  # noqa: N818
        pass

    left = 3

    def tick(_: int) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Enough

    with index.create(tmp_path / "i", model) as idx:
        with pytest.raises(Enough):
            in_shards(idx, model, pictures, shard_size=3, total=lambda _: tick)
        begun = idx.count()
        assert 0 < begun < len(names_of(pictures))
        assert in_shards(idx, model, pictures).changes.added == len(names_of(pictures)) - begun
        for item, vector in zip(idx.items(), idx.vectors([item.id for item in idx.items()]), strict=True):
            assert np.array_equal(vector, model.embed(item.file)[0])


def test_parquet_files_in_the_same_pass(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "v"
    with index.create(tmp_path / "i", model) as idx:
        done = in_shards(idx, model, pictures, shard_size=4, parquet=vectors)
        assert done.computed == len(names_of(pictures)) - 3
        assert done.rows == idx.count() == len(names_of(pictures))
        assert stored_vectors(vectors) == plain_vectors(model, pictures)
        rows = stored_rows(vectors)
        assert in_shards(idx, model, pictures, parquet=vectors).computed == 0
        assert stored_rows(vectors) == rows

        # ``embed`` writes the same, and continues it.
        done_before = sharded.embed_collection(str(pictures), model, vectors, LocalExecutor()).done_before
        assert done_before == len(rows)
        sharded.embed_collection(str(pictures), model, tmp_path / "other", LocalExecutor())
        assert stored_rows(tmp_path / "other") == rows

        # New, changed, moved and deleted files.
        (pictures / "d").mkdir()
        (pictures / "a" / "0.png").rename(pictures / "d" / "moved.png")
        shutil.copyfile(pictures / "a" / "2.png", pictures / "d" / "copied.png")
        Image.effect_noise((33, 31), 50).convert("RGB").save(pictures / "a" / "3.png")
        (pictures / "a" / "4.png").write_bytes(b"torn")
        (pictures / "a" / "5.png").unlink()
        os.utime(pictures / "a" / "6.png", ns=(5, 5))
        assert in_shards(idx, model, pictures, shard_size=2, parquet=vectors).computed == 1
        (pictures / "a" / "4.png").unlink()
        assert stored_vectors(vectors) == plain_vectors(model, pictures)


@pytest.mark.parametrize("first", ["index", "parquet"])
def test_what_one_of_both_has_is_not_computed_again(
    first: str, model: TrainedModel, pictures: Path, tmp_path: Path
) -> None:
    with index.create(tmp_path / "i", model) as idx:
        if first == "index":
            in_shards(idx, model, pictures)
        else:
            sharded.embed_collection(str(pictures), model, tmp_path / "v", LocalExecutor(), shard_size=3)
        done = in_shards(idx, model, pictures, parquet=tmp_path / "v")
        assert (done.computed, done.rows) == (0, len(names_of(pictures)))
        assert stored_vectors(tmp_path / "v") == plain_vectors(model, pictures)
        stored = dict(zip([item.file for item in idx.items()], idx.vectors([i.id for i in idx.items()]), strict=True))
        assert {file.relative_to(pictures).as_posix(): vector.tobytes() for file, vector in stored.items()} == (
            plain_vectors(model, pictures)
        )


@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_kill_between_the_index_and_the_parquet_files(
    after: int, model: TrainedModel, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the index alone is copied, not computed again."""
    parts = 0
    write = VectorFolder.write_part

    def killed(self: VectorFolder, *arguments: Any) -> None:
        nonlocal parts
        parts += 1
        if parts == after:
            raise KeyboardInterrupt
        write(self, *arguments)

    monkeypatch.setattr(VectorFolder, "write_part", killed)
    with index.create(tmp_path / "i", model) as idx:
        with pytest.raises(KeyboardInterrupt):
            in_shards(idx, model, pictures, shard_size=3, parquet=tmp_path / "v")
        assert len(stored_rows(tmp_path / "v")) < idx.count() < len(names_of(pictures))
        digests = {stamp.rpartition(":")[2] for stamp in idx.all_stamps().values()}
        done = in_shards(idx, model, pictures, shard_size=3, parquet=tmp_path / "v")
        assert done.computed + len(digests) == len(names_of(pictures)) - 3
        assert stored_vectors(tmp_path / "v") == plain_vectors(model, pictures)


def test_a_folder_of_something_else_is_refused(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    with index.create(tmp_path / "i", model) as idx:
        sharded.embed_collection(str(pictures / "a"), model, tmp_path / "v", LocalExecutor())
        with pytest.raises(ValueError, match="holds other vectors: source was"):
            in_shards(idx, model, pictures, parquet=tmp_path / "v")
        with pytest.raises(ValueError, match="exists and is no folder of vectors: choose another --parquet"):
            in_shards(idx, model, pictures, parquet=pictures)
        with FolderLock(tmp_path / "v"), pytest.raises(FolderInUse):
            in_shards(idx, model, pictures, parquet=tmp_path / "v")
        assert idx.count() == 0


def test_pictures_of_a_url(model: TrainedModel, pictures: Path, tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.put(str(pictures), "/birds", recursive=True)
    with index.create(tmp_path / "i", model) as idx:
        done = in_shards(idx, model, "memory://birds")
        assert [problem.name for problem in done.changes.unreadable] == [f"memory://birds/{BAD}"]
        vectors = dict(zip([item.path for item in idx.items()], idx.vectors([i.id for i in idx.items()]), strict=True))
        assert {path.removeprefix("memory://birds/") for path in vectors} == set(names_of(pictures))
        for name in names_of(pictures):
            assert np.array_equal(vectors[f"memory://birds/{name}"], model.embed(pictures / name)[0])
        assert idx.labels()["a"] == 16
        assert index.prune(idx) == ([], [])
        memory.rm("/birds/a/1.png")
        done = in_shards(idx, model, "memory://birds")
        assert (done.computed, done.changes.removed, done.changes.unchanged) == (0, 1, len(names_of(pictures)) - 1)
        memory.store.clear()
        with pytest.raises(BrokenData, match="has no pictures, so nothing was changed"):
            in_shards(idx, model, "memory://birds")
        assert idx.count() == len(names_of(pictures)) - 1
