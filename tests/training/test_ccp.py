"""Proxy problems: the choice against plain loops, the pull against its formula, the bookkeeping step by step."""

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from lookalike import objectives
from lookalike.objectives import CrossBatchMemory
from lookalike.objectives.between_proxies import BetweenProxies, BetweenSamples
from lookalike.training import ccp, chance_constraint
from lookalike.training.ccp import Problem, ProxyProblems
from lookalike.training.optim import EMA

CLASSES, DIM = 3, 4
LABELS = np.repeat(np.arange(CLASSES), [7, 9, 2])
VECTORS = torch.from_numpy(np.random.default_rng(0).normal(size=(len(LABELS), DIM)).astype(np.float32))
VECTORS /= 1.01 * VECTORS.norm(dim=1).max()  # inside the unit ball, as clipped embeddings


def problems(per_class: int = 2, samples: bool = False, **changes: object) -> ProxyProblems:
    torch.manual_seed(0)
    inner = objectives.create("c1", normalise=False)
    proxies, of_pictures = BetweenProxies(inner, CLASSES, DIM, per_class), BetweenSamples(inner, CLASSES, per_class)
    objective = of_pictures if samples else proxies
    settings = {"pool": 5, "pull": 0.5, "patience": 2, **changes}
    return ProxyProblems(nn.Linear(3, DIM), objective, LABELS, lambda places: VECTORS[places], **settings)


def test_algorithm_2_by_plain_loops() -> None:
    running = problems()
    running.begin()
    first = running.objective.proxies.detach().clone().reshape(CLASSES, 2, DIM)
    running._open_next(first)
    pool = running._draw_pool(2)
    for c in range(CLASSES):
        candidates = [VECTORS[place] for place in pool[c]]
        taken: list[int] = []
        for _ in range(2):
            known = [*first[c], *(candidates[i] for i in taken)]
            farness = [min(float((point - other).norm()) for other in known) for point in candidates]
            taken.append(max((i for i in range(5) if i not in taken), key=lambda i: (farness[i], -i)))
        torch.testing.assert_close(running.objective.proxies.reshape(CLASSES, 2, DIM)[c], VECTORS[pool[c, taken]])


