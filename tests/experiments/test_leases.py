"""Leases: one winner; a living holder keeps it, a dead one loses it."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lookalike.experiments import leases


@pytest.mark.slow
def test_one_of_many_processes_wins(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from lookalike.experiments.leases import acquire;"
        "folder = Path(sys.argv[1]); go = Path(sys.argv[2]);\n"
        "while not go.exists(): time.sleep(0.001)\n"
        "print(sum(acquire(folder / str(i)) is not None for i in range(50)), flush=True)\n"
        "sys.stdin.read()"  # a lease ends with its process
    )
    words = [sys.executable, "-c", code, str(tmp_path / "work"), str(tmp_path / "go")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(words, **pipes) for _ in range(3)]
    time.sleep(0.5)
    (tmp_path / "go").touch()
    won = [int(worker.stdout.readline()) for worker in workers]
    for worker in workers:
        worker.communicate(timeout=120)
    assert sum(won) == 50


HOLD = (
    "import sys; from pathlib import Path; from lookalike.experiments.leases import acquire\n"
    "print([acquire(Path(folder)) is not None for folder in sys.argv[1:]], flush=True)\n"
    "sys.stdin.read()"
)
linux = pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="only Linux tells who is dead")


def holding(*folders: Path) -> subprocess.Popen[str]:
    """A living process that holds the leases."""
    words = [sys.executable, "-c", HOLD, *map(str, folders)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == f"{[True] * len(folders)}\n"
    return process


@pytest.mark.slow
@linux
def test_the_lease_of_a_killed_process_on_this_host_is_free(tmp_path: Path) -> None:
    first = holding(tmp_path)
    assert leases.is_leased(tmp_path)
    assert leases.acquire(tmp_path) is None
    who, silent = leases.holder(tmp_path) or ("", -1.0)
    assert who == f"process {first.pid} on {socket.gethostname()}"
    assert 0 <= silent < leases.EXPIRES
    first.kill()
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has asked after it
    assert not leases.is_leased(tmp_path)
    first.communicate()
    assert not leases.is_leased(tmp_path)
    second = leases.acquire(tmp_path)
    assert second is not None
    assert second.number == 1
    assert leases.acquire(tmp_path) is None


@pytest.mark.slow
@linux
def test_leases_of_a_dead_process_have_one_new_holder(tmp_path: Path) -> None:
    folders = [tmp_path / str(i) for i in range(30)]
    dead = holding(*folders)
    dead.kill()
    dead.communicate()
    code = HOLD.replace("print(", "sys.stdin.readline()\nprint(")
    words = [sys.executable, "-c", code, *map(str, folders)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(words, **pipes) for _ in range(3)]
    time.sleep(0.5)
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    won = [worker.stdout.readline().count("True") for worker in workers]
    for worker in workers:
        worker.communicate(timeout=120)
    assert sum(won) == 30


@linux
@pytest.mark.parametrize(
    ("word", "value", "is_leased"),
    [
        (0, "elsewhere", True),  # another host: its processes cannot be seen from here
        (3, "another-boot", True),  # another host of the same name
        (4, "pid:[1]", True),  # another container, which counts for itself
        (5, "1", False),  # this process has got the number of the dead one
    ],
)
def test_only_a_process_proven_dead_loses_its_lease(tmp_path: Path, word: int, value: str, is_leased: bool) -> None:
    process = holding(tmp_path)
    words = (tmp_path / "lease-0").read_text().split()
    if is_leased:
        process.kill()
    words[word] = value
    (tmp_path / "lease-0").write_text(" ".join(words) + "\n")
    if is_leased:
        process.communicate()
    assert leases.is_leased(tmp_path) is is_leased
    process.communicate()


@pytest.mark.parametrize("text", ["", "host 1 token\n", "{host} 999999999 token\n", "{host} 999999999 token {more}"])
def test_a_lease_with_too_little_information_is_valid_until_it_expires(tmp_path: Path, text: str) -> None:
    own = leases.acquire(tmp_path / "own")
    assert own is not None
    host, _, _, *more = own.path.read_text().split()
    (tmp_path / "lease-0").write_text(text.format(host=host, more=" ".join(more)))  # the last is half written
    assert leases.acquire(tmp_path) is None
    long_ago = time.time() - 1000
    os.utime(tmp_path / "lease-0", (long_ago, long_ago))
    assert leases.acquire(tmp_path) is not None


def test_an_expired_lease_is_taken_over_once_and_counts_as_lost(tmp_path: Path) -> None:
    first = leases.acquire(tmp_path)
    assert first is not None
    assert leases.acquire(tmp_path) is None
    assert leases.is_leased(tmp_path)
    long_ago = time.time() - 1000
    os.utime(first.path, (long_ago, long_ago))
    assert not leases.is_leased(tmp_path)
    second = leases.acquire(tmp_path)
    assert second is not None
    assert second.number == 1
    assert first.lost
    assert not second.lost
    assert leases.acquire(tmp_path) is None


def test_a_living_worker_keeps_its_lease_and_a_released_one_is_free(tmp_path: Path) -> None:
    held = leases.acquire(tmp_path, expires=0.4)
    assert held is not None
    with held.kept_alive(lambda: pytest.fail("nobody took over"), every=0.05):
        for _ in range(10):
            time.sleep(0.1)
            assert leases.acquire(tmp_path, expires=0.4) is None
    held.release()
    assert leases.acquire(tmp_path, expires=0.4) is not None


def test_the_holder_is_told_once_when_another_takes_over(tmp_path: Path) -> None:
    held = leases.acquire(tmp_path)
    assert held is not None
    told = []
    with held.kept_alive(lambda: told.append(True), every=0.02):
        (tmp_path / "lease-1").touch()
        time.sleep(0.3)
    assert told == [True]


def test_leaves_no_clock_files(tmp_path: Path) -> None:
    leases.acquire(tmp_path)
    leases.is_leased(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lease-0"]
