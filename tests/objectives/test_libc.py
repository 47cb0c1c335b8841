"""LIBC against plain loops over numbers, across processes, and resumed."""

import copy
import os
from math import exp, log, sqrt

import numpy as np
import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from lookalike import objectives
from lookalike.objectives import LIBC, Composed, Gathered, MessagePassing
from lookalike.objectives.libc import Finished, reciprocal_neighbours

WORLD = 2
CLASSES, DIM = 5, 8
CASES = [
    {"blocks": 1, "heads": 2, "temperature": 0.2},
    {"blocks": 2, "heads": 8, "temperature": 1 / 9, "concatenate": True},
    {"blocks": 2, "heads": 4, "temperature": 0.186, "encoder_weight": 0.5, "smoothing": 0.0},
]


def affine(layer, row):
    """W row + b, number by number."""
    weight = layer.weight.tolist()
    bias = [0.0] * len(weight) if layer.bias is None else layer.bias.tolist()
    return [sum(w * x for w, x in zip(line, row, strict=True)) + b for line, b in zip(weight, bias, strict=True)]


def layer_norm(norm, row):
    mean = sum(row) / len(row)
    variance = sum((x - mean) ** 2 for x in row) / len(row)
    scaled = [(x - mean) / sqrt(variance + norm.eps) for x in row]
    return [w * x + b for w, x, b in zip(norm.weight.tolist(), scaled, norm.bias.tolist(), strict=True)]


def batch_norm(norm, rows):
    """By the statistics of the batch."""
    columns = list(zip(*rows, strict=True))
    out = [[] for _ in rows]
    for column, weight, bias in zip(columns, norm.weight.tolist(), norm.bias.tolist(), strict=True):
        mean = sum(column) / len(column)
        variance = sum((x - mean) ** 2 for x in column) / len(column)
        for row, x in zip(out, column, strict=True):
            row.append(weight * (x - mean) / sqrt(variance + norm.eps) + bias)
    return out


def add(a, b):
    return [x + y for x, y in zip(a, b, strict=True)]


def plain_block(block, rows, heads):
    """One round of messages: node j hears from every node i, itself included."""
    queries, keys, values = ([affine(layer, row) for row in rows] for layer in (block.query, block.key, block.value))
    size = len(rows[0]) // heads
    result = []
    for j, row in enumerate(rows):
        message = []
        for head in range(heads):
            span = range(head * size, (head + 1) * size)
            scores = [exp(sum(queries[j][c] * keys[i][c] for c in span) / sqrt(size)) for i in range(len(rows))]
            weights = [score / (1 + sum(scores)) for score in scores]
            message += [sum(weights[i] * values[i][c] for i in range(len(rows))) for c in span]
        row = layer_norm(block.first_norm, add(row, affine(block.out, message)))
        hidden = [max(0.0, x) for x in affine(block.widen, row)]
        result.append(layer_norm(block.second_norm, add(row, affine(block.narrow, hidden))))
    return result


def plain_messages(messages, vectors):
    rows = []
    for vector in vectors.tolist():
        length = sqrt(sum(x * x for x in vector))
        rows.append(affine(messages.input, [x / length for x in vector]))
    outputs = [[] for _ in rows]
    for block in messages.blocks:
        rows = plain_block(block, rows, block.heads)
        outputs = [[*before, *row] for before, row in zip(outputs, rows, strict=True)]
    return outputs if messages.concatenate else rows


def smoothed_cross_entropy(rows, labels, temperature, smoothing):
    """The target is 1 - smoothing for the class plus smoothing spread over all classes."""
    total = 0.0
    for row, label in zip(rows, labels.tolist(), strict=True):
        logits = [x / temperature for x in row]
        normaliser = log(sum(exp(x) for x in logits))
        for index, logit in enumerate(logits):
            target = smoothing / len(logits) + (1 - smoothing) * (index == label)
            total -= target * (logit - normaliser)
    return total / len(rows)


def plain_loss(loss, vectors, labels):
    temperature, smoothing = loss.settings["temperature"], loss.settings["smoothing"]
    encoder = [affine(loss.encoder_classifier, row) for row in vectors.tolist()]
    features = batch_norm(loss.norm, plain_messages(loss.messages, vectors))
    logits = [affine(loss.classifier, row) for row in features]
    return (
        smoothed_cross_entropy(encoder, labels, temperature, smoothing),
        smoothed_cross_entropy(logits, labels, temperature, smoothing),
    )


def create(**settings):
    torch.manual_seed(0)
    loss = LIBC(CLASSES, DIM, **settings).double()
    with torch.no_grad():
        for parameter in loss.parameters():  # biases and norms are trivial at the start
            parameter.add_(0.1 * torch.randn_like(parameter))
    return loss


