"""The centre regularisers against the published formulas, written plainly; where centres come from; the draw."""

import copy
import math
import pickle
from math import inf, log, nan

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from lookalike import objectives
from lookalike.objectives import BetweenProxies, Composed
from lookalike.objectives.centres import SPREADS, CentreCrowding, CentreSpread

DOUBLE = torch.float64
NOTHING = torch.ones(2, 4, dtype=DOUBLE), torch.tensor([0, 1])  # a batch, for regularisers that look at proxies only


def proxy_objective(classes=6, dim=4, name="proxy-anchor", **settings):
    torch.manual_seed(0)
    return objectives.create(name, classes=classes, dim=dim, **settings).double()


def ordered_pairs(vectors):
    count = len(vectors)
    return [(vectors[i], vectors[j]) for i in range(count) for j in range(count) if i != j]


def plain_distances(proxies):
    return [(a - b).square().sum().sqrt() for a, b in ordered_pairs(normalize(proxies))]


def uniform_face(proxies):
    found = plain_distances(proxies)
    return sum(1 / (d + 1) for d in found) / len(found)


TEXTBOOK = {
    ("mhe-0", False): lambda proxies: -sum(d.log() for d in plain_distances(proxies)),
    ("mhe-1", False): lambda proxies: sum(1 / d for d in plain_distances(proxies)),
    ("mhe-2", False): lambda proxies: sum(1 / d**2 for d in plain_distances(proxies)),
    ("uniform-face", False): uniform_face,
    ("mhe-0", True): lambda proxies: -sum((d**2).log() for d in plain_distances(proxies)),
    ("mhe-1", True): lambda proxies: sum(1 / d**2 for d in plain_distances(proxies)),
    ("mhe-2", True): lambda proxies: sum(1 / d**4 for d in plain_distances(proxies)),
    ("nearest", False): lambda proxies: -min(plain_distances(proxies)),
    ("farthest", False): lambda proxies: -max(plain_distances(proxies)),
}


def assert_same_value_and_gradient(objective, proxies, formula, tolerance=1e-10):
    actual = objective(NOTHING[0].to(proxies.dtype), NOTHING[1]).value
    expected = formula(proxies)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    given = torch.autograd.grad(actual, proxies)[0]
    torch.testing.assert_close(given, torch.autograd.grad(expected, proxies)[0], rtol=tolerance, atol=tolerance)
    assert given.abs().max() > 1e-3


@pytest.mark.parametrize(("name", "squared"), TEXTBOOK)
def test_named_spreads_are_their_textbook_forms(name, squared):
    owner = proxy_objective()
    objective = CentreSpread(proxies_of=owner, **SPREADS[name], squared=squared)
    assert_same_value_and_gradient(objective, owner.proxies, TEXTBOOK[name, squared])


def test_single_precision():
    owner = proxy_objective().float()
    objective = CentreSpread(proxies_of=owner, **SPREADS["mhe-2"])
    assert_same_value_and_gradient(objective, owner.proxies, TEXTBOOK["mhe-2", False], 2e-5)


def log_exp(values, knob):
    return (sum((knob * value).exp() for value in values) / len(values)).log() / knob


def cosines(proxies):
    return [a @ b for a, b in ordered_pairs(normalize(proxies))]


@pytest.mark.parametrize(
    ("settings", "formula"),
    [
        ({}, lambda p: -len(plain_distances(p)) / sum(1 / d for d in plain_distances(p))),
        ({"knob": 1.0}, lambda p: -sum(plain_distances(p)) / len(plain_distances(p))),
        ({"knob": -3.0}, lambda p: -((sum(d**-3 for d in plain_distances(p)) / 30) ** (-1 / 3))),
        ({"kind": "log-exp", "knob": -4.0}, lambda p: -log_exp(plain_distances(p), -4.0)),
        (
            {"kind": "log-exp", "knob": -2.0, "squared": True},
            lambda p: -log_exp([d**2 for d in plain_distances(p)], -2),
        ),
        ({"kind": "log-exp", "knob": 4.0, "over": "similarity"}, lambda p: log_exp(cosines(p), 4.0)),
        ({"kind": "k", "knob": 2, "over": "similarity"}, lambda p: sum(sorted(cosines(p))[-4:]) / 4),
        ({"kind": "k", "knob": -3}, lambda p: -sum(sorted(plain_distances(p))[:6]) / 6),
        ({"normalise": False, "knob": 1.0}, lambda p: -sum((a - b).norm() for a, b in ordered_pairs(p)) / 30),
        ({"form": "energy", "knob": -2.0}, lambda p: sum(d**-2 for d in plain_distances(p)) / 30),
        (
            {"form": "energy", "knob": 0.0, "offset": 0.5},
            lambda p: -sum((d + 0.5).log() for d in plain_distances(p)) / 30,
        ),
    ],
)
def test_spread_is_the_plain_formula(settings, formula):
    owner = proxy_objective()
    assert_same_value_and_gradient(CentreSpread(proxies_of=owner, **settings), owner.proxies, formula)


