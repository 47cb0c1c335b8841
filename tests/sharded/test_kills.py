"""Killed at random places and started again: no picture twice, none lost, vectors as from the plain command."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from collection_helpers import BAD, COPIES, draw_collection, names_of, stored_vectors

from lookalike import index
from lookalike.cli import main

pytestmark = pytest.mark.slow
PER_KIND = 40


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_collection(tmp_path_factory.mktemp("many") / "pictures", PER_KIND)


@pytest.fixture(scope="module")
def plain(run: Path, many: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """By path, the vectors of the plain command."""
    out = tmp_path_factory.mktemp("plain") / "v.parquet"
    assert main(["embed", str(run), str(many), "--out", str(out), "--cache", "none", "--device", "cpu"]) == 0
    table = pq.read_table(out)
    assert set(table["path"].to_pylist()) == set(names_of(many))
    return {row["path"]: np.array(row["vector"], np.float32).tobytes() for row in table.to_pylist()}


@contextmanager
def started(words: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """The command as a process, which is killed at the end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "lookalike", *words], env=environment, stdout=subprocess.DEVNULL)
    try:
        yield process
        assert process.poll() is None, "it ended too early"
    finally:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], Any], seconds: float = 300) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("it never came")


def workers_of(coordinator: int) -> list[int]:
    children = [
        int(child)
        for tasks in Path(f"/proc/{coordinator}/task").iterdir()  # a process is the child of the thread that made it
        for child in (tasks / "children").read_text().split()
    ]
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_embed_killed_at_random_places(
    run: Path, many: Path, plain: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The coordinator, then a worker of the one that continues; from a URL."""
    out = tmp_path / "v"
    words = ["embed", str(run), f"file://{many}", "--out", str(out), "--device", "cpu", "--json"]
    words += ["--executor", "local", "--processes", "2", "--shard-size", "4"]
    rng = random.Random(3)
    first = rng.randint(1, 6)
    with started(words) as process:
        wait_for(lambda: len(list(out.glob("part-*"))) >= first or process.poll())
    assert not json.loads((out / "_embedding.json").read_text())["finished"]
    done_before = len(stored_vectors(out))
    assert stored_vectors(out).items() <= plain.items()
    parts = len(list(out.glob("part-*"))) + rng.randint(1, 6)

    def kill() -> None:
        wait_for(lambda: len(list(out.glob("part-*"))) >= parts)
        os.kill(rng.choice(workers_of(os.getpid())), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert main(words) == 0
    killer.join()
    printed, errors = capsys.readouterr()
    assert "a worker process died" in errors
    report = json.loads(printed)
    assert report["done_before"] == done_before
    assert [name for name, _ in report["unreadable"]] == [BAD]
    assert stored_vectors(out) == plain
    assert report["pictures"] == len(plain) == 3 * PER_KIND + len(COPIES)
    assert json.loads((out / "_embedding.json").read_text())["finished"]


def test_index_killed_at_random_places(
    run: Path, many: Path, plain: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With Parquet files in the same pass."""
    out, vectors = tmp_path / "i", tmp_path / "v"
    words = ["index", str(run), str(many), "--out", str(out), "--device", "cpu", "--json"]
    words += ["--executor", "local", "--shard-size", "4", "--parquet", str(vectors)]

    def count() -> int:
        try:
            with index.open(out) as idx:
                return idx.count()
        except (OSError, ValueError):
            return 0

    with started(words) as process:
        wait_for(lambda: count() >= 20 or process.poll())
    begun = count()
    assert 20 <= begun < len(plain)
    assert begun - 4 <= len(stored_vectors(vectors)) <= begun
    with index.open(out) as idx:
        computed = len({stamp.rpartition(":")[2] for stamp in idx.all_stamps().values()})
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["added"], report["unchanged"], report["count"]) == (len(plain) - begun, begun, len(plain))
    assert report["computed"] + computed == len(plain) - len(COPIES)
    assert report["parquet"] == {"out": str(vectors), "rows": len(plain)}
    assert stored_vectors(vectors) == plain
    with index.open(out) as idx:
        items = idx.items()
        stored = idx.vectors([item.id for item in items])
    assert {
        item.file.relative_to(many).as_posix(): vector.tobytes() for item, vector in zip(items, stored, strict=True)
    } == plain
