"""The batch sampler against what it promises, over random class sizes."""

from collections import Counter
from itertools import islice
from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lookalike.data.sampler import ClassBatches, Draw, ReshapedBatches

Case = tuple[list[int], int, int]  # sizes of the classes, P, K


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.integers(1, 13), min_size=1, max_size=12))
    return sizes, draw(st.integers(1, len(sizes))), draw(st.integers(1, 5))


def shuffled_labels(sizes: list[int], seed: int = 0) -> list[int]:
    labels = np.repeat(np.arange(len(sizes)) * 3 + 5, sizes)  # numbers with gaps, in no order
    return np.random.default_rng(seed).permutation(labels).tolist()


def plain_counts(labels: list[int], batches: list[list[int]], per_class: int) -> None:
    """Every promise about an epoch, by counting."""
    sizes = Counter(labels)
    assert {index for batch in batches for index in batch} == set(range(len(labels)))
    for batch in batches:
        chunks = [batch[start : start + per_class] for start in range(0, len(batch), per_class)]
        classes = [{labels[index] for index in chunk} for chunk in chunks]
        assert all(len(one) == 1 for one in classes)
        assert len(set.union(*classes)) == len(chunks)
        for chunk in chunks:
            size = sizes[labels[chunk[0]]]
            assert len(set(chunk)) == min(size, per_class)
            assert max(Counter(chunk).values()) == ceil(per_class / size)


@given(cases(), st.integers(0, 2**40), st.integers(0, 5))
@example(([200, *[2] * 50], 8, 2), 0, 0)
@example(([200, *[2] * 50], 8, 4), 1, 3)
@example(([40, 1], 2, 4), 0, 0)
@settings(max_examples=100, deadline=None)
def test_an_epoch_has_every_picture_and_batches_have_distinct_classes(case: Case, seed: int, epoch: int) -> None:
    sizes, classes_per_batch, per_class = case
    labels = shuffled_labels(sizes)
    sampler = ClassBatches(labels, classes_per_batch * per_class, per_class, seed=seed)
    batches = sampler.batches_of(epoch)
    groups = [ceil(size / per_class) for size in sizes]
    assert len(batches) == sampler.steps_per_epoch() == max(ceil(sum(groups) / classes_per_batch), max(groups))
    plain_counts(labels, batches.tolist(), per_class)


@given(cases(), st.integers(1, 4), st.integers(0, 40))
@settings(max_examples=50, deadline=None)
def test_ranks_and_a_resumed_run_give_the_uninterrupted_stream(case: Case, world_size: int, start: int) -> None:
    sizes, classes_per_batch, per_class = case
    labels, batch_size = shuffled_labels(sizes), classes_per_batch * per_class * world_size
    if classes_per_batch * world_size > len(sizes):
        batch_size, per_class = batch_size * len(sizes), batch_size  # few classes, many of each
    whole = list(islice(ClassBatches(labels, batch_size, per_class, seed=3), start + 5))
    ranks = []
    for rank in range(world_size):
        sampler = ClassBatches(labels, batch_size, per_class, seed=3, rank=rank, world_size=world_size)
        sampler.load_state_dict({"step": start})
        ranks.append(list(islice(sampler, 5)))
        assert ranks[-1] == list(islice(sampler, 5)), "iterating again must begin at the start again"
        assert sampler.state_dict() == {"step": start}
    joined = [[draw for rank in ranks for draw in rank[step]] for step in range(5)]
    assert joined == whole[start:]
    if batch_size // per_class % world_size == 0:
        for step in range(5):
            classes = [{labels[draw.index] for draw in rank[step]} for rank in ranks]
            assert sum(map(len, classes)) == batch_size // per_class, "a class must not be torn apart"


def test_draws_count_epochs_and_turns() -> None:
    labels = shuffled_labels([9, 2, 2, 1])
    sampler = ClassBatches(labels, 6, 3, seed=1)
    steps = sampler.steps_per_epoch()
    stream = list(islice(sampler, 3 * steps))
    for epoch in range(3):
        came: Counter[int] = Counter()
        batches = stream[epoch * steps : (epoch + 1) * steps]
        assert [[draw.index for draw in batch] for batch in batches] == sampler.batches_of(epoch).tolist()
        for draw in (draw for batch in batches for draw in batch):
            assert draw == Draw(draw.index, epoch, came[draw.index])
            came[draw.index] += 1
        assert max(came.values()) > 1
    flat = [draw for batch in stream for draw in batch]
    assert len(set(flat)) == len(flat), "no two draws may share their augmentation"


