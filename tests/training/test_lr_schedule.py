"""Learning rates against values worked out by hand, and the plateau against torch."""

from math import cos, pi, sqrt

import numpy as np
import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lookalike.training.optim import LRSchedule


def optimiser() -> SGD:
    head, backbone = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    return SGD([{"params": [head], "lr": 0.8}, {"params": [backbone], "lr": 0.1, "waits": True}], lr=1.0)


def rates_at(rates: LRSchedule, step: int) -> list[float]:
    rates.set_for(step)
    return [group["lr"] for group in rates.optimizer.param_groups]


def test_constant() -> None:
    rates = LRSchedule(optimiser(), "constant", steps=10)
    for step in (0, 5, 10, 99):
        assert rates_at(rates, step) == [0.8, 0.1]
    rates.report(1.0)
    for _ in range(20):
        rates.report(0.0)
    assert rates_at(rates, 5) == [0.8, 0.1]


def test_cosine() -> None:
    rates = LRSchedule(optimiser(), "cosine", steps=8)
    half = 1 / sqrt(2)
    for step, share in {0: 1.0, 2: (1 + half) / 2, 4: 0.5, 6: (1 - half) / 2, 8: 0.0, 20: 0.0}.items():
        assert rates_at(rates, step) == pytest.approx([0.8 * share, 0.1 * share], abs=1e-12)
    assert rates_at(rates, 7)[0] == pytest.approx(0.4 * (1 + cos(7 / 8 * pi)))


@pytest.mark.parametrize("schedule", ["constant", "cosine", "plateau"])
def test_only_the_backbone_waits(schedule: str) -> None:
    rates = LRSchedule(optimiser(), schedule, steps=1000, warm_up=3)  # type: ignore[arg-type]
    assert [rates_at(rates, step)[1] == 0 for step in range(5)] == [True, True, True, False, False]
    assert all(rates_at(rates, step)[0] > 0.79 for step in range(5))
    assert rates_at(rates, 3)[1] == pytest.approx(0.1, rel=1e-4)  # and not slowly


def test_gradients_of_the_backbone_are_dropped_while_it_waits() -> None:
    rates = LRSchedule(optimiser(), "constant", steps=10, warm_up=1)
    head, backbone = (group["params"][0] for group in rates.optimizer.param_groups)
    for step in (0, 1):
        for parameter in (head, backbone):
            parameter.grad = torch.ones(1)
        rates.drop_waiting(step)
        assert head.grad is not None
        assert (backbone.grad is None) == (step == 0)


def test_plateau_by_hand() -> None:
    rates = LRSchedule(optimiser(), "plateau", steps=1000)
    heard = []
    # one good figure, then equal ones, which are no better: halved at the fifth, the two after it do not count
    for figure in [0.5] + 13 * [0.5]:
        rates.report(figure)
        heard.append(rates_at(rates, 0)[0])
    assert heard == 5 * [0.8] + 7 * [0.4] + 2 * [0.2]
    rates.report(0.6)
    assert rates_at(rates, 0) == [0.2, 0.025]


def test_patience_on_a_plateau() -> None:
    rates = LRSchedule(optimiser(), "plateau", steps=1000, patience=2)
    heard = []
    for figure in [0.5, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4]:  # halved at the second, two do not count, then two again
        rates.report(figure)
        heard.append(rates_at(rates, 0)[0])
    assert heard == 2 * [0.8] + 4 * [0.4] + [0.2]


@pytest.mark.parametrize(("min_delta", "min_lr"), [(0, 0), (1.5, 0), (0, 0.02), (0.3, 0.01)])
@pytest.mark.parametrize("seed", range(20))
def test_plateau_as_torch_counts_it(seed: int, min_delta: float, min_lr: float) -> None:
    rng = np.random.default_rng(seed)
    figures = (rng.integers(0, 10 + 5 * seed, 120) + np.arange(120) * rng.choice([0, 0.1])).tolist()
    ours = LRSchedule(optimiser(), "plateau", steps=1000, min_delta=min_delta, min_lr=min_lr)
    theirs = ReduceLROnPlateau(
        optimiser(),
        mode="max",
        factor=0.5,
        patience=4,
        cooldown=2,
        threshold=min_delta,
        threshold_mode="abs",
        min_lr=[min(group["lr"], min_lr) for group in optimiser().param_groups],
    )
    for figure in figures:
        ours.report(figure)
        theirs.step(figure)
        assert rates_at(ours, 0) == pytest.approx([group["lr"] for group in theirs.optimizer.param_groups], rel=1e-6)
        if rates_at(ours, 0)[0] < 1e-7:
            break  # torch stops lowering there
    assert rates_at(ours, 0)[0] < 0.8


@pytest.mark.parametrize("after", range(1, 16))
def test_state_in_the_middle(after: int) -> None:
    figures = [0.1, 0.3, *7 * [0.2], 0.4, *7 * [0.3]]
    whole, first = (LRSchedule(optimiser(), "plateau", steps=50, warm_up=2) for _ in range(2))
    for figure in figures[:after]:
        whole.report(figure)
        first.report(figure)
    second = LRSchedule(optimiser(), "plateau", steps=50, warm_up=2)
    second.load_state_dict(first.state_dict())
    for figure in figures[after:]:
        whole.report(figure)
        second.report(figure)
        assert rates_at(second, 3) == rates_at(whole, 3)
    assert second.state_dict() == whole.state_dict()
    assert whole.state_dict()["factor"] == 0.25
