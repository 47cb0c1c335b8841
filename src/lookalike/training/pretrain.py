"""Pretraining: a backbone learns to classify pictures, for networks without published weights.

Cross entropy on the mean of the local features, one-cycle learning rate. By default SGD with momentum 0.9 and weight
decay 5e-4 on pictures that are shifted by up to an eighth of their side and flipped, as He, Zhang, Ren and Sun ("Deep
Residual Learning for Image Recognition", CVPR 2016, section 4.2) do for CIFAR.

    cifar = data.load("cifar100:FOLDER")
    pretrained = pretrain(cifar.split("train"), "resnet20", test=cifar.split("test"))
    create_backbone("resnet20", weights=pretrained.file)          # or: lookalike train ... --weights FILE
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import OneCycleLR

from lookalike._util.files import cache_folder, replacing, require_writable
from lookalike._util.hashing import digest
from lookalike._util.settings import check_settings, setting
from lookalike.data.pictures import Pictures
from lookalike.inference.preprocess import to_inputs
from lookalike.models import Backbone, create_backbone
from lookalike.models.input_spec import InputSpec
from lookalike.models.weight_files import check_weights, save_weights
from lookalike.objectives import Loss
from lookalike.training.loop import fit

if TYPE_CHECKING:
    from lookalike._util.progress import Display, Tick

VERSION = 2  # raise this when the same recipe gives other weights
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
WARM_UP = 0.2  # share of the steps in which the rate of SGD rises
SHORTEST_CYCLE = 10  # steps; a shorter training runs only the beginning of a cycle
SHIFT = 8  # pictures move by up to this fraction of their side
EVALUATION_BATCH = 100


@dataclass(frozen=True)
class Recipe:
    """Settings of pretraining: with the pictures, they determine the weights."""

    backbone: str = setting("resnet20", "name of the backbone")
    steps: int = setting(2000, "training steps", least=1)
    batch: int = setting(64, "pictures per step; batch norm needs two", least=2)
    rate: float = setting(0.1, "highest learning rate of the cycle", above=0)
    seed: int = setting(0, "seed of the weights, the batches and the augmentation", least=0)
    optimizer: Literal["sgd", "adam"] = setting("sgd", "SGD with weight decay, or Adam without")
    augment: bool = setting(True, "shift and flip the pictures")

    def __post_init__(self) -> None:
        check_settings(self)


class Pretrained(NamedTuple):
    """A pretrained backbone.

    Attributes:
        weights: State dict of the backbone's network.
        file: File with the weights, for ``create_backbone(weights=...)``.
        accuracy: Share of the test pictures that were classified correctly; None without test pictures.
        loss: Mean loss of the last tenth of the steps.
    """

    weights: dict[str, Tensor]
    file: Path
    accuracy: float | None
    loss: float


class Classifier(nn.Module):
    """Backbone and linear layer with cross entropy: inputs (B, 3, H, W), labels (B,) -> loss."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.linear = nn.Linear(backbone.channels, classes)

    def scores(self, inputs: Tensor) -> Tensor:
        """Compute the scores of all classes, (B, classes)."""
        return self.linear(self.backbone(inputs).mean(1))

    def forward(self, inputs: Tensor, labels: Tensor) -> Loss:
        """Compute the cross-entropy of a batch."""
        return Loss(cross_entropy(self.scores(inputs), labels), {})


