"""Average pooling: pictures are mixtures of a few prototypes, and classes that share prototypes overlap.

A network is trained with average pooling of 2-D local features, so that everything can be drawn. Training goes on until
the classes are learnt and their hulls differ from those of the untrained network. Then the features are scaled into the
unit disc: all are divided by the largest norm. 48 prototypes (greedy k-centre) cover all local features of pictures
that the network has not seen. For each picture we compare

    the histogram operator (4.2.5)        nearest assignment with the linear programme
    PCC, the mixture of prototypes        with the average: no farther apart than the covering radius
    the classification view (4.2.4)       the score of a class with the mean of the scores of the positions

The thesis trains on CIFAR-10; this study on any class folders, as CIFAR-10's, or on drawn glyphs.

Reference: section 4.3 and Figures 4.2 to 4.4 of Gürbüz's thesis.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from lookalike import objectives
from lookalike.data.pictures import Pictures
from lookalike.models import create_backbone
from lookalike.models.backbone import in_eval_mode
from lookalike.objectives import Loss
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike.training.in_memory import inference_batches, pixel_batches
from lookalike.training.loop import fit
from lookalike.training.pretrain import read_pixels
from lookalike_studies.average_pooling import claims, plots
from lookalike_studies.average_pooling.maths import cover_features, measure_network, scale_to_disc
from lookalike_studies.framework.class_pictures import class_pictures
from lookalike_studies.framework.context import Context, Part, Tick
from lookalike_studies.framework.study import Study, StudyResult, StudySettings, setting

SEARCH_SEED = 1000  # of the networks that choose the margin
SHORTEST_CYCLE = 10  # steps of the learning rate schedule
NOT_IN_TRAINING = ("seeds", "prototypes", "active", "programmes")  # settings that no network depends on
DRAWN = "glyphs, drawn on the spot"


@dataclass(frozen=True)
class AveragePooling(StudySettings):
    """Settings of the study."""

    backbone: str = setting("network up to its local features")
    weights: str = setting("it starts from: none (random), or a file of a network that classified the pictures")
    classes: int = setting("number of classes, the first of the data unless named", least=2)
    names: tuple[str, ...] = setting("classes, instead of the first ones", may_be_empty=True)
    prototypes: int = setting("chosen among all local features by greedy k-centre", least=1)
    active: float = setting("share of a class's features from which on a prototype is active", above=0, up_to=1)
    margins: tuple[float, ...] = setting("negative margins of C2, to choose from", above=0, up_to=2)
    rate: float = setting("highest learning rate of Adam, one cycle", above=0)
    per_class: int = setting("pictures of each class in a batch of all classes", least=2)
    pictures: int = setting("measured pictures of each class, not used in training", budget=True, least=2)
    training_pictures: int = setting("of each class at most", budget=True, least=2)
    differ: float = setting("overlap that class hulls must lose in training, as a share of the smaller hull", above=0)
    steps: int = setting("of a cycle of training", budget=True, least=1)
    cycles: int = setting("at most; training ends when classes are learnt and their hulls differ", budget=True, least=1)
    search_steps: int = setting("of training with each margin, to choose one", budget=True, least=1)
    programmes: int = setting("pictures whose linear programme is solved", budget=True, least=1)
    seeds: tuple[int, ...] = setting("of the networks", budget=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.names and len(self.names) < 2:
            raise ValueError(f"names must be of at least two classes, got {', '.join(self.names)}")


class PlaneLearner(nn.Module):
    """Network with 2-D local features, trained with C2 on their averages."""

    def __init__(self, backbone: str, margin: float, weights: str = "none") -> None:
        super().__init__()
        self.backbone = create_backbone(backbone, weights=weights)
        self.projection = nn.Linear(self.backbone.channels, 2, bias=False)
        self.objective = objectives.create("c2", negative_margin=margin, normalise=False)

    def features(self, inputs: Tensor) -> Tensor:
        """Compute local features (B, n, 2) of inputs (B, 3, S, S)."""
        features: Tensor = self.projection(self.backbone(inputs))
        return features

    def forward(self, inputs: Tensor, labels: Tensor) -> Loss:
        """Compute the loss of inputs (B, 3, S, S) with labels (B,)."""
        loss: Loss = self.objective(self.features(inputs).mean(1), labels)
        return loss

    @torch.inference_mode()
    def embed(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Compute the local features of pictures (B, S, S, 3), scaled into the unit disc."""
        with in_eval_mode(self):
            batches = inference_batches(pixels, self.backbone.spec)
            features = np.concatenate([self.features(inputs).numpy() for inputs in batches])
        return scale_to_disc(features)


