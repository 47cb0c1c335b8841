import math

import published_losses as published
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookalike import objectives
from lookalike.geometry import clip

# name, its reference, settings unlike the defaults
CASES = [
    ("c1", published.contrastive, {"margin": 0.2}),
    ("c2", published.contrastive_distance, {"positive_margin": 0.3, "negative_margin": 1.1}),
    ("triplet", published.triplet, {"margin": 0.25}),
    ("ms", published.multi_similarity, {"alpha": 3.0, "beta": 20.0, "base": 0.3}),
    ("ms", published.multi_similarity, {"alpha": 2.0, "beta": 40.0, "base": 0.5, "mining": 0.1}),
    ("margin", published.margin, {"margin": 0.3, "beta": 0.875}),
    ("lifted-structure", published.lifted_structure, {"positive_margin": 0.1, "negative_margin": 0.8}),
    ("lifted-structure-song", published.lifted_structure_song, {"margin": 0.7}),
    ("n-pair", published.n_pair, {"scale": 3.0}),
    ("circle", published.circle, {"scale": 10.0, "relaxation": 0.3}),
]
NAMES = sorted({name for name, _, _ in CASES})
NEED_BOTH = ["triplet", "margin", "lifted-structure", "lifted-structure-song", "n-pair", "circle"]


def as_lists(vectors, normalise):
    rows = vectors.double().tolist()
    return [published.unit(row) for row in rows] if normalise else rows


def diagonal(count):
    return [(i, i) for i in range(count)]


@pytest.mark.parametrize(("name", "reference", "chosen"), CASES)
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-5)])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 9), classes=st.integers(1, 4))
def test_the_loss_in_a_batch_is_the_published_one(
    name, reference, chosen, normalise, dtype, tolerance, seed, count, classes
):
    if name == "circle" and not normalise:
        return  # cosines only
    generator = torch.Generator().manual_seed(seed)
    vectors = clip(2 * torch.randn(count, 3, generator=generator, dtype=dtype) / 1.5)
    labels = torch.randint(classes, (count,), generator=generator)
    objective = objectives.create(name, **chosen, **({} if name == "circle" else {"normalise": normalise}))
    lists = as_lists(vectors, normalise)
    expected = reference(lists, labels.tolist(), lists, labels.tolist(), diagonal(count), **chosen)
    assert objective(vectors, labels).value.item() == pytest.approx(expected, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize(("name", "reference", "chosen"), CASES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 5), others=st.integers(1, 9))
def test_the_loss_against_references_is_the_published_one(name, reference, chosen, seed, count, others):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    references = torch.randn(others, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (count,), generator=generator)
    reference_labels = torch.randint(3, (others,), generator=generator)
    same = (torch.rand(count, others, generator=generator) < 0.2) & (labels.unsqueeze(1) == reference_labels)
    objective = objectives.create(name, **chosen)
    value = objective.pairwise(vectors, labels, references, reference_labels, same).value.item()
    expected = reference(
        as_lists(vectors, objective.normalise),
        labels.tolist(),
        as_lists(references, objective.normalise),
        reference_labels.tolist(),
        [tuple(pair) for pair in same.nonzero().tolist()],
        **chosen,
    )
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_batch_as_its_own_references_is_the_batch(name):
    torch.manual_seed(0)
    vectors, labels = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) // 3
    objective = objectives.create(name)
    own = objective.pairwise(vectors, labels, vectors, labels, same=torch.eye(12, dtype=torch.bool))
    torch.testing.assert_close(own.value, objective(vectors, labels).value)


@pytest.mark.parametrize(("name", "reference", "chosen"), CASES)
def test_gradients(name, reference, chosen):
    """By finite differences of our own loss; of the reference, with the weights held, where some are held constant."""
    torch.manual_seed(1)
    vectors, labels = torch.randn(9, 4, dtype=torch.float64, requires_grad=True), torch.arange(9) // 3
    objective = objectives.create(name, **chosen).double()
    if name != "circle":
        assert torch.autograd.gradcheck(lambda x: objective(x, labels).value, (vectors,))
        return
    (gradient,) = torch.autograd.grad(objective(vectors, labels).value, vectors)
    held = as_lists(vectors.detach(), True)

    def value(i, j, step):
        moved = vectors.detach().clone()
        moved[i, j] += step
        lists = as_lists(moved, True)
        return reference(lists, labels.tolist(), lists, labels.tolist(), diagonal(9), **chosen, weights_of=(held, held))

    for i, j in [(0, 0), (3, 1), (8, 3)]:
        slope = (value(i, j, 1e-6) - value(i, j, -1e-6)) / 2e-6
        assert gradient[i, j].item() == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_beta_is_learnt():
    torch.manual_seed(2)
    vectors, labels = torch.randn(8, 4, dtype=torch.float64), torch.arange(8) // 2
    objective = objectives.create("margin").double()
    assert [name for name, _ in objective.named_parameters()] == ["beta"]
    assert objective.proxy_parameters() == []

    def loss(beta):
        return torch.func.functional_call(objective, {"beta": beta}, (vectors, labels)).value

    assert torch.autograd.gradcheck(loss, (objective.beta,))
    objective(vectors, labels).value.backward()
    assert objective.beta.grad.abs() > 0.1
    fixed = objectives.create("margin", learn_beta=False)
    assert not fixed(vectors, labels).value.requires_grad


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "labels", [[0, 0, 0, 0], [0, 1, 2, 3], [0]], ids=["no negatives", "no positives", "one picture"]
)
def test_missing_pairs_are_no_trouble(name, labels):
    torch.manual_seed(3)
    vectors = torch.randn(len(labels), 4, requires_grad=True)
    objective = objectives.create(name)
    loss = objective(vectors, torch.tensor(labels))
    loss.value.backward()
    assert math.isfinite(loss.value.item())
    assert vectors.grad.isfinite().all()
    if name in NEED_BOTH or len(labels) == 1:
        assert loss.value == 0
        assert not vectors.grad.any()


