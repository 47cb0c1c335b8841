"""The benchmarks run and write what they promise. Their times are never asserted."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_pooling_runs_and_writes_json_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pooling = load("pooling")
    report_file, figure_file = tmp_path / "pooling.json", tmp_path / "pooling.png"
    pooling.main(["--quick", "--json", str(report_file), "--figure", str(figure_file)])

    report = json.loads(report_file.read_text())
    assert {"processor", "cores", "threads", "torch", "device"} <= report["machine"].keys()
    assert report["settings"]["repeats"] == 1
    for entry, size in zip(report["sizes"], pooling.QUICK_SIZES, strict=True):
        assert entry["size"] == size._asdict()
        for key in ("milliseconds", "quartiles", "memory_bytes", "memory_multiple"):
            assert entry[key].keys() == pooling.CONTESTANTS.keys()
        assert {"measured", "aim", "met"} == set().union(*entry["ratios"].values())
        assert entry["ratios"]["closed form / this layer"]["measured"] == pytest.approx(
            entry["milliseconds"][pooling.CLOSED_FORM] / entry["milliseconds"][pooling.THIS]
        )
    for quantity in ("milliseconds", "megabytes"):
        assert len(report["rounds"][quantity][pooling.AUTOGRAD]) == len(report["rounds"]["rounds"])

    assert figure_file.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert all(name in printed for name in pooling.CONTESTANTS)
    assert "aim >= 4" in printed


def kept_product(features: torch.Tensor, prototypes: torch.nn.Parameter) -> torch.Tensor:
    return (features @ prototypes.T).exp().mean(1)


def test_pooling_counts_memory_beyond_inputs_results_and_gradients() -> None:
    pooling = load("pooling")
    size = pooling.Size(4, 32, 64, 16)
    inputs = pooling.draw_inputs(size, torch.device("cpu"))

    def extra(pool: Callable[[torch.Tensor], torch.Tensor]) -> int:
        return int(pooling.measure_memory(pool, inputs, torch.device("cpu")))

    matrix = 4 * 4 * 32 * 64
    assert extra(lambda features: features.mean(1)) < 100
    # The product and its exponential in the forward pass, or the exponential and two gradients in the backward pass.
    assert 2 * matrix <= extra(lambda features: kept_product(features, inputs.prototypes)) <= 3 * matrix


def test_pooling_refuses_to_time_two_different_results() -> None:
    pooling = load("pooling")
    features = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(RuntimeError, match="nothing to compare"):
        pooling.disagreement(lambda x: x.mean(1), lambda x: x.amax(1), features)


def test_pooling_refuses_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        load("pooling").main(["--repeats", "0"])
    assert "--repeats must be at least 1, got 0" in capsys.readouterr().err
