"""Who is trained at which rate."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from lookalike import objectives
from lookalike.models import Embedder, create_backbone, freeze
from lookalike.training.optim import create_optimizer
from lookalike.training.resolve import fill_in
from lookalike.training.settings import Settings


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder(create_backbone("resnet20"), dim=8, pooling_settings={"num_prototypes": 4})


def settings(**changes: object) -> Settings:
    decided = {"lr": 1e-2, "proxy_lr": 100.0, "backbone_lr": 0.1, "pooling_lr": 2.0, "weight_decay": 0.25}
    return Settings(**{**decided, **changes})  # type: ignore[arg-type]


def test_every_parameter_once_at_its_rate(embedder: Embedder) -> None:
    proxies = objectives.create("proxy-anchor", classes=5, dim=8)
    optimiser = create_optimizer(embedder, proxies, settings())
    groups = {group["name"]: group for group in optimiser.param_groups}
    table = {name: (group["lr"], group["weight_decay"], group["waits"]) for name, group in groups.items()}
    assert table == {
        "backbone": (pytest.approx(1e-3), 0.25, True),
        "backbone, not decayed": (pytest.approx(1e-3), 0.0, True),
        "pooling": (2e-2, 0.25, False),
        "head": (1e-2, 0.25, False),
        "loss": (pytest.approx(1.0), 0.0, False),
    }
    held = [id(parameter) for group in optimiser.param_groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for part in (embedder, proxies) for parameter in part.parameters())
    assert groups["head"]["params"] == [embedder.head.projection.weight]  # type: ignore[union-attr]
    assert groups["loss"]["params"] == list(proxies.parameters())


def test_label_embeddings_do_not_have_the_rate_of_proxies(embedder: Embedder) -> None:
    proxies, labels = objectives.create("proxy-anchor", classes=5, dim=8), objectives.ZeroShot(classes=5, dim=8)
    both = objectives.Gathered(objectives.Composed({"metric": (0.9, proxies), "zero-shot": (0.1, labels)}))
    for multiple, rate in ((1.0, 1e-2), (3.0, 3e-2)):
        optimiser = create_optimizer(embedder, both, settings(label_lr=multiple))
        groups = {group["name"]: group for group in optimiser.param_groups}
        assert groups["loss"]["params"] == [proxies.proxies]
        assert groups["loss"]["lr"] == pytest.approx(1.0)
        assert groups["labels"]["params"] == [labels.label_embeddings]
        assert groups["labels"]["lr"] == pytest.approx(rate)
    assert Settings().label_lr == 1.0
    with pytest.raises(ValueError, match="label_lr must be finite and above 0, got 0"):
        Settings(label_lr=0)


def test_nothing_in_ccp_has_a_rate_multiplier(embedder: Embedder) -> None:
    margin = objectives.create("margin")
    between = objectives.BetweenProxies(margin, 5, 8, 2)
    asked = Settings(loss="margin", ccp=True, lr=1e-2, proxy_lr=None, pooling="average")
    decided, _ = fill_in(asked, 5, pretrained=False, has_gpu=False)
    groups = {group["name"]: group for group in create_optimizer(embedder, between, decided).param_groups}
    assert set(groups["loss"]["params"]) == {between.proxies, margin.beta}
    assert groups["loss"]["lr"] == pytest.approx(1e-2)


def test_the_head_alone(embedder: Embedder) -> None:
    pairs = objectives.create("contrastive")
    optimiser = create_optimizer(embedder.head, pairs, settings())
    assert [group["name"] for group in optimiser.param_groups] == ["pooling", "head"]
    assert not any(group["waits"] for group in optimiser.param_groups)
    frozen = Embedder(create_backbone("resnet20"), dim=8)
    freeze(frozen.backbone)
    assert [group["name"] for group in create_optimizer(frozen, pairs, settings()).param_groups] == ["pooling", "head"]


@pytest.mark.parametrize(("name", "kind"), [("adam", Adam), ("adamw", AdamW), ("sgd", SGD)])
def test_kinds(name: str, kind: type, embedder: Embedder) -> None:
    optimiser = create_optimizer(embedder, nn.Module(), settings(optimiser=name, betas=(0.8, 0.95)))
    assert type(optimiser) is kind
    for group in optimiser.param_groups:
        assert group["momentum"] == 0.8 if name == "sgd" else group["betas"] == (0.8, 0.95)


def test_decay_is_coupled_in_adam_alone() -> None:
    # Without a gradient Adam sees the decay alone, and takes a step of lr; the others shrink the weight by lr * decay.
    for name, expected in (("adam", 1 - 1e-2), ("adamw", 1 - 1e-2 * 0.25), ("radam", 1 - 1e-2 * 0.25)):
        model = nn.Linear(2, 2, bias=False).double()
        nn.init.ones_(model.weight)
        optimiser = create_optimizer(model, nn.Module(), settings(optimiser=name))
        model.weight.grad = torch.zeros_like(model.weight)
        optimiser.step()
        torch.testing.assert_close(model.weight.detach(), torch.full((2, 2), expected, dtype=torch.float64))
