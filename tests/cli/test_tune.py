"""``lookalike tune`` as people type it, with models that are really trained."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("optuna")

from lookalike.cli import main
from lookalike.cli.train import changed_settings, parse_train, train_command
from lookalike.experiments.choices import parse_settings, split_top_level
from lookalike.training.run import train
from lookalike.training.settings import Settings

DATA = "glyphs(cells=1,size=32,train_classes=8,test_classes=4,per_class=4)"
SMALL = "backbone=resnet8-half, size=32, start=random, freeze_backbone=false, lr=0.001, crop=none, workers=0"
SMALL += ", batch_size=8, dim=8, device=cpu"
SEARCH = "pooling_settings.num_prototypes=[2, 4]; pooling_settings.sharpness=[0.5, 5]"


def words(out: Path, *more: str, settings: str = "steps=2, evaluate_every=1", search: str = SEARCH) -> list[str]:
    searched = ["--search", search] if search else []
    every = ["tune", "--data", DATA, "--protocol", "quick", "--out", str(out), "--set", f"{SMALL}, {settings}"]
    return [*every, *searched, *more]


def test_the_best_settings_are_printed_and_drawn_and_train_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a"
    assert main([*words(out), "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert len(found["trials"]) == 4
    assert {(each["state"], len(each["runs"])) for each in found["trials"]} == {("done", 1)}
    assert found["best"]["value"] == max(each["value"] for each in found["trials"])
    assert told.err.count("MAP@R") == 4
    assert "4 trials of 1 run each by grid; 0 finished" in told.err
    for name in ("history", "effects", "contour"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"{name}.svg").read_text()
    page = (out / "tuning.html").read_text()
    assert page.count("<img") == len(list(out.glob("*.png")))
    assert "Main effects" in page
    assert len((out / "trials.csv").read_text().splitlines()) == 5
    assert not list(out.rglob("last.pt")), "nobody goes on with what is done"
    # the line for train makes the figure come true
    typed = [str(tmp_path / "run") if word == "RUN" else word for word in shlex.split(found["best"]["train"])[1:]]
    assert main([*typed, "--json", "--workers", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["best"]["MAP@R"] == pytest.approx(found["best"]["value"])
    file = (out / "best.yaml", tmp_path / "again")
    settings, _ = parse_train([DATA, "--config", str(file[0]), "--out", str(file[1])])
    assert changed_settings(settings) == yaml.safe_load(file[0].read_text()) == found["best"]["config"]


@pytest.mark.slow
def test_killed_and_resumed_it_comes_to_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search, settings = "pooling_settings.sharpness=log(0.5, 20)", "steps=16, evaluate_every=2"

    def found(out: Path) -> dict[str, Any]:
        assert main([*words(out, "--trials", "1", "--json", settings=settings, search=search)]) == 0
        return dict(json.loads(capsys.readouterr().out))

    whole, broken = found(tmp_path / "whole"), tmp_path / "broken"
    command = [sys.executable, "-m", "lookalike", *words(broken, "--trials", "1", settings=settings, search=search)]
    worker = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not list(broken.glob("trials/*/runs/*/state/last.pt")) and time.monotonic() < until:
        time.sleep(0.01)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert not list(broken.rglob("figures.json")), "it was to be killed before the end"
    resumed = found(broken)
    for name in ("params", "value", "curve", "steps", "state"):
        assert [each[name] for each in resumed["trials"]] == [each[name] for each in whole["trials"]], name
    log = (broken / "trials" / "0000" / "log.txt").read_text()
    assert "continuing after step" in log
    assert log.count("step      0") == 1, "the second command was to go on, not to begin anew"


def test_a_named_plan_and_a_plan_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--plan", "factorial", "--trials", "1")
    assert main(words(tmp_path / "a", *few, search="", settings="steps=1, evaluate_every=1")) == 0
    told = capsys.readouterr()
    assert told.out.startswith("trial 0 of 1: MAP@R ")
    assert "\nlookalike train 'glyphs(" in told.out
    assert told.out.endswith((tmp_path / "a" / "best.yaml").read_text())
    assert "num_prototypes=16, keep=0.3, sharpness=0.5, zero_shot=0.1: MAP@R" in told.err
    assert yaml.safe_load((tmp_path / "a" / "best.yaml").read_text())["zero_shot"] == 0.1
    page = (tmp_path / "a" / "tuning.html").read_text()
    assert "40.63" in page, "the figure of the thesis stands beside"
    assert "thesis Table 5.4, CUB" in page
    own = tmp_path / "mine.yaml"
    own.write_text("serach: {lr: [1]}\n")
    assert main(words(tmp_path / "b", "--plan", str(own), search="")) == 2
    assert "a plan has no key 'serach' (did you mean 'search'?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("search", "more", "message"),
    [
        ("", (), "missing --search"),
        ("lr=log(1)", (), "log of lr needs two numbers"),
        ("lrr=[1]", (), "there is no setting 'lrr' to search"),
        ("pooling_settings.foo=[1]", (), "gsp has no setting 'foo'"),
        ("lr=[]", (), "the list of lr is empty"),
        ("lr=[0.1]", ("--trials", "0"), "trials must be at least 1"),
        ("lr=[0.1]", ("--workers", "0"), "workers must be at least 1"),
        ("lr=[0.1]", ("--plan", "factoral"), "there is no plan 'factoral' (did you mean 'factorial'?)"),
        ("lr=[0.1]", ("--loss", "c1,c2"), "name one loss"),
        ("flip=[true]", ("--protocol", "conventional"), "steered by the test classes"),
        ("weight_decay=log(0.1, 1)", ("--sampler", "grid"), "a grid needs lists"),
        (
            "lr=[0.1]",
            ("--sampler", "tpee"),
            "random, grid, got 'tpee' (did you mean 'tpe'?)",
        ),
        ("steps=[2, 4]", (), "steps is both searched and set"),
        ("pooling_settings.keep=[0.3]", ("--set", "pooling_settings.keep=1"), "keep is both searched and set"),
        ("dim=[4, 8]", ("--set", "devices=2"), "a trial runs in one process"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_written(
    tmp_path: Path, search: str, more: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(tmp_path / "a", *more, search=search)) == 2
    told = capsys.readouterr().err.strip()
    assert message in told
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "a").exists()


def test_who_listens_to_a_run_can_end_it_and_all_is_saved(tmp_path: Path) -> None:
    class Enough(Exception):  # noqa: N818
        pass

    told: list[int] = []

    def listen(step: int, figures: dict[str, float]) -> None:
        told.append(step)
        assert 0 <= figures["MAP@R"] <= 1
        if step == 2:
            raise Enough

    values = parse_settings(split_top_level(f"{SMALL}, steps=4, evaluate_every=1, patience=null", ","))
    settings = Settings(**values, data=DATA, out=tmp_path / "run")
    with pytest.raises(Enough):
        train(settings, on_evaluation=listen)
    assert told == [0, 1, 2]
    figures = train(replace(settings, resume=True), on_evaluation=lambda step, _: told.append(step))
    assert told == [0, 1, 2, 3, 4], "what was saved when it ended is not measured again"
    assert figures["steps"] == 4


def test_the_line_for_train_reads_back_as_the_settings() -> None:
    settings = Settings(
        backbone="resnet20",
        pooling_settings={"keep": 0.2, "learn_keep": True, "init": "k-centre", "sharpness": 1e-05},
        freeze_backbone=False,
        flip=False,
        ccp=True,
        patience=None,
        clip_value=3.5,
        betas=(0.8, 0.95),
        lr=1.5e-05,
        zero_shot=0.25,
        normalise="clip",
    )
    read, _ = parse_train(shlex.split(train_command(settings, "my pictures/"))[2:])
    assert read == replace(settings, data="my pictures/", out=Path("RUN"))


def test_missing_weights_end_the_search_before_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tune", "--data", DATA, "--out", str(tmp_path / "a"), "--search", "lr=[0.1, 0.2]"]
    assert main([*command, "--protocol", "tuning"]) == 2
    printed = capsys.readouterr().err
    assert "no weights of bn_inception come with a package" in printed
    assert "1,000 steps" not in printed


def test_the_default_protocol_needs_no_download(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tune", "--data", DATA, "--out", str(tmp_path / "a"), "--search", "lr=[0.001, 0.002]"]
    assert main([*command, "--set", "steps=2, evaluate_every=1, workers=0, size=64"]) == 0
    assert "A quick look" in capsys.readouterr().err
