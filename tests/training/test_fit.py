"""The training loop in memory, with small models and against plain torch."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from lookalike.objectives import Loss
from lookalike.training import RunFailed, fit
from lookalike.training.loop import Progress
from lookalike.training.optim import LRSchedule


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.modes: list[bool] = []

    def forward(self, inputs: Tensor, targets: Tensor) -> Loss:
        self.modes.append(self.training)
        value = mse_loss(self.linear(inputs), targets)
        return Loss(value, {"squares": value.detach()})


def batches(start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    step = start
    while True:
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(8, 3, generator=generator)
        yield inputs, inputs.sum(1, keepdim=True)
        step += 1


def learner() -> Regression:
    torch.manual_seed(0)
    return Regression()


def test_steps_are_those_of_plain_torch() -> None:
    ours, plain = learner(), learner()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=6)
    seen: list[tuple[int, float]] = []
    result = fit(
        ours,
        batches(),
        optimizer,
        steps=6,
        lr_schedule=schedule,
        accumulate=2,
        clip_norm=0.5,
        on_step=lambda step, loss: seen.append((step, float(loss.value))),
    )

    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    reference_schedule = torch.optim.lr_scheduler.OneCycleLR(reference, 0.2, total_steps=6)
    source, losses = batches(), []
    for _ in range(6):
        values = []
        for _ in range(2):
            loss = plain(*next(source)).value / 2
            loss.backward()
            values.append(float(loss.detach()))
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        reference.step()
        reference.zero_grad()
        reference_schedule.step()
        losses.append(sum(values))
    torch.testing.assert_close(ours.linear.weight, plain.linear.weight)
    assert seen == [(step, pytest.approx(loss)) for step, loss in enumerate(losses, 1)]
    assert result.losses == [pytest.approx(sum(losses) / 6)]
    assert (result.steps, result.best_step, result.evaluations) == (6, 6, [])


def test_evaluations_pick_the_best_weights_and_stop() -> None:
    model = learner()
    scores = iter([0.1, 0.3, 0.2, 0.25, 0.9])
    modes, weights, heard = [], [], []

    def evaluate() -> dict[str, float]:
        modes.append(model.training)
        weights.append(model.linear.weight.detach().clone())
        return {"P@1": next(scores)}

    result = fit(
        model,
        batches(),
        torch.optim.SGD(model.parameters(), lr=0.1),
        steps=100,
        evaluate=evaluate,
        evaluate_every=2,
        monitor="P@1",
        patience=2,
        restore_best=model,
        on_evaluation=lambda step, metrics: heard.append((step, metrics)),
    )
    assert result.evaluations == heard == [(0, {"P@1": 0.1}), (2, {"P@1": 0.3}), (4, {"P@1": 0.2}), (6, {"P@1": 0.25})]
    assert (result.best_step, result.best, result.steps) == (2, {"P@1": 0.3}, 6)
    assert result.ending == "no better P@1 in 2 evaluations"
    assert len(result.losses) == 3
    assert modes == 4 * [False]
    assert all(model.modes)
    assert torch.equal(model.linear.weight, weights[1])
    assert not torch.equal(model.linear.weight, weights[3])


def test_evaluates_only_after_the_last_step_by_default() -> None:
    for start, steps in ((True, [0, 5]), (False, [5])):
        model = learner()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        result = fit(model, batches(), optimizer, steps=5, evaluate=lambda: {"MAP@R": 1.0}, evaluate_start=start)
        assert [step for step, _ in result.evaluations] == steps


def test_continues_from_progress() -> None:
    weights = []
    for parts in ((6,), (2, 6)):
        model, progress = learner(), Progress()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for steps in parts:
            schedule = LRSchedule(optimizer, "constant", 6)
            fit(model, batches(progress.step), optimizer, steps=steps, lr_schedule=schedule, progress=progress)
        assert progress.step == 6
        weights.append(model.linear.weight.detach().clone())
    assert torch.equal(*weights)


def test_randomness_depends_on_seed_and_step() -> None:
    drawn = {}
    for seed in (0, 1):
        model = learner()
        numbers: list[float] = []
        fit(
            model,
            batches(),
            torch.optim.SGD(model.parameters(), lr=0.1),
            steps=3,
            seed=seed,
            before_update=lambda numbers=numbers: numbers.append(float(torch.rand(()))),  # type: ignore[misc]
        )
        drawn[seed] = numbers
    assert len({*drawn[0], *drawn[1]}) == 6


def test_errors() -> None:
    model = learner()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="the batches ended before step 1"):
        fit(model, iter([next(batches())]), optimizer, steps=2)
    with pytest.raises(ValueError, match=r"monitor must be one of P@1, got 'MAP@R'"):
        fit(model, batches(), optimizer, steps=2, evaluate=lambda: {"P@1": 0.0})
    with pytest.raises(RunFailed, match="the loss is not finite any more around step 50"):
        fit(model, batches(), torch.optim.SGD(model.parameters(), lr=1e3), steps=50)