@pytest.mark.parametrize("select", ["k-centre", "random"])
def test_classes_are_looked_at_some_at_a_time_with_the_same_result(
    select: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reports(chunk: int) -> tuple[Problem | None, torch.Tensor, list[int]]:
        heard: list[int] = []
        monkeypatch.setattr(ccp, "CHUNK", chunk)
        running = problems(select=select, patience=1, bar=lambda _: nullcontext(heard.append))
        running.begin()
        running.report(0.5)
        return running.report(0.4), running.objective.proxies.detach(), heard

    whole, at_once, ticks = reports(10**6)
    assert ticks == [CLASSES, CLASSES]
    apart, one_by_one, ticks = reports(1)
    assert ticks == 2 * CLASSES * [1]
    assert torch.equal(at_once, one_by_one)
    assert whole is not None
    assert apart is not None
    assert apart[:6] == pytest.approx(whole[:6], nan_ok=True)
    assert apart.constraint == whole.constraint


def test_whoever_breaks_the_choice_off_leaves_everything_as_it_was() -> None:
    class Enough(Exception):  # noqa: N818
        pass

    def tick(_: int) -> None:
        raise Enough

    running = problems(patience=1)
    running.begin()
    running.report(0.5)
    state, proxies = copy.deepcopy(running.state_dict()), running.objective.proxies.detach().clone()
    running.bar = lambda _: nullcontext(tick)
    with pytest.raises(Enough):
        running.report(0.4)
    assert str(running.state_dict()) == str(state)
    assert torch.equal(running.objective.proxies, proxies)
    running.bar = None
    ended = running.report(0.4)
    assert ended is not None
    assert (ended.number, ended.evaluations, running.number) == (1, 2, 2)


def test_new_proxies_owe_nothing_to_the_momentum_of_the_old() -> None:
    running = problems(patience=1)
    proxies = running.objective.proxies
    optimiser = torch.optim.SGD([proxies, running.model.weight], 0.1, momentum=0.9)
    running.begin()
    running.report(0.5, optimiser)
    proxies.grad, running.model.weight.grad = torch.ones_like(proxies), torch.ones(DIM, 3)
    optimiser.step()
    running.report(0.4, optimiser)
    assert not optimiser.state[proxies]["momentum_buffer"].any()
    assert optimiser.state[running.model.weight]["momentum_buffer"].all()


def test_a_pool_has_pictures_of_the_class_each_once_while_there_are_enough() -> None:
    running = problems()
    pool = running._draw_pool(3)
    assert pool.shape == (CLASSES, 5)
    assert (LABELS[pool] == np.arange(CLASSES)[:, None]).all()
    assert len(set(pool[0])) == len(set(pool[1])) == 5
    assert set(pool[2]) == {16, 17}  # two pictures for five places
    assert (running._draw_pool(4) != pool).any()


def test_random_selection_takes_the_first_of_the_pool() -> None:
    running = problems(select="random")
    running.begin()
    torch.testing.assert_close(
        running.objective.proxies.reshape(CLASSES, 2, DIM), VECTORS[running._draw_pool(1)[:, :2]]
    )


def test_one_step_mixes_the_last_solution_in_as_a_moving_average_does() -> None:
    """weights <- (1 - a)(weights - gradient step) + a * last solution + O(a * gradient step), with a = rate * pull."""
    running, rate = problems(pull=0.3), 0.1
    weight = running.model.weight
    last = torch.randn_like(weight)
    running.last = {"weight": last, "bias": torch.zeros(DIM)}
    before, gradient = weight.detach().clone(), torch.randn_like(weight)
    weight.grad = gradient.clone()
    running.add_pull()
    torch.optim.SGD([weight], rate).step()
    mixed = rate * 0.3
    torch.testing.assert_close(weight.detach(), (1 - mixed) * before - rate * gradient + mixed * last)
    for _ in range(50):  # and with nothing to learn it goes there at that rate
        weight.grad = torch.zeros_like(weight)
        running.add_pull()
        torch.optim.SGD([weight], rate).step()
    expected = last + (1 - mixed) ** 50 * ((1 - mixed) * before - rate * gradient + mixed * last - last)
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["c1", "c2", "ms", "triplet"])
def test_without_pull_and_with_remembered_vectors_for_proxies_it_is_a_memory(name: str) -> None:
    """The other limit: proxies that are earlier embeddings, and no pull: loss and gradients are those of a memory."""
    torch.manual_seed(2)
    inner = objectives.create(name)
    model, labels = nn.Linear(3, DIM), torch.arange(CLASSES).repeat_interleave(2)
    earlier, batch = torch.randn(len(labels), 3), torch.randn(len(labels), 3)
    remembering = CrossBatchMemory(inner, DIM, len(labels), form="distinct", match_itself=True)
    remembering(model(earlier), labels)
    with_memory = remembering(model(batch), labels).value - inner(model(batch), labels).value
    expected = torch.autograd.grad(with_memory, list(model.parameters()))

    between = BetweenProxies(inner, CLASSES, DIM, 2)
    newest_first = model(earlier).detach().unflatten(0, (CLASSES, 2)).flip(1)  # as the memory hands them out
    between.set_proxies(newest_first)
    running = ProxyProblems(model, between, LABELS, lambda places: VECTORS[places], pool=5, pull=0.0)
    running.last = {name: torch.randn_like(value) for name, value in model.named_parameters()}
    loss = between(model(batch), labels).value
    loss.backward()
    running.add_pull()
    torch.testing.assert_close(loss, with_memory)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


