"""The file of --config: what is wrong in it is named with the setting, the file and, where it is known, the line."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from lookalike._util.settings import setting
from lookalike.cli import main
from lookalike.cli.config_file import UsageError, read_config


@dataclass
class Few:
    steps: int = setting(1, "x")
    flip: bool = setting(True, "x")
    frozen: bool | None = setting(None, "x")
    inner: dict[str, object] = setting({}, "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps:\n", "FILE, line 1: steps has no value; write null or remove the line"),
        ("flip: true\nsteps:   # many\n", "FILE, line 2: steps has no value"),
        ("inner:\n  keep:\n", "FILE, line 2: inner.keep has no value"),
        ("inner:\n", "FILE, line 1: inner has no value"),
        ("steps: 3\nflip: true\nsteps: 4\n", "FILE, line 3: steps is repeated, first in line 1"),
        ("inner:\n  keep: 1\n  keep: 1\n", "FILE, line 3: inner.keep is repeated, first in line 2"),
        ("flip: maybe\n", "FILE, line 1: flip must be true or false, got 'maybe'"),
        ("flip: 1\n", "FILE, line 1: flip must be true or false, got 1"),
        ("frozen: [true]\n", "FILE, line 1: frozen must be true or false, got [True]"),
        ("step: 3\n", "FILE, line 1: there is no setting 'step' (did you mean 'steps'?)"),
        ("inner.keep: 3\n", "FILE, line 1: there is no setting 'inner.keep'"),
        ("", "--config FILE must contain settings by name, for example steps: 500, got an empty file"),
        ("# nothing\n", "got an empty file"),
        ("- steps\n", "got a list"),
        ("steps: [1\n", "--config FILE is not YAML: "),
        ("steps: 2024-13-45\n", "--config FILE is not YAML: month must be in 1..12"),
    ],
)
def test_slips_of_the_pen(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_config(file, Few)
    assert str(caught.value).startswith(message.replace("FILE", str(file))) or message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_good(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "\ufeffsteps: null\nflip: no\nfrozen: null\njson: true\ninner: {keep: null, steps: {flip: maybe}}\n"
    )
    assert read_config(file, Few, ["json"]) == {
        "steps": None,
        "flip": False,
        "frozen": None,
        "json": True,
        "inner": {"keep": None, "steps": {"flip": "maybe"}},
    }
    file.write_text("flip: 'No'\n")
    assert read_config(file, Few) == {"flip": "No"}
    file.write_text("inner: &a {keep: 1, deeper: *a}\n")  # an alias of what it is in
    with pytest.raises(UsageError, match="an alias contains itself"):
        read_config(file, Few)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_config(tmp_path / "absent.yaml", Few)
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_config(tmp_path, Few)
    (tmp_path / "picture.yaml").write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        read_config(tmp_path / "picture.yaml", Few)


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("steps:\n", [], "c.yaml, line 1: steps has no value"),
        ("steps: 3\nsteps: 4\n", [], "c.yaml, line 2: steps is repeated"),
        ("flip: maybe\n", [], "c.yaml, line 1: flip must be true or false, got 'maybe'"),
        ("steps: many\n", [], "c.yaml: steps must be a whole number, got many"),
        ("steps: 0\n", [], "c.yaml: steps must be at least 1, got 0"),
        ("data: 3\n", [], "c.yaml: data must be a text or null, got 3"),
        ("betas: 0.9\n", [], "c.yaml: betas must be a list of 2 numbers, got 0.9"),
        ("crop: aera\n", [], "c.yaml: crop must be one of area, wide, pixels, none, got aera (did you mean 'area'?)"),
        ("steps: 3\n", ["--steps", "0"], "train: steps must be at least 1, got 0"),
        ("flip: true\n", ["--steps", "many"], "train: steps must be a whole number, got many"),
    ],
)
def test_the_command_names_the_file(
    text: str,
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(text)
    assert main(["train", "--config", "c.yaml", *words, "--print-config"]) == 2
    said = capsys.readouterr()
    assert f" {message}" in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""
