"""Killed at any moment: what was acknowledged is there, and nothing is half there."""

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_helpers import DIM, draw, make_items

from lookalike import index
from lookalike.inference.model import TrainedModel

ROUNDS = 8
EACH = 5  # items that are added together


def killed_while(work: Callable[[Any], None], after: float, least: int = 0) -> list[Any]:
    """Run it in another process, kill that after ``least`` messages and so many seconds, and give what it had sent."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=work, args=(sender,))
    process.start()
    sender.close()
    sent = [receiver.recv() for _ in range(1 + least)]  # the first: it has begun
    time.sleep(after)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    try:
        while True:
            sent.append(receiver.recv())
    except EOFError:
        return sent[1:]


def group(number: int) -> list[index.Item]:
    return [index.Item(f"g{number:04d}-{i}", f"/{number}/{i}", f"group {number}") for i in range(EACH)]


def steps(start: int) -> Iterator[tuple[int, float | None]]:
    """Group after group: add it; then delete every third, and add every other third again with another vector."""
    for number in range(start, start + 100_000):
        yield number, number + 1.0
        if number % 3 < 2:
            yield number, None if number % 3 == 0 else -number - 1.0


def stored_groups(idx: index.Index) -> dict[int, float]:
    """Group -> value of its vectors; every group must be whole, and have one value."""
    labels = idx.labels()
    assert set(labels.values()) <= {EACH}
    found = {}
    for label in labels:
        number = int(label.split()[1])
        (value,) = np.unique(idx.vectors([item.id for item in group(number)])).tolist()
        found[number] = value
    assert idx.count() == EACH * len(found)
    return found


@pytest.mark.slow
def test_killed_while_adding_and_deleting(model: TrainedModel, tmp_path: Path) -> None:
    path = tmp_path / "i"
    index.create(path, model).close()
    chance = random.Random(0)
    before: dict[int, float] = {}
    acknowledged = 0
    for round_ in range(ROUNDS):
        start = 1000 * round_

        def work(sender: Any, start: int = start) -> None:
            with index.open(path) as idx:
                sender.send("begun")
                for number, value in steps(start):
                    ids = [item.id for item in group(number)]
                    idx.delete(ids) if value is None else idx.add(group(number), np.full((EACH, DIM), value))
                    sender.send(number)

        done = len(killed_while(work, chance.uniform(0, 0.15), least=2))
        acknowledged += done
        after = [before]  # what is held after one step, two, ...
        for number, value in islice(steps(start), done + 1):
            rest = {each: kept for each, kept in after[-1].items() if each != number}
            after.append(rest if value is None else {**rest, number: value})
        with index.open(path) as idx:
            before = stored_groups(idx)
            assert before in after[-2:]  # all that was acknowledged, and perhaps the step that was not yet
            assert len(idx.search(np.ones((1, DIM)), 3)[0]) == min(3, EACH * len(before))
    assert acknowledged > ROUNDS


@pytest.mark.slow
def test_killed_while_creating_and_saving(model: TrainedModel, tmp_path: Path) -> None:
    items, vectors = make_items(1200), draw(1200)
    chance = random.Random(1)
    for round_ in range(6):
        path = tmp_path / f"i{round_ % 2}"
        shutil.rmtree(path, ignore_errors=True)

        def work(sender: Any, path: Path = path) -> None:
            sender.send("begun")
            idx = index.create(path, model, kind="ivf")
            sender.send("created")
            idx.add(items, vectors)
            sender.send("added")
            while True:
                idx.save()

        sent = killed_while(work, chance.uniform(0, 0.5))
        if not path.exists():
            assert sent == []
            index.create(path, model, kind="ivf").close()
        with index.open(path) as idx:
            assert idx.count() == 1200 if "added" in sent else idx.count() in (0, 1200)
            if idx.count():
                assert idx.search(vectors[:1], 1)[0][0].item == items[0]
            idx.add(items, vectors)  # no lock was left behind
    left = [each.name for each in tmp_path.iterdir() if each.name.startswith(".")]
    for round_ in range(2):
        shutil.rmtree(tmp_path / f"i{round_}")
        index.create(tmp_path / f"i{round_}", model).close()
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == [], left


MILVUS = """
import sys
import numpy as np
from lookalike import index
idx = index.open(sys.argv[1])
print("begun", flush=True)
for n in range(10_000):
    items = [index.Item(f"g{n:04d}-{i}", f"/{n}/{i}", f"group {n}") for i in range(5)]
    idx.add(items, np.full((5, idx.dim), n + 1.0))
    idx.add(items, np.full((5, idx.dim), -n - 1.0))
    print("changed", n, flush=True)
    if n % 2 == 0:
        idx.delete([item.id for item in items])
        print("deleted", n, flush=True)
"""


@pytest.mark.slow
def test_killed_with_embedded_milvus(model: TrainedModel, tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite", reason="NOT TESTED: Milvus is not installed")
    path = tmp_path / "m"
    index.create(path, model, str(tmp_path / "m.db")).close()
    process = subprocess.Popen([sys.executable, "-c", MILVUS, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(30)]
    process.kill()
    said += process.stdout.readlines()
    process.wait()
    done = [line.split() for line in said if len(line.split()) == 2]
    last = max(int(n) for _, n in done)
    with index.open(path) as idx:
        labels = idx.labels()
        for what, n in done:
            if what == "deleted":
                assert f"group {n}" not in labels
            elif int(n) % 2:
                assert labels[f"group {n}"] == EACH
                assert (idx.vectors([f"g{int(n):04d}-{i}" for i in range(EACH)]) == -int(n) - 1).all()
        assert set(labels.values()) <= {EACH}
        assert {int(label.split()[1]) for label in labels} <= set(range(last + 2))
