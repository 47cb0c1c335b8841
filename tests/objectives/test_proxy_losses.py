import published_losses as published
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookalike import objectives

CASES = [
    ("proxy-anchor", published.proxy_anchor, {"margin": 0.2, "sharpness": 12.0}),
    ("proxy-nca", published.proxy_nca, {"scale": 2.5}),
    ("proxy-nca++", published.proxy_nca_plus_plus, {"temperature": 0.3}),
    ("soft-triple", published.soft_triple, {"scale": 9.0, "gamma": 0.4, "merge": 0.7, "margin": 0.2}),
]
NAMES = [name for name, _, _ in CASES]


def units(vectors):
    return [published.unit(row) for row in vectors.detach().double().tolist()]


def expected(name, reference, chosen, objective, vectors, labels):
    proxies = units(objective.proxies)
    if name == "soft-triple":
        count = objective.centres_per_class
        proxies = [proxies[c * count : (c + 1) * count] for c in range(objective.classes)]
    return reference(units(vectors), labels.tolist(), proxies, **chosen)


@pytest.mark.parametrize(("name", "reference", "chosen"), CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-5)])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 8), classes=st.integers(2, 5), centres=st.integers(1, 3))
def test_the_loss_is_the_published_one(name, reference, chosen, dtype, tolerance, seed, count, classes, centres):
    torch.manual_seed(seed)
    extra = {"centres_per_class": centres} if name == "soft-triple" else {}
    objective = objectives.create(name, classes=classes, dim=3, **chosen, **extra)
    vectors, labels = 3 * torch.randn(count, 3, dtype=dtype), torch.randint(classes, (count,))
    value = objective(vectors, labels).value
    assert value.dtype == dtype
    assert objective.proxies.dtype == torch.float32  # comparing in fp64 does not change them
    reference_value = expected(name, reference, chosen, objective, vectors, labels)
    assert value.item() == pytest.approx(reference_value, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize(("name", "reference", "chosen"), CASES)
def test_gradients_of_vectors_and_proxies(name, reference, chosen):
    del reference
    torch.manual_seed(0)
    objective = objectives.create(name, classes=4, dim=3, **chosen).double()
    vectors, labels = torch.randn(6, 3, dtype=torch.float64, requires_grad=True), torch.tensor([0, 0, 1, 2, 2, 2])

    def loss(x, proxies):
        return torch.func.functional_call(objective, {"proxies": proxies}, (x, labels)).value

    assert torch.autograd.gradcheck(loss, (vectors, objective.proxies))


def test_the_temperature_divides_the_cosine():
    """Two classes, cosines 1 and 0: the loss is log(1 + exp(-1/T))."""
    objective = objectives.create("proxy-nca++", classes=2, dim=2)
    with torch.no_grad():
        objective.proxies.copy_(torch.tensor([[5.0, 0.0], [0.0, 2.0]]))
    loss = objective(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    assert loss.value.item() == pytest.approx(torch.tensor(-1 / 0.11).exp().log1p().item(), rel=1e-3)
    assert loss.parts["accuracy"] == 1


def test_the_hardest_pictures_are_not_dropped():
    """Far on the wrong side at a low temperature, the probability underflows; its logarithm does not."""
    objective = objectives.create("proxy-nca++", classes=2, dim=2, temperature=1e-3)
    with torch.no_grad():
        objective.proxies.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    assert objective(torch.tensor([[-1.0, 0.0]]), torch.tensor([0])).value.item() == pytest.approx(2000)


@pytest.mark.parametrize("name", NAMES)
def test_one_class_in_the_batch(name):
    objective = objectives.create(name, classes=5, dim=4)
    vectors = torch.randn(1, 4, requires_grad=True)
    loss = objective(vectors, torch.tensor([3]))
    loss.value.backward()
    assert loss.value.isfinite()
    assert vectors.grad.isfinite().all()
    assert objective.proxies.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_autocast_changes_nothing(name):
    torch.manual_seed(0)
    objective = objectives.create(name, classes=5, dim=16)
    vectors, labels = torch.randn(6, 16), torch.arange(6) % 5
    with torch.autocast("cpu", torch.bfloat16):
        cast = objective(vectors, labels).value
    assert cast == objective(vectors, labels).value


@pytest.mark.parametrize("name", NAMES)
def test_proxies_learn_to_stand_for_their_classes(name):
    torch.manual_seed(0)
    vectors, labels = torch.eye(6) + 0.1 * torch.randn(6, 6), torch.arange(6)
    objective = objectives.create(name, classes=6, dim=6)
    assert objective.proxy_parameters() == list(objective.parameters()) == [objective.proxies]
    optimiser = torch.optim.Adam(objective.parameters(), lr=0.02)
    first = objective(vectors, labels).value.item()
    for _ in range(100):
        optimiser.zero_grad()
        objective(vectors, labels).value.backward()
        optimiser.step()
    assert objective(vectors, labels).value.item() < first
    nearest = objective.cosines(vectors).unflatten(1, (6, -1)).amax(2).argmax(1)
    assert nearest.tolist() == labels.tolist()


def test_centres_of_a_class_are_successive_rows():
    objective = objectives.create("soft-triple", classes=3, dim=4, centres_per_class=2)
    assert objective.proxies.shape == (6, 4)
    vectors = objective.proxies.detach()[[0, 1, 4, 5]]
    loss = objectives.create("soft-triple", classes=3, dim=4, centres_per_class=2, gamma=1e-3)
    loss.load_state_dict(objective.state_dict())
    assert loss(vectors, torch.tensor([0, 0, 2, 2])).parts["accuracy"] == 1


def test_bad_input():
    objective = objectives.create("proxy-anchor", classes=3, dim=4)
    with pytest.raises(ValueError, match=r"labels must lie in 0..2 for 3 classes"):
        objective(torch.randn(2, 4), torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="embeddings must have 4 dimensions as the proxies, got 5"):
        objective(torch.randn(2, 5), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="classes must be at least 2, got 1"):
        objectives.create("proxy-anchor", classes=1, dim=4)
    with pytest.raises(ValueError, match="temperature must be finite and above 0, got 0"):
        objectives.create("proxy-nca++", classes=3, dim=4, temperature=0)
