"""The benchmark of poolings runs and writes what it promises. Its times are never asserted."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from lookalike import pooling as poolings

CPU = torch.device("cpu")


def test_runs_and_writes_json_and_figure(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = benchmark.gsp_ways
    report_file, figure_file = tmp_path / "pooling.json", tmp_path / "pooling.png"
    benchmark.main(["--quick", "--json", str(report_file), "--figure", str(figure_file)])

    report = json.loads(report_file.read_text())
    assert {"processor", "cores", "threads", "torch", "device"} <= report["machine"].keys()
    assert report["settings"] == {
        "keep": 0.3,
        "sharpness": 5.0,
        "iterations": 100,
        "repeats": 1,
        "clock": "elapsed time",
    }
    for entry, size in zip(report["sizes"], ways.QUICK_SIZES, strict=True):
        assert entry["size"] == size._asdict()
        for key in ("milliseconds", "quartiles", "memory_bytes", "memory_multiple"):
            assert entry[key].keys() == ways.CONTESTANTS.keys()
        assert {"measured", "aim", "met"} == set().union(*entry["ratios"].values())
        assert entry["ratios"]["closed form / this layer"]["measured"] == pytest.approx(
            entry["milliseconds"][ways.CLOSED_FORM] / entry["milliseconds"][ways.THIS]
        )
    for quantity in ("milliseconds", "megabytes"):
        assert len(report["rounds"][quantity][ways.AUTOGRAD]) == len(report["rounds"]["rounds"])

    for entry, size in zip(report["poolings"], benchmark.every_pooling.QUICK_SIZES, strict=True):
        assert entry["size"] == size._asdict()
        for key in ("parameters", "milliseconds", "quartiles", "time_ratio", "memory_bytes", "memory_multiple"):
            assert sorted(entry[key]) == poolings.names()
        for name, ratio in entry["time_ratio"].items():
            assert ratio == pytest.approx(entry["milliseconds"][name] / entry["milliseconds"]["average"])
            features = 4 * size.bags * size.features * size.dim
            assert entry["memory_multiple"][name] == pytest.approx(entry["memory_bytes"][name] / features)

    assert figure_file.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in (*ways.CONTESTANTS, *poolings.names()))
    assert "aim >= 4" in printed
    assert report["how"] in printed
    assert report["how"].startswith("Time is one forward and one backward pass")
    assert report["how"].endswith("features.")


def test_second_table_alone_with_chosen_poolings(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.json"
    chosen = "gem,netvlad(num_prototypes=2),*bilinear"
    benchmark.main(["--quick", "--table", "poolings", "--poolings", chosen, "--cpu-time", "--json", str(file)])
    report = json.loads(file.read_text())
    assert report["settings"]["clock"] == "CPU time"
    assert "sizes" not in report
    for entry in report["poolings"]:
        assert set(entry["milliseconds"]) == {
            *("average", "gem", "netvlad(num_prototypes=2)", "bilinear", "compact-bilinear")
        }
        dim = entry["size"]["dim"]
        assert entry["parameters"]["netvlad(num_prototypes=2)"] == 2 * (2 * dim + 1)
    assert "this layer" not in capsys.readouterr().out


def test_first_table_alone(benchmark: ModuleType, tmp_path: Path) -> None:
    benchmark.main(["--quick", "--table", "gsp", "--json", str(tmp_path / "gsp.json")])
    report = json.loads((tmp_path / "gsp.json").read_text())
    assert {"sizes", "rounds"} <= report.keys()
    assert "poolings" not in report


@pytest.mark.parametrize("name", poolings.names())
def test_every_parameter_of_a_pooling_has_part_in_the_step(benchmark: ModuleType, name: str) -> None:
    every = benchmark.every_pooling
    contestant = every.contestant(every.Choice(name), every.QUICK_SIZES[0], CPU)
    assert bool((contestant.features < 0).any()) == (
        name in ("attention", "average", "gsp", "netvlad", "otp", "weldon")
    )
    steps = benchmark_steps(benchmark)
    output, gradients = steps.training_step(contestant)()
    assert output.shape == (every.QUICK_SIZES[0].bags, contestant.pool.out_dim)
    assert [one.shape for one in gradients] == [one.shape for one in (contestant.features, *contestant.parameters)]


def benchmark_steps(benchmark: ModuleType) -> ModuleType:
    """training_steps.py, as the benchmark has imported it."""
    return importlib.import_module(benchmark.every_pooling.Contestant.__module__)


def kept_product(features: torch.Tensor, prototypes: torch.nn.Parameter) -> torch.Tensor:
    return (features @ prototypes.T).exp().mean(1)


def test_counts_memory_beyond_inputs_results_and_gradients(benchmark: ModuleType) -> None:
    steps = benchmark_steps(benchmark)
    inputs = benchmark.gsp_ways.draw_inputs(benchmark.gsp_ways.Size(4, 32, 64, 16), CPU)

    def extra(pool: Callable[[torch.Tensor], torch.Tensor]) -> int:
        return int(steps.measure_memory(steps.Contestant(pool, inputs.features, [inputs.prototypes]), CPU))

    matrix = 4 * 4 * 32 * 64
    assert extra(lambda features: features.mean(1)) < 100
    # The product and its exponential in the forward pass, or the exponential and two gradients in the backward pass.
    assert 2 * matrix <= extra(lambda features: kept_product(features, inputs.prototypes)) <= 3 * matrix


def test_contestants_take_turns_and_the_median_is_given(benchmark: ModuleType) -> None:
    steps = benchmark_steps(benchmark)
    turns: list[str] = []

    def step(name: str) -> Callable[[], tuple[torch.Tensor, list[torch.Tensor]]]:
        return lambda: (turns.append(name), (torch.zeros(1), []))[1]

    names = ["a", "b", "c"]
    times = steps.measure_times({name: step(name) for name in names}, steps.Procedure(5))
    measured = turns[steps.WARM_UP * len(names) :]
    rounds = [measured[start : start + 3] for start in range(0, 15, 3)]
    assert all(sorted(one) == names for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    assert {name: len(values) for name, values in times.items()} == dict.fromkeys(names, 5)
    assert steps.Measured([4.0, 1.0, 9.0, 2.0, 3.0], 0).milliseconds == 3.0
    assert steps.Measured([4.0, 1.0, 9.0, 2.0, 3.0], 0).quartiles == [2.0, 4.0]


def test_refuses_to_time_two_different_results(benchmark: ModuleType) -> None:
    features = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(RuntimeError, match="nothing to compare"):
        benchmark.gsp_ways.disagreement(lambda x: x.mean(1), lambda x: x.amax(1), features)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--poolings", "gemm"], "--poolings: there is no pooling 'gemm'"),
        (["--poolings", "gem(keep=1)"], "--poolings: gem has no setting 'keep'"),
        (["--poolings", "gsp(keep=2)"], "--poolings: keep must"),
        (["--table", "poolings", "--figure", "x.png"], "belong to the first table"),
        (["--device", "meta"], "--device must be cpu or cuda, got meta"),
    ],
)
def test_refuses_bad_usage(
    benchmark: ModuleType, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(arguments)
    assert message in capsys.readouterr().err
