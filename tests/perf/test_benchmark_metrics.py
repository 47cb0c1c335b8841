"""The benchmark of the metrics runs and writes what it promises. Its times are never asserted."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def test_runs_and_writes_json(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_file = tmp_path / "metrics.json"
    benchmark.main(["--quick", "--tricks", "--json", str(report_file)])
    report = json.loads(report_file.read_text())
    names = {**benchmark.CONTESTANTS, **benchmark.TRICKS}.keys()
    for entry, size in zip(report["sizes"], benchmark.QUICK_SIZES, strict=True):
        assert entry["size"]["name"] == size.name
        assert entry["seconds"].keys() == entry["megabytes"].keys() == names
        assert entry["disagreement"] < 1e-6
        assert entry["ratios"]["theirs / this, time"]["measured"] == pytest.approx(
            entry["seconds"][benchmark.THEIRS] / entry["seconds"][benchmark.THIS]
        )
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)
    assert "aim >= 1.5" in printed


def test_reads_embeddings_of_a_model(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(40) // 4
    vectors = (np.eye(10)[labels] + 0.3 * generator.normal(size=(40, 10))).astype(np.float32)
    np.save(tmp_path / "vectors.npy", vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    np.save(tmp_path / "labels.npy", labels)
    files = ["--embeddings", str(tmp_path / "vectors.npy"), "--labels", str(tmp_path / "labels.npy")]
    benchmark.main(["--quick", *files])
    assert "vectors.npy" in capsys.readouterr().out


@pytest.mark.parametrize("which", [0, 1, 2])
def test_draws_the_classes_of_the_data_sets(benchmark: ModuleType, which: int) -> None:
    size = benchmark.SIZES[which]._replace(dim=2)
    task = benchmark.draw_task(size)
    counts = task.query_labels.bincount(minlength=size.classes)
    assert (len(counts), int(counts.sum())) == (size.classes, size.queries)
    assert (int(counts.min()), int(counts.max())) >= (size.per_class[0], 0)
    assert int(counts.max()) <= size.per_class[1]
    assert (0 if task.references is None else len(task.references)) == size.gallery


def test_refuses_to_time_two_different_results(benchmark: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="nothing to compare"):
        benchmark.disagreement({"P@1": 0.5}, {"P@1": 0.6})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--sizes", "CUB,cars"], "--sizes must be some of CUB,SOP,In-shop, got cars"),
        (["--labels", "x.npy"], "--embeddings and --labels come together"),
    ],
)
def test_refuses_bad_usage(
    benchmark: ModuleType, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(arguments)
    assert message in capsys.readouterr().err
