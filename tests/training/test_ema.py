"""The mean of the weights against its closed formula."""

import pytest
import torch
from torch import nn

from lookalike.training.optim import EMA


def model() -> nn.Module:
    """A trained matrix, a frozen bias and a buffer."""
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, affine=False)).double()
    module[0].bias.requires_grad_(False)
    return module


def shift(module: nn.Module, change: torch.Tensor) -> None:
    with torch.no_grad():
        module[0].weight += change  # type: ignore[index]


def test_closed_formula() -> None:
    # mean_n = decay^n w_0 + (1 - decay) sum_i decay^(n - i) w_i
    torch.manual_seed(0)
    module, decay = model(), 0.9
    mean = EMA(module, decay)
    weights = [module[0].weight.detach().clone()]  # type: ignore[index]
    for _ in range(6):
        shift(module, torch.randn(2, 3, dtype=torch.float64))
        weights.append(module[0].weight.detach().clone())  # type: ignore[index]
        mean.update()
    expected = decay**6 * weights[0] + (1 - decay) * sum(decay ** (6 - i) * weights[i] for i in range(1, 7))
    torch.testing.assert_close(mean.mean["0.weight"], expected)
    assert list(mean.mean) == ["0.weight"]


def test_in_place_shows_the_mean_and_gives_the_weights_back() -> None:
    module = model()
    mean = EMA(module, 0.5)
    before = module[0].weight.detach().clone()  # type: ignore[index]
    shift(module, torch.ones(2, 3))
    mean.update()
    parameter = module[0].weight  # type: ignore[index]
    with mean.in_place():
        torch.testing.assert_close(module[0].weight, before + 0.5)  # type: ignore[index]
        assert module[0].weight is parameter  # type: ignore[index]  # an optimiser holds this very Parameter
    assert torch.equal(parameter, before + 1)
    with pytest.raises(RuntimeError, match="in between"), mean.in_place():
        raise RuntimeError("in between")
    assert torch.equal(parameter, before + 1)
    torch.testing.assert_close(mean.mean["0.weight"], before + 0.5)


def test_buffers_and_frozen_parameters_stay_the_models_own() -> None:
    module = model()
    mean = EMA(module, 0.5)
    with torch.no_grad():
        module[0].bias += 1  # type: ignore[index]
    module.train()(torch.randn(4, 3, dtype=torch.float64))
    bias, running = module[0].bias.clone(), module[1].running_mean.clone()  # type: ignore[index]
    with mean.in_place():
        assert torch.equal(module[0].bias, bias)  # type: ignore[index]
        assert torch.equal(module[1].running_mean, running)  # type: ignore[index]


def test_restart_forgets() -> None:
    module = model()
    mean = EMA(module, 0.9)
    shift(module, torch.ones(2, 3))
    mean.restart()
    assert torch.equal(mean.mean["0.weight"], module[0].weight)  # type: ignore[index]
    shift(module, torch.ones(2, 3))
    torch.testing.assert_close(mean.mean["0.weight"], module[0].weight - 1)  # type: ignore[index]  # a copy


def test_state_round_trip() -> None:
    module = model()
    mean = EMA(module, 0.9)
    shift(module, torch.ones(2, 3))
    mean.update()
    state = {name: value.clone() for name, value in mean.state_dict().items()}
    again = EMA(module, 0.9)
    assert not torch.equal(again.mean["0.weight"], mean.mean["0.weight"])
    again.load_state_dict(state)
    for _ in range(2):
        assert torch.equal(again.mean["0.weight"], mean.mean["0.weight"])
        mean.update()
        again.update()
