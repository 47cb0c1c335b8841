"""The benchmark of embed() runs and writes what it promises. Its times are never asserted."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def test_runs_and_writes_json(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # as the script sets them, but only for this test
    monkeypatch.setenv("LOOKALIKE_CACHE", str(tmp_path / "cache"))
    benchmark.main(["--quick", "--json", str(tmp_path / "embed.json")])
    (entry,) = json.loads((tmp_path / "embed.json").read_text())["sizes"]
    ways = {benchmark.BARE, benchmark.BARE_LAST, *benchmark.AIMS}
    assert entry["pictures_per_second"].keys() == entry["seconds"].keys() == entry["cpu_seconds"].keys() == ways
    assert entry["ratios"][benchmark.FILES]["elapsed"] == pytest.approx(
        min(entry["seconds"][benchmark.BARE_LAST]) / min(entry["seconds"][benchmark.FILES])
    )
    assert entry["disagreement"] < 1e-5
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in ways)
    assert "aim >= 0.9" in printed


def test_refuses_to_time_different_vectors(benchmark: ModuleType) -> None:
    vectors = dict.fromkeys(benchmark.AIMS, np.zeros((2, 3)))
    vectors[benchmark.FILES] = np.ones((2, 3))
    with pytest.raises(RuntimeError, match="nothing to compare"):
        benchmark.disagreement(vectors)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backbone", "resnet20"], "--backbone must be one of timm's, got resnet20"),
        (["--pictures", "0"], "--pictures must be at least 1, got 0"),
    ],
)
def test_refuses_bad_usage(
    benchmark: ModuleType, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(words)
    assert message in capsys.readouterr().err
