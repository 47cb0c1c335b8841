"""Whole runs on small pictures: what they leave, how they go on after anything, and what they say when they cannot."""

import csv
import json
import os
import re
import resource
import shutil
import signal
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import lookalike
from lookalike import data
from lookalike.cli import main
from lookalike.models.embedder import Head
from lookalike.objectives import Loss
from lookalike.training import RunFailed, Settings, Stopped, ccp, train
from lookalike.training.checkpoint import RunFolder
from lookalike.training.evaluate import measure
from lookalike.training.loop import Stepper
from lookalike.training.model import create_embedder
from lookalike.training.split import divide, fingerprint_without_content


def settings(pictures: Path, out: Path, **changes: object) -> Settings:
    quick = {
        "backbone": "resnet20",
        "dim": 16,
        "pooling_settings": {"num_prototypes": 8, "memory": 64},
        "steps": 12,
        "batch_size": 8,
        "per_class": 2,
        "evaluate_every": 4,
        "save_every": 2,
        "log_every": 3,
        "workers": 0,
        "device": "cpu",
        "cache": out.parent / "cache",
    }
    return Settings(data=str(pictures), out=out, **{**quick, **changes})


CCP = {"loss": "c1", "ccp": True, "ccp_proxies": 2, "ccp_pool": 4, "ccp_patience": 1, "evaluate_every": 2}
VARIANTS = {
    "gsp": {},
    "average, all the rest": {
        "pooling": "average",
        "pooling_settings": {},
        "ema": 0.9,
        "schedule": "plateau",
        "accumulate": 2,
        "loss": "proxy-anchor",
        "per_class": 1,
        "optimiser": "adamw",
    },
    "zero-shot, memory, centres": {
        "loss": "c1",
        "zero_shot": 0.1,
        "memory": 3,
        "memory_start": 2,
        "centres": 0.1,
        "centres_settings": {"sample": 4},
    },
    "plateau of the training loss": {"validation": 0.0, "schedule": "plateau", "plateau_patience": 1, "min_delta": 9.0},
    "ccp": CCP,
    "ccp, samples": {**CCP, "ccp_against": "samples", "ccp_proxies": 1, "loss": "c2", "accumulate": 2, "steps": 8},
    "ccp, samples, frozen": {**CCP, "ccp_against": "samples", "freeze_backbone": True, "zero_shot": 0.1},
    "ccp, all the rest": {
        **CCP,
        "loss": "margin",
        "ccp_printed": True,
        "ema": 0.9,
        "centres": 0.1,
        "freeze_backbone": True,
    },
    "frozen": {"freeze_backbone": True, "start": "pca", "views": 2},
    "last stage": {"freeze_backbone": True, "train_stages": 1, "start": "pca", "views": 2, "ema": 0.9},
    "last stage, which waits": {"freeze_backbone": True, "train_stages": 1, "start": "pca", "warm_up": 6, "ema": 0.9},
    "last stages, batch norm, ccp with samples": {
        **CCP,
        "freeze_backbone": True,
        "train_stages": 2,
        "freeze_batch_norm": False,
        "ccp_against": "samples",
    },
    "libc as its authors train it": {
        "pooling": "max",
        "pooling_settings": {},
        "loss": "libc",
        "loss_settings": {"heads": 4},
        "optimiser": "radam",
        "restarts": (4, 8),
        "restart_lr": "initial",
        "reshape": True,
        "erase": 0.5,
        "crop": "wide",
    },
    "libc beside another loss, gsp, frozen": {
        "freeze_backbone": True,
        "loss": "c1",
        "memory": 2,
        "memory_start": 2,
        "libc": 0.5,
        "libc_settings": {"blocks": 2, "concatenate": True},
        "zero_shot": 0.1,
        "ema": 0.9,
        "restarts": (6,),
    },
}