def batch(seed=1, count=7):
    generator = torch.Generator().manual_seed(seed)
    vectors = 3 * torch.randn(count, DIM, generator=generator, dtype=torch.float64)
    return vectors, torch.randint(CLASSES, (count,), generator=generator)


@pytest.mark.parametrize("settings", CASES)
def test_against_plain_loops(settings):
    loss = create(dropout=0.0, **settings)
    vectors, labels = batch()
    value, parts = loss(vectors, labels)
    encoder, messages = plain_loss(loss, vectors, labels)
    assert parts["encoder"].item() == pytest.approx(encoder, rel=1e-10)
    assert parts["messages"].item() == pytest.approx(messages, rel=1e-10)
    assert value.item() == pytest.approx(settings.get("encoder_weight", 1.0) * encoder + messages, rel=1e-10)


@pytest.mark.parametrize("settings", CASES[:2])
def test_gradients_by_differences(settings):
    """Of the embeddings, through both classifiers, the normalisation and the messages."""
    loss = create(dropout=0.0, **settings)
    vectors, labels = batch()
    leaf = vectors.clone().requires_grad_()
    loss(leaf, labels).value.backward()
    direction = torch.randn_like(vectors)
    ahead, behind = (sum(plain_loss(loss, vectors + h * direction, labels)) for h in (1e-5, -1e-5))
    assert (leaf.grad * direction).sum().item() == pytest.approx((ahead - behind) / 2e-5, rel=1e-6)
    assert loss.norm.bias.grad is None
    for name, parameter in loss.named_parameters():
        assert parameter.grad is not None or name == "norm.bias"


def test_start_of_the_weights():
    torch.manual_seed(3)
    loss = LIBC(classes=200, dim=64)
    block = loss.messages.blocks[0]
    for layer in (block.query, block.key, block.value, block.out):
        assert layer.weight.abs().max().item() == pytest.approx(sqrt(6 / 128), rel=0.01)
        assert not layer.bias.any()
    assert loss.classifier.bias is None
    assert loss.classifier.weight.std().item() == pytest.approx(0.001, rel=0.05)
    assert not loss.norm.bias.requires_grad
    assert block.widen.weight.shape == (256, 64)


def test_published_settings():
    cars = objectives.create("libc", classes=98, dim=512, preset="cars")
    assert len(cars.messages.blocks) == 2
    assert cars.classifier.weight.shape == (98, 1024)
    assert (cars.messages.blocks[0].heads, cars.temperature) == (8, 1 / 9)
    expected = {"cub": (1, 2, 0.2), "inshop": (1, 4, 0.186), "sop": (1, 8, 0.605)}
    for preset, (blocks, heads, temperature) in expected.items():
        settings = objectives.create("libc", classes=4, dim=512, preset=preset).settings
        assert (settings["blocks"], settings["heads"], settings["temperature"]) == (blocks, heads, temperature)
    assert objectives.training_hints("libc", "cub").learning_rate == 1.564e-4


