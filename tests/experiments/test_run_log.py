"""What a model says while it trains: all of it into its log, some of it to the terminal."""

import io
import sys

import pytest

from lookalike.experiments import run_log
from lookalike.experiments.run_log import RunLog


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_the_newest_line_reaches_the_terminal_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(run_log, "time", clock)
    log, terminal = io.StringIO(), io.StringIO()
    before = sys.stderr
    with RunLog(log, terminal, "birds: c2 + gsp"):
        print("training on 4 pictures", file=sys.stderr)
        clock.now = 31.0
        sys.stderr.write("features: 10 of 20")
        assert terminal.getvalue() == "", "the line is not complete"
        sys.stderr.write(" pictures\nstep")
        clock.now = 40.0
        print(" 5  MAP@R 10.00", file=sys.stderr)
        clock.now = 62.0
        print("step 10  MAP@R 20.00\n", file=sys.stderr)
        assert not sys.stderr.isatty()
    assert sys.stderr is before
    assert terminal.getvalue() == (
        "  birds: c2 + gsp: features: 10 of 20 pictures\n  birds: c2 + gsp: step 10  MAP@R 20.00\n"
    )
    assert log.getvalue().splitlines() == [
        "training on 4 pictures",
        "features: 10 of 20 pictures",
        "step 5  MAP@R 10.00",
        "step 10  MAP@R 20.00",
        "",
    ]
