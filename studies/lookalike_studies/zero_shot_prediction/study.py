"""Zero-shot prediction: histograms over prototypes predict class means that the predictor was not fitted to.

A ResNet-20 with generalized sum pooling and few prototypes learns ten classes, with and without the zero-shot loss. A
predictor from mean histograms to mean embeddings is fitted on five of the classes and predicts the other five
(``prediction.py``): 20 % are right by chance. The network has seen all ten classes; only the fit is zero-shot.

All seeds start from one pretrained network, so the spread over seeds does not cover another pretraining. The network is
also measured before this training.

Reference: section 5.3.3 and Figure 5.6 of Gürbüz's thesis.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lookalike import objectives
from lookalike.data.pictures import Pictures
from lookalike.models import Embedder, create_backbone
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike.training.pretrain import pretrain, read_pixels
from lookalike_studies.framework.class_pictures import class_pictures
from lookalike_studies.framework.context import Context, Part, Tick
from lookalike_studies.framework.study import Study, StudyResult, StudySettings, create_from, setting
from lookalike_studies.framework.train_pictures import Recipe, create_embedder, inspect_pooling, train_pictures
from lookalike_studies.zero_shot_prediction import claims, plots
from lookalike_studies.zero_shot_prediction.claims import BEFORE, PLAIN, ZERO_SHOT
from lookalike_studies.zero_shot_prediction.prediction import Accuracy, Ridge, Run, measure_accuracy

BACKBONE = "resnet20"
NOT_IN_TRAINING = ("seeds", "splits", "relative_ridge")  # settings that no network depends on


@dataclass(frozen=True)
class ZeroShotPrediction(StudySettings):
    """Settings of the study."""

    classes: int = setting("number of classes, the first of the data unless named", least=4)
    names: tuple[str, ...] = setting("classes, instead of the first ones", may_be_empty=True)
    dim: int = setting("size of the embedding", least=1)
    loss: str = setting("beside the zero-shot loss")
    preset: str = setting("data set whose settings the loss has")
    prototypes: int = setting("m of GSP", least=1)
    keep: float = setting("mu of GSP", above=0, up_to=1)
    sharpness: float = setting("epsilon of GSP", above=0)
    zero_shot: float = setting("lambda, the share of the zero-shot loss", above=0, below=1)
    ridge: float = setting("of the zero-shot loss, and of the measured fit", above=0)
    relative_ridge: float = setting("of a second fit, relative to the spread of the fitted histograms", above=0)
    rate: float = setting("learning rate of Adam", above=0)
    proxy_rate: float = setting("learning rate of proxies and label embeddings", above=0)
    per_class: int = setting("pictures of each class in a batch of all classes", least=2)
    splits: int = setting("of the classes into halves", budget=True, least=1)
    pictures: int = setting("measured pictures of each class, not used in training", budget=True, least=2)
    training_pictures: int = setting("of each class at most", budget=True, least=2)
    pretraining_steps: int = setting("of 64 pictures, to classify the same pictures", budget=True, least=1)
    steps: int = setting("of every run", budget=True, least=1)
    seeds: tuple[int, ...] = setting("of every run", budget=True)
    shown: int = setting("pictures of each class on which prototypes are coloured", budget=True, least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.names and len(self.names) < 4:
            raise ValueError(f"names must be of at least four classes, two in each half, got {', '.join(self.names)}")
        objectives.create(self.loss, 2, self.dim, preset=self.preset)  # checks their names

    def recipe(self, zero_shot: float, seed: int, classes: int) -> Recipe:
        """Choose how one network is trained."""
        gsp = {"num_prototypes": self.prototypes, "keep": self.keep, "sharpness": self.sharpness}
        model = {"backbone": BACKBONE, "pooling": "gsp", "pooling_settings": gsp, "zero_shot": zero_shot}
        return create_from(Recipe, self, **model, classes=classes, epoch=self.steps, seed=seed)


class Measured:
    """The measured pictures; the first ``shown`` of each class are drawn."""

    def __init__(self, pictures: Pictures, pixels: NDArray[np.uint8], shown: int) -> None:
        self.pixels, self.labels, self.classes = pixels, pictures.labels, pictures.classes
        self.of_classes = [np.flatnonzero(self.labels == label) for label in range(len(self.classes))]
        self.shown = np.concatenate([indices[:shown] for indices in self.of_classes])

    def measure(self, embedder: Embedder, loss: float) -> dict[str, Any]:
        """Measure the fields of a ``Run``."""
        pooling = inspect_pooling(embedder, self.pixels)
        return {
            "histograms": np.stack([pooling.attributes[of].mean(0, dtype=np.float64) for of in self.of_classes]),
            "means": np.stack([pooling.vectors[of].mean(0, dtype=np.float64) for of in self.of_classes]),
            "map_at_r": retrieval_metrics(pooling.vectors, self.labels)["MAP@R"],
            "loss": loss,
            "weights": pooling.weights[self.shown],
            "nearest": pooling.nearest[self.shown],
        }


def run(settings: ZeroShotPrediction, context: Context) -> StudyResult:
    """Pretrain, train with and without the zero-shot loss, predict class means and judge."""
    per_class = settings.pictures + settings.training_pictures
    count = len(settings.names) or settings.classes
    source = context.data
    if source is None:
        source = f"glyphs(cells=1, size=32, train_classes={count}, test_classes=0, per_class={per_class})"
    training, others = class_pictures(
        source,
        classes=settings.classes,
        names=settings.names,
        pictures=settings.pictures,
        training_pictures=settings.training_pictures,
        fewest=settings.per_class,
    )
    count = len(training.classes)
    context.display.say(f"ResNet-20 learns to classify {count} classes, unless the cache has it")
    steps = settings.pretraining_steps
    backbone = pretrain(training, BACKBONE, steps=steps, test=others, display=context.display)
    spec = create_backbone(BACKBONE, weights="none").spec
    pixels = read_pixels(training, spec, context.display)
    measured = Measured(others, read_pixels(others, spec, context.display), settings.shown)

    def before_training() -> dict[str, Any]:
        embedder = create_embedder(settings.recipe(0.0, 0, count), backbone.weights, pixels)
        return measured.measure(embedder, float("nan"))

    runs = {BEFORE: [Run(**context.cached(BEFORE, before_training, ignore=(*NOT_IN_TRAINING, "steps")))]}

    def part(name: str, seed: int) -> Part:
        recipe = settings.recipe(settings.zero_shot if name == ZERO_SHOT else 0.0, seed, count)
        train = partial(_train, recipe, backbone.weights, pixels, training.labels, measured)
        return Part(f"{name} {seed}", recipe.epoch, train, f"{name}, seed {seed}")

    trained = context.train_grid((PLAIN, ZERO_SHOT), settings.seeds, part, ignore=NOT_IN_TRAINING)
    runs |= {name: [Run(**values) for values in of_seeds] for name, of_seeds in trained.items()}
    scores: dict[Ridge, dict[str, dict[str, Accuracy]]] = {}
    with context.display.bar(2 * len(runs), "predicting class means", " fits") as tick:
        for ridge in (Ridge(settings.ridge), Ridge(settings.relative_ridge, is_relative=True)):
            scores[ridge] = {}
            for name, of_seeds in runs.items():
                scores[ridge][name] = measure_accuracy(of_seeds, settings.splits, ridge)
                tick(1)
    first = {name: runs[name][0] for name in (PLAIN, ZERO_SHOT)}
    chance = 100 / (count - count // 2)
    names = [measured.classes[label] for label in measured.labels[measured.shown]]
    return StudyResult(
        claims=[claims.judge_claim(by_network, ridge, chance, context.data) for ridge, by_network in scores.items()],
        figures={
            "histograms": (
                plots.draw_histograms(first, measured.classes),
                "Mean attribute histogram of each class, in percent of the weight: the share of each prototype; first "
                "seed.",
            ),
            "accuracy": (
                plots.draw_accuracies(scores, chance),
                "Class means that were predicted rightly, over random halves of the classes: mean, and standard "
                "deviation over seeds. Two controls: the network that all runs start from, and each network with its "
                "histograms permuted over the classes. The relative ridge is in proportion to the spread of the fitted "
                "histograms.",
            ),
            "prototypes": (
                plots.draw_prototypes(measured.pixels[measured.shown], names, first),
                "The nearest prototype of every position; the fainter, the smaller its pooling weight, and numbered if "
                "that is above the mean. First seed.",
            ),
        },
        tables={"zero-shot-prediction": claims.scores_table(scores, runs)},
        numbers={
            "data": source,
            "classes": list(measured.classes),
            "accuracy of the backbone": backbone.accuracy,
            "runs": claims.collect_numbers(scores, runs, settings.seeds),
        },
        notes=[
            f"Classes: {', '.join(measured.classes)}. {len(training)} pictures for training, {len(others)} others "
            "measured. As in the thesis, the network has learnt all of these classes; the linear predictor has not.",
            f"The backbone classified the pictures first ({100 * (backbone.accuracy or 0):.1f} % of the others right). "
            "It is the same for all seeds, so the spread does not cover another pretraining.",
        ],
    )


def _train(
    recipe: Recipe,
    weights: Mapping[str, Tensor],
    pixels: NDArray[np.uint8],
    labels: NDArray[np.int64],
    measured: Measured,
    tick: Tick,
) -> dict[str, Any]:
    """Train and measure a network."""
    trained = train_pictures(recipe, weights, pixels, labels, tick=tick)
    return measured.measure(trained.embedder, trained.losses[-1])


STUDY = Study(
    name="zero-shot-prediction",
    title="Zero-shot prediction: histograms over prototypes predict the means of classes outside the fit",
    about="A ResNet-20 with generalized sum pooling and eight prototypes learns ten classes, with and without the "
    "zero-shot loss. A linear predictor from a class's histogram over prototypes to its mean embedding is fitted on "
    "five of the classes and predicts the other five. Controls: the same before training, and with permuted "
    "histograms.",
    source="section 5.3.3 and Figure 5.6 of Gürbüz's thesis",
    settings=ZeroShotPrediction,
    run=run,
    data="CIFAR-10 or any class folders; else letters are drawn",
)