def pretrain(
    pictures: Pictures,
    backbone: str = "resnet20",
    *,
    steps: int = 2000,
    batch: int = 64,
    rate: float = 0.1,
    seed: int = 0,
    optimizer: Literal["sgd", "adam"] = "sgd",
    augment: bool = True,
    test: Pictures | None = None,
    spec: InputSpec | None = None,
    display: Display | None = None,
    cache: Path | None = None,
) -> Pretrained:
    """Train a backbone to classify pictures, or load the result of an earlier call from the cache.

    The same pictures, settings and number of threads give the same weights.

    Args:
        pictures: Pictures of at least two classes.
        backbone: Name of the backbone; it starts from random weights.
        steps: Training steps.
        batch: Pictures per step.
        rate: Highest learning rate of the cycle.
        seed: Seed of the weights, the batches and the augmentation.
        optimizer: "sgd", or "adam" without weight decay.
        augment: Shift and flip the pictures.
        test: Other pictures of the same classes, to report the accuracy. They do not affect the weights.
        spec: Size and normalisation of the input; None: those of the backbone.
        display: Shows progress and stops the training on request; then nothing is written. None: silent.
        cache: Folder of the weights; None: ``pretraining`` in the folder of cached features (LOOKALIKE_CACHE).

    Returns:
        The weights, their file, accuracy and loss.

    Raises:
        ValueError: For bad settings, fewer than two classes, or test pictures of other classes.
    """
    recipe = Recipe(backbone, steps, batch, rate, seed, optimizer, augment)
    if len(pictures.classes) < 2:
        raise ValueError(f"pretraining needs at least two classes, got {len(pictures.classes)}")
    if test is not None and test.classes != pictures.classes:
        raise ValueError(f"test must have the same {len(pictures.classes)} classes, got {len(test.classes)}")
    folder = cache or cache_folder() / "pretraining"
    require_writable(folder)
    classifier = create_classifier(recipe, len(pictures.classes), spec)
    spec = classifier.backbone.spec
    pixels = read_pixels(pictures, spec, display)
    description = {"version": VERSION, **asdict(recipe), "classes": len(pictures.classes), "input": spec.to_dict()}
    about = dumps(description, sort_keys=True)
    contents = [pixels.tobytes(), pictures.labels.tobytes()]
    if test is not None:
        test_pixels = read_pixels(test, spec, display)
        contents += [test_pixels.tobytes(), test.labels.tobytes()]
    file = folder / f"{backbone}-{digest(about, *contents)}.safetensors"
    cached = _read_cached(file)
    if cached is not None:
        return cached
    with _bar(display, steps, "learning to classify", " steps") as tick:
        loss = learn(classifier, pixels, pictures.labels, recipe, tick)
    accuracy = None
    if test is not None:
        accuracy = _accuracy(classifier, test_pixels, test.labels)
    network = classifier.backbone.network
    weights = {name: value.detach().contiguous() for name, value in network.state_dict().items()}
    with replacing(file) as unfinished:
        mode = unfinished.stat().st_mode
        metrics = dumps({"accuracy": accuracy, "loss": loss})
        save_weights(weights, unfinished, recipe=about, metrics=metrics)
        unfinished.chmod(mode)  # safetensors makes the file unreadable for others
    return Pretrained(weights, file, accuracy, loss)