def run(settings: AveragePooling, context: Context) -> StudyResult:
    """Choose the margin, train a network per seed, measure and judge."""
    per_class = settings.pictures + settings.training_pictures
    count = len(settings.names) or settings.classes
    training, measured = class_pictures(
        context.data or f"glyphs(cells=2, train_classes={count}, test_classes=0, per_class={per_class})",
        classes=settings.classes,
        names=settings.names,
        pictures=settings.pictures,
        training_pictures=settings.training_pictures,
        fewest=settings.per_class + 2,  # two are held out to choose the margin
    )
    spec = create_backbone(settings.backbone, weights="none").spec
    pixels, labels = read_pixels(measured, spec, context.display), torch.from_numpy(measured.labels)
    validation = _validate_margins(training, settings, context)
    margin = max(validation, key=validation.__getitem__)
    tried = ", ".join(f"{candidate:g}" for candidate in validation)
    context.display.say(f"margin {margin:g}, chosen by validation among {tried}")
    training_pictures = read_pixels(training, spec, context.display), training.labels
    parts = []
    for seed in settings.seeds:
        learn = partial(_features, *training_pictures, pixels, settings, margin, settings.steps, settings.cycles, seed)
        title = f"training, margin {margin:g}, seed {seed}"
        parts.append(Part(f"features, seed {seed}", settings.cycles * settings.steps, learn, title))
    networks, untrained, numbers = [], [], []
    cover = settings.prototypes, settings.active
    for seed, trained in zip(settings.seeds, context.train_all(parts, ignore=NOT_IN_TRAINING), strict=True):
        network = measure_network(torch.from_numpy(trained["features"]), labels, *cover, settings.programmes)
        first_features = _create_learner(settings.backbone, margin, seed).embed(pixels)
        before = cover_features(torch.from_numpy(first_features), labels, *cover).overlap
        networks.append(network)
        untrained.append(before)
        of_untrained = {"overlapping pairs": before.pairs, "overlap": before.share}
        mixtures = network.cover.mixtures
        per_picture = {"errors": mixtures.error.numpy(), "radii": mixtures.radius.numpy()}
        row = {"seed": seed, "steps": int(trained["steps"]), **network.metrics, "untrained": of_untrained}
        numbers.append({**row, **per_picture})
    scene = plots.Scene(pixels, measured.labels, measured.classes, networks[0])
    metrics = [network.metrics for network in networks]
    steps_done = ", ".join(str(row["steps"]) for row in numbers)
    return StudyResult(
        claims=claims.judge_claims(metrics, untrained, len(measured), len(measured.classes), settings.differ),
        figures={
            "partition": (
                plots.draw_partition(scene),
                "Local features, prototypes, and the cells of the plane that belong to them (Figure 4.2).",
            ),
            "patches": (
                plots.draw_patches(scene),
                "For each prototype the patches whose features lie nearest to it, no two of one picture (Figure 4.2).",
            ),
            "hulls": (
                plots.draw_hulls(scene),
                "Hulls of the active prototypes of each class, and what two classes have in common (Figure 4.3).",
            ),
            "mixtures": (
                plots.draw_mixtures(scene),
                "Average and mixture of prototypes of single pictures (Figure 4.4).",
            ),
            "bound": (
                plots.draw_bound(settings.seeds, networks),
                "How far apart average and mixture are, and the bound, for every picture.",
            ),
            "class-maps": (
                plots.draw_class_maps(scene),
                "The classification view: the class that each position votes for; the mean of the scores decides.",
            ),
        },
        tables={
            "seeds": claims.seeds_table(settings.seeds, metrics, untrained),
            "overlap": claims.overlap_table(networks[0].cover.overlap, measured.classes),
        },
        numbers={
            "data": context.data or DRAWN,
            "classes": measured.classes,
            "margins": {f"{candidate:g}": value for candidate, value in validation.items()},
            "networks": numbers,
        },
        notes=[
            _describe_data(context.data or DRAWN, training, measured, validation, settings.weights),
            f"Trained for {steps_done} steps (one number per seed): until the classes of training pictures are learnt "
            f"and their hulls overlap by {settings.differ:.0%} less than before training, or for {settings.cycles} "
            f"cycles of {settings.steps:,} steps.",
        ],
    )


