"""``lookalike serve --workers 2``: one set of quotas and metrics, one writer at a time, deaths and endings."""

import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from server_helpers import READ, WRITE, encoded, in_process, noise

from lookalike import index
from lookalike.cli import main
from lookalike.inference.model import TrainedModel
from lookalike.server import SharedBuckets

pytestmark = pytest.mark.slow
SECONDS = 300  # on a busy machine


def get(url: str, path: str, key: str = READ) -> httpx.Response:
    """With a connection of its own, which any worker may accept."""
    return httpx.get(url + path, headers={"X-API-Key": key}, timeout=60, verify=False)


def post(url: str, picture: bytes, label: str) -> httpx.Response:
    files = {"picture": ("x.png", picture)}
    headers = {"X-API-Key": WRITE}
    return httpx.post(f"{url}/items", files=files, data={"label": label}, headers=headers, timeout=60, verify=False)


def metric(url: str, pattern: str) -> float:
    text = get(url, "/metrics", WRITE).text
    return sum(float(value) for value in re.findall(rf"^{pattern} (\S+)$", text, re.MULTILINE))


def workers_of(parent: int) -> list[psutil.Process]:
    """The workers, without what decodes for them or tracks resources."""
    workers = []
    for child in psutil.Process(parent).children():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it was just killed
            if "spawn_main" in " ".join(child.cmdline()):
                workers.append(child)
    return workers


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture
def server(index_folder: Path, tmp_path: Path) -> Iterator[tuple[str, int]]:
    key_file = tmp_path / "read.key"
    key_file.write_text(f"{READ}\n    reads-per-minute: 40\n")
    arguments = ("--workers", "2", "--read-key-file", str(key_file), "--seconds", "60")
    with in_process(index_folder, *arguments, environment={"LOOKALIKE_WRITE_KEY": WRITE}) as (url, process):
        yield url, process.pid
        workers = workers_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60 + 15 + 10) == 0
        assert not any(worker.is_running() for worker in workers)


def test_two_workers(server: tuple[str, int], index_folder: Path) -> None:
    url, parent = server
    first = workers_of(parent)
    assert len(first) == 2
    assert get(url, "/health").json() == {"status": "ok"}
    assert get(url, "/ready").json() == {"status": "ready", "writes": True}

    # uploads through both: one writes at a time, none is refused
    pictures = [encoded(noise(40, 30, seed)) for seed in range(8)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda i: post(url, pictures[i], f"new{i}"), range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert sorted(answer.json()["created"] for answer in answers) == [True] * 8
    for _ in range(4):  # both know all of them
        labels = {entry["label"] for entry in get(url, "/labels", WRITE).json()["labels"]}
        assert {f"new{i}" for i in range(8)} <= labels

    # metrics and quotas of both together
    assert metric(url, "lookalike_workers") == 2
    assert metric(url, "lookalike_items") == 64 + 8
    assert metric(url, r'lookalike_requests_total\{method="POST",route="/items",status="200"\}') == 8
    with ThreadPoolExecutor(8) as threads:
        statuses = list(threads.map(lambda _: get(url, "/labels").status_code, range(60)))
    assert set(statuses) == {200, 429}
    assert 40 <= statuses.count(200) <= 45  # the quota is 40 and refills while they are sent

    # a killed worker is started again, and its counts stay
    first[0].kill()
    wait_for(lambda: len(workers_of(parent)) == 2 and first[0].pid not in {each.pid for each in workers_of(parent)})
    wait_for(lambda: metric(url, "lookalike_workers") == 2)
    assert get(url, "/health").status_code == 200
    assert metric(url, r'lookalike_requests_total\{method="POST",route="/items",status="200"\}') == 8
    with index.open(index_folder) as idx:
        assert idx.count() == 64 + 8


def test_workers_end_with_their_parent(index_folder: Path) -> None:
    with in_process(index_folder, "--workers", "2") as (_, process):
        workers = workers_of(process.pid)
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(workers, timeout=SECONDS)
        assert alive == []


def test_a_milvus_file_is_for_one_process(model_in_milvus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(model_in_milvus), "--workers", "2"]) == 2
    assert "is in a Milvus file, which serves one process" in capsys.readouterr().err


@pytest.fixture
def model_in_milvus(served_model: TrainedModel, tmp_path: Path) -> Path:
    pytest.importorskip("pymilvus")
    index.create(tmp_path / "m", served_model, str(tmp_path / "m.db")).close()
    return tmp_path / "m"


def test_shared_buckets_equal_those_in_memory(tmp_path: Path) -> None:
    now = 100.0
    one = SharedBuckets(tmp_path / "q.sqlite", lambda: now)
    two = SharedBuckets(tmp_path / "q.sqlite", lambda: now)
    name = ("reads", "a secret key")
    for bucket in (one, two, one):
        assert bucket.wait(name, 1, 3) == 0
        bucket.take(name, 1, 3)
    assert one.wait(name, 1, 3) == two.wait(name, 1, 3) == 20.0
    assert two.wait(("reads", "another"), 1, 3) == 0
    now += 20
    assert two.wait(name, 1, 3) == 0
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert content
    assert b"a secret key" not in content