@pytest.mark.parametrize(("gamma", "delta"), [(3.0, 0.2), (32.0, 0.0), (inf, 0.1)])
def test_crowding_is_r1_as_printed(gamma, delta):
    owner = proxy_objective()

    def printed(proxies):
        centres, rows = normalize(proxies), []
        for i in range(6):
            others = [centres[i] @ centres[j] - delta for j in range(6) if j != i]
            rows.append(max(others) if gamma == inf else sum((gamma * s).exp() for s in others).log() / gamma)
        return sum(rows) / 6

    assert_same_value_and_gradient(
        CentreCrowding(proxies_of=owner, sharpness=gamma, margin=delta), owner.proxies, printed
    )


@pytest.mark.parametrize(
    "regulariser",
    [
        lambda owner: CentreSpread(proxies_of=owner, **SPREADS["mhe-2"]),
        lambda owner: CentreSpread(proxies_of=owner, knob=-8.0),
        lambda owner: CentreSpread(proxies_of=owner, kind="log-exp", knob=5.0, over="similarity"),
        lambda owner: CentreCrowding(proxies_of=owner, sharpness=8.0),
    ],
)
def test_four_centres_in_space_become_a_tetrahedron(regulariser):
    owner = proxy_objective(4, 3)
    objective = regulariser(owner)
    optimiser = torch.optim.Adam(owner.parameters(), lr=0.05)
    for _ in range(100):
        optimiser.zero_grad()
        objective(torch.ones(1, 3), torch.tensor([0])).value.backward()
        optimiser.step()
    assert torch.pdist(normalize(owner.proxies)).tolist() == pytest.approx([(8 / 3) ** 0.5] * 6, abs=1e-2)


EVERY_SPREAD = [
    *SPREADS.values(),
    {"knob": -1e4},
    {"knob": 1e4},
    {"kind": "log-exp", "knob": -1e4},
    {"kind": "k", "knob": -2},
    {"kind": "log-exp", "knob": 1e4, "over": "similarity"},
]


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("settings", EVERY_SPREAD, ids=str)
def test_coinciding_proxies(settings, dtype):
    owner = proxy_objective().to(dtype)
    with torch.no_grad():
        owner.proxies[1:4] = owner.proxies[0]
    for objective in (CentreSpread(proxies_of=owner, **settings), CentreCrowding(proxies_of=owner, sharpness=1e4)):
        loss = objective(torch.ones(1, 4, dtype=dtype), torch.tensor([0]))
        loss.value.backward()
        assert loss.value.isfinite()
        assert owner.proxies.grad.isfinite().all()


@pytest.mark.parametrize("knob", [-0.5, -4.0])
def test_half_precision_and_autocast_change_nothing(knob):
    owner = proxy_objective().float()
    objective = CentreSpread(proxies_of=owner, knob=knob).eval()
    plain = objective(torch.ones(1, 4), torch.tensor([0])).value
    with torch.autocast("cpu", torch.bfloat16):
        cast = objective(torch.ones(1, 4, dtype=torch.bfloat16), torch.tensor([0])).value
    assert cast.dtype == torch.float32
    assert cast == plain