def _validate_margins(training: Pictures, settings: AveragePooling, context: Context) -> dict[float, float]:
    """Measure MAP@R by margin on a fifth of the training pictures, which is held out."""
    if len(settings.margins) == 1:
        return {settings.margins[0]: float("nan")}
    is_held_out = np.zeros(len(training), dtype=bool)
    for label in range(len(training.classes)):
        indices = np.flatnonzero(training.labels == label)
        is_held_out[indices[: max(2, len(indices) // 5)]] = True
    rest, held_out = training.take(np.flatnonzero(~is_held_out)), training.take(np.flatnonzero(is_held_out))
    spec = create_backbone(settings.backbone, weights="none").spec
    pixels, rest_pixels = read_pixels(held_out, spec, context.display), read_pixels(rest, spec, context.display)
    parts = []
    for margin in settings.margins:
        steps = settings.search_steps
        learn = partial(_features, rest_pixels, rest.labels, pixels, settings, margin, steps, 1, SEARCH_SEED)
        parts.append(Part(f"choosing, margin {margin:g}", steps, learn, f"choosing, margin {margin:g}"))
    results = context.train_all(parts, ignore=(*NOT_IN_TRAINING, "steps", "cycles"))
    validation = {}
    for margin, searched in zip(settings.margins, results, strict=True):
        vectors = searched["features"].mean(1)
        validation[margin] = retrieval_metrics(vectors, held_out.labels, distance="l2")["MAP@R"]
    return validation


def _features(
    training_pixels: NDArray[np.uint8],
    training_labels: NDArray[np.int64],
    pixels: NDArray[np.uint8],
    settings: AveragePooling,
    margin: float,
    steps: int,
    cycles: int,
    seed: int,
    tick: Tick,
) -> dict[str, Any]:
    """Train a network in cycles until its class hulls differ; return the local features of ``pixels`` and the steps."""
    learner = _create_learner(settings.backbone, margin, seed, settings.weights)
    classes = int(training_labels.max()) + 1
    sampling: Any = {"classes": classes, "per_class": settings.per_class, "seed": seed}
    batches = pixel_batches(training_pixels, training_labels, learner.backbone.spec, **sampling)
    probe = _first_of_each_class(training_labels, settings.pictures)
    probe_labels = torch.from_numpy(training_labels[probe])

    def look_at_hulls(learner: PlaneLearner) -> tuple[float, bool]:
        """Overlap of the class hulls of some training pictures, and whether their classes are learnt."""
        features = torch.from_numpy(learner.embed(training_pixels[probe]))
        map_at_r = retrieval_metrics(features.mean(1), probe_labels, distance="l2")["MAP@R"]
        overlap = cover_features(features, probe_labels, settings.prototypes, settings.active).overlap.share
        return overlap, claims.has_learnt([map_at_r], classes)

    before, _ = look_at_hulls(_create_learner(settings.backbone, margin, seed))
    done = 0
    while done < cycles * steps:
        optimizer = torch.optim.Adam(learner.parameters(), lr=settings.rate)
        schedule = OneCycleLR(optimizer, settings.rate, total_steps=max(steps, SHORTEST_CYCLE))
        fit(learner, batches, optimizer, steps=steps, seed=seed, lr_schedule=schedule, on_step=lambda *_: tick(1))
        done += steps
        overlap, has_learnt = look_at_hulls(learner)
        if before - overlap >= settings.differ and has_learnt:
            break
    return {"features": learner.embed(pixels), "steps": done}


def _first_of_each_class(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return np.concatenate([np.flatnonzero(labels == label)[:count] for label in range(int(labels.max()) + 1)])


def _create_learner(backbone: str, margin: float, seed: int, weights: str = "none") -> PlaneLearner:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return PlaneLearner(backbone, margin, weights)


def _describe_data(
    source: str, training: Pictures, measured: Pictures, validation: Mapping[float, float], weights: str
) -> str:
    metrics = ", ".join(f"{100 * value:.1f} at {margin:g}" for margin, value in validation.items())
    start = "random weights"
    if weights != "none":
        start = f"{weights}, the weights of a classifier"
    return (
        f"The network starts from {start}. The thesis uses CIFAR-10; this run {source}: {len(training):,} pictures for "
        f"training, {len(measured):,} others of the same {len(measured.classes)} classes are measured. Loss and margin "
        "are not given: C2, with the margin that was best on training pictures held out for it (MAP@R in percent: "
        f"{metrics})."
    )


STUDY = Study(
    name="average-pooling",
    title="What average pooling does: pictures are mixtures of prototypes, and classes that share them overlap",
    about="A network is trained with average pooling of 2-D local features, which are then scaled into the unit disc. "
    "Prototypes chosen by greedy k-centre cover the features of unseen pictures. Each picture's average is compared "
    "with the mixture of prototypes of its histogram, the histogram with the linear programme that defines it, class "
    "hulls with each other, and class scores with the mean of the scores of all positions.",
    source="chapter 4 of Gürbüz's thesis, Figures 4.2 to 4.4; there CIFAR-10, ResNet20, 64 pictures of each class",
    settings=AveragePooling,
    run=run,
    data="CIFAR-10 or any class folders",
)
