"""A backbone that has learnt to classify, for studies whose networks nobody publishes weights of.

Cross entropy on the mean of the local features, SGD with momentum 0.9 under the one-cycle rate, weight decay 5e-4;
pictures are shifted by up to an eighth of their side and flipped, as He, Zhang, Ren and Sun ("Deep Residual Learning
for Image Recognition", CVPR 2016, section 4.2) do for CIFAR.

The collage of the GSP paper starts from a ResNet-20 that has classified CIFAR-100. On all 100 classes that backbone has
seen the sub-classes that are tested later; on those of the training it has not:

    cifar = data.load("cifar100:FOLDER")
    names = [name for names in sub_classes("2/1/2")["train"].values() for name in names]
    trained = classify(cifar.split("train").with_classes(names), test=cifar.split("test").with_classes(names))
    create_backbone("resnet20", weights=trained.file)          # or: lookalike train ... --weights FILE
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from json import JSONDecodeError, dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lookalike._util.checks import check_count, check_range
from lookalike._util.files import replacing, require_writable
from lookalike._util.hashing import digest
from lookalike.data.pictures import Pictures
from lookalike.models import Backbone, create_backbone
from lookalike.models.input_spec import InputSpec
from lookalike.training.features import default_folder

if TYPE_CHECKING:
    from lookalike._util.progress import Display, Tick

VERSION = 1  # to be raised when the same settings give other weights
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
WARM_UP = 0.2  # share of the steps in which the rate rises
FEWEST = 10  # steps of a cycle; of fewer than that, only the beginning of one is run
SHIFT = 8  # by up to this fraction of the side
EVALUATION_BATCH = 100


@dataclass(frozen=True)
class Lesson:
    """What is learnt from, but for the pictures: all that decides the weights."""

    backbone: str = "resnet20"
    steps: int = 2000
    batch: int = 64
    rate: float = 0.1  # the highest
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_count("batch", self.batch, least=2)  # batch norm wants two
        check_count("seed", self.seed, least=0)
        check_range("rate", self.rate, 0, None)


class Pretrained(NamedTuple):
    """weights: of the backbone's network.  file: the same, as ``create_backbone(weights=...)`` takes them.

    accuracy: the share of the test pictures that were classified rightly, None if there were none.
    loss: mean over the last tenth of the steps.
    """

    weights: dict[str, Tensor]
    file: Path
    accuracy: float | None
    loss: float


def classify(
    pictures: Pictures,
    backbone: str = "resnet20",
    *,
    steps: int = Lesson.steps,
    batch: int = Lesson.batch,
    rate: float = Lesson.rate,
    seed: int = 0,
    test: Pictures | None = None,
    display: Display | None = None,
    cache: Path | None = None,
) -> Pretrained:
    """Teach a backbone to classify ``pictures``, or find in the cache that it has been taught before.

    test: other pictures of the same classes, to say how well it went; nothing is chosen by them.
    display: shows how far it is, and stops it where somebody asks for that; then nothing is written. None: silent.
    cache: the folder of the weights; None: ``pretraining`` where features are cached too (LOOKALIKE_CACHE).
    The same pictures, settings and number of threads give the same weights.
    """
    lesson = Lesson(backbone, steps, batch, rate, seed)
    if len(pictures.classes) < 2:
        raise ValueError(f"to classify there must be at least two classes, got {len(pictures.classes)}")
    if test is not None and test.classes != pictures.classes:
        raise ValueError(f"test must have the same {len(pictures.classes)} classes, got {len(test.classes)}")
    folder = cache or default_folder() / "pretraining"
    require_writable(folder)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = create_backbone(backbone, weights="none")
        classifier = nn.Linear(network.channels, len(pictures.classes))
    pixels = read_pixels(pictures, network.spec, display)
    shown = None if test is None else (read_pixels(test, network.spec, display), test.labels)
    about = dumps({"version": VERSION, **asdict(lesson), "classes": len(pictures.classes)}, sort_keys=True)
    content = [part.tobytes() for part in (pixels, pictures.labels, *(shown or ()))]
    file = folder / f"{backbone}-{digest(about, *content)}.safetensors"
    known = _known(file)
    if known is not None:
        return known
    with _bar(display, steps, "learning to classify", " steps") as tick:
        loss = learn(network, classifier, pixels, pictures.labels, lesson, tick)
    accuracy = None if shown is None else _accuracy(network, classifier, *shown)
    weights = {name: value.detach().contiguous() for name, value in network.network.state_dict().items()}
    with replacing(file) as unfinished:
        mode = unfinished.stat().st_mode
        save_file(weights, unfinished, {"lesson": about, "figures": dumps({"accuracy": accuracy, "loss": loss})})
        unfinished.chmod(mode)  # safetensors lets nobody else read
    return Pretrained(weights, file, accuracy, loss)


def learn(
    backbone: Backbone,
    classifier: nn.Linear,
    pixels: NDArray[np.uint8],
    labels: NDArray[np.int64],
    lesson: Lesson,
    tick: Callable[[int], Any] = lambda _: None,
) -> float:
    """Train the backbone and its classifier where they stand; the mean loss of the last tenth of the steps.

    pixels: (n, S, S, 3).  labels: (n,).
    """
    weights = [*backbone.parameters(), *classifier.parameters()]
    optimiser = torch.optim.SGD(weights, lr=lesson.rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, lesson.rate, total_steps=max(lesson.steps, FEWEST), pct_start=WARM_UP, cycle_momentum=False
    )
    chance = np.random.default_rng(lesson.seed)
    order = np.empty(0, dtype=np.int64)
    losses = []
    backbone.train()
    for _ in range(lesson.steps):
        while len(order) < lesson.batch:
            order = np.concatenate([order, chance.permutation(len(pixels))])
        chosen, order = order[: lesson.batch], order[lesson.batch :]
        inputs = as_inputs(shifted(pixels[chosen], chance), backbone.spec)
        loss = cross_entropy(classifier(backbone(inputs).mean(1)), torch.from_numpy(labels[chosen]))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
        losses.append(loss.detach())
        tick(1)
    return float(torch.stack(losses[-max(1, lesson.steps // 10) :]).mean())


def shifted(pixels: NDArray[np.uint8], chance: np.random.Generator) -> NDArray[np.uint8]:
    """Each picture of (B, S, S, 3) moved by up to S / 8, black where it came from, and half of them flipped."""
    count, side = pixels.shape[:2]
    margin = side // SHIFT
    padded = np.pad(pixels, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    top, left = chance.integers(2 * margin + 1, size=(2, count, 1))
    rows, columns = top + np.arange(side), left + np.arange(side)
    flip = chance.random(count) < 0.5
    columns[flip] = columns[flip, ::-1]
    return padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def as_inputs(pixels: NDArray[np.uint8], spec: InputSpec) -> Tensor:
    """(B, S, S, 3) of uint8 -> (B, 3, S, S), as the backbone takes them."""
    scaled = torch.from_numpy(np.ascontiguousarray(pixels)).float() / 255
    return ((scaled - torch.tensor(spec.mean)) / torch.tensor(spec.std)).permute(0, 3, 1, 2)


def read_pixels(pictures: Pictures, spec: InputSpec, display: Display | None = None) -> NDArray[np.uint8]:
    """All pictures (n, S, S, 3), resized to the side that the backbone was made for."""
    side = (spec.size, spec.size)
    pixels = np.empty((len(pictures), *side, 3), dtype=np.uint8)
    with _bar(display, len(pictures), "reading pictures", " pictures") as tick:
        for index in range(len(pictures)):
            image = pictures.image(index)
            pixels[index] = np.asarray(image if image.size == side else image.resize(side))
            tick(1)
    return pixels


def _bar(display: Display | None, total: int, what: str, unit: str) -> AbstractContextManager[Tick]:
    return nullcontext(lambda _: None) if display is None else display.bar(total, what, unit)


@torch.inference_mode()
def _accuracy(backbone: Backbone, classifier: nn.Linear, pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> float:
    backbone.eval()
    right = 0
    for first in range(0, len(pixels), EVALUATION_BATCH):
        inputs = as_inputs(pixels[first : first + EVALUATION_BATCH], backbone.spec)
        answers = classifier(backbone(inputs).mean(1)).argmax(1).numpy()
        right += int((answers == labels[first : first + EVALUATION_BATCH]).sum())
    return right / len(pixels)


def _known(file: Path) -> Pretrained | None:
    """What was learnt before; None where nothing was, or where the file is damaged and to be made again."""
    with suppress(OSError, SafetensorError, JSONDecodeError, KeyError, TypeError):
        with safe_open(file, "pt") as content:
            figures = loads(content.metadata()["figures"])
        weights = {name: value.clone() for name, value in load_file(file).items()}  # the file may be replaced later
        return Pretrained(weights, file, figures["accuracy"], figures["loss"])
    return None