def test_proxies_belong_to_their_objective_alone():
    owner = proxy_objective()
    regulariser = CentreSpread(proxies_of=owner)
    assert list(regulariser.parameters()) == regulariser.proxy_parameters() == list(regulariser.children()) == []
    assert "proxies_of=ProxyAnchor" in repr(regulariser)
    both = Composed({"metric": (1.0, owner), "centres": (0.5, regulariser)})
    assert both.proxy_parameters() == list(both.parameters()) == [owner.proxies]
    assert [key for key in both.state_dict() if "proxies" in key] == ["objectives.metric.proxies"]
    vectors, labels = torch.randn(4, 4, dtype=DOUBLE), torch.tensor([0, 0, 1, 1])
    loss = both(vectors, labels)
    torch.testing.assert_close(loss.value, owner(vectors, labels).value + 0.5 * regulariser(vectors, labels).value)
    assert loss.parts["centres/mean"] == -loss.parts["centres"]
    for twin in (copy.deepcopy(both), pickle.loads(pickle.dumps(both))):
        with torch.no_grad():
            twin.objectives["metric"].proxies.copy_(2 * torch.eye(6, 4) + 0.1)  # seen by its regulariser, not by ours
        assert twin(vectors, labels).parts["centres"] != loss.parts["centres"]
    assert both(vectors, labels).value == loss.value


@pytest.mark.parametrize("delta", [-2.0, 0.0, 0.3, 0.9, 1.5, 3.0])
@pytest.mark.parametrize(
    ("kind", "knob", "over"),
    [
        ("power", -1.0, "distance"),
        ("power", 3.0, "distance"),
        ("power", 2.5, "similarity"),
        ("log-exp", 4.0, "similarity"),
    ],
)
def test_the_hinge_is_the_constraint(kind, knob, over, delta):
    """(9): max(0, M - delta) of similarities; (10): max(0, delta - M) of distances."""
    owner = proxy_objective()
    rows = owner.proxies.detach().numpy()
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    values = []
    for i in range(6):
        for j in range(6):
            if i != j:
                values.append(np.linalg.norm(unit[i] - unit[j]) if over == "distance" else unit[i] @ unit[j])
    values = np.array(values)
    if kind == "log-exp":
        mean = np.log(np.mean(np.exp(knob * values))) / knob
    else:
        mean = np.mean(np.maximum(values, 0) ** knob) ** (1 / knob)
    expected = max(0.0, delta - mean) if over == "distance" else max(0.0, mean - delta)
    objective = CentreSpread(proxies_of=owner, kind=kind, knob=knob, over=over, form="hinge", delta=delta)
    value = objective(*NOTHING).value
    assert value.item() == pytest.approx(expected, abs=1e-9)
    (gradient,) = torch.autograd.grad(value, owner.proxies)
    assert gradient.any() == (expected > 0)


def test_r2_is_the_power_mean_of_similarities_where_it_is_defined():
    owner = proxy_objective()
    with torch.no_grad():
        owner.proxies.abs_().add_(0.05)  # all similarities are above 0
    unit = normalize(owner.proxies.detach()).numpy()
    values = (unit @ unit.T)[~np.eye(6, dtype=bool)]
    expected = np.mean(values**8.0) ** (1 / 8)
    assert objectives.create_centres("r2", proxies_of=owner)(*NOTHING).value.item() == pytest.approx(expected)


@pytest.mark.parametrize("margin", [-1.0, 0.2, 0.6, 0.8, 2.0])
def test_the_hinge_of_r1_pushes_crowded_centres_only(margin):
    owner = proxy_objective()
    unit = normalize(owner.proxies.detach()).numpy()
    terms = []
    for i in range(6):
        others = [math.exp(8.0 * (unit[i] @ unit[j] - margin)) for j in range(6) if j != i]
        terms.append(max(0.0, log(sum(others)) / 8.0))
    crowding = CentreCrowding(proxies_of=owner, sharpness=8.0, margin=margin, hinge=True)
    assert crowding(*NOTHING).value.item() == pytest.approx(sum(terms) / 6, abs=1e-9)


def test_proxies_of_ccp_are_centres():
    owner = BetweenProxies(objectives.create("c2", normalise=False), 6, 4, 3)
    both = Composed({"metric": (1.0, owner), "centres": (0.5, CentreSpread(proxies_of=owner, knob=1.0))})
    assert list(both.parameters()) == [owner.proxies]
    loss = both(torch.randn(4, 4), torch.tensor([0, 0, 1, 1]))
    centres = normalize(normalize(owner.proxies.detach()).reshape(6, 3, 4).mean(1))
    torch.testing.assert_close(loss.parts["centres/mean"], torch.pdist(centres).mean())
    loss.value.backward()
    assert owner.proxies.grad.abs().amin(1).all()


