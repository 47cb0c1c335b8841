import pickle

import pytest
import torch

from lookalike import objectives
from lookalike.objectives.presets import DATA_SETS, PRESETS


@pytest.mark.parametrize("name", [*objectives.names(), "c1", "c2", "ms"])
@pytest.mark.parametrize("preset", [None, *DATA_SETS])
def test_every_name_works_with_every_preset(name, preset):
    torch.manual_seed(0)
    objective = objectives.create(name, classes=4, dim=8, preset=preset)
    vectors = torch.randn(8, 8, requires_grad=True)
    loss = objective(vectors, torch.arange(8) // 2, attributes=torch.rand(8, 3))
    assert loss.value.shape == ()
    assert loss.value.requires_grad
    assert all(part.shape == () and not part.requires_grad for part in loss.parts.values())
    if preset is not None:
        published = PRESETS.get(
            {"c1": "contrastive", "c2": "contrastive-distance", "ms": "multi-similarity"}.get(name, name), {}
        )
        assert published.get(preset, {}).items() <= objective.settings.items()


@pytest.mark.parametrize("name", objectives.names())
def test_settings_and_state_make_the_same_objective_again(name):
    torch.manual_seed(0)
    first = objectives.create(name, classes=4, dim=8)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.mul_(1.25)
    second = objectives.create(name, **first.settings)
    second.load_state_dict(first.state_dict())
    third = pickle.loads(pickle.dumps(first))
    vectors, labels = torch.randn(8, 8), torch.arange(8) // 2
    expected = first(vectors, labels).value
    assert second(vectors, labels).value == expected
    assert third(vectors, labels).value == expected
    assert all(f"{setting}=" in repr(first) for setting in first.settings)


def test_settings_go_before_the_preset():
    objective = objectives.create("ms", preset="cars", beta=30.0)
    assert (objective.alpha, objective.beta, objective.base) == (14.35, 30.0, 0.66)


def test_published_settings():
    """The corners of the table."""
    assert objectives.create("c2", preset="cub").settings["negative_margin"] == 0.3841
    assert objectives.create("triplet", preset="sop").margin == 0.0451
    large = objectives.create("soft-triple", classes=2, dim=2, preset="sop")
    assert (large.scale, large.gamma, large.merge, large.margin, large.centres_per_class) == (100, 47.9, 0.2, 0.3145, 4)
    assert objectives.create("soft-triple", classes=2, dim=2, preset="cub", centres_per_class=1).proxies.shape == (2, 2)


def test_hints():
    assert objectives.training_hints("c2") == objectives.Hints(4, 1.0, 0, 5.0, False, None)
    assert objectives.training_hints("soft-triple", "sop") == objectives.Hints(1, 100.0, 1, 0.5, True, None)
    assert objectives.training_hints("proxy-anchor", "sop").learning_rate == 5e-6
    assert objectives.training_hints("proxy-anchor", "cub").learning_rate is None
    for name in objectives.names():
        assert objectives.training_hints(name).needs_classes == (objectives.create(name, 4, 8).proxy_parameters() != [])


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "proxy_anchor",
            {},
            "no objective is called 'proxy_anchor' \\(did you mean 'proxy-anchor'\\?\\); there are: circle",
        ),
        ("tripplet", {}, "did you mean 'triplet'"),
        ("qqq", {}, "no objective is called 'qqq'; there are: circle, .*c1, c2, ms"),
        (
            "triplet",
            {"margn": 1},
            "triplet has no setting 'margn' \\(did you mean 'margin'\\?\\); there are: margin, normalise",
        ),
        ("soft-triple", {"centres-per-class": 1}, "did you mean 'centres_per_class'"),
        ("c2", {"preset": "birds"}, "there is no preset 'birds'; there are: cub, cars, inshop, sop, paper"),
        ("proxy-nca", {}, "proxy-nca learns vectors for the classes: classes and dim must be given, got None, None"),
        ("c2", {"positive_margin": 0.6}, r"positive_margin must lie in \[0, negative_margin\), got 0.6"),
        ("c1", {"margin": float("nan")}, "margin must be in"),
        ("ms", {"mining": -1}, "mining must be at least 0"),
    ],
)
def test_mistakes_are_named(name, settings, message):
    with pytest.raises(ValueError, match=message):
        objectives.create(name, **settings)