def test_dropout_drops_its_share_and_depends_on_seed_and_step_alone():
    vectors, labels = batch(count=64)
    loss = create(dropout=0.3)
    first, second = loss(vectors, labels).value, loss(vectors, labels).value
    assert first != second
    torch.manual_seed(99)
    again = create(dropout=0.3)
    torch.rand(5)  # the global generator has no say
    assert again(vectors, labels).value == first
    assert create(dropout=0.3, seed=1)(vectors, labels).value != first
    dropout = again.messages.dropout
    dropout.generator = torch.Generator().manual_seed(0)
    values = dropout(torch.ones(100_000))
    assert (values == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert values.max().item() == pytest.approx(1 / 0.7)


def test_eval_mode_neither_drops_nor_counts():
    loss = create().eval()
    vectors, labels = batch()
    assert loss(vectors, labels).value == loss(vectors, labels).value
    assert loss.steps == 0


@pytest.mark.parametrize("before", [0, 1, 3])
def test_resumes_bit_for_bit(before, tmp_path):
    def steps(loss, optimizer, numbers):
        values = []
        for number in numbers:
            value = loss(*batch(number)).value
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            values.append(value.item())
        return values

    def fresh():
        loss = Gathered(Composed({"libc": (1.0, create(dropout=0.2))}))
        return loss, torch.optim.RAdam(loss.parameters(), lr=0.01)

    whole, optimizer = fresh()
    expected = steps(whole, optimizer, range(5))
    first, optimizer = fresh()
    steps(first, optimizer, range(before))
    torch.save({"loss": first.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    second, optimizer = fresh()
    second.load_state_dict(state["loss"])
    optimizer.load_state_dict(state["optimizer"])
    assert steps(second, optimizer, range(before, 5)) == expected[before:]
    for one, other in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_copies_after_training():
    loss = create()
    loss(*batch())
    assert copy.deepcopy(loss).steps == 1


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.model = nn.Linear(DIM, DIM).double()
        self.objective = Gathered(create(dropout=0.2, blocks=2, concatenate=True))

    def forward(self, inputs, labels):
        return self.objective(self.model(inputs), labels)


def learn(learner, batches, rank):
    optimizer = torch.optim.SGD([p for p in learner.parameters() if p.requires_grad], lr=0.1)
    seen = []
    for number, (vectors, labels) in enumerate(batches):
        torch.manual_seed(1000 * rank + number)  # as a run does: the global generators of ranks differ
        loss = learner(vectors, labels)
        loss.value.backward()
        seen += [loss.value.detach(), *loss.parts.values()]
        seen += [parameter.grad.clone() for parameter in learner.parameters() if parameter.requires_grad]
        optimizer.step()
        optimizer.zero_grad()
    return [*seen, *learner.state_dict().values()]


def worker(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    shares = [[tensor.chunk(WORLD)[rank] for tensor in batch(seed, 8)] for seed in range(3)]
    seen = learn(DistributedDataParallel(Learner()), shares, rank)
    torch.save([value for value in seen if isinstance(value, torch.Tensor)], f"{folder}/{rank}.pt")
    distributed.barrier()
    os._exit(0)  # the clean-up of gloo aborts now and then on a busy machine


def test_two_processes_are_one(tmp_path):
    """Losses, gradients, weights and running statistics, with dropout."""
    multiprocessing.spawn(worker, (str(tmp_path),), nprocs=WORLD)
    seen = learn(Learner(), [batch(seed, 8) for seed in range(3)], 0)
    expected = [value for value in seen if isinstance(value, torch.Tensor)]
    for rank in range(WORLD):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("how", ["l2", "clip", "none"])
def test_other_losses_see_normalised_embeddings(how):
    vectors, labels = batch(count=8)
    inner = objectives.create("c2", negative_margin=1.5, normalise=False)
    lengths = vectors.norm(dim=1, keepdim=True)
    expected = {"l2": vectors / lengths, "clip": vectors / lengths.clamp(min=1), "none": vectors}[how]
    torch.testing.assert_close(Finished(inner, how)(vectors, labels).value, inner(expected, labels).value)


@pytest.mark.parametrize("k", [1, 3, 20])
def test_neighbours_by_plain_loops(k):
    generator = torch.Generator().manual_seed(4)
    vectors = torch.randn(9, DIM, generator=generator, dtype=torch.float64)
    near = []
    for i in range(9):
        similarity = [float(torch.cosine_similarity(vectors[i], vectors[j], 0)) for j in range(9)]
        near.append(sorted((j for j in range(9) if j != i), key=lambda j: -similarity[j])[:k])
    members, present = reciprocal_neighbours(vectors.numpy(), k)
    network = MessagePassing(DIM, blocks=2, heads=2, concatenate=True).double()
    refined = network.refine(vectors, k)
    assert network.training
    for i in range(9):
        mutual = [j for j in near[i] if i in near[j]]
        assert sorted(members[i][present[i]]) == sorted([i, *mutual])
        row = plain_messages(network, vectors[[i, *mutual]])[0]
        torch.testing.assert_close(refined[i].tolist(), (np.array(row) / np.linalg.norm(row)).tolist())
    torch.testing.assert_close(network.refine(vectors[:1]).norm(), torch.tensor(1.0, dtype=torch.float64))


def test_mistakes_are_named():
    for settings, message in [
        ({"heads": 3}, "dim must be a multiple of heads 3, got 8"),
        ({"blocks": 0}, "blocks must be at least 1, got 0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"smoothing": -0.1}, r"smoothing must lie in \[0, 1\), got -0.1"),
        ({"temperature": 0}, "temperature must be finite and above 0, got 0"),
        ({"encoder_weight": -1}, "encoder_weight must be at least 0, got -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            LIBC(CLASSES, DIM, **settings)
    loss = create()
    vectors, labels = batch()
    with pytest.raises(ValueError, match="embeddings must have 8 dimensions as the classifier, got 7"):
        loss(vectors[:, 1:], labels)
    with pytest.raises(ValueError, match="a batch of at least two pictures, got 1"):
        loss(vectors[:1], labels[:1])
    assert loss.steps == 0
