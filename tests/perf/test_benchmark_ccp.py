"""The benchmark of CCP runs and writes what it promises. Its times are never asserted."""

import json
from pathlib import Path
from types import ModuleType

import pytest


def test_runs_and_writes_json(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ccp.json"
    benchmark.main(["--quick", "--losses", "c1,ms", "--json", str(file)])
    report = json.loads(file.read_text())
    assert [entry["size"]["name"] for entry in report["sizes"]] == [size.name for size in benchmark.QUICK_SIZES]
    for entry in report["sizes"]:
        assert [(row["network"], row["loss"]) for row in entry["steps"]] == [
            (network, loss) for network in benchmark.NETWORKS for loss in ("c1", "ms")
        ]
        for row in entry["steps"]:
            assert row["seconds"].keys() == row["ratios"].keys() == benchmark.CONTESTANTS.keys()
            assert row["ratios"]["proxies"] == pytest.approx(row["seconds"]["proxies"] / row["seconds"]["plain"])
        assert {"drawing", "embedding", "choosing", "megabytes"} <= entry["choice"].keys()
    printed = capsys.readouterr().out
    assert "thesis" in printed
    assert "1.08" in printed
    assert report["how"] in printed


def test_samples_are_left_out_where_they_are_too_many(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "MOST_SAMPLES", 7)
    monkeypatch.setattr(benchmark, "NETWORKS", {"frozen head": benchmark.frozen_head})
    entry = benchmark.compare(benchmark.QUICK_SIZES[0], ["c2"], 1, apart=False)
    assert entry["steps"][0]["seconds"].keys() == {"plain", "proxies"}
    benchmark.print_entry(entry)
    assert "frozen head  c2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--losses", "c3"], "no objective is called 'c3'"),
        (["--losses", "proxy-anchor"], "--losses must be losses on pairs, got proxy-anchor"),
        (["--sizes", "cars"], "--sizes must be some of CUB,SOP, got cars"),
    ],
)
def test_refuses_bad_usage(
    benchmark: ModuleType, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(arguments)
    assert message in capsys.readouterr().err