def test_the_first_problem_has_no_pull_and_frozen_weights_have_none() -> None:
    running = problems()
    running.begin()
    running.model.weight.grad = torch.zeros(DIM, 3)
    running.add_pull()
    assert not running.model.weight.grad.any()
    running.model.bias.requires_grad_(False)
    running.last = {"weight": torch.zeros(DIM, 3)}
    running.add_pull()
    torch.testing.assert_close(running.model.weight.grad, 0.5 * running.model.weight.detach())


def test_a_problem_ends_by_patience_and_its_best_is_what_counts() -> None:
    running = problems()
    running.begin()
    weights = []
    for figure, ends in ((0.5, False), (0.6, False), (0.55, False), (0.6, True)):
        with torch.no_grad():
            running.model.weight.add_(1.0)
            running.objective.proxies.add_(0.01)
        weights.append((running.model.weight.detach().clone(), running.objective.proxies.detach().clone()))
        ended = running.report(figure)
        assert (ended is not None) == ends
    assert ended is not None
    assert (ended.number, ended.evaluations, ended.best) == (1, 4, 0.6)
    torch.testing.assert_close(running.last["weight"], weights[1][0])  # of the best evaluation, not of the last
    torch.testing.assert_close(running.model.weight.detach(), weights[3][0])  # the live weights go on
    assert ended.radius_after <= ended.radius_before
    assert np.isnan(ended.moved)
    assert (running.number, running.evaluations, running.best) == (2, 0, None)
    running.report(0.1)  # worse than the last problem, but the best of this one
    running.report(0.05)
    second = running.report(0.05)
    assert second is not None
    assert second.best == 0.1
    moved = (weights[3][0] - weights[1][0]).norm() / torch.cat([weights[1][0].flatten(), running.model.bias]).norm()
    assert second.moved == pytest.approx(float(moved.detach()), rel=1e-5)


def test_a_single_problem_never_ends() -> None:
    running = problems(alternate=False)
    running.begin()
    assert all(running.report(0.0) is None for _ in range(20))


def test_the_state_goes_on_as_if_nothing_had_been() -> None:
    running, other = problems(), problems()
    running.begin()
    for figure in (0.3, 0.2):
        running.report(figure)
    other.load_state_dict(running.state_dict())
    other.objective.load_state_dict(running.objective.state_dict())
    other.model.load_state_dict(running.model.state_dict())
    assert str(running.report(0.1)) == str(other.report(0.1))
    assert torch.equal(running.objective.proxies, other.objective.proxies)


def test_a_pool_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="a pool of 1 pictures cannot give 2 proxies"):
        problems(pool=1)


@pytest.mark.parametrize("name", ["c1", "c2", "ms", "triplet"])
def test_the_loss_is_the_pair_loss_against_proxies(name: str) -> None:
    torch.manual_seed(1)
    inner = objectives.create(name)
    objective = BetweenProxies(inner, CLASSES, DIM, 2, in_batch=0.1)
    embeddings, labels = torch.randn(6, DIM), torch.tensor([0, 0, 1, 1, 2, 2])
    expected = inner.pairwise(embeddings, labels, objective.proxies, torch.tensor([0, 0, 1, 1, 2, 2])).value
    torch.testing.assert_close(objective(embeddings, labels).value, expected + 0.1 * inner(embeddings, labels).value)
    objective(embeddings, labels).value.backward()
    assert objective.proxies.grad is not None
    assert objective.proxies.grad.any()


def test_proxies_are_clipped_where_vectors_are_taken_as_they_come() -> None:
    inner = objectives.create("c1", normalise=False)
    objective = BetweenProxies(inner, CLASSES, DIM, 1)
    embeddings, labels = torch.eye(4)[:3] * 0.9, torch.arange(3)
    with torch.no_grad():
        objective.proxies.copy_(5 * torch.eye(4)[:3])
    expected = inner.pairwise(embeddings, labels, torch.eye(4)[:3], labels).value
    torch.testing.assert_close(objective(embeddings, labels).value, expected)


