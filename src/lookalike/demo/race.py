"""Poolings race on drawn glyphs: same backbone, same batches, same number of steps, rates chosen on held-out classes.

A small ResNet first learns single letters of the training classes, so that there is something to pool. Then each
contestant trains it further on pictures in which one cell of four shows the letter and three show symbols. What is
measured are letters that nobody has seen, among symbols that nobody has seen.

A seed is network and batches both: each has its own network that has learnt letters, from which all contestants start,
and its own batches. The network that they start from changes the outcome more than anything else. The pictures are the
same for every seed.

The oracle pools the true cell alone, which it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lookalike import objectives
from lookalike.data.glyphs import glyphs
from lookalike.data.pictures import Pictures
from lookalike.data.sampler import ClassBatches
from lookalike.models import Embedder, create_backbone, parameter_groups
from lookalike.objectives import Composed, Objective, ZeroShot
from lookalike.pooling.base import StartsFromData
from lookalike.retrieval.metrics import retrieval_metrics

BACKBONE = "resnet8-half"
DIM = 64  # as many as the backbone has channels
HELD_OUT = 0.25  # of the training classes
JUDGED = 2  # one in so many of their pictures: that tells rates apart as well, and saves a tenth of the time
EVALUATION_BATCH = 100
START_PICTURES = 512


@dataclass(frozen=True)
class Contestant:
    name: str
    pooling: str
    settings: dict[str, Any] = field(default_factory=dict)
    pooling_rate: float = 1.0  # of the pooling's own parameters, as a multiple
    median_norm: float = 2.0  # of local features at the start
    zero_shot: float = 0.0
    is_told: bool = False  # which cell shows the letter


# How these were chosen stands in docs/results/index.md. Features are short beside the radius: their length counts, too.
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
    """Of one contestant, rate and seed, and of each seed's letters before."""

    steps: int = 120
    letter_steps: int = 1200
    classes: int = 16  # in a batch
    per_class: int = 4
    evaluate_every: int = 60
    rates: tuple[float, ...] = (1e-3, 3e-3)
    seeds: tuple[int, ...] = (0, 1)  # of network and batches both
    train_classes: int = 412
    test_classes: int = 100
    pictures: int = 20  # of each class


class Shots(NamedTuple):
    """Drawn pictures: pixels (n, H, W, 3) of uint8, labels (n,), and which cell shows the letter (n,)."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    cells: NDArray[np.int64]

    def inputs(self, which: NDArray[np.int64] | slice) -> Tensor:
        images = torch.from_numpy(np.ascontiguousarray(self.pixels[which])).permute(0, 3, 1, 2)
        return ((images.float() / 255 - 0.5) / 0.25).contiguous(memory_format=torch.channels_last)

    def of_classes(self, first: int, end: int) -> Shots:
        """Labels count from 0 again."""
        chosen = (self.labels >= first) & (self.labels < end)
        return Shots(self.pixels[chosen], self.labels[chosen] - first, self.cells[chosen])

    def every(self, one_in: int) -> Shots:
        return Shots(self.pixels[::one_in], self.labels[::one_in], self.cells[::one_in])


class Outcome(NamedTuple):
    contestant: str
    rate: float
    seed: int
    curve: list[tuple[int, float]]  # step, MAP@R on held-out classes
    figures: dict[str, float]  # on the test classes
    vectors: NDArray[np.float32]  # of the test pictures (n, D)
    weights: NDArray[np.float32]  # of their places (n, N)
    on_letter: float  # mean share of the weight that lies in the true cell


def drawing(budget: Budget, split: str) -> Pictures:
    """The pictures of "letters" (alone), "train" or "test"."""
    if split == "letters":
        alone = {"cells": 1, "size": 32, "test_classes": 0}
        return glyphs(per_class=budget.pictures, train_classes=budget.train_classes, **alone)
    both = glyphs(per_class=budget.pictures, train_classes=budget.train_classes, test_classes=budget.test_classes)
    return both.split(split)


def draw(pictures: Pictures, first: int, end: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels and true cells of some of the pictures."""
    origins = pictures.origins[first:end].tolist()
    reader: Any = pictures.reader
    pixels = np.stack([reader.draw(origin) for origin in origins])
    return pixels, np.array([reader.cell_of(origin) for origin in origins], dtype=np.int64)


def learn_letters(letters: Shots, seed: int, budget: Budget, tick: Callable[[int], None]) -> dict[str, Tensor]:
    """The network of one seed, which classifies single letters of the training classes; its weights."""
    torch.manual_seed(seed)
    backbone = create_backbone(BACKBONE).to(memory_format=torch.channels_last)
    classifier = nn.Linear(backbone.channels, int(letters.labels.max()) + 1)
    weights = [*backbone.parameters(), *classifier.parameters()]
    optimiser = torch.optim.Adam(weights, lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 6e-3, total_steps=budget.letter_steps)
    chance = np.random.default_rng(seed)
    size = budget.classes * budget.per_class
    for _ in range(budget.letter_steps):
        chosen = chance.integers(len(letters.labels), size=size)
        scores = classifier(backbone(letters.inputs(chosen)).mean(1))
        loss = cross_entropy(scores, torch.from_numpy(letters.labels[chosen]))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
        tick(1)
    return {name: value.detach().clone() for name, value in backbone.state_dict().items()}