def test_only_seed_and_epoch_matter() -> None:
    labels = shuffled_labels([7] * 12)
    sampler = ClassBatches(labels, 8, 2, seed=4)
    first = sampler.batches_of(2)
    np.random.seed(0)  # noqa: NPY002 - the global state must not matter
    sampler.batches_of(0)
    assert np.array_equal(ClassBatches(torch.tensor(labels), 8, 2, seed=4, start=9).batches_of(2), first)
    assert not np.array_equal(sampler.batches_of(3), first)
    assert not np.array_equal(ClassBatches(labels, 8, 2, seed=5).batches_of(2), first)


def test_left_over_places_are_shared_out_evenly_and_each_pass_is_shuffled_anew() -> None:
    labels = [0] * 40 + [label for label in range(1, 11) for _ in range(4)]
    batches = ClassBatches(labels, 12, 4, seed=0).batches_of(0)  # 10 batches: class 0 in each, 20 places for the rest
    assert len(batches) == 10
    times = Counter(labels[index] for index in batches[:, ::4].reshape(-1).tolist())
    assert times == {0: 10, **dict.fromkeys(range(1, 11), 2)}
    orders = {tuple(group) for group in batches.reshape(-1, 4).tolist() if labels[group[0]] == 1}
    assert len(orders) == 2


def test_every_class_meets_many_others() -> None:
    """In one epoch of 20 classes, each in 10 batches with 3 others, a class meets most of them."""
    labels = np.repeat(np.arange(20), 40)
    classes = labels[ClassBatches(labels, 16, 4).batches_of(0)]
    for label in range(20):
        assert len(set(classes[(classes == label).any(1)].reshape(-1).tolist())) >= 14


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"batch_size": 10}, "batch_size must be a multiple of per_class 4, got 10"),
        ({"batch_size": 12, "world_size": 5}, "batch_size must be a multiple of world_size 5, got 12"),
        (
            {"batch_size": 32},
            "a batch of 32 with 4 pictures per class needs 8 classes, got 5: "
            "set batch_size to at most 20 or per_class to 8",
        ),
        ({"batch_size": 8, "rank": 2, "world_size": 2}, "rank must be below world_size 2, got 2"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 8, "start": -1}, "start must be at least 0, got -1"),
    ],
)
def test_errors(settings_: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        ClassBatches(np.repeat(np.arange(5), 6), **settings_)


def test_labels_must_be_whole_numbers() -> None:
    with pytest.raises(ValueError, match=r"labels must be whole numbers of the shape \(at least one,\), got float64"):
        ClassBatches([0.5, 1.0], 2, 1)


def test_reshaped_batches() -> None:
    """Every epoch has one of the factorisations of 54, drawn anew, and all pictures."""
    labels = np.repeat(np.arange(30), 11)
    sampler = ReshapedBatches(labels, 54, 9, seed=3)
    assert sampler.shapes == [2, 3, 6, 9, 18, 27]
    shapes = set()
    step = 0
    for epoch in range(30):
        batches = sampler.batches_of(epoch)
        per_class = sampler.per_class_of(epoch)
        assert batches.shape == (sampler.steps_per_epoch(epoch), 54)
        assert set(batches.ravel()) == set(range(len(labels)))
        for batch in batches:
            assert set(np.bincount(labels[batch])) <= {0, per_class}
        assert sampler.locate(step) == (epoch, 0)
        assert sampler.locate(step + len(batches) - 1) == (epoch, len(batches) - 1)
        step += len(batches)
        shapes.add(per_class)
    assert shapes == set(sampler.shapes)


def test_reshaped_batches_resume_and_are_shared() -> None:
    labels = np.repeat(np.arange(30), 11)
    stream = iter(ReshapedBatches(labels, 54, 9))
    whole = [next(stream) for _ in range(40)]
    resumed = iter(ReshapedBatches(labels, 54, 9, start=17))
    assert [next(resumed) for _ in range(23)] == whole[17:]
    halves = [iter(ReshapedBatches(labels, 54, 9, rank=rank, world_size=2)) for rank in range(2)]
    for batch in whole[:20]:
        assert next(halves[0]) + next(halves[1]) == batch


def test_reshaped_batches_need_a_factorisation() -> None:
    with pytest.raises(ValueError, match="a batch of 7 cannot be reshaped: with 10 classes"):
        ReshapedBatches(np.repeat(np.arange(10), 3), 7, 1)
    assert ReshapedBatches(np.repeat(np.arange(6), 9), 54, 9).shapes == [9, 18, 27]
