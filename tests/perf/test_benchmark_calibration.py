"""The benchmark of calibrations fits on one file, measures on others, and compares both ways."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def write(file: Path, classes: int, spread: float) -> None:
    rng = np.random.default_rng(classes)
    labels = np.arange(classes).repeat(12)
    np.save(file, (rng.normal(size=(classes, 8))[labels] + spread * rng.normal(size=(12 * classes, 8))).astype("f4"))
    rows = [f"{n}.jpg,c{label}" for n, label in enumerate(labels)]
    file.with_suffix(".csv").write_text("path,label\n" + "\n".join(rows) + "\n")


def test_runs(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "easy.npy", 15, 0.5)
    write(tmp_path / "hard.npy", 96, 0.9)
    benchmark.main([str(tmp_path / "easy.npy"), str(tmp_path / "hard.npy")])
    first, _, *rows = capsys.readouterr().out.splitlines()
    assert first == "fitted on 180 queries of 15 classes of easy"
    assert [row.split(",")[1].split()[0] for row in rows] == ["96", "48", "12"]
    distance, relative, sizes, wrongly, wrongly_both, rightly, rightly_both = map(float, rows[0].split()[-7:])
    assert relative < distance
    assert sizes == relative  # classes are as large as those of the fit
    assert wrongly_both <= wrongly
    assert rightly_both <= rightly
