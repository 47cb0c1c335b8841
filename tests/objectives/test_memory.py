"""The ring against a list of everything ever seen, of which the end is remembered."""

import copy
import os

import published_losses as published
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed, multiprocessing, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn.parallel import DistributedDataParallel

from lookalike import objectives
from lookalike.objectives import Composed, CrossBatchMemory, Gathered, PairObjective, with_memory
from lookalike.objectives.memory import size_in_batches
from lookalike.objectives.presets import DATA_SETS, MEMORY_BATCHES, MEMORY_STARTS_AFTER

WORLD = 2
DIM = 3
CASES = [
    ("c1", published.contrastive, {"margin": 0.2}),
    ("c2", published.contrastive_distance, {"positive_margin": 0.3, "negative_margin": 1.1}),
    ("triplet", published.triplet, {"margin": 0.25}),
    ("ms", published.multi_similarity, {"alpha": 2.0, "beta": 40.0, "base": 0.5, "mining": 0.1}),
    ("margin", published.margin, {"margin": 0.3, "beta": 0.875}),
    ("lifted-structure", published.lifted_structure, {"positive_margin": 0.1, "negative_margin": 0.8}),
    ("lifted-structure-song", published.lifted_structure_song, {"margin": 0.7}),
    ("n-pair", published.n_pair, {"scale": 3.0}),
    ("circle", published.circle, {"scale": 10.0, "relaxation": 0.3}),
]


def random_batch(generator, count, classes=3, pictures=12):
    """Of few pictures, so that they return; the label of a picture is always the same."""
    vectors = torch.randn(count, DIM, generator=generator, dtype=torch.float64)
    chosen = torch.randint(pictures, (count,), generator=generator)
    return vectors, chosen % classes, chosen


def batches(seed, *counts):
    generator = torch.Generator().manual_seed(seed)
    return [random_batch(generator, count) for count in counts]


def run(memory, steps):
    """The losses and gradients of successive batches."""
    seen = []
    for vectors, labels, pictures in steps:
        leaf = vectors.clone().requires_grad_()
        loss = memory(leaf, labels, pictures=pictures)
        loss.value.backward()
        seen.append((loss.value.detach(), leaf.grad, loss.parts))
    return seen


def assert_equal_runs(one, other):
    assert len(one) == len(other)
    for (value, gradient, parts), (other_value, other_gradient, other_parts) in zip(one, other, strict=True):
        assert value == other_value
        assert torch.equal(gradient, other_gradient)
        assert parts == other_parts


def test_every_pair_loss_is_tried():
    known = [objectives.create(name, classes=4, dim=4) for name in objectives.names()]
    tried = {type(objectives.create(name)) for name, _, _ in CASES}
    assert tried == {type(objective) for objective in known if isinstance(objective, PairObjective)}


@pytest.mark.parametrize(("name", "reference", "chosen"), CASES)
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 12),
    counts=st.lists(st.integers(1, 7), min_size=2, max_size=6),
    start_after=st.integers(0, 3),
    match_itself=st.booleans(),
)
def test_against_a_list(name, reference, chosen, seed, size, counts, start_after, match_itself):
    """Values by the published formulas; sizes that the batches do not divide, batches larger than the memory."""
    objective = objectives.create(name, **chosen)
    memory = CrossBatchMemory(
        objective,
        DIM,
        size,
        form="distinct",
        start_after=start_after,
        weight=0.75,
        match_itself=match_itself,
    ).double()
    everything = []
    for step, (vectors, labels, pictures) in enumerate(batches(seed, *counts)):
        leaf, twin = vectors.clone().requires_grad_(), vectors.clone().requires_grad_()
        loss = memory(leaf, labels, pictures=pictures)
        remembered = everything[::-1][:size]  # the newest first
        expected_gradient = objective(twin, labels).value
        rows, own = as_lists(vectors, objective.normalise), [(i, i) for i in range(len(vectors))]
        expected = reference(rows, labels.tolist(), rows, labels.tolist(), own, **chosen)
        if remembered and step >= start_after:
            old, old_labels, old_pictures = (torch.stack(column) for column in zip(*remembered, strict=True))
            same = (pictures.unsqueeze(1) == old_pictures) & (not match_itself)
            against = reference(
                rows,
                labels.tolist(),
                as_lists(old, objective.normalise),
                old_labels.tolist(),
                [tuple(pair) for pair in same.nonzero().tolist()],
                **chosen,
            )
            assert loss.parts["memory"].item() == pytest.approx(against, rel=1e-8, abs=1e-8)
            expected += 0.75 * against
            expected_gradient = expected_gradient + 0.75 * objective.pairwise(twin, labels, old, old_labels, same).value
        else:
            assert loss.parts["memory"] == 0
        assert loss.value.item() == pytest.approx(expected, rel=1e-8, abs=1e-8)
        assert loss.parts["memory fill"].item() == pytest.approx(len(remembered) / size)
        torch.testing.assert_close(gradient(loss.value, leaf), gradient(expected_gradient, twin))
        everything += zip(vectors, labels, pictures, strict=True)
    assert memory.steps == len(counts)
    assert memory.fill == min(size, len(everything))