def test_a_parameter_of_somebody_else_will_do():
    owner = proxy_objective()
    mine = nn.Parameter(owner.proxies.detach().clone())
    for kind, settings in ((CentreSpread, SPREADS["mhe-1"]), (CentreSpread, {"sample": 3}), (CentreCrowding, {})):
        theirs, own = kind(proxies_of=owner, **settings)(*NOTHING).value, kind(proxies_of=mine, **settings)
        assert own(*NOTHING).value == theirs
        assert not list(own.parameters())
        gradient = torch.autograd.grad(own(*NOTHING).value, mine)[0]
        assert gradient.abs().max() > 1e-3
    several = nn.Parameter(torch.stack([mine.detach(), mine.detach().flip(1)], 1))  # two of each class
    twofold = proxy_objective(name="soft-triple", centres_per_class=2)
    with torch.no_grad():
        twofold.proxies.copy_(several.flatten(0, 1))
    assert CentreSpread(proxies_of=several)(*NOTHING).value == CentreSpread(proxies_of=twofold)(*NOTHING).value
    for shape in ((6,), (1, 4), (2, 2, 2, 2)):
        with pytest.raises(ValueError, match=r"proxies must be \(classes, D\) or \(classes, some, D\)"):
            CentreSpread(proxies_of=nn.Parameter(torch.zeros(shape)))


@pytest.mark.parametrize("name", [*SPREADS, "r1", None])
def test_regularisers_by_name(name):
    owner = proxy_objective()
    made = objectives.create_centres(name, proxies_of=owner, normalise=False)
    kind = CentreCrowding if name == "r1" else CentreSpread
    assert type(made) is kind
    assert made.settings == kind(proxies_of=owner, normalise=False, **SPREADS.get(name, {})).settings
    assert made.settings["normalise"] is False


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mhe1", {}, "no regulariser of centres is called 'mhe1' \\(did you mean 'mhe-1'"),
        ("r1", {"knob": 1.0}, "r1 has no setting 'knob'"),
        ("mhe-1", {"momentun": 0.5}, "mhe-1 has no setting 'momentun' \\(did you mean 'momentum'"),
        (None, {"sampel": 3}, "centres has no setting 'sampel' \\(did you mean 'sample'"),
    ],
)
def test_wrong_names_get_the_nearest_right_one(name, settings, message):
    with pytest.raises(ValueError, match=message):
        objectives.create_centres(name, classes=4, dim=4, **settings)


def test_a_preset_is_only_a_default():
    assert objectives.create_centres("mhe-1", classes=4, dim=4, knob=-2.0).settings["knob"] == -2.0


def test_several_proxies_of_a_class_have_one_centre():
    owner = proxy_objective(3, 4, "soft-triple", centres_per_class=2)
    centres = normalize(owner.proxies.unflatten(0, (3, 2)), dim=2).mean(1)
    value = CentreSpread(proxies_of=owner, knob=1.0)(*NOTHING).value
    torch.testing.assert_close(value, -torch.pdist(normalize(centres)).mean())


