"""What average pooling does: pictures are mixtures of a few prototypes, and classes that share them overlap.

A network is trained with average pooling of 2-D local features in the unit ball, so that everything can be seen. Of
pictures that it has not seen, 48 prototypes cover all local features (greedy k-centre). For each picture, then,

    the histogram operator (4.2.5)        nearest assignment against the linear programme
    PCC, the mixture of prototypes        against the average: no farther apart than the covering radius
    the classification view (4.2.4)       the score of a class is the mean of the scores of the places

The mathematics is in ``average_pooling_maths``. The thesis trains on CIFAR-10; here on any class folders, and without
any on drawn glyphs.

Reference: section 4.3 and Figures 4.2 to 4.4 of Gürbüz's thesis.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lookalike import objectives
from lookalike._util.checks import check_count, check_range
from lookalike.data.pictures import Pictures
from lookalike.data.sampler import ClassBatches
from lookalike.geometry import clip
from lookalike.models import create_backbone
from lookalike.report.seeds import check_seeds
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike_studies.average_pooling.claims import (
    claims,
    data_note,
    look_at,
    overlap_of_prototypes,
    overlap_table,
    seeds_table,
)
from lookalike_studies.average_pooling.plots import (
    Scene,
    draw_bound,
    draw_class_maps,
    draw_hulls,
    draw_mixtures,
    draw_partition,
    draw_patches,
)
from lookalike_studies.framework.class_pictures import class_pictures
from lookalike_studies.framework.context import Context
from lookalike_studies.framework.pretraining import as_inputs, read_pixels, shifted
from lookalike_studies.framework.study import Study, StudyResult, setting

SEARCH_SEED = 1000  # of none of the networks that count
DRAWN = "glyphs, drawn on the spot"
CAPTIONS = {
    "partition": "Local features, prototypes, and the cells of the plane that belong to them (Figure 4.2).",
    "patches": "For each prototype the patches whose features lie nearest to it, no two of one picture (Figure 4.2).",
    "hulls": "Hulls of the active prototypes of each class, and what two classes have in common (Figure 4.3).",
    "mixtures": "Average and mixture of prototypes of single pictures (Figure 4.4).",
    "bound": "How far apart average and mixture are, and the bound, for every picture.",
    "class-maps": "The classification view: the class that each place votes for; the mean of the scores decides.",
}
AT_ONCE = 100  # pictures, where nothing is learnt
AFTERWARDS = ("seeds", "prototypes", "active", "programmes")  # settings that no network depends on


@dataclass(frozen=True)
class AveragePooling:
    backbone: str = setting("the network up to its local features")
    classes: int = setting("how many, the first of the data unless named")
    names: tuple[str, ...] = setting("of the classes, instead of the first ones")
    prototypes: int = setting("chosen among all local features by greedy k-centre")
    active: float = setting("share of a class's features from which on a prototype counts as active for it")
    margins: tuple[float, ...] = setting("how far apart C2 wants classes, in the unit ball, to choose from")
    rate: float = setting("highest learning rate of Adam, one cycle")
    per_class: int = setting("pictures of each class in a batch of all classes")
    pictures: int = setting("of each class that are looked at, none of them seen in training", budget=True)
    training_pictures: int = setting("of each class at most", budget=True)
    steps: int = setting("of training", budget=True)
    search_steps: int = setting("of training with each margin, to choose one", budget=True)
    programmes: int = setting("pictures whose linear programme is solved", budget=True)
    seeds: tuple[int, ...] = setting("of the networks", budget=True)

    def __post_init__(self) -> None:
        check_count("classes", self.classes, least=2)
        for name in ("prototypes", "steps", "search_steps", "programmes"):
            check_count(name, getattr(self, name))
        for name in ("per_class", "training_pictures", "pictures"):
            check_count(name, getattr(self, name), least=2)
        check_range("active", self.active, 0, 1)
        for margin in self.margins:
            check_range("every one of margins", margin, 0, 2)
        check_range("rate", self.rate, 0, None)
        check_seeds(self.seeds)
        if not self.margins:
            raise ValueError("margins must name at least one, got none")
        if self.names and len(self.names) < 2:
            raise ValueError(f"names must be of at least two classes, got {', '.join(self.names)}")


class Plane(nn.Module):
    """Pictures (B, 3, S, S) -> local features (B, n, 2) in the unit ball."""

    def __init__(self, backbone: str) -> None:
        super().__init__()
        self.backbone = create_backbone(backbone, weights="none")
        self.projection = nn.Linear(self.backbone.channels, 2, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        return clip(self.projection(self.backbone(images)))


def run(settings: AveragePooling, context: Context) -> StudyResult:
    known, shown = class_pictures(
        context.data or _drawn(settings),
        classes=settings.classes,
        names=settings.names,
        pictures=settings.pictures,
        training_pictures=settings.training_pictures,
        fewest=settings.per_class + 2,  # two are kept out to choose the margin by
    )
    labels = torch.from_numpy(shown.labels)
    pixels = read_pixels(shown, Plane(settings.backbone).backbone.spec, context.display)
    tried = _try_margins(known, settings, context)
    margin = max(tried, key=lambda each: tried[each])
    context.display.say(f"margin {margin:g}, chosen by validation among {', '.join(f'{each:g}' for each in tried)}")
    seen, untrained = [], []
    for seed in settings.seeds:
        learnt = context.cached(
            f"features, seed {seed}",
            partial(_learn, known, pixels, settings, margin, settings.steps, seed, context),
            ignore=AFTERWARDS,
        )
        seen.append(
            look_at(
                torch.from_numpy(learnt["features"]), labels, settings.prototypes, settings.active, settings.programmes
            )
        )
        begun = context.cached(
            f"untrained features, seed {seed}", partial(_begin, pixels, settings, seed), ignore=AFTERWARDS
        )
        untrained.append(
            overlap_of_prototypes(torch.from_numpy(begun["features"]), labels, settings.prototypes, settings.active)
        )
    first = seen[0]
    scene = Scene(pixels, shown.labels, shown.classes, first.features, first.prototypes, first.combined, first.radius)
    figures = {
        "partition": draw_partition(scene),
        "patches": draw_patches(scene),
        "hulls": draw_hulls(scene, first.hulls, first.of_prototypes),
        "mixtures": draw_mixtures(scene),
        "bound": draw_bound([(seed, one.combined, one.radius) for seed, one in zip(settings.seeds, seen, strict=True)]),
        "class-maps": draw_class_maps(scene, first.layer),
    }
    return StudyResult(
        claims=claims([one.figures for one in seen], untrained, len(shown), len(shown.classes)),
        figures={name: (drawn, CAPTIONS[name]) for name, drawn in figures.items()},
        tables={
            "seeds": seeds_table(settings.seeds, seen, untrained),
            "overlap": overlap_table(first.of_prototypes, shown.classes),
        },
        numbers={
            "data": context.data or DRAWN,
            "classes": shown.classes,
            "margins": {f"{each:g}": figure for each, figure in tried.items()},
            "networks": [
                {
                    "seed": seed,
                    **one.figures,
                    "untrained": {"overlapping pairs": before.pairs, "overlap": before.share},
                    "errors": one.combined.error.numpy(),
                    "radii": one.combined.radius.numpy(),
                }
                for seed, one, before in zip(settings.seeds, seen, untrained, strict=True)
            ],
        },
        notes=[data_note(context.data or DRAWN, known, shown, tried)],
    )


def _drawn(settings: AveragePooling) -> str:
    count, per_class = len(settings.names) or settings.classes, settings.pictures + settings.training_pictures
    return f"glyphs(cells=2, train_classes={count}, test_classes=0, per_class={per_class})"


def _try_margins(known: Pictures, settings: AveragePooling, context: Context) -> dict[float, float]:
    """MAP@R on a fifth of the training pictures, which is kept out here, by margin."""
    if len(settings.margins) == 1:
        return {settings.margins[0]: float("nan")}
    of_classes = (np.flatnonzero(known.labels == label) for label in range(len(known.classes)))
    kept_out = np.concatenate([of[: max(2, len(of) // 5)] for of in of_classes])
    rest = known.take(np.setdiff1d(np.arange(len(known)), kept_out))
    kept = known.take(kept_out)
    pixels = read_pixels(kept, Plane(settings.backbone).backbone.spec, context.display)
    found = {}
    for margin in settings.margins:
        learn = partial(_learn, rest, pixels, settings, margin, settings.search_steps, SEARCH_SEED, context)
        chosen_by = context.cached(f"choosing, margin {margin:g}", learn, ignore=(*AFTERWARDS, "steps"))
        vectors = chosen_by["features"].mean(1)
        found[margin] = retrieval_metrics(vectors, kept.labels, distance="l2")["MAP@R"]
    return found


def _learn(
    known: Pictures,
    pixels: NDArray[np.uint8],
    settings: AveragePooling,
    margin: float,
    steps: int,
    seed: int,
    context: Context,
) -> dict[str, Any]:
    """Train a network with C2 on the averages of its local features, and give those of ``pixels``."""
    plane = _plane(settings.backbone, seed)
    objective = objectives.create("c2", negative_margin=margin, normalise=False)
    optimiser = torch.optim.Adam(plane.parameters(), lr=settings.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.rate, total_steps=max(steps, 10))
    learnt = read_pixels(known, plane.backbone.spec, context.display)
    batches = iter(ClassBatches(known.labels, len(known.classes) * settings.per_class, settings.per_class, seed=seed))
    chance = np.random.default_rng(seed)
    plane.train()
    with context.display.bar(steps, f"training, margin {margin:g}, seed {seed}", " steps") as tick:
        for _ in range(steps):
            chosen = np.array([drawn.index for drawn in next(batches)])
            features = plane(as_inputs(shifted(learnt[chosen], chance), plane.backbone.spec))
            loss = objective(features.mean(1), torch.from_numpy(known.labels[chosen])).value
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
            tick(1)
    return {"features": _features(plane, pixels)}


def _begin(pixels: NDArray[np.uint8], settings: AveragePooling, seed: int) -> dict[str, Any]:
    """What the same network gives before its first step."""
    return {"features": _features(_plane(settings.backbone, seed), pixels)}


def _plane(backbone: str, seed: int) -> Plane:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return Plane(backbone)


@torch.inference_mode()
def _features(plane: Plane, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    plane.eval()
    parts = [pixels[first : first + AT_ONCE] for first in range(0, len(pixels), AT_ONCE)]
    return np.concatenate([plane(as_inputs(part, plane.backbone.spec)).numpy() for part in parts])


STUDY = Study(
    name="average-pooling",
    title="What average pooling does: pictures are mixtures of prototypes, and classes that share them overlap",
    about="A network is trained with average pooling of local features in the unit disc. Prototypes chosen by greedy "
    "k-centre cover the features of unseen pictures. Each picture's average is held against the mixture of prototypes "
    "that its histogram says, the histogram against the linear programme that defines it, class hulls against each "
    "other, and class scores against the mean of the scores of all places.",
    source="chapter 4 of Gürbüz's thesis, Figures 4.2 to 4.4; there CIFAR-10, ResNet20, 64 pictures of each class",
    settings=AveragePooling,
    run=run,
    data="CIFAR-10 or any class folders",
)
