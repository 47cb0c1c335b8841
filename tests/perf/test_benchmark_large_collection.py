"""The benchmark of shards runs and writes what it promises. Its times are never asserted."""

import json
from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.slow
def test_runs_and_writes_json(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # as the script sets them, but only for this test
    benchmark.main(["--quick", "--json", str(tmp_path / "large.json")])
    (entry,) = json.loads((tmp_path / "large.json").read_text())["sizes"]
    assert set(entry["ratios"]) == {"elapsed", "cpu"}
    assert set(entry["times"]) == {"plain", "plain, start", "shards", "shards, start"}
    assert "the vectors of both are the same, bit for bit" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--pictures", "1"], ["--processes", "0"]])
def test_refuses_bad_usage(benchmark: ModuleType, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(words)
    assert "must be at least" in capsys.readouterr().err
