"""Held against least squares in numpy, one picture at a time."""

import os
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from lookalike.objectives import Composed, Gathered
from lookalike.objectives.multi_similarity import MultiSimilarity
from lookalike.objectives.zero_shot import ZeroShot, _solve_ridge, predict_across, split_by_class
from lookalike.pooling import AveragePool, GeneralizedSumPool

WORLD = 2
UNEVEN = torch.tensor([3, 0, 3, 3, 5, 1, 5, 3, 0])  # four of six classes, one to four pictures each, in no order


def fit(attributes, targets, ridge):
    """(P3) as the least squares it is: the ridge is m more equations, sqrt(ridge) A = 0."""
    count = attributes.shape[1]
    rows = np.vstack([attributes, np.sqrt(ridge) * np.eye(count)])
    return np.linalg.lstsq(rows, np.vstack([targets, np.zeros((count, targets.shape[1]))]), rcond=None)[0]


def published(attributes, labels, embeddings, first, ridge, scale):
    """(4.4) with j != y and a scale, the mean over the batch. Returns it and the share of right guesses."""
    losses, hits = [], []
    for z, label, half in zip(attributes, labels, first, strict=True):
        others = first != half
        predicted = z @ fit(attributes[others], embeddings[labels[others]], ridge)
        rivals = [j for j in range(len(embeddings)) if j != label]
        losses.append(np.log(1 + sum(np.exp(scale * (embeddings[j] - embeddings[label]) @ predicted) for j in rivals)))
        hits.append(np.argmax([u @ predicted for u in embeddings]) == label)
    return np.mean(losses), np.mean(hits)


def make(count, width, *, classes=6, dim=4, seed=0, dtype=torch.float64, **chosen):
    torch.manual_seed(seed)
    objective = ZeroShot(classes, dim, **chosen)
    return objective, torch.randn(count, dim, dtype=dtype), (3 * torch.randn(count, width, dtype=dtype)).softmax(1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    labels=st.lists(st.integers(0, 5), min_size=2, max_size=11).filter(lambda labels: len(set(labels)) > 1),
    width=st.integers(1, 14),
    ridge=st.sampled_from([0.05, 0.005, 2.0]),
    scale=st.sampled_from([9.5, 1.0]),
)
def test_the_loss_is_the_published_one(dtype, tolerance, seed, labels, width, ridge, scale):
    objective, vectors, attributes = make(len(labels), width, seed=seed, dtype=dtype, ridge=ridge, scale=scale)
    labels = torch.tensor(labels)
    loss = objective(vectors, labels, attributes)
    assert loss.value.dtype == dtype
    assert objective.label_embeddings.dtype == torch.float32
    value, accuracy = published(
        attributes.double().numpy(),
        labels.numpy(),
        objective.label_embeddings.detach().double().numpy(),
        split_by_class(labels).numpy(),
        ridge,
        scale,
    )
    assert loss.value.item() == pytest.approx(value, rel=tolerance, abs=tolerance)
    assert loss.parts["zero-shot accuracy"].item() == pytest.approx(accuracy)
    assert loss.parts["skipped"] == 0


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 5], [3, 3, 3]])
def test_the_printed_form_adds_the_means_of_the_halves(labels):
    labels = torch.tensor(labels)
    attributes = torch.rand(len(labels), 5, dtype=torch.float64)
    loss = ZeroShot(6, 4, scale=1.0, printed=True).double()
    value = loss(torch.zeros(len(labels), 4), labels, attributes).value
    first = split_by_class(labels)
    embeddings = loss.label_embeddings.detach()
    expected = 0.0
    if first.any():
        predicted = predict_across(attributes, embeddings[labels], first, 0.05)
        losses = -(predicted @ embeddings.T).log_softmax(1)[torch.arange(len(labels)), labels]
        expected = float(losses[first].mean() + losses[~first].mean())
    assert value.item() == pytest.approx(expected, rel=1e-10)


def test_the_defaults_are_the_authors():
    assert ZeroShot(3, 2).settings == {"classes": 3, "dim": 2, "ridge": 0.05, "scale": 9.5, "printed": False}


@settings(max_examples=60, deadline=None)
@given(labels=st.lists(st.sampled_from([0, 1, 2, 3, 7, 11317]), min_size=1, max_size=40), seed=st.integers(0, 9))
def test_the_split(labels, seed):
    first = split_by_class(torch.tensor(labels)).tolist()
    pairs = list(zip(labels, first, strict=True))
    halves = [Counter(label for label, is_first in pairs if is_first == half) for half in (True, False)]
    counts = Counter(labels)
    assert not halves[0].keys() & halves[1].keys()
    assert all(halves) == (len(counts) > 1)
    if len(counts) > 1:
        assert abs(halves[0].total() - halves[1].total()) <= max(counts.values())
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    assert split_by_class(torch.tensor(labels)[order]).tolist() == [first[i] for i in order]