def test_samples_are_chosen_as_proxies_are_and_stay_pictures() -> None:
    by_vectors, by_pictures = problems(), problems(samples=True)
    for running in (by_vectors, by_pictures):
        running.begin()
        running.report(0.5)
        with torch.no_grad():
            running.model.weight.add_(1.0)
        assert running.report(0.4) is None
    first = by_pictures.objective.places.clone()
    torch.testing.assert_close(by_vectors.objective.proxies.detach(), VECTORS[first])
    assert (LABELS[first] == np.repeat(np.arange(CLASSES), 2)).all()
    ended, other = by_pictures.report(0.4), by_vectors.report(0.4)
    assert ended is not None
    assert other is not None
    assert ended[:6] == pytest.approx(
        other[:6], nan_ok=True
    )  # here no picture's vector changes, and no proxy was trained
    torch.testing.assert_close(by_vectors.objective.proxies.detach(), VECTORS[by_pictures.objective.places])
    assert (by_pictures.objective.places != first).any()
    assert not list(by_pictures.objective.parameters())


def test_the_seeds_after_a_problem_of_samples_are_their_vectors_at_its_best() -> None:
    running = problems(samples=True, patience=1)
    running.begin()
    scale = 3.0
    running.embed = lambda places: scale * VECTORS[places]
    running.report(0.5)
    scale = 7.0
    seen: list[torch.Tensor] = []
    places = running.objective.places.clone()
    running._open_next = lambda seeds: seen.append(seeds) or (1.0, 1.0)  # type: ignore[method-assign, func-returns-value]
    running.report(0.4)
    torch.testing.assert_close(seen[0], 3.0 * VECTORS[places])


@pytest.mark.parametrize("name", ["c1", "c2", "ms", "triplet"])
def test_the_loss_against_samples_is_3_2_10_with_gradients_through_both_sides(name: str) -> None:
    torch.manual_seed(1)
    inner = objectives.create(name)
    objective = BetweenSamples(inner, CLASSES, 2, in_batch=0.1)
    objective.choose(np.arange(6).reshape(3, 2), torch.zeros(3, 2, DIM))
    weight = torch.randn(DIM, DIM, dtype=torch.float64, requires_grad=True)
    batch, samples = torch.randn(6, DIM, dtype=torch.float64), torch.randn(6, DIM, dtype=torch.float64)
    labels, pictures = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([8, 0, 9, 2, 5, 10])
    objective.see(samples @ weight)
    value = objective(batch @ weight, labels, pictures=pictures).value
    same = torch.zeros(6, 6, dtype=torch.bool)
    for row, column in (
        (1, 0),
        (3, 2),
        (4, 5),
    ):  # those of the batch that are samples: they are no pairs with themselves
        same[row, column] = True
    expected = inner.pairwise(batch @ weight, labels, samples @ weight, labels, same).value
    expected = expected + 0.1 * inner(batch @ weight, labels).value
    torch.testing.assert_close(value, expected)
    gradient = torch.autograd.grad(value, weight)[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, weight, retain_graph=True)[0])
    objective.see((samples @ weight).detach())
    half = torch.autograd.grad(objective(batch @ weight, labels, pictures=pictures).value, weight)[0]
    assert (gradient - half).abs().max() > 1e-3


def test_samples_must_be_seen_anew() -> None:
    objective = BetweenSamples(objectives.create("c1"), CLASSES, 1)
    with pytest.raises(ValueError, match="vectors of all 3 samples, got 2"):
        objective.see(torch.ones(2, DIM))
    objective.see(torch.ones(3, DIM))
    objective(torch.ones(3, DIM), torch.arange(3))
    with pytest.raises(ValueError, match="must be seen anew"):
        objective(torch.ones(3, DIM), torch.arange(3))