def race(
    contestant: Contestant,
    rate: float,
    seed: int,
    backbone: dict[str, Tensor],
    known: Shots,
    unseen: Shots,
    budget: Budget,
    tick: Callable[[int], None],
) -> Outcome:
    """Train one contestant with one rate and seed, and measure it.

    ``backbone``: what ``learn_letters`` gave with this seed.  ``known``: the training classes.
    """
    torch.manual_seed(seed)
    classes = int(known.labels.max()) + 1
    kept = classes - max(2, round(HELD_OUT * classes))
    train, held_out = known.of_classes(0, kept), known.of_classes(kept, classes).every(JUDGED)
    embedder = _start(contestant, backbone, train)
    objective = _objective(contestant, kept)
    groups = parameter_groups(embedder, rate, pooling_lr=contestant.pooling_rate)
    if of_objective := list(objective.parameters()):
        groups.append({"params": of_objective})
    optimiser = torch.optim.Adam(groups, lr=rate)
    curve = [(0, _measure(embedder, contestant, held_out)[0]["MAP@R"])]
    for step, chosen in enumerate(_batches(train, budget, seed), 1):
        embedder.train()
        tokens = embedder.backbone(train.inputs(chosen))
        mask = _mask(contestant, train.cells[chosen], tokens)
        pooled = embedder.head(tokens, mask, details=True)
        labels = torch.from_numpy(train.labels[chosen])
        loss = objective(pooled.vector, labels, pooled.attributes if contestant.zero_shot else None)
        optimiser.zero_grad(set_to_none=True)
        loss.value.backward()
        optimiser.step()
        if step % budget.evaluate_every == 0 or step == budget.steps:
            curve.append((step, _measure(embedder, contestant, held_out)[0]["MAP@R"]))
        tick(1)
    figures, vectors, weights, on_letter = _measure(embedder, contestant, unseen)
    return Outcome(contestant.name, rate, seed, curve, figures, vectors, weights, on_letter)


def _start(contestant: Contestant, backbone: dict[str, Tensor], train: Shots) -> Embedder:
    """The backbone as it came, the projection from principal directions, prototypes from pictures."""
    network = create_backbone(BACKBONE)
    network.load_state_dict(backbone)
    embedder = Embedder(network, DIM, contestant.pooling, contestant.settings)
    embedder = embedder.to(memory_format=torch.channels_last)
    chosen = np.random.default_rng(0).permutation(len(train.labels))[:START_PICTURES]
    with torch.no_grad():
        tokens = embedder.eval().backbone(train.inputs(np.sort(chosen)))
        embedder.head.start_from_pca(tokens.flatten(0, 1))
        if isinstance(embedder.head.pooling, StartsFromData):
            far = contestant.settings.get("radius", 1.0)  # so that all are clipped: on the unit sphere
            embedder.head.pooling.init_from(far * embedder.head.project(tokens.mean(1)))
        embedder.head.start_from_pca(tokens.flatten(0, 1), scale_to_median_norm=contestant.median_norm)
    return embedder


def _objective(contestant: Contestant, classes: int) -> Objective:
    metric = objectives.create("c2", preset="cub")
    if not contestant.zero_shot:
        return metric
    share = contestant.zero_shot
    return Composed({"metric": (1 - share, metric), "zero-shot": (share, ZeroShot(classes, DIM))})


def _batches(train: Shots, budget: Budget, seed: int) -> Iterator[NDArray[np.int64]]:
    size = min(budget.classes, int(train.labels.max()) + 1) * budget.per_class
    sampler = iter(ClassBatches(train.labels, size, budget.per_class, seed=seed))
    for _ in range(budget.steps):
        yield np.array([drawn.index for drawn in next(sampler)])


@torch.inference_mode()
def _measure(
    embedder: Embedder, contestant: Contestant, shots: Shots
) -> tuple[dict[str, float], NDArray[np.float32], NDArray[np.float32], float]:
    """Figures, vectors, weights and the mean share of the weight that lies in the true cell."""
    embedder.eval()
    vectors, weights, shares = [], [], []
    for first in range(0, len(shots.labels), EVALUATION_BATCH):
        tokens = embedder.backbone(shots.inputs(slice(first, first + EVALUATION_BATCH)))
        cells = shots.cells[first : first + EVALUATION_BATCH]
        pooled = embedder.head(tokens, _mask(contestant, cells, tokens), details=True)
        vectors.append(pooled.vector)
        weights.append(pooled.weights)
        shares.append((pooled.weights * in_cell(cells, tokens.shape[1])).sum(1))
    joined = torch.cat(vectors)
    figures = retrieval_metrics(joined, shots.labels)
    return figures, joined.numpy(), torch.cat(weights).numpy(), float(torch.cat(shares).mean())


def _mask(contestant: Contestant, cells: NDArray[np.int64], tokens: Tensor) -> Tensor | None:
    return in_cell(cells, tokens.shape[1]) if contestant.is_told else None


def in_cell(cells: NDArray[np.int64], places: int) -> Tensor:
    """Which of a map's places (row by row) lie in the given cell of 2 x 2: (B, N) bool."""
    side = round(places**0.5)
    rows, columns = np.divmod(np.arange(places), side)
    cell = 2 * (rows * 2 // side) + columns * 2 // side
    return torch.from_numpy(cell[None, :] == cells[:, None])
