"""What ``lookalike study`` refuses before any work, and what it says about what it left out."""

import json
from pathlib import Path

import pytest
from lookalike_studies.framework.outputs import MINIATURE

from lookalike.cli import main


@pytest.mark.parametrize(
    ("study", "changes", "message"),
    [
        ("effects", "protocol=nope", "there is no protocol 'nope'"),
        ("effects", "set='nosuch=1'", "set: there is no setting 'nosuch'"),
        ("effects", "set='lr=-1'", "lr must be finite and above 0, got -1"),
        ("effects", "set='seed=1'", "set: seed cannot be the same for all"),
        ("effects", "letters=/nonexistent", "letters must be a run of lookalike train, got /nonexistent"),
        ("effects", "axis=[]", "axis must name at least one, got none"),
        ("zero-shot-prediction", "loss=nope", "no objective is called 'nope'"),
        ("zero-shot-prediction", "preset=nope", "there is no preset 'nope'"),
        ("collage", "loss=nope", "no objective is called 'nope'"),
        ("effects", "first_seed=-1", "first_seed must be at least 0, got -1"),
        ("tokens", "seeds=[0, 1, 0]", "seeds must differ, or one run would count twice, got 0, 1, 0"),
        ("localisation", "rates=[-1]", "every one of rates must be finite and above 0, got -1"),
    ],
)
def test_bad_settings_are_one_line_before_any_work(
    study: str, changes: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", study, "--miniature", "--out", str(tmp_path / "out"), "--set", changes]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lookalike study: {message}")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["study", "toy"], ["demo"]])
def test_what_is_not_ones_own_is_left_alone(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "index.html"
    page.write_text("somebody's")
    assert main([*command, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said == f"lookalike {command[0]}: {tmp_path} exists and is no {command[0]}: choose another --out\n"
    assert main([*command, "--out", str(page)]) == 2
    assert capsys.readouterr().err == f"lookalike {command[0]}: --out must be a folder, got the file {page}\n"
    assert page.read_text() == "somebody's"
    assert list(tmp_path.iterdir()) == [page]


def test_what_is_reduced_is_said_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["study", "toy", "--out", str(tmp_path), "--set", "maps=3"]
    assert main(words) == 0
    said = capsys.readouterr()
    reduced = "Not the full setting: maps 3 (full: 20)"
    assert said.err.startswith(reduced)
    assert reduced in said.out
    assert "mean nothing" not in said.out + said.err + (tmp_path / "index.html").read_text()
    assert main([*words, "--json"]) == 0  # over its own folder
    told = json.loads(capsys.readouterr().out)
    assert told["reduced"] == {"maps": {"paper": 20, "here": 3}}
    assert told["miniature"] is False


def test_a_miniature_says_that_it_means_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["study", "toy", "--miniature", "--out", str(tmp_path)]
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.err.startswith(MINIATURE)
    assert MINIATURE in said.out
    assert MINIATURE in (tmp_path / "index.html").read_text()
    assert json.loads((tmp_path / "numbers.json").read_text())["miniature"] is True
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["miniature"] is True


def test_a_folder_of_another_study_or_of_a_longer_run_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path)]
    assert main(["study", "toy", "--set", "maps=2", *out]) == 0
    before = (tmp_path / "index.html").read_bytes()
    assert main(["study", "centres", "--miniature", *out]) == 2
    assert f"{tmp_path} holds the study toy: choose another --out" in capsys.readouterr().err
    assert main(["study", "toy", "--miniature", *out]) == 2
    assert f"{tmp_path} holds a run with --quick, which a miniature would replace" in capsys.readouterr().err
    assert (tmp_path / "index.html").read_bytes() == before


def test_a_network_without_weights_is_refused_before_any_work(
    class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["study", "effects", "--set", "axis=zero-shot", "--data", str(class_folders)]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "no weights of bn_inception come with a package" in said
    assert "or --set protocol=quick, which trains the head" in said
    assert not (tmp_path / "out" / "benchmark").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--workers", "0"], "workers must be at least 1, got 0"), (["--seed", "-1"], "seed must be at least 0, got -1")],
)
def test_the_demo_refuses_what_cannot_be(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--quick", "--out", str(tmp_path / "out"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_printed_settings_are_a_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "tokens", "--miniature", "--set", "seeds=[3]", "--settings"]) == 0
    printed = capsys.readouterr().out
    config = tmp_path / "tokens.yaml"
    config.write_text(printed)
    assert "seeds=[3]" in printed
    assert main(["study", "--config", str(config), "--settings"]) == 0
    assert capsys.readouterr().out == printed
    assert main(["study", "--config", str(config), "--set", "seeds=[4]", "--settings"]) == 0
    assert "seeds=[4]" in capsys.readouterr().out
