"""A second model for the same collection: both stay in step, whatever is added, moved, deleted, damaged or killed."""

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lookalike import index
from lookalike.index.base import SecondIndex
from lookalike.index.items import ID
from lookalike.index.labels import Labels
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, create_backbone
from lookalike.training.verify import verify


def make_model(seed: int, dim: int = 8) -> TrainedModel:
    import torch

    torch.manual_seed(seed)
    backbone = create_backbone("resnet8-half", weights="none")
    embedder = Embedder(backbone, dim=dim, pooling="average", input_spec=backbone.spec.resized(32))
    return TrainedModel(embedder, "torch", source=f"/runs/model{seed}")


@pytest.fixture(scope="module")
def first() -> TrainedModel:
    return make_model(1)


@pytest.fixture(scope="module")
def other() -> TrainedModel:
    return make_model(2, dim=12)


@pytest.fixture
def folder(class_folders: Path, tmp_path: Path) -> Path:
    for name in ("class0", "class1", "class2"):
        shutil.copytree(class_folders / name, tmp_path / "pictures" / name)
    return tmp_path / "pictures"


@pytest.fixture(params=["faiss", "milvus"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "milvus":
        pytest.importorskip("milvus_lite")
        return str(tmp_path / "two.idx" / "items.db")
    return "faiss"


in_faiss = pytest.mark.parametrize("store", ["faiss"], indirect=True)
in_milvus = pytest.mark.parametrize("store", ["milvus"], indirect=True)


@pytest.fixture
def idx(first: TrainedModel, folder: Path, tmp_path: Path, store: str) -> Iterator[index.Index]:
    with index.create(tmp_path / "two.idx", first, store, engine="torch") as made:
        index.sync(made, first, folder)
        yield made


def filled(idx: index.Index, other: TrainedModel) -> SecondIndex:
    second = index.add_model(idx, other, engine="torch")
    assert index.fill(second, other) == []
    return second


def check_step(idx: index.Index, second: SecondIndex, other: TrainedModel) -> None:
    """Every item has the vector that the second model gives its file, and searches equal plain comparisons."""
    items = idx.items()
    assert second.items() == items
    assert second.count() == len(items)
    assert second.labels() == idx.labels()
    vectors = other.embed([item.file for item in items])
    np.testing.assert_allclose(second.vectors([item.id for item in items]), vectors, atol=1e-6)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for row in (0, len(items) // 2):
        order = np.argsort(1 - unit @ unit[row], kind="stable")[:5]
        hits = second.search(vectors[row][None], 5)[0]
        assert [hit.item.id for hit in hits] == [items[i].id for i in order]
        where = f"label={items[row].label}"
        assert {hit.item.id for hit in second.search(vectors[row][None], 99, where)[0]} == {
            item.id for item in items if item.label == items[row].label
        }
    assert {finding.status for finding in verify(idx.path)} == {"ok"}


def test_both_models_stay_in_step(
    idx: index.Index, first: TrainedModel, other: TrainedModel, folder: Path, class_folders: Path
) -> None:
    second = filled(idx, other)
    assert idx.second_models() == ["model2"]
    check_step(idx, second, other)
    assert second.fingerprint != idx.fingerprint
    np.testing.assert_array_equal(second.trained_model("cpu", "torch").embed(idx.items()[0].file)[0].shape, (12,))

    # Relabelled, moved and deleted pictures need no second look.
    moved = folder / "class0" / "0.png"
    moved.rename(folder / "class1" / "moved.png")
    (folder / "class2" / "3.png").unlink()
    changes = index.sync(idx, first, folder, metadata={"class1/1.png": {"label": "renamed"}})
    assert (changes.moved, changes.removed, changes.updated) == (1, 1, 1)
    assert second.missing() == []
    check_step(idx, second, other)

    # New and changed pictures have no vector until they are embedded.
    shutil.copy(class_folders / "class5" / "0.png", folder / "class2" / "new.png")
    shutil.copy(class_folders / "class5" / "1.png", folder / "class0" / "2.png")
    index.sync(idx, first, folder)
    assert second.missing() == sorted(index.file_id(folder / name) for name in ("class2/new.png", "class0/2.png"))
    assert second.count() == idx.count() - 2
    assert index.fill(second, other) == []
    check_step(idx, second, other)

    index.remove(idx, "*/class1/*")
    idx.delete([idx.items()[0].id])
    shutil.rmtree(folder / "class2")
    index.prune(idx)
    check_step(idx, second, other)
    second.close()
    with index.open(idx.path) as again:
        check_step(again, again.open_model("model2"), other)


def test_edited_labels_keep_both_vectors(idx: index.Index, other: TrainedModel) -> None:
    second = filled(idx, other)
    with Labels(idx) as labels:
        labels.set_label([item.id for item in idx.items()[:3]], "edited")
    assert second.missing() == []
    assert second.labels()["edited"] == 3
    check_step(idx, second, other)


def test_samples_are_of_pictures_with_a_vector(idx: index.Index, other: TrainedModel) -> None:
    second = index.add_model(idx, other, engine="torch")
    items = idx.items()
    second.put([item.id for item in items[::2]], other.embed([item.file for item in items[::2]]))
    assert second.sample(1000) == items[::2] == second.items()
    some = second.sample(5, seed=1)
    assert len(some) == 5
    assert all(item in items[::2] for item in some)


def test_a_reader_sees_vectors_that_come_later(idx: index.Index, other: TrainedModel) -> None:
    """Also of items that it had seen before, in another order than they were added."""
    second = index.add_model(idx, other, engine="torch")
    with index.open(idx.path) as reading:
        reader = reading.open_model("model2")
        vectors = {item.id: other.embed(item.file)[0] for item in idx.items()}
        ids = list(vectors)
        for some in (ids[10:], ids[:4], ids[4:10]):
            assert reader.search(vectors[ids[0]][None], 99)[0] == second.search(vectors[ids[0]][None], 99)[0]
            second.put(some, np.stack([vectors[item_id] for item_id in some]))
        hits = reader.search(vectors[ids[5]][None], 99)[0]
        assert len(hits) == 24
        assert hits[0].item.id == ids[5]
        idx.delete(ids[5:7])
        assert len(reader.search(vectors[ids[5]][None], 99)[0]) == 22
        reader.close()
    check_step(idx, second, other)


@in_faiss
@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_other_kinds(idx: index.Index, other: TrainedModel, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lookalike.index.kinds.LEAST", 10)
    second = filled(idx, other)
    second.set_kind(kind)
    second.save()
    check_step(idx, second, other)
    assert second.info()["kind"] == kind
    with index.open(idx.path) as again:
        check_step(again, again.open_model("model2"), other)


def test_files_that_changed_or_are_gone_are_named(idx: index.Index, other: TrainedModel, folder: Path) -> None:
    second = index.add_model(idx, other, engine="torch")
    (folder / "class0" / "0.png").unlink()
    (folder / "class0" / "1.png").write_bytes((folder / "class0" / "2.png").read_bytes())
    problems = {Path(problem.name).name: problem.reason for problem in index.fill(second, other)}
    assert set(problems) == {"0.png", "1.png"}
    assert problems["1.png"] == "changed since it was indexed"
    assert second.count() == idx.count() - 2


def test_cached_features_need_no_picture(idx: index.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(2, dim=12)
    model.cache = model.open_cache(tmp_path / "cache")
    expected = model.embed([item.file for item in idx.items()])
    model = make_model(2, dim=12)
    model.cache = model.open_cache(tmp_path / "cache")
    second = index.add_model(idx, model, engine="torch")
    monkeypatch.setattr(model.preprocess, "read_crop", None)  # no picture is decoded
    assert index.fill(second, model) == []
    np.testing.assert_allclose(second.vectors([item.id for item in idx.items()]), expected, atol=1e-6)


def test_refusals(idx: index.Index, first: TrainedModel, other: TrainedModel) -> None:
    with pytest.raises(ValueError, match=r"is the model that .* was made with"):
        index.add_model(idx, first)
    with pytest.raises(ValueError, match=r"the first model of .* has the name model1: choose another --name"):
        index.add_model(idx, other, "model1")
    for bad in ("../x", "a b", ".hidden", "a:b"):
        with pytest.raises(ValueError, match="the name of a model must be"):
            index.add_model(idx, other, bad)
    second = index.add_model(idx, other, engine="torch")
    with pytest.raises(ValueError, match="has this model already, as model2"):
        index.add_model(idx, other, "again")
    with pytest.raises(ValueError, match="another model with the name model2"):
        index.add_model(idx, make_model(3), "model2")
    with pytest.raises(ValueError, match="items are added to"):
        second.add(idx.items()[:1], np.ones((1, 12)))
    with pytest.raises(ValueError, match=r"has no model 'modle2' \(did you mean 'model2'\?\); it has model1, model2"):
        index.find_model(idx, "modle2")
    assert index.find_model(idx, None) is index.find_model(idx, "model1") is idx
    with pytest.raises(index.WrongModel):
        index.fill(second, first)
    assert all(ID.fullmatch(name) for name in idx.second_models())


@in_faiss
def test_damage_is_found_and_mended(idx: index.Index, other: TrainedModel) -> None:
    second = filled(idx, other)
    second.close()
    table = f"extra_{second.fingerprint}"
    with sqlite3.connect(idx.path / "items.sqlite") as connection:
        connection.execute(f"UPDATE {table} SET vector = zeroblob(48) WHERE number = 5")
    connection.close()
    damaged = [finding for finding in verify(idx.path) if finding.status == "damaged"]
    assert [(finding.part, finding.detail.partition(".")[0]) for finding in damaged] == [
        (f"models/model2: {table}", "damaged vectors: 1")
    ]
    again = idx.open_model("model2")
    assert len(again.missing()) == 1
    index.fill(again, other)
    check_step(idx, again, other)
    with sqlite3.connect(idx.path / "items.sqlite") as connection:  # the vector of one picture given to another
        first, last = connection.execute(f"SELECT min(item), max(item) FROM {table}").fetchone()
        connection.execute(f"DELETE FROM {table} WHERE item = ?", (last,))
        connection.execute(f"UPDATE {table} SET item = ? WHERE item = ?", (last, first))
    connection.close()
    again.close()
    again = idx.open_model("model2")
    assert len(again.missing()) == 2
    index.fill(again, other)
    assert len(again.missing()) == 0
    (idx.path / "models" / "model2" / "index.json").write_text("{")
    assert "models/model2/index.json" in [f.part for f in verify(idx.path) if f.status == "damaged"]


@in_faiss
def test_vectors_without_an_item_are_found_and_removed(idx: index.Index, other: TrainedModel) -> None:
    filled(idx, other).close()
    with sqlite3.connect(idx.path / "items.sqlite") as connection:
        connection.execute("DELETE FROM items WHERE number = 5")
        connection.execute("DELETE FROM vectors WHERE number = 5")
        connection.execute("INSERT INTO gone (number) VALUES (5)")
    connection.close()
    findings = [finding for finding in verify(idx.path) if finding.status == "damaged"]
    assert "vectors without an item: 1" in findings[0].detail
    second = idx.open_model("model2")
    assert index.fill(second, other) == []
    check_step(idx, second, other)


def test_items_are_deleted_from_the_collection(idx: index.Index, other: TrainedModel) -> None:
    """Also if vectors were added in another order than items."""
    second = index.add_model(idx, other, engine="torch")
    items = idx.items()
    for item in items[::-1]:
        second.put([item.id], other.embed([item.file]))
    assert second.delete([items[0].id, items[4].id]) == 2
    assert idx.items() == [item for item in items if item not in (items[0], items[4])]
    check_step(idx, second, other)


@in_milvus
def test_what_other_writers_leave_in_milvus_is_mended(idx: index.Index, other: TrainedModel) -> None:
    """Milvus has no transactions: two machines, or a kill between two collections, leave rows that do not fit."""
    second = filled(idx, other)
    items = idx.items()
    client, first_rows = idx._client, idx.about.collection  # type: ignore[attr-defined]
    second_rows = f"{first_rows}_model_{second.fingerprint}"
    columns = [field["name"] for field in client.describe_collection(second_rows)["fields"]]

    def row_of(item: index.Item) -> dict[str, object]:
        (row,) = client.get(second_rows, ids=[item.id], output_fields=columns)
        return dict(row)

    orphan, stale, damaged = (row_of(item) for item in items[:3])
    idx.delete([items[0].id])
    stamp = idx.stamps([items[1].id])[items[1].id]
    idx.add([items[1]], idx.vectors([items[1].id]), ["1:1:of another content"])
    assert second.missing() == [items[1].id]
    client.upsert(second_rows, [orphan, stale, {**damaged, "label": "another"}])
    client.delete(second_rows, ids=[items[3].id])

    found = {finding.part: finding for finding in verify(idx.path) if finding.status == "damaged"}
    assert list(found) == [f"models/model2: the Milvus collection {second_rows}"]
    assert "vectors without an item: 1" in next(iter(found.values())).detail
    assert second.missing() == sorted(item.id for item in items[1:4])
    assert set(idx.other_vectors([item.id for item in items])[second.fingerprint]) == {
        item.id for item in items[2:] if item != items[3]
    }
    idx.restamp({items[1].id: stamp})
    assert items[1].id in second.missing()
    assert index.fill(second, other) == []
    check_step(idx, second, other)


@in_milvus
def test_the_collection_of_a_second_model_goes_with_the_first(idx: index.Index, other: TrainedModel) -> None:
    from lookalike.index import milvus_index

    second = filled(idx, other)
    with index.create(idx.path.parent / "neighbour", other, str(idx.path / "items.db")):
        client = idx._client  # type: ignore[attr-defined]
        assert len(client.list_collections()) == 3
        client.drop_collection(f"{idx.about.collection}_model_{second.fingerprint}")
        second.close()
        with pytest.raises(index.BrokenIndex, match="has no vectors of this model: add it again with lookalike index"):
            idx.open_model("model2")
        check_step(idx, filled(idx, other), other)
        milvus_index.drop_collection(str(idx.path / "items.db"), idx.about.collection)
        assert len(client.list_collections()) == 1


KILLED = """
import sys, time
from pathlib import Path
from lookalike import index
from lookalike.inference.model import load
idx = index.open(sys.argv[1])
model = load(sys.argv[2], "cpu", "torch")
second = index.add_model(idx, model, "second", engine="torch")
embed = model.embed
model.embed = lambda files: (time.sleep(0.05), embed(files))[1]
print("ready", flush=True)
index.fill(second, model, batch=1, progress=lambda _: print("batch", flush=True))
"""


@pytest.mark.slow
def test_a_killed_writer_loses_nothing(idx: index.Index, other: TrainedModel, tmp_path: Path) -> None:
    from lookalike.models import save_model

    save_model(other.embedder, tmp_path / "run")
    idx.close()  # a file of Milvus is for one process
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(idx.path), str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    batches = 0
    for line in process.stdout:
        batches += line == "batch\n"
        if batches == 5:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with index.open(idx.path) as again:
        second = again.open_model("second")
        assert 5 <= second.count() <= 7
        assert set(second.missing()) == {item.id for item in again.items()} - {item.id for item in second.items()}
        assert "damaged" not in {finding.status for finding in verify(idx.path)}
        again.delete([second.items()[0].id])
        second.close()
        second = index.add_model(again, other, "second", engine="torch")
        index.fill(second, other)
        check_step(again, second, other)
