"""Benchmarks that are killed, shared, repeated and that fail in part."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lookalike
from lookalike._util.folder_lock import FolderLock
from lookalike.cli import main
from lookalike.experiments.estimate import Estimate, describe_estimate
from lookalike.experiments.results import RESULTS_VERSION

DATA = "glyphs(cells=1,size=32,train_classes=8,test_classes=4,per_class=4)"
SMALL = "backbone=resnet8-half, size=32, start=random, freeze_backbone=false, lr=0.001, crop=none, workers=0"
SMALL += ", batch_size=8, dim=8, device=cpu"


def words(out: Path, *more: str, settings: str = "steps=2, evaluate_every=1") -> list[str]:
    return ["benchmark", "--data", DATA, "--out", str(out), "--set", f"{SMALL}, {settings}", *more]


def results(out: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(file.read_text()) for file in sorted(out.glob("cells/*/result.json"))]
    return {f"{each['title']} {each['fold']} {each['repeat']}": each for each in found}


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def test_what_is_done_is_not_done_again_and_a_failure_does_not_stop_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    poolings = ("--poolings", "average,gsp(num_prototypes=4),attention(temperature=1e-45)")  # divides by 0 in fp32
    assert main([*words(tmp_path / "a", *poolings), "--json"]) == 1
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert sorted(cell["standing"] for cell in report["cells"]) == ["done", "done", "failed"]
    assert "finite" in next(iter(report["failed"].values()))
    assert "2 of 3 done, 1 failed" in told.err
    typed = (tmp_path / "a" / "commands.txt").read_text().splitlines()
    assert len(typed) == 1
    assert shlex.split(typed[0].split(": ", 1)[1])[1:] == [*words(tmp_path / "a", *poolings), "--json"]
    done = results(tmp_path / "a")
    assert set(done) == {"c2 + average 0 0", "c2 + gsp(num_prototypes=4) 0 0"}
    for result in done.values():
        assert result["cpu_seconds"] > result["cpu_seconds_per_step"] > 0
        assert (result["asked_batch_size"], result["frozen"]) == (8, None)  # its backbone starts with random weights
        assert 0 <= result["test"]["MAP@R"] <= 1
        assert result["test"]["queries"] == 16
        assert result["steps"] == 2
        assert result["seconds_per_step"] > 0
    assert done["c2 + gsp(num_prototypes=4) 0 0"]["pooling_parameters"] == 4 * 8
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "a").rglob("result.json")}
    logs = {file: file.read_text() for file in (tmp_path / "a").rglob("log.txt")}
    assert main(words(tmp_path / "a", "--poolings", "average,gsp(num_prototypes=4)")) == 0
    assert times == {file: file.stat().st_mtime_ns for file in (tmp_path / "a").rglob("result.json")}
    assert logs == {file: file.read_text() for file in (tmp_path / "a").rglob("log.txt")}
    # what failed stays failed until it is asked for again
    assert main(words(tmp_path / "a", *poolings)) == 1
    assert {file: file.read_text() for file in (tmp_path / "a").rglob("log.txt")} == logs
    assert main(words(tmp_path / "a", *poolings, "--retry-failed")) == 1
    assert {file: file.read_text() for file in (tmp_path / "a").rglob("log.txt")} != logs


def test_results_of_another_version_are_computed_again_and_not_mixed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = words(tmp_path / "a", "--poolings", "average")
    assert main(arguments) == 0
    assert "outdated" not in capsys.readouterr().err
    monkeypatch.setattr("lookalike.experiments.cells.RESULTS_VERSION", 99)
    monkeypatch.setattr("lookalike.experiments.results.RESULTS_VERSION", 99)
    monkeypatch.setattr("lookalike.report.benchmark.RESULTS_VERSION", 99)
    assert main(arguments) == 0
    printed = capsys.readouterr().err
    assert f"1 outdated result in {tmp_path / 'a'} not used: another version than 99\n" in printed
    assert "0 done" in printed
    files = sorted((tmp_path / "a" / "cells").glob("*/result.json"), key=lambda file: file.stat().st_mtime_ns)
    stored = [json.loads(file.read_text()) for file in files]
    assert [result["version"] for result in stored] == [RESULTS_VERSION, 99]
    assert {result["lookalike"] for result in stored} == {lookalike.__version__}
    assert main(["report", str(tmp_path / "a")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("1 result of another version than 99, in tables of their own: outdated")
    assert text.index("protocol quick, version 99") < text.index(f"protocol quick, version {RESULTS_VERSION}")


def test_a_plan_is_printed_and_nothing_is_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "steps=2, evaluate_every=1, weights=none"
    assert main(words(tmp_path / "a", "--plan", "--seeds", "3", settings=asked)) == 0
    told = capsys.readouterr().err
    assert "2 rows, 6 models" in told
    assert "6 open" in told
    assert "for 1,000 steps of one model" in told
    assert "warning" not in told  # the random start was asked for
    assert not (tmp_path / "a").exists()


def test_the_test_is_computed_by_engine_and_device_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    load = lookalike.load

    def spy(*arguments: Any, **keywords: Any) -> Any:
        loaded.append(arguments[1:3])
        return load(*arguments, **keywords)

    monkeypatch.setattr("lookalike.load", spy)
    settings = "steps=1, evaluate_every=1, engine=torch"
    assert main(words(tmp_path / "a", "--poolings", "average", settings=settings)) == 0
    assert loaded == [("cpu", "torch")]


def test_small_batches_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six of the eight training classes train, with four pictures each in a batch."""
    assert main(words(tmp_path / "a", "--plan", settings="batch_size=32, per_class=4")) == 0
    told = capsys.readouterr().err
    assert "warning: batches of 24 pictures instead of 32, too few training classes: c2 + average, c2 + gsp" in told


