"""The folder of a run: never into what is there, settings back as they went, every file whole."""

import csv
import json
import os
from pathlib import Path

import pytest
import torch
import yaml

from lookalike.training import checkpoint
from lookalike.training.checkpoint import RunFolder, to_yaml
from lookalike.training.settings import Settings, names

SETTINGS = {
    "nothing set": Settings(),
    "everything": Settings(
        data="cub:/data/CÜB 200: #1",
        out=Path("runs/näme"),
        resume=True,
        weights="none",
        dim=None,
        pooling_settings={"keep": 0.3, "init": "k-centre", "background": True, "sizes": [1, 2], "nothing": None},
        freeze_backbone=False,
        preset="sop",
        loss_settings={},
        cache=Path("a b"),
        lr=1e-5,
        proxy_lr=100.0,
        betas=(0.9, 0.99),
        clip_norm=None,
        clip_value=1e10,
        patience=None,
        precision="16-mixed",
    ),
    "words that YAML takes for others": Settings(data="null", backbone="no", weights="1e-5", loss="~", device="0x10"),
}


@pytest.mark.parametrize("which", SETTINGS)
def test_settings_come_back_as_they_went(which: str, tmp_path: Path) -> None:
    folder, settings = RunFolder(tmp_path / "run"), SETTINGS[which]
    folder.write_settings(settings)
    again = folder.read_settings()
    assert again == settings
    assert {name: type(value) for name, value in vars(again).items()} == {
        name: type(value) for name, value in vars(settings).items()
    }
    assert list(yaml.safe_load((folder.path / "settings.yaml").read_text())) == names()


@pytest.mark.parametrize("which", SETTINGS)
def test_the_version_with_comments_says_the_same(which: str) -> None:
    text = to_yaml(SETTINGS[which], comments=True)
    assert yaml.safe_load(text) == yaml.safe_load(to_yaml(SETTINGS[which]))
    lines = text.splitlines()
    assert len(lines) == len(names())
    assert all(line.startswith(f"{name}: ") and "  # " in line for name, line in zip(names(), lines, strict=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("poling: gsp\n", r"settings\.yaml has a setting that does not exist: 'poling' \(did you mean 'pooling'\?\)$"),
        ("1: gsp\n", r"has a setting that does not exist: 1$"),
        ("- gsp\n", r"must hold settings by name, got list$"),
        ("", r"must hold settings by name, got NoneType$"),
        ("steps: [1\n", r"cannot be read: "),
        ("steps: 0\n", r"^steps must be at least 1, got 0$"),
        ("schedule: cosin\n", r"did you mean 'cosine'"),
        ("betas: [0.9]\n", r"^betas must be 2 values"),
    ],
)
def test_settings_that_somebody_broke(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        RunFolder(tmp_path).read_settings()


def test_settings_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not the folder of a run: it has no settings\.yaml$"):
        RunFolder(tmp_path / "nowhere").read_settings()


def test_a_taken_folder_is_refused(tmp_path: Path) -> None:
    RunFolder(tmp_path / "new").refuse_if_taken()
    RunFolder(tmp_path).refuse_if_taken()  # empty
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match=r"exists and is not empty: choose another --out$"):
        RunFolder(tmp_path).refuse_if_taken()
    (tmp_path / "settings.yaml").write_text("")
    with pytest.raises(ValueError, match=r"exists and is not empty: --resume continues it$"):
        RunFolder(tmp_path).refuse_if_taken()
    with pytest.raises(ValueError, match=r"^--out must be a folder, got the file .*letter\.txt$"):
        RunFolder(tmp_path / "letter.txt").refuse_if_taken()


def test_metrics_with_columns_that_come_and_go(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    rows = [
        {"step": 0, "MAP@R": 0.5},
        {"step": 10, "loss": 1.25},
        {"step": 20, "loss": 0.1, "MAP@R": 1 / 3, "a,b": 'x"'},
    ]
    folder.write_metrics(rows)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == ["step", "MAP@R", "loss", "a,b"]
    assert [{name: value for name, value in row.items() if value} for row in read] == [
        {name: str(value) for name, value in row.items()} for row in rows
    ]
    folder.write_metrics(rows[:1])
    assert (tmp_path / "metrics.csv").read_text() == "step,MAP@R\n0,0.5\n"


def test_json_holds_any_name(tmp_path: Path) -> None:
    content = {"classes": ["kuş", "caf\udce9", 'a "b"\\n'], "left_out": None}
    RunFolder(tmp_path).write_json("data.json", content)
    assert RunFolder(tmp_path).read_json("data.json") == content
    text = (tmp_path / "data.json").read_text(encoding="utf-8")
    assert "kuş" in text
    assert json.loads(text) == content


def test_state_round_trip(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    state = {
        "learner": {"w": torch.randn(3)},
        "progress": {"step": 7, "best": {}},
        "mean": None,
        "figure": float("-inf"),
    }
    folder.write_state(state)
    assert folder.state_file == tmp_path / "run" / "state" / "last.pt"
    again = folder.read_state()
    assert torch.equal(again.pop("learner")["w"], state.pop("learner")["w"])  # type: ignore[attr-defined]
    assert again == state


def test_a_state_that_cannot_be_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(ValueError, match=r"last\.pt cannot be read: "):
        folder.read_state()
    folder.write_state({"w": torch.zeros(1000)})
    whole = folder.state_file.read_bytes()
    folder.state_file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"last\.pt cannot be read: "):
        folder.read_state()


class Stranger:
    """What only pickle could bring back."""


def test_a_strangers_state_is_not_unpickled(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_state({"object": Stranger()})
    with pytest.raises(ValueError, match=r"last\.pt cannot be read: "):
        folder.read_state()


def test_what_fails_half_way_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)

    def write(seed: int) -> None:
        for failing in (
            lambda: folder.write_settings(Settings(seed=seed)),
            lambda: folder.write_json("figures.json", {"seed": seed}),
            lambda: folder.write_metrics([{"seed": seed}]),
            lambda: folder.write_state({"seed": seed}),
        ):
            if seed == 1:
                failing()
            else:
                with pytest.raises(OSError, match="full"):
                    failing()

    write(1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(before) == 6  # with the checksums

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        write(2)

    def save_half(_: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("unexpected pos: the disk is full")  # as torch says it

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.torch, "save", save_half)
        with pytest.raises(OSError, match=r"last\.pt could not be written, is the disk full\?"):
            folder.write_state({"seed": 2})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_does_not_go_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.refuse_fewer_steps(1)  # nothing was done yet
    folder.write_state({"progress": {"step": 7}, "weights": torch.zeros(5)})
    for steps in (7, 8):
        folder.refuse_fewer_steps(steps)
    with pytest.raises(
        ValueError, match=rf"^the run in {tmp_path} has done 7 steps: --steps must be at least that, got 6$"
    ):
        folder.refuse_fewer_steps(6)
    folder.write_state({"progress": {"step": 8}})  # the file is not held open
    with pytest.raises(ValueError, match="has done 8 steps"):
        folder.refuse_fewer_steps(7)
