"""Independent parts of a study run on an executor, and give what they give without one."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lookalike_studies.framework.context import Context, Part, Tick

from lookalike._util.progress import Display
from lookalike._util.signals import StopRequest
from lookalike.cli import main
from lookalike.executors.local import LocalExecutor


def square(number: int, folder: Path, tick: Tick) -> dict[str, Any]:
    """Notes every call; the first one for 3 kills its process."""
    with (folder / f"{number}.calls").open("a") as file:
        file.write("x")
    if number == 3 and len((folder / "3.calls").read_text()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tick(1)
    return {"square": number**2, "process": os.getpid(), "array": np.arange(number)}


def parts(folder: Path, numbers: range) -> list[Part]:
    return [Part(f"square {number}", 1, partial(square, number, folder)) for number in numbers]


@pytest.mark.slow
def test_parts_are_computed_once_although_a_process_dies(tmp_path: Path) -> None:
    executor = LocalExecutor(2, lambda _: None)
    context = Context(tmp_path / "out", Display(StopRequest(), quiet=True), executor=executor)
    some = context.train_all(parts(tmp_path, range(2)))
    results = context.train_all(parts(tmp_path, range(6)))
    assert [result["square"] for result in results] == [0, 1, 4, 9, 16, 25]
    assert [result["array"].tolist() for result in results] == [list(range(number)) for number in range(6)]
    assert [part["process"] for part in results[:2]] == [part["process"] for part in some]
    assert os.getpid() not in {result["process"] for result in results}
    assert (tmp_path / "3.calls").read_text() == "xx"
    assert (tmp_path / "0.calls").read_text() == "x"


def test_without_an_executor_parts_run_here(tmp_path: Path) -> None:
    context = Context(tmp_path / "out", Display(StopRequest(), quiet=True))
    results = context.train_all(parts(tmp_path, range(3)))
    assert {result["process"] for result in results} == {os.getpid()}


@pytest.mark.slow
@pytest.mark.parametrize("study", ["centres", "tokens"])
def test_a_study_finds_the_same_in_two_processes(study: str, tmp_path: Path) -> None:
    for out, workers in (("one", "1"), ("two", "2")):
        words = ["study", study, "--miniature", "--out", str(tmp_path / out), "--workers", workers]
        assert main(words) == 0
    names = sorted(path.name for path in (tmp_path / "one" / "parts").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "two" / "parts").iterdir())
    for name in names:
        with np.load(tmp_path / "one" / "parts" / name) as one, np.load(tmp_path / "two" / "parts" / name) as two:
            for key in set(one) - {"seconds of the part"}:
                assert np.array_equal(one[key], two[key]), (name, key)


def test_a_study_without_parts_takes_no_executor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "toy", "--miniature", "--out", str(tmp_path / "out"), "--workers", "2"]) == 2
    assert "the study toy has no independent parts: leave out --executor and --workers" in capsys.readouterr().err