class PlainRunningMeans:
    """One class after the other, in dictionaries."""

    def __init__(self, momentum):
        self.momentum, self.means = momentum, {}

    def step(self, vectors, labels):
        current = dict(self.means)
        for label in set(labels.tolist()):
            mean = torch.stack([normalize(v, dim=0) for v, y in zip(vectors, labels, strict=True) if y == label]).mean(
                0
            )
            old = self.means.get(label)
            current[label] = mean if old is None else self.momentum * old + (1 - self.momentum) * mean
        self.means = {label: mean.detach() for label, mean in current.items()}
        return normalize(torch.stack([current[label] for label in sorted(current)]))


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("name", ["mhe-1", "uniform-face", "crowding"])
def test_running_means(name, momentum):
    torch.manual_seed(1)
    if name == "crowding":
        objective = CentreCrowding(7, 4, sharpness=5.0, momentum=momentum)
    else:
        objective = CentreSpread(7, 4, **SPREADS[name], momentum=momentum)
    objective.double()
    plain = PlainRunningMeans(momentum)
    for labels in ([3, 1, 3, 5], [1, 1, 1, 1], [0, 5, 5, 3], [2, 3, 2, 1]):
        vectors, labels = torch.randn(4, 4, dtype=DOUBLE, requires_grad=True), torch.tensor(labels)
        centres = plain.step(vectors, labels)
        if name == "crowding":
            products = (centres @ centres.T).fill_diagonal_(-inf)
            expected = torch.logsumexp(5.0 * products, 1).mean() / 5.0
        else:
            expected = TEXTBOOK[name, False](centres)
        actual = objective(vectors, labels).value
        torch.testing.assert_close(actual, expected)
        gradients = [torch.autograd.grad(value, vectors)[0] for value in (actual, expected)]
        torch.testing.assert_close(*gradients)
        assert gradients[0].abs().max() > 1e-3
    assert (objective.counts > 0).nonzero().flatten().tolist() == sorted(plain.means)
    assert int(objective.counts.sum()) == 16
    for label, mean in plain.means.items():
        torch.testing.assert_close(objective.means[label], mean)


def test_evaluation_leaves_everything_as_it_is():
    objective = CentreSpread(5, 4, sample=2)
    objective(torch.randn(4, 4), torch.tensor([0, 1, 2, 3]))
    before = copy.deepcopy(objective.state_dict())
    objective.eval()
    first = objective(torch.ones(1, 4), torch.tensor([4])).value
    assert objective(torch.ones(1, 4), torch.tensor([4])).value == first
    assert all(torch.equal(value, before[key]) for key, value in objective.state_dict().items())


@pytest.mark.parametrize("settings", [*EVERY_SPREAD, None], ids=str)
def test_a_single_class_has_nobody_to_be_kept_from(settings):
    objective = CentreCrowding(5, 4) if settings is None else CentreSpread(5, 4, **settings)
    vectors = torch.randn(3, 4, requires_grad=True)
    loss = objective(vectors, torch.tensor([2, 2, 2]))
    loss.value.backward()
    assert loss.value == 0
    assert (vectors.grad == 0).all()


def test_sampled_running_means_contain_the_batch():
    torch.manual_seed(2)
    objective = CentreSpread(1000, 4, sample=2, **SPREADS["nearest"])
    objective(torch.randn(100, 4), torch.arange(100))
    vectors = torch.tensor([[1.0, 0, 0, 0], [1, 0.01, 0, 0]], requires_grad=True)
    loss = objective(vectors, torch.tensor([500, 900]))  # new, and not drawn
    assert loss.value.item() == pytest.approx(-0.01, rel=1e-3)
    loss.value.backward()
    assert (vectors.grad.abs().sum(1) > 0).all()


def drawn_classes(objective, owner):
    owner.proxies.grad = None
    objective(*NOTHING).value.backward()
    return owner.proxies.grad.abs().sum(1).nonzero().flatten().tolist()


def test_the_draw_depends_on_seed_and_step_alone():
    owner = proxy_objective(50)
    objectives_by_seed = {seed: CentreSpread(proxies_of=owner, sample=5, seed=seed) for seed in (0, 1)}
    twin = CentreSpread(proxies_of=owner, sample=5, seed=0)  # another process
    torch.manual_seed(3)
    state = torch.get_rng_state()
    draws = [drawn_classes(objectives_by_seed[0], owner) for _ in range(6)]
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    assert [drawn_classes(twin, owner) for _ in range(3)] == draws[:3]
    resumed = CentreSpread(proxies_of=owner, sample=5, seed=0)
    resumed.load_state_dict(copy.deepcopy(twin.state_dict()))
    assert [drawn_classes(resumed, owner) for _ in range(3)] == draws[3:]
    assert all(len(draw) == 5 for draw in draws)
    assert len({tuple(draw) for draw in draws}) == 6
    assert drawn_classes(objectives_by_seed[1], owner) != draws[0]


