"""Where nobody looks at a bar, lines tell how far it is: few, and ever fewer."""

import sys
import time

import pytest

from lookalike._util.progress import Display, progress
from lookalike._util.signals import StopRequest


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_log_hears_of_long_work_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    with progress(1000, "learning", " steps") as tick:
        for _ in range(1000):
            clock.now += 1
            tick(1)
    assert capsys.readouterr().err.splitlines() == [
        "learning: 30 of 1,000 steps, about 16 min left",
        "learning: 90 of 1,000 steps, about 15 min left",
        "learning: 210 of 1,000 steps, about 13 min left",
        "learning: 450 of 1,000 steps, about 9 min left",
        "learning: 930 of 1,000 steps, about 70 s left",
    ]


def test_short_work_and_quiet_work_say_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    with progress(20, "learning") as tick:
        for _ in range(20):
            clock.now += 1
            tick(1)
    with progress(20, "learning", quiet=True) as tick:
        for _ in range(20):
            clock.now += 100
            tick(1)
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress(3, "learning", " steps") as tick:
        tick(2)
    said = capsys.readouterr().err
    assert "learning" in said
    assert "/3" in said


def test_opening_lines_are_said_once_when_work_begins(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(StopRequest(), opening=["first", "second"])
    assert capsys.readouterr().err == ""
    with display.bar(1, "learning"):
        assert capsys.readouterr().err == "first\nsecond\n"
    display.say("third")
    display.open()
    assert capsys.readouterr().err == "third\n"
