"""Frozen stays frozen through ``.train()``, copies and optimiser steps; what is to train does."""

import copy
import pickle

import pytest
import torch
from torch import nn

from lookalike.models import (
    Embedder,
    Head,
    create_backbone,
    freeze,
    freeze_batch_norm,
    parameter_groups,
    train_last_stages,
)


def make() -> Embedder:
    torch.manual_seed(0)
    return Embedder(create_backbone("resnet20"), dim=8, pooling_settings={"num_prototypes": 4})


def step(embedder: Embedder) -> dict[str, torch.Tensor]:
    """A step of training; which values of the state dict it changed."""
    before = {name: value.clone() for name, value in embedder.state_dict().items()}
    optimiser = torch.optim.SGD(parameter_groups(embedder, 0.1))
    embedder.train()
    (embedder(3 + torch.randn(4, 3, 32, 32)) * torch.randn(4, 8)).sum().backward()
    optimiser.step()
    return {name: value for name, value in embedder.state_dict().items() if not torch.equal(value, before[name])}


def test_without_freezing_statistics_and_weights_move() -> None:
    changed = step(make())
    assert "backbone.network.stem_norm.running_mean" in changed
    assert "backbone.network.stem.weight" in changed


@pytest.mark.parametrize("through", [lambda module: module, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("train_affine", [False, True])
def test_frozen_batch_norm_keeps_its_statistics_in_training(through, train_affine: bool) -> None:  # type: ignore[no-untyped-def]
    embedder = make()
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in embedder.modules())
    assert freeze_batch_norm(embedder, train_affine=train_affine) == norms
    freeze_batch_norm(embedder, train_affine=train_affine)  # twice is once
    changed = step(through(embedder))
    assert not [name for name in changed if "running" in name or "tracked" in name]
    assert ("backbone.network.stem_norm.weight" in changed) == train_affine
    assert "backbone.network.stem.weight" in changed


def test_a_frozen_batch_norm_computes_as_in_eval_mode() -> None:
    norm = nn.BatchNorm2d(3)
    norm.running_mean.fill_(2.0)
    freeze_batch_norm(norm)
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(norm.train()(x), (x - 2) / (1 + 1e-5) ** 0.5)


def test_a_frozen_backbone_leaves_the_head_to_train() -> None:
    embedder = make()
    freeze(embedder.backbone)
    changed = step(embedder)
    assert {name.split(".")[0] for name in changed} == {"head"}
    assert "head.projection.weight" in changed
    assert "head.pooling.prototypes" in changed


@pytest.mark.parametrize("count", [0, 1, 4])
def test_only_the_last_stages_train(count: int) -> None:
    embedder = make()
    train_last_stages(embedder.backbone, count)
    changed = {name.removeprefix("backbone.network.").split(".")[0] for name in step(embedder) if "backbone" in name}
    expected = [{"stem", "stem_norm"}, {"stage1"}, {"stage2"}, {"stage3"}]
    assert changed == set().union(*expected[4 - count :])


def test_too_many_stages() -> None:
    with pytest.raises(ValueError, match="has 4 stages, 5"):
        train_last_stages(make().backbone, 5)


def test_timm_stages_end_with_the_last_layer() -> None:
    backbone = create_backbone("test_efficientnet", weights="none")
    train_last_stages(backbone, 1)
    trains = [name for name, value in backbone.named_parameters() if value.requires_grad]
    assert "network.conv_head.weight" in trains
    assert "network.conv_stem.weight" not in trains
    norms = {name: module for name, module in backbone.named_modules() if isinstance(module, nn.BatchNorm2d)}
    backbone.train()(torch.randn(2, 3, 64, 64))
    assert norms["network.bn1"].num_batches_tracked == 0
    assert norms["network.bn2"].num_batches_tracked == 1


def test_parameter_groups() -> None:
    embedder = make()
    embedder.backbone.network.stem.requires_grad_(False)
    groups = parameter_groups(embedder, 0.1, backbone_lr=0.5, pooling_lr=10.0, weight_decay=0.01)
    table = {group["name"]: (group["lr"], group["weight_decay"]) for group in groups}
    assert table == {
        "backbone": (0.05, 0.01),
        "backbone, not decayed": (0.05, 0.0),
        "pooling": (1.0, 0.01),
        "head": (0.1, 0.01),
    }
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in embedder.parameters() if p.requires_grad)
    norms = {id(p) for m in embedder.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()}
    assert {id(parameter) for parameter in groups[1]["params"]} == norms
    assert [group["name"] for group in parameter_groups(embedder.head, 0.1)] == ["pooling", "head"]
    torch.optim.Adam(groups)


def test_single_numbers_of_a_pooling_have_a_rate_of_their_own() -> None:
    head = Head(8, 4, "gsp", {"num_prototypes": 2, "learn_keep": True, "learn_sharpness": True})
    rates = {}
    for group in parameter_groups(head, 0.1, pooling_lr=10.0, scalar_lr=500.0, weight_decay=0.01):
        rates |= {id(parameter): (group["lr"], group["weight_decay"]) for parameter in group["params"]}
    assert rates[id(head.pooling.keep_logit)] == rates[id(head.pooling.log_sharpness)] == (50.0, 0.0)
    assert rates[id(head.pooling.prototypes)] == (1.0, 0.01)
    assert rates[id(head.projection.weight)] == (0.1, 0.01)
    with pytest.raises(ValueError, match="scalar_lr must be"):
        parameter_groups(head, 0.1, scalar_lr=0.0)


def test_nothing_to_train() -> None:
    embedder = make()
    embedder.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing trains"):
        parameter_groups(embedder, 0.1)
    with pytest.raises(ValueError, match="lr must be"):
        parameter_groups(embedder, 0.0)