@pytest.mark.parametrize(("name", "reference", "chosen"), CASES)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 3), start_after=st.integers(0, 3))
def test_official_order_against_a_plain_loop(name, reference, chosen, seed, length, start_after):
    """The released loop: slots of one batch each, a pointer that counts batches, enqueue first.

    The memory counts from the step on in which the pointer reaches start_after + length.
    """
    objective = objectives.create(name, **chosen)
    memory = with_memory(objective, DIM, length, 4, start_after=start_after, weight=0.75)
    slots = [None] * length
    for pointer, (vectors, labels, _) in enumerate(batches(seed, *[4] * (start_after + length + 3)), start=1):
        loss = memory(vectors, labels)  # nobody asks which pictures these are
        slots[(pointer - 1) % length] = (vectors, labels)
        is_ready = pointer >= start_after + length
        rows, own = as_lists(vectors, objective.normalise), [(i, i) for i in range(len(vectors))]
        expected = reference(rows, labels.tolist(), rows, labels.tolist(), own, **chosen)
        if is_ready:
            newest_first = [slots[(pointer - 1 - age) % length] for age in range(length)]
            old = torch.cat([vectors.flip(0) for vectors, _ in newest_first])
            old_labels = torch.cat([labels.flip(0) for _, labels in newest_first])
            old_rows = as_lists(old, objective.normalise)
            expected += 0.75 * reference(rows, labels.tolist(), old_rows, old_labels.tolist(), [], **chosen)
        assert loss.value.item() == pytest.approx(expected, rel=1e-8, abs=1e-8)
        if not is_ready:
            assert loss.parts["memory"] == 0


def test_the_official_memory_joins_at_the_released_step():
    """On CUB in step 1000 + 25, counted from 1: the released code is ready when its pointer reaches 1025."""
    memory = with_memory(objectives.create("ms"), DIM, MEMORY_BATCHES["large"]["cub"], batch_size=2)
    vectors, labels = torch.randn(2, DIM, generator=torch.Generator().manual_seed(11)), torch.tensor([0, 1])
    first = next(step for step in range(1, 1030) if memory(vectors, labels).parts["memory"] > 0)
    assert first == 1025
    assert memory.fill == 50


@pytest.mark.parametrize("settings", [("c1", {}), ("c2", {"negative_margin": 1.5})])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_own_copies_are_no_active_pairs(settings, dtype):
    """In a memory of one batch the official form counts every pair of the batch twice, and no other."""
    name, chosen = settings
    memory = CrossBatchMemory(objectives.create(name, **chosen), DIM, size=6)
    for vectors, labels, _ in batches(10, 6, 6, 6):
        loss = memory(vectors.to(dtype), labels)
    assert loss.parts["memory"].item() == pytest.approx(loss.value.item() / 2, rel=1e-6)
    assert loss.parts["memory"] > 0


def as_lists(vectors, normalise):
    rows = vectors.tolist()
    return [published.unit(row) for row in rows] if normalise else rows


