"""The index on this machine, against comparing one pair after the other."""

import json
import multiprocessing
import os
import re
import shutil
import sqlite3
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_helpers import DIM, draw, make_items, make_model, meets, plain_search

from lookalike import index
from lookalike.index import Item
from lookalike.index.filters import parse
from lookalike.inference.model import TrainedModel


def shown(hits: list[index.Hit]) -> list[tuple[str, float]]:
    return [(hit.item.id, round(hit.distance, 9)) for hit in hits]


@pytest.mark.parametrize("which", ["model", "euclidean_model"])
def test_search_equals_brute_force(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    model: TrainedModel = request.getfixturevalue(which)
    items, vectors, queries = make_items(200), draw(200), draw(7, seed=1)
    vectors[50:60] = vectors[50]
    queries[0] = vectors[50] * (1 if model.distance == "l2" else 3)
    with index.create(tmp_path / "i", model) as idx:
        assert idx.distance == model.distance
        assert idx.add(items, vectors) == 200
        for k in (1, 5, 200, 300):
            for query, hits in zip(queries, idx.search(queries, k), strict=True):
                assert shown(hits) == plain_search(items, vectors, query, k, idx.distance)
        assert [hit.item for hit in idx.search(queries[:1], 3)[0]] == items[50:53]  # equal distances: by id
        assert idx.search(np.zeros((0, DIM), np.float32), 3) == []


def test_many_queries_equal_single_queries(model: TrainedModel, tmp_path: Path) -> None:
    items, vectors, queries = make_items(300), draw(300), draw(70, seed=1)
    vectors[100:200] = vectors[100]  # more than are asked for at first, and matrix products round differently
    queries[3] = vectors[100]
    with index.create(tmp_path / "i", model) as idx:
        idx.add(items[::-1], vectors[::-1])  # of equal ones those that were added first must not win
        together = idx.search(queries, 10)
        assert together == [idx.search(query[None], 10)[0] for query in queries]
        assert [hit.item for hit in together[3]] == items[100:110]


@pytest.mark.parametrize(
    "where",
    ["label='label 3'", "year>=2010", "year=2003, label!='label 1'", "wild=true", "path<'/pictures/2'", "id>=i00150"],
)
def test_filters_apply_before_the_nearest_are_taken(model: TrainedModel, tmp_path: Path, where: str) -> None:
    items, vectors, queries = make_items(200), draw(200), draw(3, seed=1)
    good = [i for i, item in enumerate(items) if all(meets(item, each) for each in parse(where))]
    assert 0 < len(good) < 200
    with index.create(tmp_path / "i", model) as idx:
        idx.add(items, vectors)
        idx.delete([items[good[0]].id])
        good = good[1:]
        assert idx.count(where) == len(good)
        assert idx.items(where) == [items[i] for i in good]
        for query, hits in zip(queries, idx.search(queries, 20, where), strict=True):
            assert shown(hits) == plain_search([items[i] for i in good], vectors[good], query, 20, "cosine")
        assert idx.search(queries, 5, "label=nobody") == [[], [], []]


def test_add_replaces_and_delete_removes(model: TrainedModel, tmp_path: Path) -> None:
    items, vectors = make_items(20), draw(20)
    with index.create(tmp_path / "i", model) as idx:
        assert idx.add(items, vectors) == 20
        assert idx.add(items[:5], vectors[:5]) == 0
        assert idx.count() == 20
        moved = items[3]._replace(label="new", metadata={"seen": 1})
        assert idx.add([moved], -vectors[3:4]) == 0
        assert idx.get(["i00003", "none", "i00004"]) == [moved, None, items[4]]
        assert idx.search(-vectors[3:4], 1)[0][0] == index.Hit(moved, 0.0)
        np.testing.assert_array_equal(idx.vectors(["i00004", "i00003"]), [vectors[4], -vectors[3]])
        assert idx.delete(["i00003", "i00003", "none"]) == 1
        assert idx.delete(["i00003"]) == 0
        assert idx.get(["i00003"]) == [None]
        assert "i00003" not in [hit.item.id for hit in idx.search(vectors[3:4], 20)[0]]
        with pytest.raises(KeyError, match="there is no item i00003"):
            idx.vectors(["i00003"])
        assert idx.labels()["label 1"] == 3
        assert list(idx.labels()) == [f"label {i}" for i in range(7)]
        assert [item.id for item in idx.items(after="i00001", limit=3)] == ["i00002", "i00004", "i00005"]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True)),
            st.tuples(st.just("delete"), st.lists(st.integers(0, 30), max_size=8)),
            st.tuples(st.just("open"), st.just([])),
        ),
        max_size=12,
    )
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_sequences_of_changes(
    model: TrainedModel, tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("any") / "i"
    idx = index.create(path, model)
    held: dict[str, tuple[Item, Any]] = {}
    chance = np.random.default_rng(0)
    query = draw(1, seed=9)
    for what, numbers in steps:
        if what == "add":
            items, vectors = [make_items(1, n)[0] for n in numbers], chance.normal(size=(len(numbers), DIM))
            assert idx.add(items, vectors) == sum(item.id not in held for item in items)
            held |= {item.id: (item, v) for item, v in zip(items, vectors.astype(np.float32), strict=True)}
        elif what == "delete":
            ids = [f"i{n:05d}" for n in numbers]
            assert idx.delete(ids) == len(set(ids) & set(held))
            held = {each: kept for each, kept in held.items() if each not in ids}
        else:
            idx.close()
            idx = index.open(path)
        vectors = np.array([vector for _, vector in held.values()])
        truth = plain_search([item for item, _ in held.values()], vectors, query[0], 10, "cosine")
        assert shown(idx.search(query, 10)[0]) == truth
    assert idx.count() == len(held)
    idx.close()


def test_a_reader_sees_what_a_writer_commits(model: TrainedModel, tmp_path: Path) -> None:
    items, vectors = make_items(20), draw(20)
    with index.create(tmp_path / "i", model) as writer, index.open(tmp_path / "i") as reader:
        assert reader.search(vectors[:1], 1) == [[]]
        with writer.writing():
            writer.add(items, vectors)
            assert reader.search(vectors[:1], 1)[0][0].item == items[0]
            with pytest.raises(index.IndexInUse, match="is being written by another process"):
                reader.add(items, vectors)
            writer.delete([items[0].id])
        assert reader.search(vectors[:1], 1)[0][0].item != items[0]
        assert reader.delete([items[1].id]) == 1  # nobody else is at it
        assert writer.count() == 18


def test_a_second_process_cannot_write(model: TrainedModel, tmp_path: Path) -> None:
    index.create(tmp_path / "i", model).close()
    receiver, sender = multiprocessing.get_context("fork").Pipe()

    def other() -> None:
        try:
            with index.open(tmp_path / "i") as idx:
                idx.add(make_items(1), draw(1))
            sender.send("written")
        except index.IndexInUse as error:
            sender.send(str(error))

    for held, answer in ((True, "is being written by another process"), (False, "written")):
        with index.open(tmp_path / "i") as idx:
            lock = idx.writing()
            if held:
                lock.__enter__()
            process = multiprocessing.get_context("fork").Process(target=other)
            process.start()
            assert answer in receiver.recv()
            process.join()
            if held:
                lock.__exit__(None, None, None)
    with index.open(tmp_path / "i") as idx:
        assert idx.count() == 1


def test_threads_share_an_index(model: TrainedModel, tmp_path: Path) -> None:
    vectors = draw(60)
    failures: list[BaseException] = []
    with index.create(tmp_path / "i", model) as idx:

        def work(start: int) -> None:
            try:
                for n in range(start, start + 15):
                    idx.add(make_items(1, n), vectors[n : n + 1])
                    assert idx.search(vectors[n : n + 1], 1)[0][0].item.id == f"i{n:05d}"
            except BaseException as error:
                failures.append(error)

        threads = [Thread(target=work, args=(start,)) for start in range(0, 60, 15)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert idx.count() == 60


def test_bad_input_is_refused_and_changes_nothing(model: TrainedModel, tmp_path: Path) -> None:
    items, vectors = make_items(2), draw(2)
    nan = vectors.copy()
    nan[1, 0] = np.nan
    with index.create(tmp_path / "i", model) as idx:
        for bad, why in (
            (lambda: idx.add(items, vectors[:1]), r"shape \(2, 8\), got \(1, 8\)"),
            (lambda: idx.add(items, vectors[:, :4]), r"shape \(2, 8\)"),
            (lambda: idx.add(items, nan), "finite"),
            (lambda: idx.add(items, vectors * 0), "must not be zero"),
            (lambda: idx.add([items[0], items[0]], vectors), "i00000 twice"),
            (lambda: idx.add([Item("a b", "/a")], vectors[:1]), "an id must be"),
            (lambda: idx.add([Item("a", "/a\udce9")], vectors[:1]), "path of item a"),
            (lambda: idx.add([Item("a", "/a", "l" * 5000)], vectors[:1]), "label of item a"),
            (lambda: idx.add([Item("a", "/a", "", {"label": 1})], vectors[:1]), "a key of metadata"),
            (lambda: idx.add([Item("a", "/a", "", {"x y": 1})], vectors[:1]), "a key of metadata"),
            (lambda: idx.add([Item("a", "/a", "", {"x": float("nan")})], vectors[:1]), "must be valid JSON"),
            (lambda: idx.add([Item("a", "/a", "", {"x": "y" * 40_000})], vectors[:1]), "at most 32,768 bytes"),
            (lambda: idx.search(vectors, 0), "k must be at least 1"),
            (lambda: idx.search(vectors, 10_001), "k must be at most 10,000"),
            (lambda: idx.search(vectors[0], 1), r"queries must have the shape \(n, 8\)"),
            (lambda: idx.search(vectors, 1, "nonsense"), "filter cannot be read"),
        ):
            with pytest.raises(ValueError, match=why):
                bad()
        with pytest.raises(TypeError, match="list of ids"):
            idx.get("i00000")
        assert idx.count() == 0


def test_create_refuses_existing_folders_and_cleans_up(model: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds something else"):
        index.create(tmp_path / "full", model)
    (tmp_path / "empty").mkdir()
    index.create(tmp_path / "empty", model).close()
    with pytest.raises(FileExistsError, match="holds an index"):
        index.create(tmp_path / "empty", model)
    with pytest.raises(ValueError, match="kind must be one of"):
        index.create(tmp_path / "new", model, kind="fast")
    with pytest.raises(ValueError, match=r"holds no model: there is no model\.json"):
        index.create(tmp_path / "new", tmp_path / "full")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["empty", "full"]
    assert [each.name for each in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_create_removes_leftovers_of_killed_processes(model: TrainedModel, tmp_path: Path) -> None:
    left = tmp_path / ".unfinished-index-0123-i"
    (left / "model").mkdir(parents=True)
    (left / "writer.lock").touch()
    index.create(tmp_path / "i", model).close()
    assert [each.name for each in tmp_path.iterdir()] == ["i"]


def test_another_model_is_refused(model: TrainedModel, run_folder: Path, tmp_path: Path) -> None:
    (run_folder / "figures.json").write_text('{"MAP@R": 0.5}')
    with index.create(tmp_path / "i", run_folder) as idx:
        idx.check_model(model)
        idx.check_model(run_folder)
        assert json.loads((tmp_path / "i" / "model" / "figures.json").read_text()) == {"MAP@R": 0.5}
        for other in (make_model(seed=1), make_model(normalise="none")):
            with pytest.raises(index.WrongModel, match="was made with another model"):
                idx.check_model(other)
        copy = idx.model("cpu")
        picture = np.random.default_rng(0).integers(0, 255, (40, 40, 3)).astype(np.uint8)
        np.testing.assert_array_equal(copy.embed(picture), model.embed(picture))
        assert index.fingerprint_of(copy) == idx.fingerprint == index.fingerprint_of(run_folder)


def test_opening_the_store_names_its_index(
    model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Milvus, whose items are in a file or a folder beside the index or in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "index.json").write_text("{")
    for name, place, store in (("mine.idx", "m.db", str(tmp_path / "m.db")), ("other.idx", "other.idx/in.db", "in.db")):
        index.create(name, model).close()
        about = tmp_path / name / "index.json"
        (tmp_path / name / "checksums.json").unlink()
        about.write_text(json.dumps({**json.loads(about.read_text()), "backend": "milvus", "store": store}))
        for make in (Path.touch, Path.mkdir):
            make(Path(place))
            for wrong in (Path(place), tmp_path / place):
                home = wrong.parent if name == "other.idx" else wrong.parent / name
                with pytest.raises(ValueError, match=re.escape(f"it holds the items of the index {home}: give that")):
                    index.open(wrong)
            (Path.unlink if make is Path.touch else Path.rmdir)(Path(place))
    Path("another.db").touch()
    with pytest.raises(ValueError, match="an index is the folder that lookalike index makes"):
        index.open("another.db")


def test_missing_or_damaged_files_give_one_line_errors(model: TrainedModel, tmp_path: Path) -> None:
    path = tmp_path / "i"
    with pytest.raises(FileNotFoundError, match="there is no index"):
        index.open(path)
    with index.create(path, model) as idx:
        idx.add(make_items(400), draw(400))
    about, items = path / "index.json", path / "items.sqlite"
    whole, text = items.read_bytes(), about.read_text()
    about.write_text(text.replace("cosine", "l2"))
    with pytest.raises(index.BrokenIndex, match=r"index\.json is damaged, or was edited"):
        index.open(path)
    (path / "checksums.json").unlink()

    def fails(kind: type[Exception], message: str) -> None:
        with pytest.raises(kind, match=message) as caught, index.open(path) as idx:
            idx.search(draw(1, dim=idx.dim), 5)
        assert "\n" not in str(caught.value)

    about.write_text(text[:40])
    fails(index.BrokenIndex, r"index\.json is damaged")
    about.write_text("[]")
    fails(index.BrokenIndex, "does not describe an index")
    about.write_text(json.dumps({**json.loads(text), "dim": "8"}))
    fails(index.BrokenIndex, "unexpected names or types of entries")
    about.write_text(json.dumps({**json.loads(text), "format": 2}))
    fails(ValueError, "has the format 2, this version reads 1")
    about.write_text(json.dumps({**json.loads(text), "dim": 9}))
    fails(index.BrokenIndex, "a vector is not of size 9")
    about.unlink()
    fails(ValueError, r"is no index: there is no index\.json in it; an index is the folder that lookalike index makes")
    about.write_text(text)
    items.write_bytes(b"no database at all" * 100)
    fails(index.BrokenIndex, r"items\.sqlite is damaged")
    items.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    fails(index.BrokenIndex, r"items\.sqlite is damaged")
    items.write_bytes(b"")
    fails(index.BrokenIndex, "it does not have the tables gone, items, vectors")
    items.unlink()
    fails(index.BrokenIndex, r"items\.sqlite is missing")
    items.write_bytes(whole)
    with index.open(path) as idx:
        assert idx.count() == 400


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write anywhere")
def test_a_read_only_folder_can_be_searched(model: TrainedModel, tmp_path: Path) -> None:
    path = tmp_path / "i"
    with index.create(path, model) as idx:
        idx.add(make_items(3), draw(3))
    path.chmod(0o500)
    try:
        with index.open(path) as idx:
            assert idx.search(draw(1), 1)[0][0].item.id == "i00000"
            with pytest.raises(PermissionError, match="no permission"):
                idx.delete(["i00000"])
    finally:
        path.chmod(0o700)


def test_commits_are_flushed_to_disk(model: TrainedModel, tmp_path: Path) -> None:
    """A power cut cannot be tried here, but that SQLite flushes every commit can be checked."""
    with index.create(tmp_path / "i", model) as idx:
        connection: sqlite3.Connection = idx._database.connection
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_metadata_bounds(run_folder: Path, tmp_path: Path) -> None:
    """In Python as over HTTP; a row refused leaves nothing behind."""
    deep: Any = 1
    for _ in range(33):
        deep = [deep]
    shared: Any = []
    for _ in range(31):
        shared = [shared] * 50
    cyclic: dict[str, Any] = {}
    cyclic["self"] = cyclic
    with index.create(tmp_path / "idx", run_folder) as idx:
        for metadata, message in (
            ({"a": deep}, "nested at most 32"),
            ({"a": shared}, "nested at most 32"),
            (cyclic, "nested at most 32"),
            ({f"k{i}": 1 for i in range(257)}, "at most 256 keys"),
            ({"a": {"b": 2**63}}, "64 bits"),
            ({"a": "x" * 40_000}, "at most 32,768 bytes"),
        ):
            with pytest.raises(ValueError, match=message):
                idx.add([Item("a", "/a", "", metadata)], draw(1))
        assert idx.count() == 0


def test_commits_that_a_damaged_log_has_lost_are_noticed(
    model: TrainedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a kill, whose log is then damaged: SQLite drops the commits from the damaged one on."""
    path, copy = tmp_path / "i", tmp_path / "killed"
    items, vectors = make_items(12), draw(12)
    with index.create(path, model) as idx:
        for start in range(0, 12, 3):
            idx.add(items[start : start + 3], vectors[start : start + 3])
        shutil.copytree(path, copy)  # with the log, which closing would remove
    with index.open(copy) as idx:
        assert idx.count() == 12
        assert idx.check().status == "ok"
    assert caplog.text == ""
    shutil.rmtree(copy)
    with index.open(path) as idx:
        idx.delete([items[0].id])
        idx.restamp({items[1].id: "1:2:3"})
        shutil.copytree(path, copy)
    log = copy / "items.sqlite-wal"
    content = bytearray(log.read_bytes())
    frame = 24 + int.from_bytes(content[8:12], "big")  # header and page
    content[-frame // 2] ^= 4  # in the last commit
    log.write_bytes(content)
    with index.open(copy) as idx:
        assert idx.stamps([items[1].id]) == {items[1].id: ""}
        finding = idx.check()
        assert finding.status == "damaged"
        assert "1 commit lost, the latest: the log items.sqlite-wal was damaged or removed" in finding.detail
    assert "1 commit lost" in caplog.text
    caplog.clear()
    counter = copy / "items.sqlite-commits"
    text = counter.read_bytes()
    for position in range(len(text)):
        counter.write_bytes(text[:position] + bytes([text[position] ^ 1]) + text[position + 1 :])
        with index.open(copy) as idx:
            assert "items.sqlite-commits is damaged" in idx.check().detail
    with index.open(copy) as idx:  # the next commit is counted from what is there
        idx.add(items[:1], vectors[:1])
    caplog.clear()
    with index.open(copy) as idx:
        assert idx.check().status == "ok"
    counter.unlink()  # as in indexes of earlier versions
    with index.open(copy) as idx:
        assert idx.check().status == "ok"
    assert caplog.text == ""


@pytest.mark.parametrize("tree", ["items_by_label", "sqlite_autoindex_items_1"])
def test_damage_that_hides_items_is_noticed_and_repaired(
    model: TrainedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture, tree: str
) -> None:
    """Rows have checksums, but the trees by which labels and ids are found have none."""
    items, vectors = make_items(60), draw(60)
    with index.create(tmp_path / "i", model) as idx:
        idx.add(items, vectors)
        labels = idx.labels()
    file = tmp_path / "i" / "items.sqlite"
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (tree,)).fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    content = bytearray(file.read_bytes())
    word = items[30].id.encode() if "auto" in tree else items[30].label.encode()
    place = content.index(word, (root - 1) * size)
    assert place < root * size
    content[place + len(word) - 1] ^= 4  # the last character is another
    file.write_bytes(content)

    caplog.clear()
    with index.open(tmp_path / "i") as idx:
        assert caplog.text.count("the next change, which repairs it") == 1
        idx.add([Item("new", "")], vectors[:1])
        assert caplog.text.count("the next change, which repairs it") == 1
        assert len(idx.items()) == 61
        assert idx.get([items[30].id]) == [items[30]]
        assert {label: len(idx.items(f'label="{label}"')) for label in labels} == labels
        assert idx.check().status == "ok"
    caplog.clear()
    with index.open(tmp_path / "i"):
        assert not caplog.records


def test_samples_take_bounded_memory(model: TrainedModel, tmp_path: Path) -> None:
    items = [Item(f"{number:03}", "", "", {"text": 100 * "x"}) for number in range(60)]
    with index.create(tmp_path / "i", model) as idx:
        idx.add(items, draw(60))
        assert idx.sample(100) == items
        assert len(idx.sample(20)) == 20
        assert idx.sample(100, largest=0) == [item._replace(metadata={}) for item in items]
        assert idx.sample(100, largest=5 * 112) == items[:5], 'each is {"text": "..."}'
        assert idx.sample(100, largest=1) == items[:1]
        idx.add([items[0]], draw(1))  # the interrupted reading has ended
        assert idx.check().status == "ok"
