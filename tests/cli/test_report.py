"""``lookalike report`` as people type it."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "report"))

from fake_benchmark import write_result

from lookalike.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "tables"
    for repeat in range(3):
        write_result(out, 0.2 + repeat / 100, 0, repeat)
        write_result(out, 0.3 + repeat / 50, 0, repeat, pooling="gsp")
    return out


def test_the_tables_are_printed_and_a_page_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "c2 + gsp" in said
    assert "32.00 ± 2.00*" in said
    assert said.endswith(f"wrote {folder / 'report.html'}\n")
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_files(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = {kind: tmp_path / "new" / f"table.{kind}" for kind in ("html", "csv", "latex")}
    assert (
        main(["report", str(folder), *(word for kind, path in places.items() for word in (f"--{kind}", str(path)))])
        == 0
    )
    assert all(path.stat().st_size for path in places.values())
    said = capsys.readouterr().out
    assert all(str(path) in said for path in places.values())
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(("option", "begins"), [("--csv", "protocol,data,"), ("--latex", "% \\usepackage{booktabs}")])
def test_a_dash_is_standard_output(
    option: str, begins: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    assert main(["report", str(folder), option, str(folder.parent / "file")]) == 0
    capsys.readouterr()
    assert main(["report", str(folder), option, "-"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(begins)
    assert said.out == (folder.parent / "file").read_text(encoding="utf-8"), "and nothing else"
    assert said.err == f"wrote {folder / 'report.html'}\n"
    assert not Path("-").exists()


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--json", "--metric", "P@1", "--baseline", "c2 + gsp"]) == 0
    content = json.loads(capsys.readouterr().out)
    [section] = content["sections"]
    plain, gsp = section["rows"]
    assert content["metric"] == "P@1"
    assert gsp["figures"]["MAP@R"] == pytest.approx({"mean": 0.32, "std": 0.02, "best": 0.34, "combinations": 3})
    assert (plain["baseline"], gsp["against_baseline"]) == ("c2 + gsp", None)
    assert plain["against_baseline"]["pairs"] == 3
    assert gsp["cost"]["milliseconds_per_step"] == pytest.approx(40)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "missing DIR (folder with results"),
        (["nowhere"], "nowhere is not a folder"),
        (["{empty}"], "has no results: give the --out folder of lookalike benchmark"),
        (["{folder}", "--metric", "MAP"], "metric must be one of P@1, P@R, MAP@R, R@1, R@2, got 'MAP'"),
        (["{folder}", "--baseline", "c2 + gps"], "no row is called 'c2 + gps' (did you mean 'c2 + gsp'?)"),
        (["{folder}", "--html", "{empty}"], "--html must be a file, got the folder"),
        (["{folder}", "--csv", "-", "--json"], "only one output can be printed, got --csv and --json"),
        (["{folder}", "--cvs", "x"], "there is no option --cvs (did you mean '--csv'?)"),
    ],
)
def test_bad_usage_is_one_line(
    words: list[str], problem: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["report", *(word.format(folder=folder, empty=tmp_path / "empty") for word in words)]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1
    assert said.startswith("lookalike report: ")
