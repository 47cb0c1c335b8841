"""Claims: one winner, whoever is alive keeps it, whoever is dead loses it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lookalike.protocols import claims


def test_one_of_many_processes_wins(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from lookalike.protocols.claims import claim;"
        "folder = Path(sys.argv[1]); go = Path(sys.argv[2]);\n"
        "while not go.exists(): time.sleep(0.001)\n"
        "print(sum(claim(folder / str(i)) is not None for i in range(50)))"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "work"), str(tmp_path / "go")]
    workers = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    time.sleep(0.5)
    (tmp_path / "go").touch()
    won = [int(worker.communicate(timeout=120)[0]) for worker in workers]
    assert sum(won) == 50


def test_an_expired_claim_is_taken_over_once_and_its_holder_hears_of_it(tmp_path: Path) -> None:
    first = claims.claim(tmp_path)
    assert first is not None
    assert claims.claim(tmp_path) is None
    assert claims.is_claimed(tmp_path)
    long_ago = time.time() - 1000
    os.utime(first.path, (long_ago, long_ago))
    assert not claims.is_claimed(tmp_path)
    second = claims.claim(tmp_path)
    assert second is not None
    assert second.number == 1
    assert first.lost
    assert not second.lost
    assert claims.claim(tmp_path) is None


def test_a_living_worker_keeps_its_claim_and_a_released_one_is_free(tmp_path: Path) -> None:
    held = claims.claim(tmp_path, expires=0.4)
    assert held is not None
    with held.kept_alive(lambda: pytest.fail("nobody took over"), every=0.05):
        for _ in range(10):
            time.sleep(0.1)
            assert claims.claim(tmp_path, expires=0.4) is None
    held.release()
    assert claims.claim(tmp_path, expires=0.4) is not None


def test_the_holder_is_told_once_when_another_takes_over(tmp_path: Path) -> None:
    held = claims.claim(tmp_path)
    assert held is not None
    told = []
    with held.kept_alive(lambda: told.append(True), every=0.02):
        (tmp_path / "claim-1").touch()
        time.sleep(0.3)
    assert told == [True]


def test_leaves_no_clock_files(tmp_path: Path) -> None:
    claims.claim(tmp_path)
    claims.is_claimed(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["claim-0"]
