"""One process trains in a run folder at a time, and a killed one leaves no lock."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock

from lookalike._util.files import LOCK
from lookalike._util.folder_lock import FolderInUse, FolderLock
from lookalike.cli import main
from lookalike.training.checkpoint import RunFolder

COMMAND = "import sys; from lookalike.cli import main; sys.exit(main())"


def train_words(data: Path, out: Path, *more: str) -> list[str]:
    return [
        *("train", str(data), "--out", str(out), "--backbone", "resnet20", "--dim", "8", "--batch-size", "8"),
        *("--per-class", "2", "--save-every", "1", "--device", "cpu", "--no-freeze-backbone", *more),
    ]


def start(data: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    """Train in another process; return when its first state is on disk."""
    words = [sys.executable, "-c", COMMAND, *train_words(data, out, "--steps", "100000", *more)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (out / "state" / "last.pt").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return process


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_second_run_is_refused_and_a_killed_run_leaves_no_lock(
    class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: str
) -> None:
    out = tmp_path / "run"
    process = start(class_folders, out, "--workers", workers)
    try:
        for more in (["--resume", "--steps", "100001"], ["--steps", "3"]):
            assert main(train_words(class_folders, out, "--workers", "0", *more)) == 1
            message = capsys.readouterr().err
            assert "is being written by another process" in message
            assert message.strip().count("\n") == 0
    finally:
        process.kill()
        process.communicate()
    RunFolder(out).lock()  # at once, though workers of the killed run may live for some seconds
    assert (out / LOCK).exists()


def test_a_stopped_run_frees_its_folder(class_folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(class_folders, out, "--workers", "0")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert not (out / LOCK).exists()
    FolderLock(out).acquire()


def test_the_lock_file_of_a_killed_run_is_no_content(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    RunFolder(tmp_path).refuse_if_taken()


def test_a_lock_excludes_and_leaves_nothing(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path / "a" / "b"), FolderLock(tmp_path / "a" / "b")
    first.acquire()
    with pytest.raises(FolderInUse, match="another process"):
        second.acquire()
    second.release()
    with pytest.raises(FolderInUse):
        FolderLock(tmp_path / "a" / "b").acquire()
    first.release()
    assert not list(tmp_path.iterdir())
    second.acquire()
    (tmp_path / "a" / "b" / "file").touch()
    second.release()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["file"]


def test_a_lock_makes_the_folder_again_that_its_holder_has_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a" / "b"
    acquire = FileLock.acquire
    attempts = 0

    def acquire_too_late(lock: FileLock) -> object:
        nonlocal attempts
        attempts += 1
        if attempts == 1:  # the holder ends, and its folder is empty
            path.rmdir()
            path.parent.rmdir()
        return acquire(lock)

    monkeypatch.setattr(FileLock, "acquire", acquire_too_late)
    with FolderLock(path):
        assert (path / LOCK).exists()
    assert not list(tmp_path.iterdir())


def test_a_lock_waits_for_its_holder(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path / "a" / "b"), FolderLock(tmp_path / "a" / "b", timeout=60)
    first.acquire()
    timer = threading.Timer(0.2, first.release)  # the folder is empty, and goes
    timer.start()
    with second:
        assert (tmp_path / "a" / "b" / LOCK).exists()
    timer.join()
