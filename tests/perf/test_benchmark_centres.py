"""The benchmark of the centres runs and writes what it promises. Its times are never asserted."""

import json
from pathlib import Path
from types import ModuleType

import pytest


def test_runs_and_writes_json(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--quick", "--json", str(tmp_path / "centres.json")])
    report = json.loads((tmp_path / "centres.json").read_text())
    assert [entry["size"]["classes"] for entry in report["sizes"]] == benchmark.QUICK_CLASSES
    for entry in report["sizes"]:
        assert entry["rows"].keys() == benchmark.CONTESTANTS.keys()
        assert entry["rows"]["all pairs"]["value"] == pytest.approx(entry["rows"]["plain"]["value"], rel=1e-4)
    printed = capsys.readouterr().out
    assert all(name in printed for name in benchmark.CONTESTANTS)


def test_refuses_bad_usage_and_different_energies(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="nothing to compare"):
        benchmark.check_agreement(1.0, 1.1)
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(["--classes", "10,many"])
    assert "--classes must be whole numbers with commas between them, got 10,many" in capsys.readouterr().err