def test_every_class_must_have_a_picture() -> None:
    objective = BetweenProxies(objectives.create("c1"), CLASSES, DIM, 2)
    for labels in (np.array([0, 0, 2, 2]), np.array([0, 1, 2, 3])):
        with pytest.raises(ValueError, match=r"labels must be 0\.\.2, each of them at least once"):
            ProxyProblems(nn.Linear(3, DIM), objective, labels, lambda places: VECTORS[places])


def test_only_pair_losses_take_proxies() -> None:
    with pytest.raises(TypeError, match="need a loss on pairs"):
        BetweenProxies(objectives.create("proxy-anchor", classes=3, dim=4), 3, 4)  # type: ignore[arg-type]


def test_proxies_start_inside_the_sphere_and_seeds_are_clipped() -> None:
    objective = BetweenProxies(objectives.create("c1", normalise=False), CLASSES, DIM, 1)
    assert objective.proxies.norm(dim=1).max() < 1
    objective.set_proxies(torch.diag(torch.tensor([3.0, 1.0, 0.5, 1.0]))[:3])
    torch.testing.assert_close(objective.proxies.norm(dim=1), torch.tensor([0.999, 0.999, 0.5]))
    with torch.no_grad():
        objective.proxies.mul_(10)
    torch.testing.assert_close(objective.solution(lambda _: VECTORS).norm(dim=1), torch.ones(3))
    on_sphere = BetweenProxies(objectives.create("c1"), CLASSES, DIM, 1)
    on_sphere.set_proxies(3 * torch.eye(4)[:3])
    torch.testing.assert_close(on_sphere.solution(lambda _: VECTORS), torch.eye(4)[:3])


def test_k_centre_measures_between_clipped_seeds_and_a_clipped_pool() -> None:
    running = problems(per_class=1)
    running.embed = lambda places: 3 * VECTORS[places]
    far = 5 * torch.nn.functional.normalize(torch.ones(CLASSES, DIM))
    running._open_next(far)
    pool = 3 * VECTORS[running._draw_pool(1)]
    clipped = pool / pool.norm(dim=-1, keepdim=True).clamp(min=1)
    farthest = (clipped - far.unsqueeze(1) / 5).norm(dim=-1).argmax(1)
    expected = clipped[torch.arange(CLASSES), farthest]
    expected = expected / (expected.norm(dim=1, keepdim=True) / 0.999).clamp(min=1)
    torch.testing.assert_close(running.objective.proxies.detach(), expected)


def test_algorithm_1_as_printed_starts_from_random_pictures_and_pulls_at_once() -> None:
    running = problems(printed=True)
    running.begin()
    seeds = VECTORS[running._draw_pool(0)[:, :2]]
    pool = VECTORS[running._draw_pool(1)]
    for c in range(CLASSES):
        farness = torch.cdist(pool[c], seeds[c]).amin(1)
        torch.testing.assert_close(
            running.objective.proxies.detach().reshape(CLASSES, 2, DIM)[c, 0], pool[c][farness.argmax()]
        )
    start = running.model.weight.detach().clone()
    running.model.weight.grad = torch.zeros(DIM, 3)
    with torch.no_grad():
        running.model.weight.add_(1.0)
    running.add_pull()
    torch.testing.assert_close(running.model.weight.grad, 0.5 * (running.model.weight.detach() - start))


def test_the_solution_is_what_was_judged() -> None:
    running = problems(patience=1)
    mean = EMA(running.model, 0.5)
    running.judged_weights = mean.in_place
    seen = []
    running.embed = lambda places: seen.append(running.model.weight.detach().clone()) or VECTORS[places]  # type: ignore[func-returns-value]
    running.begin()
    with torch.no_grad():
        running.model.weight.add_(1.0)
    live = running.model.weight.detach().clone()
    seen.clear()
    running.report(0.5)
    torch.testing.assert_close(running.solution["weight"], mean.mean["weight"])
    torch.testing.assert_close(seen[0], mean.mean["weight"])
    running.report(0.4)
    torch.testing.assert_close(running.last["weight"], mean.mean["weight"])
    torch.testing.assert_close(running.model.weight.detach(), live)
    torch.testing.assert_close(seen[-1], live)  # the next proxies start where the live weights are


