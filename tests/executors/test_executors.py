"""Executors on this machine: every task runs once, whatever dies, and results do not depend on where tasks run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmark_words import metrics, words
from executor_tasks import always_die, die_twice, double, is_alive, pool_processes, wait_for

from lookalike._util.signals import Stopped
from lookalike.cli import main
from lookalike.executors import RETRIES, WorkerDied, create_executor
from lookalike.executors.local import LocalExecutor

pytestmark = pytest.mark.slow


def test_tasks_are_drawn_only_when_there_is_room() -> None:
    drawn: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(5):
            drawn.append(number)
            yield number

    results = LocalExecutor(2).run(double, tasks(), 3)
    first = next(results)
    assert len(drawn) <= 3
    assert sorted([first, *results]) == [(number, 3 * number) for number in range(5)]


def test_a_task_whose_process_dies_is_run_again(tmp_path: Path) -> None:
    lines: list[str] = []
    results = dict(LocalExecutor(2, lines.append).run(die_twice, [3], tmp_path))
    assert results == {3: 9}
    assert lines == ["a worker process died: 1 interrupted, continuing"] * 2


def test_a_process_that_dies_before_a_task_is_sent_is_replaced() -> None:
    def tasks() -> Iterator[int]:
        yield 1
        for process in wait_for(lambda: pool_processes(os.getpid())):
            os.kill(process, signal.SIGKILL)
        time.sleep(1)  # the pool notices
        yield 2

    assert dict(LocalExecutor(2, lambda _: None).run(double, tasks(), 10)) == {1: 10, 2: 20}


def test_a_task_that_kills_every_process_ends_the_command(tmp_path: Path) -> None:
    with pytest.raises(WorkerDied, match=f"died {RETRIES + 1} times"):
        list(LocalExecutor(2, lambda _: None).run(always_die, [1], tmp_path))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_two_processes_find_what_one_finds_although_all_are_killed(
    tmp_path: Path, number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    """A worker dies and another takes its task; the coordinator dies, its workers save their states and end."""
    many = tmp_path / "many"
    command = [sys.executable, "-m", "lookalike", *words(many, "--workers", "2")]
    coordinator = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    request.addfinalizer(coordinator.kill)
    wait_for(lambda: list(many.glob("cells/*/run/state/last.pt")))
    workers = pool_processes(coordinator.pid)
    if number == signal.SIGTERM:
        os.kill(workers[0], signal.SIGKILL)
        wait_for(lambda: set(pool_processes(coordinator.pid)) - set(workers))
        workers = pool_processes(coordinator.pid)
    coordinator.send_signal(number)
    _, errors = coordinator.communicate(timeout=300)
    assert coordinator.returncode in (128 + number, -number), errors
    assert number == signal.SIGKILL or "a worker process died" in errors
    wait_for(lambda: not any(is_alive(worker) for worker in workers))
    assert main(words(many)) == 0  # one process finishes what they began
    assert metrics(many) == request.getfixturevalue("alone")
    for log in many.rglob("log.txt"):
        assert log.read_text().count("step     32") == 1, "a cell was trained twice"  # a kill may repeat step 0


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process finds."""
    out = tmp_path_factory.mktemp("alone") / "one"
    assert main(words(out)) == 0
    assert len(metrics(out)) == 4
    return metrics(out)


def test_a_stop_inside_the_only_process_ends_the_command() -> None:
    def stop(_task: int, _shared: None) -> None:
        raise Stopped(signal.SIGTERM)

    with pytest.raises(Stopped):
        list(LocalExecutor().run(stop, [1], None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "slurm"}, "executor must be local or ray, got 'slurm'"),
        ({"name": "local", "ray_address": "auto"}, "--ray-address needs --executor ray"),
        ({"name": "ray", "workers": 2}, "--workers is for --executor local"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_executor(**options)


def test_without_ray_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'lookalike\[ray\]'"):
        create_executor("ray")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("ray://127.0.0.1:1", "Connection refused"),
        ("nowhere.invalid:6379", ""),
        ("127.0.0.1:99999", ""),
    ],
)
def test_an_address_without_a_cluster_is_refused_at_once(address: str, reason: str) -> None:
    pytest.importorskip("ray", reason="RAY IS NOT INSTALLED")
    with pytest.raises(ValueError, match=f"no Ray cluster at {address}: {reason}") as caught:
        create_executor("ray", ray_address=address)
    assert "\n" not in str(caught.value)
