"""The scale benchmark measures what it says, and continues after a kill. Its times are never asserted."""

import argparse
import os
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from lookalike import index

SIZE = 3_000


@pytest.fixture
def options(benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    monkeypatch.setattr(benchmark, "QUERIES", 12)
    monkeypatch.setitem(benchmark.Clusters.chunks.__globals__, "CHUNK", 1_000)
    monkeypatch.setattr(benchmark, "CHUNK", 1_000)
    return argparse.Namespace(sizes=[SIZE], kinds=["ivf"], folder=tmp_path, json=tmp_path / "r.json", milvus=None)


def test_steps(benchmark: ModuleType, options: argparse.Namespace) -> None:
    benchmark.make_data(options)
    vectors = np.concatenate([vectors for _, vectors in benchmark.Clusters(SIZE).chunks(0, SIZE)])
    ids = [item.id for items, _ in benchmark.Clusters(SIZE).chunks(0, SIZE) for item in items]
    queries = benchmark.Clusters(SIZE).queries(12)
    truth = np.load(options.folder / str(SIZE) / "truth.npy")
    for row, expected in zip(truth.tolist(), np.argsort(-queries @ vectors.T, axis=1)[:, :10], strict=True):
        assert set(row) == {ids[i] for i in expected}
    assert all(value >= 0 for value in benchmark.measure_lookups(options).values())
    for kind, exact in (("flat", True), ("ivf", False)):
        options.kinds = [kind]
        built = benchmark.build(options)
        assert built["kind"] == kind
        used = benchmark.use(options)
        assert used["recall@10"] == 1 if exact else used["recall@10"] > 0.8
        assert used["add 1 %"]["rows"] == SIZE // 100


def test_milvus(benchmark: ModuleType, options: argparse.Namespace) -> None:
    pytest.importorskip("milvus_lite", reason="NOT TESTED: Milvus is not installed")
    options.milvus, options.milvus_pid = str(options.folder / "items.db"), os.getpid()
    options.kinds = ["flat"]
    benchmark.make_data(options)
    measured = benchmark.measure_milvus(options)
    assert measured["recall@10"] == 1
    assert measured["add 1 %"]["rows"] == SIZE // 100
    for costs in (measured["add"], measured["search"], measured["search, label"]):
        assert costs["server_cpu"] > 0  # the embedded one runs in this process


def test_data_continues_after_a_kill(
    benchmark: ModuleType, options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):  # noqa: N818
        pass

    add = index.Index.add
    calls: list[int] = []

    def killed(self: index.Index, items: object, vectors: object) -> int:
        calls.append(1)
        done = add(self, items, vectors)  # type: ignore[arg-type]
        if len(calls) == 2:
            raise Killed  # the chunk is in the index, but not in the progress
        return done

    monkeypatch.setattr(index.Index, "add", killed)
    with pytest.raises(Killed):
        benchmark.make_data(options)
    benchmark.make_data(options)
    assert len(calls) == 4
    with index.open(options.folder / str(SIZE)) as idx:
        assert idx.count() == SIZE