def final(out: Path) -> dict[str, torch.Tensor]:
    """All that decides how a run would go on, as tensors by name."""
    state = torch.load(out / "state" / "last.pt", weights_only=True)
    tensors = {f"learner {name}": value for name, value in state["learner"].items() if isinstance(value, torch.Tensor)}
    for name, extra in state["learner"].items():
        if isinstance(extra, dict):  # a memory
            tensors |= {f"{name} {key}": torch.as_tensor(value) for key, value in extra.items()}
    for number, values in state["optimiser"]["state"].items():
        tensors |= {f"optimiser {number} {name}": value for name, value in values.items()}
    for which, values in (state["problems"] or {}).items():
        if isinstance(values, dict):
            tensors |= {f"problem's {which} {name}": value for name, value in values.items()}
    if state["restarts"] is not None:
        tensors |= {f"restarts {name}": value for name, value in state["restarts"]["best"].items()}
    tensors |= {f"best {name}": value for name, value in load_file(out / "model.safetensors").items()}
    rows = [
        {name: value for name, value in row.items() if name not in ("seconds", "pictures/s", "CPU ms/step")}
        for row in state["log"]["rows"]
    ]
    tensors["rows"] = torch.frombuffer(bytearray(json.dumps([rows, state["rates"]]).encode()), dtype=torch.uint8)
    return tensors


