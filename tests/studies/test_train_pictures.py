from dataclasses import replace

import numpy as np
import pytest
import torch
from lookalike_studies.framework import train_pictures as training
from lookalike_studies.framework.train_pictures import Recipe, inspect_pooling, train_pictures

from lookalike.inference.preprocess import to_inputs
from lookalike.models import create_backbone

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(3), 6)
# Classes are colours, with noise.
PIXELS = (40 + 60 * LABELS[:, None, None, None] + RNG.integers(0, 40, (18, 32, 32, 3))).astype(np.uint8)
GSP = {"num_prototypes": 4, "keep": 0.3, "sharpness": 5.0}
RECIPE = Recipe("gsp", GSP, "resnet8-half", 8, classes=3, per_class=2, epoch=2, epochs=2)


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return dict(create_backbone("resnet8-half", weights="none").network.state_dict())


def test_the_same_seed_learns_the_same_and_another_does_not(weights: dict[str, torch.Tensor]) -> None:
    first, again, other = (
        train_pictures(replace(RECIPE, seed=seed), weights, PIXELS, LABELS).embedder.state_dict() for seed in (0, 0, 1)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_the_weights_that_validation_liked_best_are_kept(
    weights: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = iter([0.9, 0.5, 0.7, 0.6])  # before training, and after each of three epochs
    states = []

    def figure(embedder: torch.nn.Module, *_: object) -> float:
        states.append({name: value.clone() for name, value in embedder.state_dict().items()})
        return next(figures)

    monkeypatch.setattr(training, "map_at_r", figure)
    learnt = train_pictures(replace(RECIPE, epochs=3), weights, PIXELS, LABELS, (PIXELS, LABELS))
    assert learnt.curve == [(0, 0.9), (2, 0.5), (4, 0.7), (6, 0.6)]
    kept = learnt.embedder.state_dict()
    assert all(torch.equal(kept[name], states[2][name]) for name in kept)
    assert any(not torch.equal(kept[name], states[3][name]) for name in kept)


def test_the_zero_shot_loss_takes_its_share(weights: dict[str, torch.Tensor]) -> None:
    plain, mixed = (train_pictures(replace(RECIPE, zero_shot=share), weights, PIXELS, LABELS) for share in (0.0, 0.5))
    assert plain.losses[0] != mixed.losses[0]
    name = "head.pooling.prototypes"
    assert not torch.equal(plain.embedder.state_dict()[name], mixed.embedder.state_dict()[name])


def test_the_nearest_prototype_has_most_of_a_place(weights: dict[str, torch.Tensor]) -> None:
    embedder = train_pictures(RECIPE, weights, PIXELS, LABELS).embedder
    seen = inspect_pooling(embedder, PIXELS)
    assert seen.nearest.shape == seen.weights.shape == (18, 16)
    with torch.no_grad():  # bags of a single place: all attributes are that place's
        tokens = embedder.backbone(to_inputs(PIXELS[:1], embedder.backbone.spec))[0]
        alone = embedder.head(tokens.unsqueeze(1), details=True).attributes
    assert (alone.argmax(1).numpy() == seen.nearest[0]).all()
    recipe = Recipe("average", {}, "resnet8-half", 8, epoch=1, per_class=2)
    average = train_pictures(recipe, weights, PIXELS, LABELS).embedder
    assert inspect_pooling(average, PIXELS).nearest.shape == (18, 0)


@pytest.mark.parametrize("pooling", ["gsp", "average"])
def test_contributions_are_parts_of_the_vector(pooling: str, weights: dict[str, torch.Tensor]) -> None:
    recipe = replace(RECIPE, pooling=pooling, pooling_settings=GSP if pooling == "gsp" else {})
    embedder = training.create_embedder(recipe, weights, PIXELS)
    seen = inspect_pooling(embedder, PIXELS)
    assert seen.contributions.sum(1) == pytest.approx(np.ones(18), abs=1e-5)
    with torch.no_grad():
        features = embedder.head.project(embedder.backbone(to_inputs(PIXELS[:1], embedder.backbone.spec)))[0].numpy()
    vector = sum(weight * feature for weight, feature in zip(seen.weights[0], features, strict=True))
    for place in (0, 7):
        along = seen.weights[0, place] * float(features[place] @ vector) / float(vector @ vector)
        assert seen.contributions[0, place] == pytest.approx(along, rel=1e-4, abs=1e-6)
