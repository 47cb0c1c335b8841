"""The benchmark of GSP's settings on glyphs runs, and names what it runs."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from lookalike import pooling
from lookalike.demo.run import QUICK


def test_runs_and_writes_json(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--seeds", "1", "--only", "oracle", "--json", str(tmp_path / "r.json")], QUICK, workers=1)
    (run,) = json.loads((tmp_path / "r.json").read_text())
    assert (run["name"], run["seed"], run["rate"]) == ("oracle", 0, 3e-3)
    assert 0 <= run["MAP@R"] <= 1
    told = capsys.readouterr().out
    assert f"{100 * run['MAP@R']:.1f}" in told
    assert "100%" in told


def test_settings_are_possible_and_none_is_there_twice(benchmark: ModuleType) -> None:
    every = benchmark.settings()
    assert len({each.name for each in every}) == len(every)
    seen = [(each.pooling, each.settings, each.pooling_rate, each.median_norm, each.is_told) for each in every]
    assert all(seen.count(each) == 1 for each in seen)
    for each in every:
        pooling.create(each.pooling, 64, **each.settings)


def test_words_that_name_no_setting_are_refused(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.main(["--only", "nosuch"])
    assert "no setting has 'nosuch' in its name; there are: average, GSP: 64 prototypes" in capsys.readouterr().err