def assert_same(one: Path, other: Path) -> None:
    first, second = final(one), final(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_was_broken_off_goes_on_bit_for_bit(
    variant: str, class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = VARIANTS[variant]
    train(settings(class_folders, tmp_path / "whole", **changes))
    broken = tmp_path / "broken"
    step = Stepper.step
    last_step = int(changes.get("steps", 12)) - 1
    for breaking in (1, 3, 4, 7, 11):  # before the first state, between states, after an evaluation, near the end
        if breaking > last_step:
            break

        def until(self: Stepper, number: int, last: int = breaking) -> Loss:
            if number == last:
                raise MemoryError("broken off")
            return step(self, number)

        monkeypatch.setattr(Stepper, "step", until)
        with pytest.raises(MemoryError):
            train(settings(class_folders, broken, resume=True, **changes))
    monkeypatch.setattr(Stepper, "step", step)
    train(settings(class_folders, broken, resume=True, **changes))
    assert_same(tmp_path / "whole", broken)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_stops_when_asked_and_goes_on_bit_for_bit(
    number: int,
    class_folders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train(settings(class_folders, tmp_path / "whole"))
    step = Stepper.step

    def signalled(self: Stepper, done: int) -> Loss:
        loss = step(self, done)
        if done == 4:
            os.kill(os.getpid(), number)
        return loss

    monkeypatch.setattr(Stepper, "step", signalled)
    with pytest.raises(Stopped):
        train(settings(class_folders, tmp_path / "stopped"))
    assert "stopped after step 5 and saved" in capsys.readouterr().err
    monkeypatch.setattr(Stepper, "step", step)
    train(settings(class_folders, tmp_path / "stopped", resume=True))
    assert_same(tmp_path / "whole", tmp_path / "stopped")


def test_a_run_that_is_stopped_while_it_chooses_proxies_chooses_them_again(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {**CCP, "freeze_backbone": True}
    train(settings(class_folders, tmp_path / "whole", **changes))
    assert "problem 2 is solved" in capsys.readouterr().err
    choose = ccp.greedy_k_centre
    for stopping in (1, 2, 3):  # the first problem, the second, the third
        calls = iter(range(1, 100))

        def signalled(*arguments: object, at: int = stopping, calls: object = calls) -> object:
            if next(calls) == (at if at == 1 else 2):  # a run that goes on does not choose what it has
                os.kill(os.getpid(), signal.SIGTERM)
            return choose(*arguments)

        monkeypatch.setattr(ccp, "greedy_k_centre", signalled)
        with pytest.raises(Stopped):
            train(settings(class_folders, tmp_path / "stopped", resume=True, **changes))
        monkeypatch.setattr(ccp, "greedy_k_centre", choose)
    train(settings(class_folders, tmp_path / "stopped", resume=True, **changes))
    assert_same(tmp_path / "whole", tmp_path / "stopped")


def test_the_last_row_is_written_though_no_row_was_due(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, quick = tmp_path / "run", {"freeze_backbone": True, "log_every": 100, "evaluate_every": 100}
    step = Stepper.step

    def signalled(self: Stepper, number: int) -> Loss:
        loss = step(self, number)
        if number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    def losses() -> list[tuple[str, bool]]:
        with (out / "metrics.csv").open(newline="") as file:
            return [(row["step"], bool(row.get("loss"))) for row in csv.DictReader(file)]

    monkeypatch.setattr(Stepper, "step", signalled)
    with pytest.raises(Stopped):
        train(settings(class_folders, out, steps=5, **quick))
    assert losses() == [("0", False), ("2", True)]
    monkeypatch.setattr(Stepper, "step", step)
    train(settings(class_folders, out, steps=5, resume=True, **quick))
    assert losses() == [("0", False), ("5", True)]


def test_what_a_run_leaves(class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    figures = train(settings(class_folders, out))
    assert json.loads((out / "figures.json").read_text()) == figures
    assert figures["steps"] == 12
    assert {"settings.yaml", "data.json", "model.json", "model.safetensors", "metrics.csv", "figures.json"} <= {
        path.name for path in out.iterdir()
    }
    assert list(out.glob("events*"))
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]  # nothing half-written
    rows = (out / "metrics.csv").read_text().splitlines()
    assert rows[0].startswith("step,seconds,")
    assert [row.split(",")[0] for row in rows[1:]] == ["0", "3", "4", "6", "8", "9", "12"]
    said = capsys.readouterr().err
    assert "training on 48 pictures of 6 classes, holding out 16 of 2" in said
    vectors = lookalike.load(out).embed([class_folders / "class0" / "0.png"])
    assert vectors.shape == (1, 16)
    assert abs((vectors**2).sum() - 1) < 1e-5


def test_every_problem_is_in_the_log_and_the_summary(class_folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    changes = {**CCP, "loss": "c2", "freeze_backbone": True, "lr": 0.1}
    summary = train(settings(class_folders, out, **changes))
    problems = summary["problems"]
    assert [row["problem"] for row in problems] == list(range(1, len(problems) + 1))
    with (out / "metrics.csv").open(newline="") as file:
        logged = [row for row in csv.DictReader(file) if row.get("problem")]
    assert len(problems) > 1
    names = ("violation", "violation bound", "epsilon", "epsilon bound")
    for row, kept in zip(logged, problems, strict=False):
        assert [float(row[name]) for name in names] == [kept[name] for name in names]
    for row in problems:
        assert 0 <= row["violation"] <= row["violation bound"]
        assert row["violation"] <= row["epsilon"] <= row["epsilon bound"]


def test_training_helps(class_folders: Path, tmp_path: Path) -> None:
    """On other pictures of the same eight classes: two unknown classes of eight pictures would be a matter of luck."""
    table = tmp_path / "stripes.csv"
    rows = [
        f"{file},{file.parent.name},{'validation' if int(file.stem) < 3 else 'train'}"
        for file in sorted(class_folders.glob("*/*.png"))
    ]
    table.write_text("\n".join(["path,label,split", *rows]))
    figures = train(settings(table, tmp_path / "run", steps=60, evaluate_every=20, patience=None, crop="none"))
    assert figures["best"]["MAP@R"] > figures["start"]["MAP@R"] + 0.1


def test_the_start_is_kept_where_nothing_is_better(class_folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    figures = train(settings(class_folders, out, freeze_backbone=True, start="pca", lr=1e-12, steps=4))
    assert figures["best_step"] == 0
    assert figures["best"] == figures["start"]


def test_last_stages_learn_from_cached_maps_and_the_whole_model_is_saved(
    class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    changes: dict[str, object] = {"freeze_backbone": True, "train_stages": 1, "start": "pca", "count_start": False}
    figures = train(settings(class_folders, out, steps=4, seed=3, **changes))
    about = json.loads(next((tmp_path / "cache").glob("*/about.json")).read_text())
    assert (about["input_of"], about["shape"]) == ("stage3", [32, 16, 16])
    torch.manual_seed(3)
    before = create_embedder(settings(class_folders, out)).state_dict()
    after = load_file(out / "model.safetensors")
    changed = [name for name in before if name.startswith("backbone.") and not torch.equal(before[name], after[name])]
    assert changed
    assert all(name.startswith("backbone.network.stage3.") for name in changed)
    held_out = data.load(class_folders)
    _, validation, _ = divide(held_out, settings(class_folders, out, seed=3))
    assert validation is not None
    model = lookalike.load(out, engine="torch")
    metrics = measure(model.embed_table(validation, workers=0), validation)
    assert metrics["MAP@R"] == pytest.approx(figures["best"]["MAP@R"], abs=0.02)

    capsys.readouterr()
    train(settings(class_folders, tmp_path / "all", steps=2, **{**changes, "train_stages": 4}))
    assert "all stages of resnet20 train: nothing is cached" in capsys.readouterr().err


@pytest.mark.parametrize("changes", [{"freeze_backbone": True, "train_stages": 1}, {"freeze_backbone": False}])
def test_during_the_warm_up_the_backbone_gets_no_gradients(
    changes: dict[str, object], class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed for the stages that wait, and their optimizer starts afterwards; batch norm goes on."""
    tracked: list[bool] = []
    head_forward = Head.forward

    def forward(self: Head, features: torch.Tensor, *args: object, **settings: object) -> object:
        if self.training:
            tracked.append(features.requires_grad)
        return head_forward(self, features, *args, **settings)  # type: ignore[call-overload]

    monkeypatch.setattr(Head, "forward", forward)
    out = tmp_path / "run"
    train(settings(class_folders, out, steps=3, warm_up=2, start="pca", freeze_batch_norm=False, **changes))
    assert tracked == [False, False, True]
    state = torch.load(out / "state" / "last.pt", weights_only=True)
    groups = state["optimiser"]["param_groups"]
    waiting = {number for group in groups if group["waits"] for number in group["params"]}
    counts = {number: int(values["step"]) for number, values in state["optimiser"]["state"].items()}
    assert waiting
    assert {counts[number] for number in waiting} == {1}
    assert {counts[number] for number in counts.keys() - waiting} == {3}
    batches = [
        int(value) for name, value in state["learner"].items() if name.endswith("stage3.0.norm1.num_batches_tracked")
    ]
    assert batches == [3]


@pytest.mark.parametrize("stages", [0, 1])
def test_a_full_disk_is_no_obstacle(
    stages: int,
    class_folders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 100_000, 100_000))
    changes = {"freeze_backbone": True, "train_stages": stages, "start": "pca", "steps": 4}
    figures = train(settings(class_folders, tmp_path / "run", **changes))
    printed = capsys.readouterr().err
    assert re.search(r"pictures need 0\.0 GB and .*/cache has 0\.0 GB free: nothing is cached", printed)
    assert figures["steps"] == 4
    assert not (tmp_path / "cache").exists()
    monkeypatch.undo()  # a resumed run uses the space that there is now
    train(settings(class_folders, tmp_path / "run", resume=True, **{**changes, "steps": 6}))
    assert (tmp_path / "cache").exists()


def test_without_validation_the_rate_falls_on_a_plateau_of_the_loss(class_folders: Path, tmp_path: Path) -> None:
    changes = VARIANTS["plateau of the training loss"]
    train(settings(class_folders, tmp_path / "run", **{**changes, "log_every": 1}))
    state = torch.load(tmp_path / "run" / "state" / "last.pt", weights_only=True)
    losses = torch.tensor([row["loss"] for row in state["log"]["rows"] if "loss" in row])
    assert len(losses) == 12
    assert state["rates"]["factor"] == 0.5  # the second interval lowers the rate
    assert state["rates"]["best"] == pytest.approx(-float(losses[:4].mean()))


def test_early_stopping(class_folders: Path, tmp_path: Path) -> None:
    figures = train(settings(class_folders, tmp_path / "run", lr=1e-12, patience=2, steps=1000))
    assert figures["steps"] == 8
    assert figures["ending"] == "no better MAP@R in 2 evaluations"


def test_a_new_run_never_writes_into_what_is_there(class_folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="exists and is not empty: choose another --out"):
        train(settings(class_folders, out))
    with pytest.raises(ValueError, match="exists and is not empty: choose another --out"):
        train(settings(class_folders, out, resume=True))
    assert [path.name for path in out.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "contrastiv"}, "did you mean 'contrastive'"),
        ({"pooling": "gps"}, "no pooling is called 'gps'"),
        ({"backbone": "resnet21"}, "no backbone is called 'resnet21'"),
        ({"loss_settings": {"margin": 1}}, "multi-similarity has no setting 'margin'"),
        ({"pooling_settings": {"keep": 2.0}}, "keep must be in"),
        ({"data": "nowhere"}, "there is no folder, CSV or data set 'nowhere'"),
        ({"zero_shot": 0.1, "pooling": "average", "pooling_settings": {}}, "needs a pooling with prototypes"),
        ({"memory": 3, "loss": "proxy-anchor"}, "--memory needs a loss on pairs"),
        ({"memory": 3}, "it would never be used"),
        ({"ccp": True, "memory": 3, "memory_start": 1}, "choose one of them"),
        ({"ccp": True, "validation": 0.0}, "there are none: see --validation"),
        ({"ccp": True, "loss": "soft-triple"}, "--ccp needs a loss on pairs"),
        ({"centres": 0.1, "centres_settings": {"preset": "mhe1"}}, "did you mean 'mhe-1'"),
        ({"centres": 0.1, "centres_settings": {"preset": "r1", "knob": 1}}, "r1 has no setting 'knob'"),
        ({"centres": 0.1, "centres_settings": {"sampel": 4}}, "did you mean 'sample'"),
        ({"batch_size": 7}, "batch_size must be a multiple of per_class"),
        ({"libc": 1.0, "libc_settings": {"heads": 3}}, "dim must be a multiple of heads 3, got 16"),
        ({"libc": 1.0, "libc_settings": {"head": 4}}, "libc has no setting 'head'"),
        ({"libc": 1.0, "loss": "libc"}, "--loss is libc already"),
        ({"reshape": True, "batch_size": 2}, "a batch of 2 cannot be reshaped"),
    ],
)
def test_bad_settings_leave_nothing_behind(
    changes: dict[str, object], message: str, class_folders: Path, tmp_path: Path
) -> None:
    asked = settings(class_folders, tmp_path / "run")
    for name, value in changes.items():
        setattr(asked, name, value)
    with pytest.raises(ValueError, match=message):
        train(asked)
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_ends_the_run_and_leaves_the_last_good_state(
    class_folders: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(RunFailed, match="is not finite any more around step"):
        train(settings(class_folders, out, lr=1e30, clip_norm=None, optimiser="sgd", normalise="none"))
    for name, value in final(out).items():
        assert value.float().isfinite().all(), name


def test_a_folder_that_vanishes_is_named_and_the_state_is_whole(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, out = tmp_path / "pictures", tmp_path / "run"
    shutil.copytree(class_folders, pictures)
    step = Stepper.step

    def vanishing(self: Stepper, number: int) -> Loss:
        if number == 5:
            shutil.move(pictures, tmp_path / "elsewhere")
        return step(self, number)

    monkeypatch.setattr(Stepper, "step", vanishing)
    with pytest.raises(RunFailed, match=r"\d\.png.*\n.*the last saved state is complete"):
        train(settings(pictures, out))
    monkeypatch.setattr(Stepper, "step", step)
    shutil.move(tmp_path / "elsewhere", pictures)
    train(settings(pictures, out, resume=True))
    train(settings(pictures, tmp_path / "whole"))
    assert_same(tmp_path / "whole", out)


def test_a_disk_that_fills_up_leaves_the_last_good_state(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    step = Stepper.step
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def filling(self: Stepper, number: int) -> Loss:
        loss = step(self, number)
        if number == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
        return loss

    monkeypatch.setattr(Stepper, "step", filling)
    try:
        with pytest.raises(RunFailed, match="the last saved state is complete"):
            train(settings(class_folders, out))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert torch.load(out / "state" / "last.pt", weights_only=True)["progress"]["step"] == 4
    monkeypatch.setattr(Stepper, "step", step)
    train(settings(class_folders, out, resume=True))
    train(settings(class_folders, tmp_path / "whole"))
    assert_same(tmp_path / "whole", out)


def test_other_settings_or_other_data_do_not_resume(class_folders: Path, tmp_path: Path) -> None:
    pictures, out = tmp_path / "pictures", tmp_path / "run"
    shutil.copytree(class_folders, pictures)
    train(settings(pictures, out, steps=4))
    with pytest.raises(ValueError, match="changed are seed: 0 -> 1"):
        train(settings(pictures, out, resume=True, seed=1))
    (pictures / "class0" / "0.png").unlink()
    with pytest.raises(ValueError, match="has changed since the run"):
        train(settings(pictures, out, resume=True, steps=8))


def test_other_contents_do_not_resume_and_other_times_do(class_folders: Path, tmp_path: Path) -> None:
    pictures, out = tmp_path / "pictures", tmp_path / "run"
    shutil.copytree(class_folders, pictures)
    train(settings(pictures, out, steps=4))
    os.utime(pictures / "class0" / "0.png", (1, 1))
    train(settings(pictures, out, resume=True, steps=5))
    shutil.copyfile(pictures / "class1" / "0.png", pictures / "class0" / "0.png")
    with pytest.raises(ValueError, match="has changed since the run"):
        train(settings(pictures, out, resume=True, steps=8))


def test_a_run_of_an_earlier_version_is_resumed(
    class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(settings(class_folders, tmp_path, steps=4))
    state = torch.load(tmp_path / "state" / "last.pt", weights_only=True)
    train_pictures, held_out, _ = divide(data.load(str(class_folders)), RunFolder(tmp_path).read_settings())
    state["data"] = [fingerprint_without_content(pictures) for pictures in (train_pictures, held_out) if pictures]
    torch.save(state, tmp_path / "state" / "last.pt")
    (tmp_path / "state" / "checksums.json").unlink()
    train(settings(class_folders, tmp_path, resume=True, steps=5))
    assert "they cannot be compared" in capsys.readouterr().err


def test_more_steps_can_be_asked_for_later(class_folders: Path, tmp_path: Path) -> None:
    train(settings(class_folders, tmp_path / "at once", steps=8))
    train(settings(class_folders, tmp_path / "later", steps=4))
    before = RunFolder(tmp_path / "later").read_settings()
    train(settings(class_folders, tmp_path / "later", steps=8, resume=True))
    assert_same(tmp_path / "at once", tmp_path / "later")
    assert RunFolder(tmp_path / "later").read_settings() == replace(before, steps=8), "or the next would ask for fewer"
    assert main(["train", "--out", str(tmp_path / "later"), "--resume"]) == 0


def test_the_mean_of_the_weights_forgets_prototypes_from_before_their_start(
    class_folders: Path, tmp_path: Path
) -> None:
    train(settings(class_folders, tmp_path / "run", ema=0.9999, steps=10))  # prototypes start in the eighth step
    state = torch.load(tmp_path / "run" / "state" / "last.pt", weights_only=True)
    name = next(name for name in state["mean"] if name.endswith("pooling.prototypes"))
    current = state["learner"][f"model.{name}"]
    assert torch.cosine_similarity(state["mean"][name], current).min() > 0.99