def gradient(value, leaf):
    return torch.autograd.grad(value, leaf)[0]


def test_by_hand():
    """Seen from (1, 0): a positive at similarity 0.6, its own older self at 0, a negative at 0.8."""
    memory = CrossBatchMemory(objectives.create("c1"), dim=2, size=3, form="distinct")
    old = torch.tensor([[0.6, 0.8], [0.0, 1.0], [0.8, 0.6]])
    memory(old, torch.tensor([5, 5, 6]), pictures=torch.tensor([10, 11, 12]))
    now, label, picture = torch.tensor([[1.0, 0.0]]), torch.tensor([5]), torch.tensor([11])
    loss = copy.deepcopy(memory)(now, label, pictures=picture)
    assert loss.value.item() == pytest.approx(0.4 + 0.8)  # alone in its batch, so this is all
    assert loss.parts["memory/positive"].item() == pytest.approx(0.4)
    assert loss.parts["memory/negative"].item() == pytest.approx(0.8)
    memory.match_itself = True
    assert memory(now, label, pictures=picture).value.item() == pytest.approx(0.4 + 1 + 0.8)


def test_the_batch_is_not_compared_with_itself_twice():
    memory = CrossBatchMemory(objectives.create("ms"), DIM, size=8, form="distinct", match_itself=True)
    ((vectors, labels, _),) = batches(0, 6)
    assert memory(vectors, labels).value == objectives.create("ms")(vectors, labels).value
    assert memory(vectors, labels).parts["memory"] > 0


@pytest.mark.parametrize("form", ["official", "distinct"])
@pytest.mark.parametrize("normalise", [True, False])
def test_gradients_survive_that_the_memory_moves_on(normalise, form):
    """Backward after later batches have taken the places of what was compared with."""
    memory = CrossBatchMemory(objectives.create("c2", normalise=normalise, negative_margin=3.0), DIM, size=4, form=form)
    first, second, third = batches(1, 4, 4, 4)
    memory(first[0], first[1], pictures=first[2])
    later = copy.deepcopy(memory)
    leaf = second[0].clone().requires_grad_()
    value = memory(leaf, second[1], pictures=second[2]).value
    memory(third[0], third[1], pictures=third[2])
    value.backward()
    twin = second[0].clone().requires_grad_()
    later(twin, second[1], pictures=second[2]).value.backward()
    assert leaf.grad.any()
    assert torch.equal(leaf.grad, twin.grad)


def test_nothing_remembered_has_a_graph():
    memory = CrossBatchMemory(objectives.create("c1"), DIM, size=8)
    ((vectors, labels, pictures),) = batches(2, 6)
    memory(vectors.requires_grad_(), labels, pictures=pictures)
    assert not memory.embeddings.requires_grad
    assert list(memory.buffers()) == []  # DDP would broadcast them


@pytest.mark.parametrize("form", ["official", "distinct"])
@pytest.mark.parametrize("before", [0, 1, 3, 5])
def test_a_saved_memory_goes_on_where_it_was(before, form, tmp_path):
    def create():
        return CrossBatchMemory(objectives.create("margin"), DIM, size=7, form=form, start_after=2)

    steps = batches(3, 4, 4, 4, 4, 4, 4, 4)
    whole = create()
    expected = run(whole, steps)
    first = Gathered(Composed({"metric": (1.0, create())}))  # as a run holds it
    run(first, steps[:before])
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = Gathered(Composed({"metric": (1.0, create())}))
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    rest = run(second, steps[before:])
    for (value, slope, _), (other_value, other_slope, _) in zip(expected[before:], rest, strict=True):
        assert value == other_value
        assert torch.equal(slope, other_slope)
    memory = second.objective.objectives["metric"]
    assert (memory.position, memory.fill, memory.steps) == (whole.position, whole.fill, whole.steps)
    assert (memory.fill, memory.steps) == (7, 7)
    assert torch.equal(memory.embeddings, whole.embeddings)


