"""A Ray cluster of two nodes on this machine: the same results as without it, whatever dies.

All tests of Ray are here, because starting a cluster takes long.
"""

import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from benchmark_words import DATA, SMALL, metrics, words
from executor_tasks import always_die, die_once_and_square, die_twice, refuse, wait_for
from lookalike_studies.framework.context import Context, Part

from lookalike import index, sharded
from lookalike._util.progress import Display
from lookalike._util.signals import StopRequest
from lookalike.cli import main
from lookalike.executors import WorkerDied, create_executor
from lookalike.experiments.nodes import inspect_node, probe
from lookalike.inference.model import TrainedModel, load
from lookalike.models import Embedder, create_backbone, save_model
from lookalike.sharded import coordinator

pytestmark = pytest.mark.slow


def busy_workers() -> list[psutil.Process]:
    """Processes of this cluster, not of another one on this machine, that run a task."""
    workers = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "ray::_call" in " ".join(process.cmdline()):
                workers.append(process)
        except psutil.Error:  # it has ended
            continue
    return workers


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = create_backbone("resnet8-half", weights="none")
        folder = tmp_path_factory.mktemp("runs") / "mine"
        save_model(Embedder(backbone, 8, "average", {}, "l2", backbone.spec.resized(32)), folder)
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> TrainedModel:
    return load(run, "cpu", "torch")


def count(path: Path) -> int:
    """Items of an index that may not be there yet."""
    try:
        with index.open(path) as idx:
            return idx.count()
    except (OSError, ValueError):
        return 0


def test_deaths_and_errors_of_tasks(cluster: Any, tmp_path: Path) -> None:
    del cluster
    executor = create_executor("ray")
    assert dict(executor.run(die_twice, [3], tmp_path)) == {3: 9}
    with pytest.raises(WorkerDied, match="a task's worker died 4 times"):
        list(executor.run(always_die, [1], tmp_path))
    with pytest.raises(ValueError, match="refused") as caught:
        list(executor.run(refuse, [1], None))
    assert str(caught.value) == "this task is refused"  # one line, without the traceback of the node