def test_sampled_energies_have_no_bias():
    """Every three of the five classes are drawn sometime, and the mean of what they say is the energy of all five."""
    owner = proxy_objective(5)
    objective = CentreSpread(proxies_of=owner, sample=3, **SPREADS["mhe-1"])
    with torch.no_grad():
        values = {round(objective(*NOTHING).value.item(), 9) for _ in range(100)}
    assert len(values) == 10
    assert sum(values) / 10 == pytest.approx(TEXTBOOK["mhe-1", False](owner.proxies).item())


def test_sampled_crowding_stands_for_all_classes():
    owner = proxy_objective(8, 8)
    with torch.no_grad():
        owner.proxies.copy_(torch.eye(8))  # every cosine is 0
    value = CentreCrowding(proxies_of=owner, sharpness=2.0, sample=3)(torch.ones(1, 8), torch.tensor([0])).value
    assert value.item() == pytest.approx(log(7) / 2)


def test_a_sample_of_all_or_more_is_all():
    owner = proxy_objective()
    values = [CentreSpread(proxies_of=owner, sample=sample)(*NOTHING).value for sample in (None, 6, 10_000)]
    assert values[0] == values[1] == values[2]


def test_settings_make_the_same_regulariser_again():
    first = CentreSpread(5, 4, **SPREADS["mhe-2"], squared=True, sample=3, momentum=0.5, seed=7)
    vectors, labels = torch.randn(8, 4), torch.arange(8) % 5
    first(vectors, labels)
    second = CentreSpread(**first.settings)
    second.load_state_dict(first.state_dict())
    assert second(vectors, labels).value == first(vectors, labels).value
    assert all(f"{setting}=" in repr(first) for setting in first.settings)
    crowding = CentreCrowding(5, 4, sharpness=3.0, margin=0.25)
    assert CentreCrowding(**crowding.settings).settings == crowding.settings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "median"}, "kind must be one of power, log-exp, k, got 'median'"),
        ({"knob": nan}, "the knob must be a number"),
        ({"over": "angle"}, "over must be distance or similarity, got 'angle'"),
        ({"form": "sum"}, "form must be one of mean, energy, energy-sum, hinge, got 'sum'"),
        ({"over": "similarity"}, "a power mean of similarities, which may be 0, needs a knob above 0, got -1.0"),
        ({"form": "hinge"}, "delta belongs to the form hinge, got delta=None with the form hinge"),
        ({"delta": 0.5}, "delta belongs to the form hinge, got delta=0.5 with the form mean"),
        ({"form": "hinge", "delta": nan}, "delta must be finite, got nan"),
        ({"over": "similarity", "kind": "log-exp", "squared": True}, "squared and offset are for distances"),
        ({"offset": -1.0}, "offset must be finite and at least 0, got -1.0"),
        ({"form": "energy", "knob": 1.0}, "an energy needs kind power and a finite knob of at most 0, got power, 1.0"),
        ({"form": "energy", "kind": "log-exp"}, "an energy needs kind power"),
        ({"kind": "k", "knob": 11}, "at most the number of pairs, 10, got 11"),
        ({"kind": "k", "knob": -4, "sample": 3}, "at most the number of pairs, 3, got -4"),
        ({"sample": 1}, "sample must be at least 2, got 1"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), got 1.0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"classes": 1}, "classes must be at least 2, got 1"),
        ({"proxies_of": proxy_objective()}, "with proxies_of, classes and dim must not be given, got 5, 4"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        CentreSpread(**{"classes": 5, "dim": 4, **arguments})


def test_more_mistakes():
    with pytest.raises(TypeError, match="classes must be a whole number, got None"):
        CentreSpread()
    with pytest.raises(TypeError, match="proxies_of must be an objective with proxies, or a Parameter, got Linear"):
        CentreSpread(proxies_of=nn.Linear(2, 2))
    with pytest.raises(ValueError, match="sharpness must be above 0, got 0"):
        CentreCrowding(5, 4, sharpness=0)
    with pytest.raises(ValueError, match="margin must be finite"):
        CentreCrowding(5, 4, margin=nan)
    with pytest.raises(ValueError, match="embeddings must have 4 dimensions as the centres, got 3"):
        CentreSpread(5, 4)(torch.randn(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"labels must lie in 0..4 for 5 classes"):
        CentreSpread(5, 4)(torch.randn(2, 4), torch.tensor([0, 5]))
