"""A real Milvus server: the same neighbours as FAISS, after kills of the client and of the server, with two writers.

pip install milvus        # here, or anywhere with LOOKALIKE_MILVUS_PYTHON=/that/bin/python
pytest tests/index/test_milvus_standalone.py
"""

import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import milvus_standalone
import numpy as np
import pytest
from index_helpers import draw, make_items, make_model
from milvus_standalone import Standalone

from lookalike import index
from lookalike.index.milvus_index import MilvusIndex, drop_collection
from lookalike.inference.model import TrainedModel

pytestmark = pytest.mark.slow
if not milvus_standalone.is_installed():
    warnings.warn("A REAL MILVUS SERVER IS NOT TESTED: pip install milvus", stacklevel=1)
    pytest.skip("NOT TESTED: a real Milvus server, pip install milvus", allow_module_level=True)
pytest.importorskip("pymilvus")

COUNT = 400
FILTERS = [None, "label='label 3'", "label in ('label 1', 'label 2'), year>=2010", "year!=2004", "wild=true", "name>n2"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    started = Standalone(tmp_path_factory.mktemp("milvus"))
    yield started
    started.stop()


def assert_same(one: index.Index, other: index.Index, where: str | None = None) -> None:
    queries = draw(5, seed=1)
    assert one.search(queries, 15, where) == other.search(queries, 15, where), where
    assert one.count(where) == other.count(where), where


def test_neighbours_filters_and_changes_equal_those_of_faiss(
    server: Standalone, model: TrainedModel, euclidean_model: TrainedModel, tmp_path: Path
) -> None:
    items, vectors = make_items(COUNT), draw(COUNT)
    vectors[50:90] = vectors[50]  # ties
    for name, each in (("cosine", model), ("l2", euclidean_model)):
        faiss = index.create(tmp_path / f"{name}-faiss", each)
        milvus = index.create(tmp_path / f"{name}-milvus", each, server.uri)
        with faiss, milvus:
            for idx in (faiss, milvus):
                assert idx.add(items, vectors) == COUNT
                assert idx.add([items[3]._replace(label="new")], -vectors[3:4]) == 0
                assert idx.delete(["i00005", "none"]) == 1
            for where in FILTERS:
                assert_same(faiss, milvus, where)
            assert milvus.items() == faiss.items()
            assert milvus.labels() == faiss.labels()
            assert len(milvus.sample(20)) == 20


@pytest.mark.parametrize(
    ("kind", "settings"), [("hnsw", {"M": 8, "efConstruction": 40}), ("ivf", {"nlist": 16}), ("diskann", {})]
)
def test_parameters_and_measured_recall(
    server: Standalone, model: TrainedModel, kind: str, settings: dict[str, int], tmp_path: Path
) -> None:
    with index.create(tmp_path / "m", model, server.uri, kind=kind, store_settings=settings) as idx:
        assert isinstance(idx, MilvusIndex)
        built = idx._client.describe_index(idx.about.collection, "vector")
        assert {name: int(built[name]) for name in settings} == settings
        vectors = draw(COUNT)
        idx.add(make_items(COUNT), vectors)
        idx.save()
        assert idx.info()["recall@10"] >= 0.9
        with index.create(tmp_path / "f", model) as faiss:
            faiss.add(make_items(COUNT), vectors)
            queries = draw(20, seed=1)
            shares = []
            for hits, truth in zip(idx.search(queries, 10), faiss.search(queries, 10), strict=True):
                shares.append(len({hit.item.id for hit in hits} & {hit.item.id for hit in truth}) / 10)
        assert np.mean(shares) >= 0.9
    with index.open(tmp_path / "m") as idx:
        assert idx.about.store_settings == settings


WRITER = """
import sys
sys.path.insert(0, {tests!r})
from index_helpers import draw, make_items
from lookalike import index

with index.open({path!r}) as idx:
    for start in range({first}, {first} + {count}, 20):
        idx.add(make_items(20, start), draw(20, seed=start))
        print(start + 20, flush=True)
"""


def writer(path: Path, first: int, count: int) -> "subprocess.Popen[str]":
    code = WRITER.format(tests=str(Path(__file__).parent), path=str(path), first=first, count=count)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def acknowledged(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_killed_client_loses_nothing_acknowledged(server: Standalone, model: TrainedModel, tmp_path: Path) -> None:
    path = tmp_path / "m"
    index.create(path, model, server.uri).close()
    process = writer(path, 0, 20_000)
    for _ in range(3):
        last = acknowledged(process)
    time.sleep(0.05)  # in the middle of a batch
    process.send_signal(signal.SIGKILL)
    process.wait()
    with index.open(path) as idx:
        ids = [item.id for item in make_items(last)]
        assert None not in idx.get(ids)
        idx.add(make_items(20, last), draw(20, seed=last))  # the same command continues
        expected = np.concatenate([draw(20, seed=start) for start in range(0, last + 20, 20)])
        found = idx.vectors([item.id for item in make_items(last + 20)])
        np.testing.assert_array_equal(found, expected)


def test_two_writers_on_two_machines(server: Standalone, model: TrainedModel, tmp_path: Path) -> None:
    """Each has a copy of the folder, as on machines of their own."""
    index.create(tmp_path / "one", model, server.uri).close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    writers = [writer(tmp_path / "one", 0, 100), writer(tmp_path / "two", 60, 100)]  # 40 items are written by both
    for process in writers:
        assert process.wait(300) == 0
    with index.open(tmp_path / "one") as idx:
        assert idx.count() == 160
        assert [item.id for item in idx.items()] == [item.id for item in make_items(160)]


def test_a_second_model_in_a_collection_of_its_own(server: Standalone, model: TrainedModel, tmp_path: Path) -> None:
    """Equal to FAISS, also if another machine, whose copy of the folder lacks the model, changes items."""
    items, vectors, other_vectors = make_items(COUNT), draw(COUNT), draw(COUNT, seed=5)
    ids = [item.id for item in items]
    faiss = index.create(tmp_path / "f", model)
    milvus = index.create(tmp_path / "m", model, server.uri)
    shutil.copytree(tmp_path / "m", tmp_path / "elsewhere")
    with faiss, milvus:
        seconds = []
        for idx in (faiss, milvus):
            idx.add(items, vectors, ["1:2:3"] * COUNT)
            second = index.add_model(idx, make_model(9), "other", "torch")
            second.put(ids, other_vectors)
            assert second.missing() == []
            seconds.append(second)
        with index.open(tmp_path / "elsewhere") as elsewhere:
            assert elsewhere.second_models() == []
            for idx in (faiss, elsewhere):
                idx.delete(ids[:5])
                idx.add(items[5:9], -vectors[5:9], ["1:2:4"] * 4)  # changed files
                idx.restamp({ids[9]: "2:2:3"})
        for where in FILTERS:
            assert_same(*seconds, where)
        assert seconds[0].missing() == seconds[1].missing() == ids[5:9]
        for second in seconds:
            second.put(ids[5:9], other_vectors[:4])
            assert second.missing() == []
            assert second.check().status == "ok"
            second.close()
        assert_same(*(idx.open_model("other") for idx in (faiss, milvus)))
        drop_collection(server.uri, milvus.about.collection)
        assert not [name for name in milvus._client.list_collections() if name.startswith(milvus.about.collection)]


def test_a_killed_server_loses_nothing_acknowledged(server: Standalone, model: TrainedModel, tmp_path: Path) -> None:
    items, vectors = make_items(COUNT), draw(COUNT)
    with index.create(tmp_path / "f", model) as faiss:
        faiss.add(items, vectors)
        with index.create(tmp_path / "m", model, server.uri) as milvus:
            milvus.add(items, vectors)
            server.kill()
            with pytest.raises(OSError, match="Milvus at http") as caught:
                milvus.search(draw(1), 3)
            assert "\n" not in str(caught.value)
        server.start()
        with index.open(tmp_path / "m") as milvus:
            for where in FILTERS:
                assert_same(faiss, milvus, where)
