"""Runs with LIBC: restarts from the best weights, and message passing at test."""

import json
from pathlib import Path

import pytest
import torch
from test_loop import settings
from torch import nn

import lookalike
from lookalike import data
from lookalike.cli import main
from lookalike.objectives import LIBC
from lookalike.objectives.libc import load_messages
from lookalike.training import train
from lookalike.training.evaluate import measure
from lookalike.training.loop import Progress, fit
from lookalike.training.optim import LRSchedule, create_optimizer
from lookalike.training.restarts import Restarts
from lookalike.training.settings import Settings


def test_weights_return_and_moments_stay() -> None:
    learner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), LIBC(3, 4))
    optimizer = torch.optim.RAdam(learner.parameters(), lr=0.5)
    schedule = LRSchedule(optimizer, "constant", 10)
    restarts = Restarts(learner, schedule, (2, 3))
    restarts.keep()
    best = {name: value.clone() for name, value in learner.state_dict().items() if isinstance(value, torch.Tensor)}
    for step in range(2):
        assert not restarts.before_step(step)
        schedule.set_for(step)
        learner[2](learner[1](learner[0](torch.randn(6, 3))), torch.arange(6) % 3).value.backward()
        optimizer.step()
    assert not torch.equal(learner[0].weight, best["0.weight"])
    moments = {key: dict(value) for key, value in optimizer.state_dict()["state"].items()}
    assert restarts.before_step(2)
    for name, value in learner.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, best[name]), name
    assert learner[2].steps == 2  # dropout does not repeat itself
    for key, values in optimizer.state_dict()["state"].items():
        assert torch.equal(values["exp_avg"], moments[key]["exp_avg"])
    for step, rate in ((2, 0.05), (3, 0.005)):
        if step > 2:
            restarts.before_step(step)
        schedule.set_for(step)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_state_continues() -> None:
    learner = nn.Linear(2, 2)
    schedule = LRSchedule(torch.optim.SGD(learner.parameters(), lr=1.0), "constant", 10)
    restarts = Restarts(learner, schedule, (1,))
    restarts.keep()
    restarts.before_step(1)
    other = Restarts(nn.Linear(2, 2), LRSchedule(torch.optim.SGD(learner.parameters(), lr=1.0), "constant", 10), (5,))
    other.load_state_dict(restarts.state_dict())
    other.lr_schedule.load_state_dict(schedule.state_dict())
    assert other.lr_schedule.scale == pytest.approx(0.1)
    other.before_step(5)
    assert torch.equal(other.learner.weight, learner.weight)


@pytest.mark.parametrize(("restart_lr", "last"), [("initial", 1e-3), ("current", 1e-4)])
def test_a_run_says_that_it_restarts(
    restart_lr: str, last: float, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At both restarts the released code sets a tenth of the first rate; a tenth of the rate before is the default."""
    changes = {"loss": "libc", "optimiser": "radam", "lr": 0.01, "restarts": (4, 8), "log_every": 1}
    train(settings(class_folders, tmp_path / "run", **changes, restart_lr=restart_lr))
    said = capsys.readouterr()
    lines = [line for line in (said.out + said.err).splitlines() if "back to the weights of step" in line]
    assert [line.rpartition(" ")[2] for line in lines] == ["0.001", f"{last:.2g}"]
    rows = torch.load(tmp_path / "run" / "state" / "last.pt", weights_only=True)["log"]["rows"]
    rates = {row["step"]: row["rate"] for row in rows if "rate" in row}
    assert [rates[step] for step in (4, 5, 8, 9, 12)] == pytest.approx([1e-2, 1e-3, 1e-3, last, last])
    assert json.loads((tmp_path / "run" / "figures.json").read_text())["steps"] == 12


def test_a_hook_before_every_step() -> None:
    class Learner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = LIBC(3, 4)

        def forward(self, vectors: torch.Tensor, labels: torch.Tensor) -> object:
            return self.loss(vectors, labels)

    learner, seen = Learner(), []
    batches = iter(lambda: (torch.randn(6, 4), torch.arange(6) % 3), None)
    optimizer = torch.optim.RAdam(learner.parameters(), lr=0.1)
    fit(learner, batches, optimizer, steps=3, before_step=seen.append, progress=Progress())
    assert seen == [0, 1, 2]


def test_libc_has_rate_and_decay_of_the_model() -> None:
    chosen = Settings(lr=1e-3, proxy_lr=100.0, weight_decay=0.5, optimiser="radam")
    head = nn.ModuleDict({"projection": nn.Linear(4, 4, bias=False)})
    optimizer = create_optimizer(head, LIBC(3, 4), chosen)
    assert isinstance(optimizer, torch.optim.RAdam)
    groups = {group["name"]: group for group in optimizer.param_groups}
    assert set(groups) == {"head", "libc", "libc, not decayed"}
    assert {group["lr"] for group in groups.values()} == {1e-3}
    assert groups["libc"]["weight_decay"] == 0.5
    assert groups["libc, not decayed"]["weight_decay"] == 0.0


def test_evaluation_with_message_passing(
    class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command refines the vectors of the encoder by the network that the run has left."""
    out = tmp_path / "run"
    train(settings(class_folders, out, loss="libc", loss_settings={"blocks": 2, "concatenate": True}, lr=0.01))
    results = []
    for neighbours in ("0", "3"):
        capsys.readouterr()
        assert main(["evaluate", str(out), str(class_folders), "--message-passing", neighbours, "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    pictures = data.load(str(class_folders))
    model = lookalike.load(out)
    vectors = model.embed_table(pictures)
    expected = measure(load_messages(out).refine(vectors, 3).numpy(), pictures)
    assert results[1]["MAP@R"] == pytest.approx(expected["MAP@R"], abs=1e-6)
    assert results[0]["MAP@R"] == pytest.approx(measure(vectors, pictures)["MAP@R"], abs=1e-6)
    assert results[0]["MAP@R"] != results[1]["MAP@R"]


def test_message_passing_needs_a_run_with_libc(
    class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    train(settings(class_folders, out, steps=1))
    assert main(["evaluate", str(out), str(class_folders), "--message-passing", "7"]) != 0
    assert "only runs with --loss libc or --libc pass messages" in capsys.readouterr().err
    (out / "messages.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="is damaged or no message-passing network"):
        load_messages(out)