def create_classifier(recipe: Recipe, classes: int, spec: InputSpec | None = None) -> Classifier:
    """Create backbone and classifier with random weights of the recipe's seed.

    Args:
        recipe: Names backbone and seed.
        classes: Number of classes.
        spec: Input of the backbone; None: its own.

    Returns:
        The classifier, for ``learn``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.seed)
        backbone = create_backbone(recipe.backbone, weights="none")
        if spec is not None:
            backbone.spec = spec
        return Classifier(backbone, classes)


def learn(
    classifier: Classifier,
    pixels: NDArray[np.uint8],
    labels: NDArray[np.int64],
    recipe: Recipe,
    tick: Callable[[int], Any] = lambda _: None,
) -> float:
    """Train a classifier in place on pictures in memory.

    Args:
        classifier: Is trained, backbone and linear layer.
        pixels: Pictures (n, S, S, 3).
        labels: Their classes (n,).
        recipe: Steps, batch, rate, optimizer, augmentation and seed of the batches.
        tick: Called with 1 after every step; may raise to stop.

    Returns:
        Mean loss of the last tenth of the steps.
    """
    cycle = max(recipe.steps, SHORTEST_CYCLE)
    optimizer: torch.optim.Optimizer
    if recipe.optimizer == "adam":
        optimizer = torch.optim.Adam(classifier.parameters(), lr=recipe.rate)
        schedule = OneCycleLR(optimizer, recipe.rate, total_steps=cycle)
    else:
        optimizer = torch.optim.SGD(
            classifier.parameters(), lr=recipe.rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
        )
        schedule = OneCycleLR(optimizer, recipe.rate, total_steps=cycle, pct_start=WARM_UP, cycle_momentum=False)
    losses: list[Tensor] = []

    def on_step(_: int, loss: Loss) -> None:
        losses.append(loss.value)
        tick(1)

    batches = _batches(pixels, labels, recipe, classifier.backbone.spec)
    with torch.random.fork_rng(devices=[]):
        fit(classifier, batches, optimizer, steps=recipe.steps, seed=recipe.seed, lr_schedule=schedule, on_step=on_step)
    return float(torch.stack(losses[-max(1, recipe.steps // 10) :]).mean())


def shifted(pixels: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Move each picture by up to an eighth of its side, with a black border, and flip half of them.

    Args:
        pixels: Pictures (B, S, S, 3).
        rng: Source of the shifts and flips.

    Returns:
        New pictures (B, S, S, 3).
    """
    count, side = pixels.shape[:2]
    margin = side // SHIFT
    padded = np.pad(pixels, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    top, left = rng.integers(2 * margin + 1, size=(2, count, 1))
    rows, columns = top + np.arange(side), left + np.arange(side)
    flip = rng.random(count) < 0.5
    columns[flip] = columns[flip, ::-1]
    return padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def read_pixels(pictures: Pictures, spec: InputSpec, display: Display | None = None) -> NDArray[np.uint8]:
    """Read all pictures into memory, resized to the input of a backbone.

    Args:
        pictures: What to read.
        spec: Has the side S of the input.
        display: Shows progress; None: silent.

    Returns:
        Pixels (n, S, S, 3).
    """
    side = (spec.size, spec.size)
    pixels = np.empty((len(pictures), *side, 3), dtype=np.uint8)
    with _bar(display, len(pictures), "reading pictures", " pictures") as tick:
        for index in range(len(pictures)):
            image = pictures.image(index)
            if image.size != side:
                image = image.resize(side)
            pixels[index] = np.asarray(image)
            tick(1)
    return pixels


def _batches(
    pixels: NDArray[np.uint8], labels: NDArray[np.int64], recipe: Recipe, spec: InputSpec
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches; every picture comes once before one comes again."""
    rng = np.random.default_rng(recipe.seed)
    order = np.empty(0, dtype=np.int64)
    while True:
        while len(order) < recipe.batch:
            order = np.concatenate([order, rng.permutation(len(pixels))])
        chosen, order = order[: recipe.batch], order[recipe.batch :]
        batch = pixels[chosen]
        if recipe.augment:
            batch = shifted(batch, rng)
        yield to_inputs(batch, spec), torch.from_numpy(labels[chosen])


def _bar(display: Display | None, total: int, what: str, unit: str) -> AbstractContextManager[Tick]:
    if display is None:
        return nullcontext(lambda _: None)
    return display.bar(total, what, unit)


@torch.inference_mode()
def _accuracy(classifier: Classifier, pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> float:
    classifier.eval()
    correct = 0
    for first in range(0, len(pixels), EVALUATION_BATCH):
        inputs = to_inputs(pixels[first : first + EVALUATION_BATCH], classifier.backbone.spec)
        predicted = classifier.scores(inputs).argmax(1).numpy()
        correct += int((predicted == labels[first : first + EVALUATION_BATCH]).sum())
    return correct / len(pixels)


def _read_cached(file: Path) -> Pretrained | None:
    """Read the result of an earlier call; None if there is none or the file is damaged."""
    with suppress(OSError, SafetensorError, ValueError, KeyError, TypeError):
        with safe_open(file, "pt") as content:
            metrics = loads(content.metadata()["metrics"])
        weights = {name: value.clone() for name, value in load_file(file).items()}  # the file may be replaced later
        check_weights(file, weights)
        return Pretrained(weights, file, metrics["accuracy"], metrics["loss"])
    return None
