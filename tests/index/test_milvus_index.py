"""Milvus gives the same as FAISS: neighbours, distances, filters, counts; in a file and at an address."""

import multiprocessing
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from index_helpers import draw, make_items, meets

from lookalike import index
from lookalike.index import milvus_index
from lookalike.index.filters import parse
from lookalike.inference.model import TrainedModel

try:
    import milvus_lite  # noqa: F401
    import pymilvus  # noqa: F401
except ImportError:
    warnings.warn("MILVUS IS NOT TESTED: pip install 'pymilvus[milvus_lite]'", stacklevel=1)
    pytest.skip("NOT TESTED: Milvus is not installed, pip install 'pymilvus[milvus_lite]'", allow_module_level=True)

COUNT = 120
FILTERS = [
    None,
    "label='label 3'",
    "label in ('label 1', 'label 2'), year>=2010",
    "label!='label 1', id>=i00050",
    "year=2004",
    "year='2004'",
    "year!=2004",
    "year not in (2004, '2005')",
    "year<2010.5",
    "year<'2010'",
    "wild=true",
    "wild=1",
    "wild!=false",
    "wild>0.5",
    "name=n1",
    "name>n2",
    "name!=n1",
    "path>=/pictures/3/, path</pictures/5",
    "nothing=1",
    "nothing!=1",
    'label="a \\"quoted\\" \\\\ one"',
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An address that speaks Milvus."""
    from milvus_lite.server_manager import server_manager_instance

    file = str(tmp_path_factory.mktemp("server") / "served.db")
    yield server_manager_instance.start_and_get_uri(file)
    server_manager_instance.release_server(file)


@pytest.fixture(scope="module")
def three(model: TrainedModel, server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[index.Index]]:
    folder = tmp_path_factory.mktemp("three")
    stores = {"faiss": "faiss", "file": str(folder / "file" / "items.db"), "address": server}
    made = [index.create(folder / name, model, store) for name, store in stores.items()]
    items, vectors = make_items(COUNT), draw(COUNT)
    items[7] = items[7]._replace(label='a "quoted" \\ one')
    vectors[50:90] = vectors[50]  # more equal ones than are asked for at first
    for idx in made:
        assert idx.add(items[::-1], vectors[::-1]) == COUNT
    yield made
    for idx in made:
        idx.close()


def test_same_neighbours_as_faiss_under_every_filter(three: list[index.Index]) -> None:
    faiss, *others = three
    queries = draw(3, seed=1)
    queries[0] = faiss.vectors(["i00050"])[0]
    everything = faiss.items()
    assert len(everything) == COUNT
    for where in FILTERS:
        good = [item for item in everything if all(meets(item, each) for each in parse(where))]
        right = faiss.search(queries, 15, where)
        assert {len(hits) for hits in right} == {min(15, len(good))}
        assert faiss.count(where) == len(good)
        for idx in others:
            assert idx.search(queries, 15, where) == right, where
            assert idx.count(where) == len(good), where
    assert [hit.item.id for hit in others[0].search(queries[:1], 3)[0]] == ["i00050", "i00051", "i00052"]


def test_same_listings_as_faiss(three: list[index.Index]) -> None:
    faiss, *others = three
    for idx in others:
        assert idx.labels() == faiss.labels()
        assert idx.items() == faiss.items()
        assert idx.items("wild=true", after="i00020", limit=7) == faiss.items("wild=true", after="i00020", limit=7)
        assert idx.get(["i00003", "none"]) == faiss.get(["i00003", "none"])
        np.testing.assert_array_equal(idx.vectors(["i00009", "i00002"]), faiss.vectors(["i00009", "i00002"]))
        with pytest.raises(KeyError):
            idx.vectors(["none"])
        assert idx.info()["backend"] == "milvus"
        assert idx.info()["count"] == COUNT
        assert idx.search(draw(1), 500)[0] == faiss.search(draw(1), 500)[0]


@pytest.mark.parametrize("which", ["model", "euclidean_model"])
def test_add_replace_and_delete(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    model: TrainedModel = request.getfixturevalue(which)
    items, vectors = make_items(20), draw(20)
    both = [index.create(tmp_path / "f", model), index.create(tmp_path / "m", model, str(tmp_path / "m.db"))]
    for idx in both:
        assert idx.add(items, vectors) == 20
        moved = items[3]._replace(label="new", metadata={"seen": 1})
        assert idx.add([moved, items[4]], np.stack([-vectors[3], vectors[4]])) == 0
        assert idx.get(["i00003"]) == [moved]
        assert idx.delete(["i00005", "none"]) == 1
        assert idx.count() == 19
        assert idx.search(-vectors[3:4], 1)[0][0] == index.Hit(moved, 0.0)
    assert both[0].search(draw(4, seed=2), 30) == both[1].search(draw(4, seed=2), 30)
    both[1].close()
    with index.open(tmp_path / "m") as again:
        assert again.items() == both[0].items()
    both[0].close()


def test_sync_with_a_folder(model: TrainedModel, class_folders: Path, tmp_path: Path) -> None:
    shutil.copytree(class_folders / "class0", tmp_path / "p" / "class 0")
    with index.create(tmp_path / "m", model, str(tmp_path / "m.db")) as idx:
        assert index.sync(idx, model, tmp_path / "p").added == 8
        (tmp_path / "p" / "class 0" / "3.png").unlink()
        os.utime(tmp_path / "p" / "class 0" / "4.png", (1, 1))
        shutil.copy(class_folders / "class1" / "1.png", tmp_path / "p" / "class 0" / "1.png")
        changes = index.sync(idx, model, tmp_path / "p")
        assert (changes.added, changes.updated, changes.removed, changes.unchanged) == (0, 1, 1, 6)
        assert index.sync(idx, model, tmp_path / "p").unchanged == 7
        assert idx.labels() == {"class 0": 7}


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_recall_of_approximate_search_is_measured(
    model: TrainedModel, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_index, "LISTS", 8)
    monkeypatch.setitem(milvus_index.BUILD_PARAMS, "ivf", {"nlist": 8})
    with index.create(tmp_path / "m", model, str(tmp_path / "m.db"), kind=kind) as idx:
        idx.add(make_items(300), draw(300))
        idx.save()
        assert 0.9 < idx.info()["recall@10"] <= 1
        assert idx.info()["kind"] == kind
        with pytest.raises(ValueError, match="cannot change"):
            idx.set_kind("flat")
    with index.open(tmp_path / "m") as idx:
        assert idx.info()["recall@10"] > 0.9


def test_invalid_stores_are_refused(model: TrainedModel, server: str, tmp_path: Path) -> None:
    for store, why in (
        ("birds", r"ends in \.db"),
        ("http://", "must be like http://host:19530"),
        ("http://me:secret@host:19530", "put no password"),
    ):
        with pytest.raises(ValueError, match=why) as caught:
            index.create(tmp_path / "new", model, store)
        assert "secret" not in str(caught.value)
    index.create(tmp_path / "one", model, server, collection="birds").close()
    with pytest.raises(FileExistsError, match="has a collection birds already"):
        index.create(tmp_path / "two", model, server, collection="birds")
    with pytest.raises(ValueError, match="a collection's name must be"):
        index.create(tmp_path / "two", model, server, collection="no name!")
    with pytest.raises(OSError, match=r"Milvus at http://127\.0\.0\.1:1"):
        index.create(tmp_path / "two", model, "http://127.0.0.1:1")
    assert not (tmp_path / "two").exists()
    index.create(tmp_path / "file", model, str(tmp_path / "x.db")).close()
    (tmp_path / "x.db").rename(tmp_path / "y.db")
    with pytest.raises(index.BrokenIndex, match=r"x\.db, which is missing"):
        index.open(tmp_path / "file")
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_a_file_is_for_one_process(model: TrainedModel, tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe()

    def other() -> None:
        try:
            index.open(tmp_path / "m")
            sender.send("opened")
        except index.IndexInUse as error:
            sender.send(str(error))
        os._exit(0)  # what a fork has of the other's threads cannot be taken down

    with index.create(tmp_path / "m", model, str(tmp_path / "m.db")) as idx, index.open(tmp_path / "m") as same:
        process = fork.Process(target=other)
        process.start()
        assert "is open in another process" in receiver.recv()
        process.join()
        idx.add(make_items(3), draw(3))
        assert same.count() == 3  # within one process it is shared


def test_lengths_beyond_fp32_are_refused(euclidean_model: TrainedModel, tmp_path: Path) -> None:
    with index.create(tmp_path / "idx", euclidean_model, str(tmp_path / "idx" / "items.db")) as idx:
        for scale in (1e-20, 1e20):
            with pytest.raises(ValueError, match="Milvus takes vectors with lengths from 1e-15 to 1e\\+15"):
                idx.add(make_items(2), scale * draw(2))
            with pytest.raises(ValueError, match="Milvus takes vectors with lengths from 1e-15 to 1e\\+15"):
                idx.search(scale * draw(2))


def test_a_short_collection_is_refused(model: TrainedModel, tmp_path: Path) -> None:
    """As after damage to a manifest of Milvus."""
    path = tmp_path / "i"
    with index.create(path, model, store=str(path / "m.db")) as idx:
        idx.add(make_items(5), draw(5))
        idx.add(make_items(2), draw(2))
        idx.delete(["i00004"])
        assert idx.check().status == "ok"
    with index.open(path) as idx:
        assert idx.count() == 4
        idx._client.delete(idx.about.collection, ids=["i00000"])  # type: ignore[attr-defined]
    with pytest.raises(index.BrokenIndex, match="has 3 items, expected 4"):
        index.open(path)
    (path / "collection.json").unlink()  # as in indexes of earlier versions
    with index.open(path) as idx:
        assert idx.count() == 3


AWKWARD = {"a": 1.0, "b": -0.0, "c": "\u00fc\u2028\\", "d": [1, {"x": None}], "e": 2**53 + 1, "f": 1e-300, "g": 0.1}


@pytest.mark.parametrize("which", ["file", "address"])
def test_damaged_rows_are_noticed(
    which: str,
    model: TrainedModel,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lookalike.index.items._reported", set())
    path = tmp_path / "damaged"
    store = request.getfixturevalue("server") if which == "address" else str(tmp_path / "m.db")
    items = [item._replace(metadata={**item.metadata, **AWKWARD}) for item in make_items(20)]
    vectors = draw(20)
    with index.create(path, model, store) as idx:
        idx.add(items, vectors, ["1:2:3"] * 20)
        assert idx.check().status == "ok"
        assert idx.get([items[3].id]) == [items[3]]
        idx.restamp({items[4].id: "4:5:6"})
        assert idx.check().status == "ok"
        client, collection = idx._client, idx.about.collection  # type: ignore[attr-defined]
        columns = [field["name"] for field in client.describe_collection(collection)["fields"]]
        changes = {"label": "another", "metadata": {**items[7].metadata, "g": 0.2}, "stamp": "9:9:9"}
        for number, (column, value) in enumerate(changes.items(), 6):
            (row,) = client.get(collection, ids=[items[number].id], output_fields=columns)
            client.upsert(collection, [{**row, column: value}])
        (row,) = client.get(collection, ids=[items[9].id], output_fields=columns)
        row["vector"][3] = float(np.nextafter(np.float32(row["vector"][3]), np.float32(9)))
        client.upsert(collection, [row])
        lost = {item.id for item in items[6:10]}
        assert {hit.item.id for hit in idx.search(vectors[9:10], 20)[0]} == {item.id for item in items} - lost
        assert idx.get([items[6].id, items[5].id]) == [None, items[5]]
        with pytest.raises(KeyError):
            idx.vectors([items[9].id])
        again = {item.id for item in items} - set(idx.files_below("/"))
        assert again == (lost if which == "file" else lost - {items[9].id})
        idx.restamp({items[9].id: "0:0:0"})  # must not hide the damage
        finding = idx.check()
        assert finding.status == "damaged"
        assert f"4 of 20 rows (first: {items[6].id})" in finding.detail
        assert caplog.text.count("its checksum differs") == 4
        idx.add(items[6:10], vectors[6:10])
        assert idx.check().status == "ok"


def test_a_collection_of_an_earlier_version(
    model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pymilvus import CollectionSchema

    add_field = CollectionSchema.add_field

    def without_checksums(self: CollectionSchema, name: str, *arguments: object, **options: object) -> object:
        return self if "checksum" in name else add_field(self, name, *arguments, **options)

    monkeypatch.setattr(CollectionSchema, "add_field", without_checksums)
    with index.create(tmp_path / "i", model, str(tmp_path / "m.db")) as idx:
        items, vectors = make_items(5), draw(5)
        idx.add(items, vectors, ["1:2:3"] * 5)
        assert idx.search(vectors[2:3], 1)[0][0].item == items[2]
        assert len(idx.files_below("/")) == 5
        assert idx.check().status == "no checksum"


def test_settings_of_the_store_are_checked(model: TrainedModel, tmp_path: Path) -> None:
    store = str(tmp_path / "m.db")
    for kind, settings, why in (
        ("hnsw", {"nlist": 8}, "store settings of kind hnsw are M, efConstruction, got nlist"),
        ("hnsw", {"M": 0}, "must be a positive integer, got 0"),
        ("ivf", {"nlist": True}, "must be a positive integer, got True"),
        ("auto", {"M": 8}, "store settings of kind auto are none, got M"),
        ("ivf-pq", {}, "is for FAISS only"),
    ):
        with pytest.raises(ValueError, match=why):
            index.create(tmp_path / "m", model, store, kind=kind, store_settings=settings)
    with pytest.raises(ValueError, match="store settings are for Milvus only"):
        index.create(tmp_path / "m", model, kind="hnsw", store_settings={"M": 8})
    with pytest.raises(ValueError, match="diskann is for a Milvus server only"):
        index.create(tmp_path / "m", model, kind="diskann")
    assert not (tmp_path / "m").exists()