def test_even_batches_are_halved_and_neighbours_are_not_always_apart():
    generator = torch.Generator().manual_seed(0)
    together = []
    for _ in range(100):
        others = 2 + torch.randperm(98, generator=generator)[:14]
        first = split_by_class(torch.cat([torch.tensor([0, 1]), others]).repeat_interleave(4))
        assert first.sum() == 32
        together.append(bool(first[0] == first[4]))
    assert 20 < sum(together) < 80  # 47 by chance


@pytest.mark.parametrize("width", [3, 12])
def test_the_order_of_the_batch_does_not_matter(width):
    objective, vectors, attributes = make(len(UNEVEN), width)
    order = torch.randperm(len(UNEVEN))
    value = objective(vectors, UNEVEN, attributes).value
    torch.testing.assert_close(objective(vectors[order], UNEVEN[order], attributes[order]).value, value)


@pytest.mark.parametrize("width", [3, 12])
def test_gradients(width):
    objective, vectors, attributes = make(len(UNEVEN), width)

    def value(attributes, label_embeddings):
        return torch.func.functional_call(
            objective, {"label_embeddings": label_embeddings}, (vectors, UNEVEN, attributes)
        ).value

    inputs = attributes.requires_grad_(), objective.label_embeddings.detach().double().requires_grad_()
    assert torch.autograd.gradcheck(value, inputs)


@pytest.mark.parametrize("width", [3, 12])
@pytest.mark.parametrize("half", [True, False])
def test_a_prediction_moves_what_it_is_made_of_and_what_it_was_fitted_to(width, half):
    _, vectors, attributes = make(len(UNEVEN), width)
    first = split_by_class(UNEVEN)
    chosen = (first == half).nonzero()[0].item()
    predicted = predict_across(attributes.requires_grad_(), vectors.requires_grad_(), first, 0.05)[chosen].sum()
    by_attributes, by_targets = torch.autograd.grad(predicted, [attributes, vectors])
    other = first != half
    assert torch.equal(by_attributes.abs().sum(1) > 1e-9, other | (torch.arange(len(UNEVEN)) == chosen))
    assert torch.equal(by_targets.abs().sum(1) > 1e-9, other)


@pytest.mark.parametrize("width", [2, 5])
def test_a_batch_of_one_class_is_skipped_and_counted(width):
    objective, vectors, attributes = make(4, width)
    attributes.requires_grad_()
    loss = objective(vectors, torch.full((4,), 2), attributes)
    loss.value.backward()
    assert (loss.value.item(), loss.parts) == (0, {"zero-shot accuracy": 0, "skipped": 1})
    assert not attributes.grad.any()
    assert not objective.label_embeddings.grad.any()
    for labels in ([0, 1, 1, 2], [3, 3, 3, 3], [5, 0, 0, 0]):
        objective(vectors, torch.tensor(labels), attributes)
    objective.eval()
    objective(vectors, torch.full((4,), 2), attributes)
    assert objective.skipped_share == 0.5
    again = ZeroShot(6, 4)
    assert again.skipped_share == 0
    again.load_state_dict(objective.state_dict())
    assert (again.skipped_share, int(again.steps)) == (0.5, 4)


def test_label_embeddings_and_prototypes_learn():
    """Classes are mixtures of a few features: what is learnt of some classes tells the others."""
    torch.manual_seed(0)
    features = nn.functional.normalize(torch.randn(4, 8))
    mixtures = torch.tensor([[i, j] for i in range(4) for j in range(i)])  # six classes of two features each
    labels = torch.arange(6).repeat_interleave(4)
    bags = features[mixtures[labels].repeat(1, 3)] + 0.05 * torch.randn(24, 6, 8)
    pool = GeneralizedSumPool(8, num_prototypes=6, keep=0.9, sharpness=5.0)
    objective = ZeroShot(6, 8)
    before = objective.label_embeddings.detach().clone(), pool.prototypes.detach().clone()
    optimiser = torch.optim.Adam([*pool.parameters(), *objective.parameters()], lr=0.02)
    values = []
    for _ in range(60):
        pooled = pool(bags, details=True)
        loss = objective(pooled.vector, labels, pooled.attributes)
        optimiser.zero_grad()
        loss.value.backward()
        optimiser.step()
        values.append(loss.value.item())
    moved = (objective.label_embeddings - before[0]).norm(dim=1), (pool.prototypes - before[1]).norm(dim=1)
    assert all((distances > 0.05).all() for distances in moved)
    assert values[-1] < 0.5 * values[0]