def test_a_loaded_memory_is_its_own():
    """Loading copies: what the other goes on to remember does not show."""
    one, other = (CrossBatchMemory(objectives.create("c1"), DIM, size=6) for _ in range(2))
    steps = batches(4, 4, 4, 4)
    run(one, steps[:1])
    other.load_state_dict(one.state_dict())
    untouched = copy.deepcopy(other)
    run(one, steps[1:])
    assert_equal_runs(run(other, steps[1:]), run(untouched, steps[1:]))


def test_a_memory_of_another_size_is_refused():
    state = CrossBatchMemory(objectives.create("c1"), DIM, size=6).state_dict()
    with pytest.raises(ValueError, match=r"must have \(size, dim\) = \(5, 3\) as this one, got \(6, 3\)"):
        CrossBatchMemory(objectives.create("c1"), DIM, size=5).load_state_dict(state)


def test_the_memory_joins_in_full():
    memory = CrossBatchMemory(objectives.create("ms"), DIM, size=8, form="distinct", start_after=3)
    parts = [part for _, _, part in run(memory, batches(5, 4, 4, 4, 4))]
    assert [bool(part["memory"] > 0) for part in parts] == [False, False, False, True]
    assert [part["memory fill"].item() for part in parts] == [0, 0.5, 1, 1]


def test_nothing_is_remembered_in_eval_mode():
    memory = CrossBatchMemory(objectives.create("ms"), DIM, size=8, form="distinct", start_after=1)
    first, second = batches(6, 4, 4)
    run(memory, [first])
    state = copy.deepcopy(memory.state_dict())
    memory.eval()
    once, twice = run(memory, [second, second])
    assert once[0] == twice[0]
    assert once[2]["memory"] > 0
    now = memory.state_dict()["_extra_state"]
    assert all(torch.equal(torch.as_tensor(now[key]), torch.as_tensor(v)) for key, v in state["_extra_state"].items())


def test_a_step_does_not_wait_for_the_device():
    """Fake tensors have no values: whoever asks for one fails."""
    with FakeTensorMode():
        vectors = torch.randn(4, DIM, device="cuda", requires_grad=True)
        labels = pictures = torch.arange(4, device="cuda") // 2
        with pytest.raises(DataDependentOutputException):
            float(vectors.detach().sum())
        for name in ("c1", "c2", "ms", "n-pair"):
            memory = CrossBatchMemory(objectives.create(name), DIM, size=6)
            for _ in range(4):
                loss = memory(vectors, labels, pictures=pictures)
                assert loss.value.device.type == "cuda"
            assert memory.fill == 6


def test_whole_numbers_of_any_kind_and_half_precision():
    memory = CrossBatchMemory(objectives.create("c1"), DIM, size=5)
    (vectors, labels, pictures), _ = batches(7, 4, 4)
    for _ in range(2):
        loss = memory(vectors.bfloat16(), labels.int(), pictures=pictures.int())
    assert loss.value.dtype == torch.float32
    assert torch.equal(memory.embeddings[[4, 0, 1, 2]], vectors.bfloat16().float())
    assert memory.pictures[[4, 0, 1, 2]].tolist() == pictures.tolist()


@pytest.mark.parametrize("name", ["proxy-anchor", "soft-triple"])
def test_proxy_losses_are_refused(name):
    proxies = objectives.create(name, classes=4, dim=DIM)
    with pytest.raises(TypeError, match=f"a memory needs a loss on pairs, .* got {type(proxies).__name__}"):
        with_memory(proxies, DIM, batches=3, batch_size=8)


def test_as_in_the_papers():
    assert MEMORY_BATCHES["large"] == {"cub": 25, "cars": 25, "inshop": 400, "sop": 1400}
    assert MEMORY_BATCHES["small"] == {"cub": 3, "cars": 3, "inshop": 100, "sop": 400}
    assert all(list(table) == list(DATA_SETS) for table in MEMORY_BATCHES.values())
    memory = with_memory(objectives.create("c1"), 128, MEMORY_BATCHES["large"]["cub"], 32)
    assert (memory.size, memory.start_after, memory.weight, memory.form) == (800, 1000, 1.0, "official")
    assert MEMORY_STARTS_AFTER == 1000
    assert "size=800" in repr(memory)
    assert "Contrastive(margin=0.5" in repr(memory)