def test_the_table_of_skewed_means_in_miniature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--protocol", "skewed-means")
    assert main(words(tmp_path / "a", *options, "--plan")) == 0
    assert "10 rows, 30 models" in capsys.readouterr().err
    small = words(tmp_path / "a", *options, "--seeds", "1", settings="steps=2, evaluate_every=1, weights=none")
    assert main(small) == 0
    done = results(tmp_path / "a")
    assert len(done) == 10
    assert sum("centres" in title for title in done) == 5


@pytest.mark.parametrize(
    ("left", "workers", "told"),
    [
        (1, 1, "about 100 s for 1,000 steps of one model, about 70 s for 1 model with one worker"),
        (6, 3, "about 100 s for 1,000 steps of one model, about 2 min for 6 models with 3 workers"),
        (7, 3, "about 100 s for 1,000 steps of one model, about 3 min for 7 models with 3 workers"),
    ],
)
def test_the_estimate_knows_the_workers(left: int, workers: int, told: str) -> None:
    guess = Estimate.__new__(Estimate)
    guess.steps, guess.per_thousand, guess.evaluation, guess.test, guess.once = 500, 100.0, 5.0, 5.0, 10.0
    assert describe_estimate(guess, left, workers=workers) == told


@pytest.mark.slow
def test_killed_and_resumed_it_comes_to_the_same(tmp_path: Path) -> None:
    settings = "steps=40, evaluate_every=4"
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    one = ("--poolings", "average")
    assert main(words(whole, *one, settings=settings)) == 0
    command = [sys.executable, "-m", "lookalike", *words(broken, *one, settings=settings)]
    worker = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not list(broken.glob("cells/*/run/state/last.pt")) and time.monotonic() < until:
        time.sleep(0.01)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert not results(broken), "it was to be killed before the end"
    assert main(words(broken, *one, settings=settings)) == 0
    assert results(broken)["c2 + average 0 0"]["test"] == results(whole)["c2 + average 0 0"]["test"]
    log = next(broken.rglob("log.txt")).read_text()
    assert log.count("step      0") == 1, "the second command was to go on, not to begin anew"
    assert "continuing after step" in log


def test_a_second_command_on_the_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FolderLock(tmp_path / "a"):
        assert main(words(tmp_path / "a", "--poolings", "average")) == 1
    assert "is being written by another process" in capsys.readouterr().err
    assert not results(tmp_path / "a")


def test_a_result_holds_for_its_pictures_wherever_they_are_but_not_for_others(
    class_folders: Path, tmp_path: Path
) -> None:
    pictures = tmp_path / "pictures"
    shutil.copytree(class_folders, pictures)
    typed = words(tmp_path / "out", "--poolings", "average")
    typed[typed.index(DATA)] = str(pictures)
    assert main(typed) == 0
    for file in pictures.rglob("*.png"):
        os.utime(file, (1, 1))
    assert main(typed) == 0
    assert len(results_files(tmp_path / "out")) == 1, "the same content with another time"
    rng = np.random.default_rng(0)
    for file in pictures.rglob("*.png"):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(file)
    assert main(typed) == 0
    assert len(results_files(tmp_path / "out")) == 2, "other content with the same names"


def results_files(out: Path) -> list[Path]:
    return list(out.glob("cells/*/result.json"))


def test_a_run_whose_last_process_is_still_ending_is_waited_for(tmp_path: Path) -> None:
    one = ("--poolings", "average")
    assert main(words(tmp_path, *one)) == 0
    [result] = tmp_path.rglob("result.json")
    result.unlink()
    lock = FolderLock(result.parent / "run")
    lock.acquire()
    timer = threading.Timer(1.5, lock.release)
    timer.start()
    assert main(words(tmp_path, *one)) == 0
    timer.join()
    assert result.exists()
    assert not (result.parent / "failed.json").exists()


@pytest.mark.slow
def test_two_workers_share_the_work_and_do_nothing_twice(tmp_path: Path) -> None:
    typed = words(tmp_path, "--seeds", "3", "--workers", "2", "--json")
    command = [sys.executable, "-m", "lookalike", *typed]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert [cell["standing"] for cell in json.loads(done.stdout)["cells"]] == ["done"] * 6
    for once in ("2 rows, 6 models", "6 open", "for 6 models with 2 workers", "6 of 6 done"):
        assert done.stderr.count(once) == 1, once
    assert "at most" not in done.stderr
    assert [shlex.split(line)[-len(typed) :] for line in (tmp_path / "commands.txt").read_text().splitlines()] == [
        typed
    ]
    assert len(results(tmp_path)) == 6
    assert done.stderr.count("MAP@R") == 6
    for log in tmp_path.rglob("log.txt"):
        assert log.read_text().count("step      0") == 1


def test_vectors_are_kept_where_models_are_joined(tmp_path: Path) -> None:
    protocol = tmp_path / "two.yaml"
    protocol.write_text("base: quick\nname: two\nsplit: {folds: 2, models: 2}\nconcatenate: true\n")
    assert main(words(tmp_path / "a", "--protocol", str(protocol), "--poolings", "average")) == 0
    assert len(results(tmp_path / "a")) == 2
    assert len(list((tmp_path / "a").rglob("vectors.npy"))) == 2
    assert len(list((tmp_path / "a" / "tests").glob("*.npz"))) == 2, "one for the pictures of each fold"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--losses", "c3"), "there is no loss 'c3'"),
        (("--protocol", "fiar"), "there is no protocol 'fiar'"),
        (("--variant", "M"), "variant must be one of S, L"),
        (("--workers", "0"), "workers must be at least 1"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_written(
    tmp_path: Path, more: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(tmp_path / "a", *more)) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