@pytest.mark.parametrize("width", [3, 12])
def test_autocast_changes_nothing(width):
    objective, vectors, attributes = make(len(UNEVEN), width, dtype=torch.float32)
    expected = objective(vectors, UNEVEN, attributes)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        given = objective(vectors.bfloat16(), UNEVEN, attributes)
    assert given.value.dtype == torch.float32
    assert given.value == expected.value


@pytest.mark.parametrize("width", [3, 12])
def test_nothing_waits_for_the_device(width):
    """On the meta device there is nothing to wait for: to look at a number, or to make a shape of it, is an error."""
    objective, vectors, attributes = (thing.to("meta") for thing in make(len(UNEVEN), width))
    objective.compute(vectors, UNEVEN.to("meta"), attributes.requires_grad_()).value.backward()
    assert attributes.grad.shape == attributes.shape


def test_what_rounding_has_made_unsolvable_gives_no_number():
    """Half a factorisation has finite entries, and would pass for a solution."""
    grams = torch.stack([torch.eye(2), torch.diag(torch.tensor([1.0, -0.1]))])
    good, bad = _solve_ridge(grams, torch.ones(2, 2, 3), ridge=0.05)
    torch.testing.assert_close(good, torch.ones(2, 3) / 1.05)
    assert bad.isnan().all()


def test_mistakes_are_named():
    objective, vectors, attributes = make(4, 3)
    labels = torch.tensor([0, 1, 1, 2])
    with pytest.raises(
        ValueError, match=r"must be given attributes \(B, m\), got none: choose a pooling with prototyp"
    ):
        objective(vectors, labels)
    nothing = AveragePool(4)(torch.randn(4, 5, 4), details=True).attributes
    with pytest.raises(ValueError, match=r"at least one attribute, but this pooling gives none: .* such as gsp"):
        objective(vectors, labels, nothing)
    with pytest.raises(ValueError, match=r"attributes must have the shape \(4, m\), got \(3, 3\)"):
        objective(vectors, labels, attributes[:3])
    with pytest.raises(ValueError, match=r"labels must lie in 0..5"):
        objective(vectors, labels + 4, attributes)
    with pytest.raises(ValueError, match="ridge must be finite and above 0, got 0"):
        ZeroShot(6, 4, ridge=0)
    with pytest.raises(ValueError, match="scale must be finite and above 0, got -1"):
        ZeroShot(6, 4, scale=-1)
    with pytest.raises(ValueError, match="classes must be at least 2, got 1"):
        ZeroShot(1, 4)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.vector, self.attributes = nn.Linear(6, 4), nn.Linear(6, 12)

    def forward(self, inputs):
        return self.vector(inputs), self.attributes(inputs).softmax(1)


def batches():
    """In the first the first rank has one class only and could not split its share; the second has one class in all."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(2, 8, 6, generator=generator, dtype=torch.float64)
    return zip(inputs, torch.tensor([[1, 1, 1, 1, 2, 0, 3, 2], [4] * 8]), strict=True)


def run(wrap_model, wrap_objective, share):
    """Losses, gradients and counts of two batches, by whoever sees ``share`` of them."""
    torch.manual_seed(3)
    model = wrap_model(Model().double())
    zero_shot = ZeroShot(5, 4).double()
    objective = wrap_objective(Composed({"metric": (0.9, MultiSimilarity()), "zero-shot": (0.1, zero_shot)}))
    results = {}
    for step, (inputs, labels) in enumerate(batches()):
        vectors, attributes = model(share(inputs))
        loss = objective(vectors, share(labels), attributes)
        loss.value.backward()
        results[f"{step} loss"] = loss.value.detach()
        results.update({f"{step} {name}": part for name, part in loss.parts.items()})
    for name, parameter in (*model.named_parameters(), *zero_shot.named_parameters()):
        results[f"gradient of {name.removeprefix('module.')}"] = parameter.grad.clone()
    return results | {"skipped share": torch.tensor(zero_shot.skipped_share)}


def worker(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    results = run(DistributedDataParallel, Gathered, lambda tensor: tensor.chunk(WORLD)[rank])
    torch.save(results, f"{folder}/{rank}.pt")
    distributed.barrier()
    os._exit(0)  # the clean-up of gloo aborts now and then on a busy machine


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    multiprocessing.spawn(worker, (str(tmp_path),), nprocs=WORLD)
    expected = run(nn.Identity().forward, nn.Identity().forward, lambda tensor: tensor)
    assert expected["0 zero-shot"] > 0.1
    assert expected["gradient of attributes.weight"].abs().max() > 1e-3
    assert expected["skipped share"] == 0.5
    for rank in range(WORLD):
        results = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert results.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(results[name], value, rtol=1e-9, atol=1e-12, msg=f"rank {rank}: {name}")
