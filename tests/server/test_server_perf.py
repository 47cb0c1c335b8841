"""The benchmark of the server runs and writes what it promises. Its times are never asserted."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

PERF = Path(__file__).parents[2] / "perf"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(PERF))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # which the benchmark sets, and this undoes
    threads = torch.get_num_threads()
    yield importlib.import_module("serve")
    torch.set_num_threads(threads)


def test_measurement_writes_a_report(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["--quick", "--json", str(tmp_path / "serve.json")]) == 0
    report = json.loads((tmp_path / "serve.json").read_text())
    rows = report["sizes"][0]["rows"]
    assert list(rows) == [
        *("bare, one by one", "bare, in batches of 16"),
        *("server, 1 client", "server, 8 clients", "server, 32 clients"),
    ]
    for name, row in rows.items():
        assert row["requests_per_second"] > 0
        assert row["ratio_to_bare"] > 0
        assert name.endswith("16") or 0 < row["p50_ms"] <= row["p95_ms"]
    assert report["how"] in capsys.readouterr().out


def test_fuzzing_gets_no_5xx(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["--quick", "--fuzz", "10", "--first", "500"]) == 0
    said = capsys.readouterr().out
    assert "10 malformed requests, 0 answered by 5xx or not at all; /healthz says 200" in said