def numpy_constraint(
    vectors: np.ndarray, labels: np.ndarray, anchors: np.ndarray, beta: float, alpha: float, same: np.ndarray
) -> tuple[float, ...]:
    """Pair by pair, anchors in class order."""
    per_class = len(anchors) // CLASSES
    shares, bounds, violated, pairs, total = [], [], 0, 0, 0.0
    for i, anchor in enumerate(anchors):
        own_violated, own_pairs, own_total = 0, 0, 0.0
        for j, vector in enumerate(vectors):
            if same[i, j]:
                continue
            sign = 1 if i // per_class == labels[j] else -1
            excess = sign * (np.sqrt(((anchor - vector) ** 2).sum()) - beta)
            own_violated += int(excess >= 0)
            own_total += max(0.0, excess + alpha)
            own_pairs += 1
        shares.append(own_violated / own_pairs)
        bounds.append(own_total / alpha / own_pairs)
        violated, pairs, total = violated + own_violated, pairs + own_pairs, total + own_total
    return violated / pairs, total / alpha / pairs, max(shares), max(bounds)


@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(
    ("name", "settings", "beta", "alpha"),
    [
        ("c1", {"margin": 0.5}, 0.5, 0.5),
        ("c2", {"positive_margin": 0.2, "negative_margin": 0.5}, 0.35, 0.15),
        ("margin", {"margin": 0.2, "beta": 0.6}, 0.6, 0.2),
        ("ms", {"base": 0.5}, 1.0, 1.0),
        ("triplet", {}, 0.5, 0.5),
    ],
)
def test_chance_constraint_is_that_of_a_plain_loop(
    name: str, settings: dict[str, float], beta: float, alpha: float, normalise: bool, samples: bool
) -> None:
    torch.manual_seed(0)
    inner = objectives.create(name, normalise=normalise, **settings)
    objective = BetweenSamples(inner, CLASSES, 2) if samples else BetweenProxies(inner, CLASSES, DIM, 2)
    running = ProxyProblems(nn.Linear(3, DIM), objective, LABELS, lambda places: VECTORS[places], pool=5, patience=1)
    running.begin()
    running.report(0.5)
    ended = running.report(0.4)
    assert ended is not None
    first = ProxyProblems(nn.Linear(3, DIM), objective, LABELS, lambda places: VECTORS[places], pool=5)
    first.begin()
    vectors = VECTORS.double().numpy()
    if samples:
        anchors, same = vectors[objective.places.numpy()], objective.places.numpy()[:, None] == np.arange(len(LABELS))
    else:
        anchors, same = objective.proxies.detach().double().numpy(), np.zeros((2 * CLASSES, len(LABELS)), dtype=bool)
    if normalise:
        anchors = anchors / np.linalg.norm(anchors, axis=1, keepdims=True)
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = numpy_constraint(vectors, LABELS, anchors, beta, alpha, same)
    assert tuple(ended.constraint) == pytest.approx(expected, abs=1e-5)
    assert ended.constraint.violation <= ended.constraint.violation_bound
    assert ended.constraint.violation <= ended.constraint.epsilon <= ended.constraint.epsilon_bound


def test_chance_constraint_in_parts_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.from_numpy(LABELS)
    whole = chance_constraint.chance_constraint(VECTORS, labels, VECTORS, labels, (0.5, 0.3))
    monkeypatch.setattr(chance_constraint, "ANCHORS_AT_ONCE", 4)
    assert chance_constraint.chance_constraint(VECTORS, labels, VECTORS, labels, (0.5, 0.3)) == pytest.approx(whole)
