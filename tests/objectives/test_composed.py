import pytest
import torch

from lookalike import objectives
from lookalike.objectives import Composed, Loss, Objective


class MeanAttribute(Objective):
    def compute(self, embeddings, labels, attributes):
        del embeddings, labels
        return Loss(attributes.mean(), {})


def test_the_weighted_sum_and_its_parts():
    torch.manual_seed(0)
    metric, proxies = objectives.create("c1"), objectives.create("proxy-nca++", classes=4, dim=8)
    both = Composed({"metric": (0.75, metric), "classes": (2.0, proxies), "zero-shot": (0.5, MeanAttribute())})
    vectors, labels = torch.randn(8, 8, requires_grad=True), torch.arange(8) // 2
    attributes = torch.full((8, 3), 4.0)
    loss = both(vectors, labels, attributes)
    first, second = metric(vectors, labels), proxies(vectors, labels)
    torch.testing.assert_close(loss.value, 0.75 * first.value + 2 * second.value + 2)
    assert loss.parts["metric"] == first.value.detach()
    assert loss.parts["zero-shot"] == 4
    assert loss.parts["metric/positive"] == first.parts["positive"]
    assert not any(part.requires_grad for part in loss.parts.values())
    assert both.proxy_parameters() == [proxies.proxies]
    assert "metric=0.75" in repr(both)
    assert list(both.state_dict()) == ["objectives.classes.proxies"]


@pytest.mark.parametrize("weight", [-1, float("nan")])
def test_bad_weights(weight):
    with pytest.raises(ValueError, match="the weight of 'metric' must be finite and at least 0"):
        Composed({"metric": (weight, objectives.create("c1"))})


def test_nothing_to_compose():
    with pytest.raises(ValueError, match="at least one part"):
        Composed({})