def test_mistakes_are_named():
    pair = objectives.create("c1")
    for arguments, message in [
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"start_after": -1}, "start_after must be at least 0, got -1"),
        ({"weight": 0}, "weight must be finite and above 0, got 0"),
        ({"form": "first"}, "form must be 'official' or 'distinct', got 'first'"),
    ]:
        with pytest.raises(ValueError, match=message):
            CrossBatchMemory(pair, **{"dim": DIM, "size": 4, **arguments})
    with pytest.raises(ValueError, match="batches must be at least 1, got 0"):
        size_in_batches(0, 4)
    memory = CrossBatchMemory(pair, DIM, size=4, form="distinct")
    labels = torch.zeros(2, dtype=torch.long)
    with pytest.raises(ValueError, match=r"give pictures \(B,\), or match_itself=True"):
        memory(torch.randn(2, DIM), labels)
    with pytest.raises(ValueError, match="embeddings must have 3 dimensions as the memory, got 4"):
        memory(torch.randn(2, 4), labels, pictures=labels)
    with pytest.raises(ValueError, match=r"pictures must have the shape \(2,\), got \(3,\)"):
        memory(torch.randn(2, DIM), labels, pictures=torch.arange(3))
    with pytest.raises(TypeError, match=r"pictures must be a tensor of integers, .* got torch\.float32"):
        memory(torch.randn(2, DIM), labels, pictures=torch.zeros(2))
    assert memory.steps == 0


class Learner(nn.Module):
    """Model and loss in one module, as a run gives them to DDP."""

    def __init__(self, gathered):
        super().__init__()
        torch.manual_seed(8)
        self.model = nn.Linear(DIM, DIM).double()
        self.memory = CrossBatchMemory(
            objectives.create("margin"), DIM, size=10, form="distinct", start_after=1
        ).double()
        self.objective = Gathered(self.memory) if gathered else self.memory

    def forward(self, inputs, labels, pictures):
        return self.objective(self.model(inputs), labels, None, pictures)


def learn(learner, steps):
    """A few steps of the optimiser, so that the memory ages; what was seen on the way."""
    optimiser = torch.optim.SGD(learner.parameters(), lr=0.1)
    seen = []
    for batch in steps:
        loss = learner(*batch)
        loss.value.backward()
        seen += [loss.value.detach(), *(part.double() for part in loss.parts.values())]
        seen += [parameter.grad.clone() for parameter in learner.parameters()]
        optimiser.step()
        optimiser.zero_grad()
    return seen


def worker(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    steps = [[tensor.chunk(WORLD)[rank] for tensor in batch] for batch in batches(9, 8, 8, 8, 8)]
    results = {}
    for name, gathered in (("gathered", True), ("own", False)):
        learner = DistributedDataParallel(Learner(gathered))
        results[f"{name} seen"] = learn(learner, steps)
        results[f"{name} state"] = learner.module.memory.get_extra_state()
    torch.save(results, f"{folder}/{rank}.pt")
    distributed.barrier()
    os._exit(0)  # the clean-up of gloo aborts now and then on a busy machine


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(worker, (str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


def test_two_processes_are_one(ranks):
    alone = Learner(gathered=True)
    expected = learn(alone, batches(9, 8, 8, 8, 8))
    for results in ranks:
        torch.testing.assert_close(results["gathered seen"], expected, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(results["gathered state"], alone.memory.get_extra_state(), rtol=1e-6, atol=1e-7)
    assert torch.equal(*(results["gathered state"]["embeddings"] for results in ranks))


def test_outside_of_gathered_each_process_remembers_its_own(ranks):
    shares = [[batch[2].chunk(WORLD)[rank] for batch in batches(9, 8, 8, 8, 8)] for rank in range(WORLD)]
    for results, share in zip(ranks, shares, strict=True):
        state = results["own state"]
        assert (state["position"], state["fill"]) == (6, 10)
        assert state["pictures"].roll(4).tolist() == torch.cat(share)[-10:].tolist()
