"""The benchmark of the head's step runs and writes what it promises. Its times are never asserted."""

import json
from types import ModuleType

import pytest


def test_compares_both_poolings(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "CHANNELS", 16)
    monkeypatch.setattr(benchmark.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr("sys.argv", ["head_step.py", "--repeats", "1", "--loss", "proxy-nca", "--json"])
    benchmark.main()
    report = json.loads(capsys.readouterr().out)
    assert report["milliseconds"].keys() == {"average", "gsp"}
    times = report["milliseconds"]
    assert report["ratios"]["median"] == pytest.approx(times["gsp"] / times["average"])
