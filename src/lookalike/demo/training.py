"""Trains one network with one pooling on drawn letters, and measures it.

A small ResNet first learns single letters of the training classes. Then every pooling trains it further on pictures in
which one cell of four shows the letter and three show symbols. Test pictures show unseen letters among unseen symbols.

A seed decides network and batches: all poolings of one seed start from the same pretrained network and see the same
batches. The pictures are the same for every seed. The oracle pools only the true cell, which it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookalike import objectives
from lookalike.demo.pictures import Shots, in_cell
from lookalike.models import Embedder, create_backbone, parameter_groups
from lookalike.models.input_spec import InputSpec
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike.training.in_memory import (
    inference_batches,
    mix_with_zero_shot,
    pixel_batches,
    start_from_pixels,
)
from lookalike.training.loop import Metrics, fit
from lookalike.training.model import Learner
from lookalike.training.pretrain import Recipe, create_classifier, learn

BACKBONE = "resnet8-half"
SPEC = InputSpec(size=64, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
DIM = 64  # as many as the backbone has channels
LETTER_RATE = 6e-3  # highest learning rate of Adam while learning single letters
HELD_OUT = 0.25  # share of the training classes that choose the learning rate
HELD_OUT_STEP = 2  # half of their pictures are enough to compare learning rates, and save a tenth of the time


@dataclass(frozen=True)
class Contestant:
    """A pooling with its settings.

    Attributes:
        name: Name in tables.
        pooling: Name of the pooling.
        settings: Its settings.
        pooling_rate: Learning rate of the pooling's parameters, as a multiple.
        median_norm: Median length of local features at the start.
        zero_shot: Share of the zero-shot loss.
        is_told: The oracle: pools only the cell that shows the letter.
    """

    name: str
    pooling: str
    settings: dict[str, Any] = field(default_factory=dict)
    pooling_rate: float = 1.0
    median_norm: float = 2.0
    zero_shot: float = 0.0
    is_told: bool = False


# docs/results/index.md explains these settings. Features are much shorter than the radius, so their length counts too.
GSP = {"num_prototypes": 8, "keep": 0.05, "sharpness": 40.0, "radius": 20.0}
GSP |= {"learn_keep": True, "learn_sharpness": True}
LEARNT_SHARE = Contestant("GSP", "gsp", GSP, pooling_rate=10)
CONTESTANTS = (
    Contestant("average pooling", "average"),
    LEARNT_SHARE,
    replace(LEARNT_SHARE, name="GSP + zero-shot loss", zero_shot=0.1),
    Contestant("learnt attention", "attention"),
    Contestant("oracle, told the true cell", "average", is_told=True),
)


@dataclass(frozen=True)
class Budget:
    """Size of the demo.

    Attributes:
        steps: Steps of every contestant, learning rate and seed.
        letter_steps: Steps of pretraining on single letters, for every seed.
        classes: Classes in a batch.
        per_class: Pictures of each of them.
        evaluate_every: Steps between evaluations on held-out classes.
        rates: Learning rates to choose from.
        seeds: Seeds of network and batches.
        train_classes: Letters for training; a quarter of them is held out.
        test_classes: Letters for testing.
        pictures: Pictures of each letter.
    """

    steps: int = 120
    letter_steps: int = 1200
    classes: int = 16
    per_class: int = 4
    evaluate_every: int = 60
    rates: tuple[float, ...] = (1e-3, 3e-3)
    seeds: tuple[int, ...] = (0, 1)
    train_classes: int = 412
    test_classes: int = 100
    pictures: int = 20


@dataclass(frozen=True)
class Measurement:
    """Metrics, vectors (n, D), weights of all positions (n, N), and the mean share of the weight in the true cell."""

    metrics: dict[str, float]
    vectors: NDArray[np.float32]
    weights: NDArray[np.float32]
    on_letter: float


@dataclass(frozen=True)
class Outcome(Measurement):
    """One contestant, trained with one learning rate and seed, and measured on the test classes."""

    contestant: str
    rate: float
    seed: int
    curve: list[tuple[int, float]]  # steps and MAP@R on held-out classes


def pretrain_letters(
    letters: Shots, seed: int, budget: Budget, tick: Callable[[int], Any] = lambda _: None
) -> dict[str, Tensor]:
    """Train the network of one seed to classify single letters; return its state dict. ``tick`` may raise to stop."""
    recipe = Recipe(
        BACKBONE,
        steps=budget.letter_steps,
        batch=budget.classes * budget.per_class,
        rate=LETTER_RATE,
        seed=seed,
        optimizer="adam",
        augment=False,
    )
    spec = replace(SPEC, size=letters.pixels.shape[1])
    classifier = create_classifier(recipe, int(letters.labels.max()) + 1, spec).to(memory_format=torch.channels_last)
    learn(classifier, letters.pixels, letters.labels, recipe, tick)
    return {name: value.detach().clone() for name, value in classifier.backbone.network.state_dict().items()}


def train_contestant(
    contestant: Contestant,
    rate: float,
    seed: int,
    weights: Mapping[str, Tensor],
    train: Shots,
    test: Shots,
    budget: Budget,
    tick: Callable[[int], Any] = lambda _: None,
) -> Outcome:
    """Train one contestant with one learning rate and seed, and measure it on the test classes.

    The last quarter of the training classes is held out. ``weights`` are those of ``pretrain_letters`` for this seed.
    ``tick`` is called with 1 after every step and may raise to stop.
    """
    classes = int(train.labels.max()) + 1
    trained_classes = classes - max(2, round(HELD_OUT * classes))
    held_out = train.of_classes(trained_classes, classes).every(HELD_OUT_STEP)
    train = train.of_classes(0, trained_classes)
    torch.manual_seed(seed)
    embedder = _create_embedder(contestant, weights, train)
    metric = objectives.create("c2", preset="cub")
    objective = mix_with_zero_shot(metric, contestant.zero_shot, trained_classes, DIM)
    groups = parameter_groups(embedder, rate, pooling_lr=contestant.pooling_rate)
    if list(objective.parameters()):
        groups.append({"params": list(objective.parameters())})
    masks = None
    if contestant.is_told:
        rows, columns = embedder.backbone.grid(torch.zeros(1, 3, SPEC.size, SPEC.size))
        masks = in_cell(train.cells, rows * columns)
    batches = pixel_batches(
        train.pixels,
        train.labels,
        SPEC,
        classes=budget.classes,
        per_class=budget.per_class,
        seed=seed,
        augment=False,
        masks=masks,
    )

    def evaluate() -> Metrics:
        return {"MAP@R": measure(embedder, contestant, held_out).metrics["MAP@R"]}

    fitted = fit(
        Learner(embedder, objective),
        batches,
        torch.optim.Adam(groups, lr=rate),
        steps=budget.steps,
        seed=seed,
        evaluate=evaluate,
        evaluate_every=budget.evaluate_every,
        on_step=lambda *_: tick(1),
    )
    curve = [(step, metrics["MAP@R"]) for step, metrics in fitted.evaluations]
    measured = measure(embedder, contestant, test)
    return Outcome(**vars(measured), contestant=contestant.name, rate=rate, seed=seed, curve=curve)


@torch.inference_mode()
def measure(embedder: Embedder, contestant: Contestant, shots: Shots) -> Measurement:
    """Measure retrieval among pictures, and where the pooling weights lie; the embedder is left in eval mode."""
    embedder.eval()
    vectors, weights, shares = [], [], []
    first = 0
    for inputs in inference_batches(shots.pixels, SPEC):
        tokens = embedder.backbone(inputs)
        true_cells = in_cell(shots.cells[first : first + len(inputs)], tokens.shape[1])
        pooled = embedder.head(tokens, true_cells if contestant.is_told else None, details=True)
        vectors.append(pooled.vector)
        weights.append(pooled.weights)
        shares.append((pooled.weights * true_cells).sum(1))
        first += len(inputs)
    metrics = retrieval_metrics(torch.cat(vectors), shots.labels)
    on_letter = float(torch.cat(shares).mean())
    return Measurement(metrics, torch.cat(vectors).numpy(), torch.cat(weights).numpy(), on_letter)


def _create_embedder(contestant: Contestant, weights: Mapping[str, Tensor], train: Shots) -> Embedder:
    backbone = create_backbone(BACKBONE)
    backbone.spec = SPEC
    backbone.network.load_state_dict(weights)
    embedder = Embedder(backbone, DIM, contestant.pooling, contestant.settings)
    embedder = embedder.to(memory_format=torch.channels_last)
    radius = contestant.settings.get("radius", 1.0)
    start_from_pixels(embedder, train.pixels, median_norm=contestant.median_norm, radius=radius)
    return embedder
