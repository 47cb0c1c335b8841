"""Training on pictures in memory."""

import numpy as np
import pytest
import torch

from lookalike import objectives
from lookalike.models import Embedder, create_backbone
from lookalike.objectives import Composed
from lookalike.training.in_memory import (
    inference_batches,
    mix_with_zero_shot,
    pixel_batches,
    start_from_pixels,
)
from lookalike.training.model import Learner

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(3), 6)
PIXELS = RNG.integers(256, size=(18, 32, 32, 3), dtype=np.uint8)


def create_embedder() -> Embedder:
    torch.manual_seed(0)
    return Embedder(create_backbone("resnet8-half", weights="none"), 8, "gsp", {"num_prototypes": 4})


def test_batches_have_classes_and_their_masks() -> None:
    spec = create_embedder().backbone.spec
    masks = torch.from_numpy(LABELS)[:, None] == torch.arange(3)
    batches = pixel_batches(PIXELS, LABELS, spec, classes=5, per_class=2, augment=False, masks=masks)
    everything = torch.cat(list(inference_batches(PIXELS, spec)))
    for _ in range(7):
        inputs, labels, _, _, mask = next(batches)
        assert labels.bincount().tolist() == [2, 2, 2]
        assert torch.equal(mask.long().argmax(1), labels)
        assert all((everything == image).flatten(1).all(1).any() for image in inputs)


def test_the_seed_decides_batches_and_augmentation() -> None:
    spec = create_embedder().backbone.spec
    first, again, other = (next(pixel_batches(PIXELS, LABELS, spec, classes=3, per_class=2, seed=s)) for s in (0, 0, 1))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize("median_norm", [2.0, 0.5])
def test_features_start_with_the_median_norm_and_prototypes_on_the_sphere(median_norm: float) -> None:
    embedder = create_embedder().train()
    start_from_pixels(embedder, PIXELS, median_norm=median_norm, radius=20.0)
    assert embedder.training
    with torch.no_grad():
        tokens = torch.cat([embedder.eval().backbone(x) for x in inference_batches(PIXELS, embedder.backbone.spec)])
        norms = embedder.head.project(tokens).flatten(0, 1).norm(dim=1)
    assert float(norms.median()) == pytest.approx(median_norm, rel=1e-3)
    prototypes = embedder.head.pooling.prototypes
    assert isinstance(prototypes, torch.Tensor)
    assert prototypes.detach().norm(dim=1).tolist() == pytest.approx([1.0] * 4)


def test_the_loss_is_that_of_embedder_and_objective() -> None:
    metric = objectives.create("c2", preset="cub")
    assert mix_with_zero_shot(metric, 0.0, 3, 8) is metric
    mixed = mix_with_zero_shot(metric, 0.25, 3, 8)
    assert isinstance(mixed, Composed)
    embedder = create_embedder().eval()
    inputs, labels = next(pixel_batches(PIXELS, LABELS, embedder.backbone.spec, classes=3, per_class=2))
    pooled = embedder(inputs, details=True)
    expected = mixed(pooled.vector, labels, pooled.attributes).value
    assert Learner(embedder, mixed)(inputs, labels).value.item() == pytest.approx(expected.item())
    plain = Learner(embedder, metric)(inputs, labels).value.item()
    assert plain == pytest.approx(metric(pooled.vector, labels).value.item())


@pytest.mark.parametrize("pooling", ["gsp", "max+gsp", "gem+gsp"])
def test_the_zero_shot_loss_sees_no_attributes_before_there_are_prototypes(pooling: str) -> None:
    """Attributes of prototypes that were not chosen yet would be noise: zeros instead, without a gradient."""
    torch.manual_seed(0)
    settings = {"num_prototypes": 4, "init": "k-centre", "memory": 24}
    embedder = Embedder(create_backbone("resnet8-half", weights="none"), 8, pooling, settings)
    zero_shot = objectives.ZeroShot(3, 8)
    learner = Learner(embedder, zero_shot)
    spec = embedder.backbone.spec
    batches = pixel_batches(PIXELS, LABELS, spec, classes=3, per_class=4, augment=False)
    inputs, labels = next(batches)
    loss = learner(inputs, labels).value
    assert loss.item() == pytest.approx(np.log(3), rel=1e-6)  # all classes are equally likely
    loss.backward()
    for parameter in learner.parameters():
        assert parameter.grad is None or not parameter.grad.any()
    learner(*next(batches))  # fills the memory
    assert embedder.head.pooling.ready
    loss = learner(inputs, labels).value
    loss.backward()
    assert zero_shot.label_embeddings.grad is not None
    assert zero_shot.label_embeddings.grad.any()