def test_embeds_the_same_although_a_worker_is_killed(
    cluster: Any, run: Path, model: TrainedModel, class_folders: Path, tmp_path: Path, capsys: Any
) -> None:
    import pyarrow.parquet as pq

    del cluster
    out = tmp_path / "v"
    killed: list[int] = []

    def kill() -> None:
        for worker in wait_for(busy_workers)[:1]:  # the first ones load the model, so they are seen in time
            worker.kill()
            killed.append(worker.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    typed = ["embed", str(run), str(class_folders), "--out", str(out), "--json", "--executor", "ray"]
    assert main([*typed, "--shard-size", "1"]) == 0
    killer.join()
    assert killed
    assert json.loads(capsys.readouterr().out)["computed"] == 64
    table = pq.read_table(out)
    names = table["path"].to_pylist()
    assert sorted(names) == sorted(file.relative_to(class_folders).as_posix() for file in class_folders.rglob("*.png"))
    vectors = np.stack(table["vector"].to_numpy())
    assert vectors.tobytes() == model.embed([class_folders / name for name in names]).tobytes()


def test_nodes_that_see_other_pictures_are_refused(
    cluster: Any, model: TrainedModel, class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    del cluster
    memory = fsspec.filesystem("memory")  # every process has its own
    memory.store.clear()
    memory.pipe("/birds/a.png", b"content")
    executor = create_executor("ray")
    with pytest.raises(
        ValueError, match=r"differs in the pictures of memory://birds: .* has no pictures.* there, 1 pictures"
    ):
        sharded.embed_collection("memory://birds", model, tmp_path / "v", executor)
    memory.store.clear()
    monkeypatch.setattr("PIL.__version__", "0.0.0")
    with pytest.raises(ValueError, match=r"differs in the version of Pillow: [0-9.]+ there, 0\.0\.0 here"):
        coordinator.prepare(str(class_folders), model, executor)
    assert not list(tmp_path.glob("v/*"))


def test_nodes_with_another_version_are_refused(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del cluster
    executor = create_executor("ray")
    with probe(tmp_path, {}) as argument:
        executor.check_nodes(inspect_node, argument)
        monkeypatch.setattr("lookalike.__version__", "0.0.0")
        with pytest.raises(ValueError, match=r"node .* differs in the version of lookalike: .* there, 0.0.0 here"):
            executor.check_nodes(inspect_node, argument)


def test_a_task_larger_than_the_cluster_is_refused(cluster: Any) -> None:
    del cluster
    with pytest.raises(ValueError, match="no task fits on the cluster"):
        create_executor("ray", num_gpus=1)


def test_a_search_proposes_the_same_although_a_worker_is_killed(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del cluster
    killed: list[int] = []

    def search(out: Path, *more: str, code: int = 0) -> Any:
        typed = ["tune", "--data", DATA, "--protocol", "quick", "--out", str(out), "--json", *more]
        typed += ["--set", f"{SMALL}, steps=8, evaluate_every=4", "--search", "pooling_settings.num_prototypes=[2, 4]"]
        assert main(typed) == code
        printed, errors = capsys.readouterr()
        return errors if code else json.loads(printed)["trials"]

    def kill() -> None:
        wait_for(lambda: list((tmp_path / "ray").glob("trials/*/log.txt")))
        for worker in wait_for(busy_workers)[:1]:
            worker.kill()
            killed.append(worker.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    local, distributed = search(tmp_path / "local"), search(tmp_path / "ray", "--executor", "ray")
    killer.join()
    assert killed
    assert len(distributed) == 2
    for name in ("params", "value", "state", "steps"):
        assert [trial[name] for trial in local] == [trial[name] for trial in distributed]
    monkeypatch.setattr("lookalike.__version__", "0.0.0")
    assert "differs in the version of lookalike" in search(tmp_path / "other", "--executor", "ray", code=2)
    assert not list((tmp_path / "other").glob("trials/*"))


def test_parts_of_a_study_are_computed_although_a_worker_dies(cluster: Any, tmp_path: Path) -> None:
    del cluster
    context = Context(tmp_path / "out", Display(StopRequest(), quiet=True), executor=create_executor("ray"))
    parts = [Part(f"part {number}", 1, partial(die_once_and_square, number, tmp_path)) for number in range(3)]
    for _ in range(2):
        assert [part["square"] for part in context.train_all(parts)] == [0, 1, 4]
    assert [(tmp_path / f"{number}.calls").read_text() for number in range(3)] == ["x", "xx", "x"]


def test_indexes_the_same_although_a_node_is_lost(
    cluster: Any, run: Path, model: TrainedModel, class_folders: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "i"
    typed = ["index", str(run), str(class_folders), "--out", str(out), "--json", "--executor", "ray"]

    def lose() -> None:
        wait_for(lambda: count(out) > 0)
        cluster.remove_node(cluster.worker_nodes.copy().pop())

    loser = threading.Thread(target=lose)
    loser.start()
    assert main([*typed, "--shard-size", "1"]) == 0
    loser.join()
    report = json.loads(capsys.readouterr().out)
    cluster.add_node(num_cpus=1)
    assert (report["added"], report["count"]) == (64, 64)
    with index.open(out) as idx:
        items = idx.items()
        vectors = idx.vectors([item.id for item in items])
    assert len({item.file for item in items}) == 64
    assert vectors.tobytes() == model.embed([item.file for item in items]).tobytes()


def test_trains_the_same_although_a_worker_and_a_node_are_lost(cluster: Any, tmp_path: Path) -> None:
    """The last test: a node is missing afterwards."""
    assert main(words(tmp_path / "local")) == 0
    out = tmp_path / "ray"
    lost = {}

    def kill() -> None:
        wait_for(lambda: list(out.glob("cells/*/run/state/last.pt")))
        wait_for(busy_workers)[0].kill()
        lost["worker"] = True
        wait_for(lambda: metrics(out))
        cluster.remove_node(cluster.worker_nodes.copy().pop())
        lost["node"] = True

    killer = threading.Thread(target=kill)
    killer.start()
    assert main(words(out, "--executor", "ray")) == 0
    killer.join()
    assert lost == {"worker": True, "node": True}
    assert metrics(out) == metrics(tmp_path / "local")
    assert len(metrics(out)) == 4
    for log in out.rglob("log.txt"):
        assert log.read_text().count("step      0") == 1, "a cell was begun twice"
