"""Our EfficientNet-lite0 against timm's network of that name: the same names, and bit for bit the same results."""

import pytest
import timm
import torch
from torch import nn

from lookalike.models import create_backbone
from lookalike.models.backbone import Backbone
from lookalike.models.efficientnet_lite0 import NAME, EfficientNetLite0


def both() -> tuple[EfficientNetLite0, nn.Module]:
    """Our network and timm's with the same random weights and statistics."""
    torch.manual_seed(0)
    theirs = timm.create_model(NAME, num_classes=0)
    for name, values in theirs.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            values.uniform_(0.5, 1.5)
    ours = EfficientNetLite0()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("size", [64, 75, 33])
@pytest.mark.parametrize("training", [False, True])
def test_maps_and_gradients_are_those_of_timm(size: int, training: bool) -> None:
    ours, theirs = both()
    ours.train(training)
    theirs.train(training)
    images = torch.randn(3, 3, size, size)
    maps, expected = ours(images), theirs.forward_features(images)  # type: ignore[operator]
    assert torch.equal(maps, expected)
    maps.square().sum().backward()
    expected.square().sum().backward()
    for (name, parameter), (same_name, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == same_name
        assert torch.equal(parameter.grad, other.grad), name  # type: ignore[arg-type]
    for (name, values), (same_name, others) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        assert name == same_name
        assert torch.equal(values, others), name


def test_stages_and_input_are_those_of_timm() -> None:
    ours, theirs = both()
    assert Backbone(NAME, ours).stages() == Backbone(NAME, theirs).stages()
    assert ours.classifier == theirs.default_cfg["classifier"]  # type: ignore[index, operator]


def test_random_weights_have_the_deviations_of_timm() -> None:
    """Normal with deviation sqrt(2 / fan out), and batch norm starts as the identity."""
    torch.manual_seed(0)
    ours, theirs = EfficientNetLite0(), timm.create_model(NAME, num_classes=0)
    for (name, parameter), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if parameter.dim() == 1:
            assert torch.equal(parameter, other), name
        elif parameter.numel() > 5_000:
            torch.testing.assert_close(parameter.std(), other.std(), rtol=0.1, atol=0)


def test_both_names_give_our_network() -> None:
    for name in ("efficientnet_lite0", NAME):
        assert isinstance(create_backbone(name, weights="none").network, EfficientNetLite0)