@pytest.mark.parametrize("name", NAMES)
def test_equal_vectors_give_finite_gradients(name):
    vectors = torch.ones(32, 8, requires_grad=True)
    loss = objectives.create(name)(vectors, torch.arange(32) // 4)
    loss.value.backward()
    assert math.isfinite(loss.value.item())
    assert vectors.grad.isfinite().all()


def test_contrastive_by_hand():
    """s = 0.6 for the positive pair, seen from both sides; 0 and 0.8 for the negatives."""
    vectors, labels = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 2.0]]), torch.tensor([7, 7, 3])
    loss = objectives.create("c1")(vectors, labels)
    assert loss.value.item() == pytest.approx((2 * 0.4 + 2 * 0.8) / 3)
    assert loss.parts["positive"].item() == pytest.approx(0.8 / 3)
    assert loss.parts["negative"].item() == pytest.approx(1.6 / 3)
    assert loss.parts["active positives"].item() == 1
    assert loss.parts["active negatives"].item() == pytest.approx(0.5)
    loss = objectives.create("c1", normalise=False)(vectors, labels)  # now 0 and 1.6
    assert loss.value.item() == pytest.approx((2 * 0.4 + 2 * 1.6) / 3)


def test_distance_averages_leave_out_the_zeros():
    """Positives at 0 (a duplicate) and 1, negatives at 1 and 2, sqrt(2) from the origin's other neighbour."""
    vectors = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    labels = torch.tensor([0, 0, 0, 1])
    loss = objectives.create("c2", negative_margin=2.1, normalise=False)(vectors, labels)
    assert loss.parts["positive"].item() == pytest.approx(1)  # the duplicates' 0 does not count
    assert loss.parts["negative"].item() == pytest.approx(0.1, abs=1e-6)  # sqrt(5) lies beyond the margin
    assert loss.parts["active positives"].item() == pytest.approx(4 / 6)


def test_duplicates_in_a_large_batch_are_at_distance_zero():
    """The expanded square would put them 1e-4 apart, and count them."""
    torch.manual_seed(4)
    vectors = torch.randn(40, 64).repeat_interleave(2, 0)
    loss = objectives.create("c2")(vectors, torch.arange(80) // 2)
    assert loss.parts["positive"] == 0
    assert loss.parts["active positives"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_autocast_changes_nothing(name):
    torch.manual_seed(5)
    vectors, labels = torch.randn(8, 16), torch.arange(8) // 2
    objective = objectives.create(name)
    plain = objective(vectors, labels).value
    with torch.autocast("cpu", torch.bfloat16):
        cast = objective(vectors, labels).value
        against = objective.pairwise(vectors, labels, vectors, labels, torch.eye(8, dtype=torch.bool)).value
    assert cast.dtype == torch.float32
    assert cast == plain
    torch.testing.assert_close(against, plain)
    rounded = vectors.bfloat16()
    assert objective(rounded, labels).value == objective(rounded.float(), labels).value


def test_huge_exponents_do_not_overflow():
    vectors = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    loss = objectives.create("ms", alpha=1e4, beta=1e4)(vectors, torch.tensor([0, 0, 1]))
    loss.value.backward()
    # positive: s = -1, 1.5 from the base, for two anchors; negative: s = 1 and -1 for the three anchors
    assert loss.value.item() == pytest.approx((2 * 1.5 + 2 * 0.5) / 3, rel=1e-3)
    assert vectors.grad.isfinite().all()


@pytest.mark.parametrize(
    ("vectors", "labels", "message"),
    [
        (torch.randn(4), torch.zeros(4, dtype=torch.long), "embeddings must have the shape"),
        (torch.randn(0, 4), torch.zeros(0, dtype=torch.long), "embeddings must have the shape"),
        (torch.randn(4, 2), torch.zeros(3, dtype=torch.long), r"must have the shape \(4,\), got \(3,\)"),
    ],
)
def test_bad_batches(vectors, labels, message):
    with pytest.raises(ValueError, match=message):
        objectives.create("c1")(vectors, labels)


def test_bad_kinds():
    with pytest.raises(TypeError, match=r"labels of embeddings must be a tensor of integers, got torch\.float32"):
        objectives.create("c1")(torch.randn(2, 2), torch.zeros(2))
    with pytest.raises(TypeError, match=r"embeddings must be a floating point tensor, got torch\.int64"):
        objectives.create("c1")(torch.ones(2, 2, dtype=torch.long), torch.zeros(2, dtype=torch.long))


def test_bad_references():
    objective, labels = objectives.create("c1"), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ValueError, match="vectors of one size"):
        objective.pairwise(torch.randn(2, 3), labels, torch.randn(2, 4), labels)
    with pytest.raises(ValueError, match=r"same must be bool with the shape \(2, 2\)"):
        objective.pairwise(torch.randn(2, 3), labels, torch.randn(2, 3), labels, torch.eye(3, dtype=torch.bool))
