"""Zero-shot prediction: what the histogram over prototypes says about classes that the predictor was not fitted to.

A ResNet-20 with generalized sum pooling and few prototypes learns ten classes, with and without the zero-shot loss. On
other pictures of them every class c has a mean attribute histogram z_c (m) and a mean embedding e_c (D). The classes
are divided into halves at random; a ridge regression from z to e, (P3), is fitted on one half,

    A = argmin_A sum_c ||z_c A - e_c||^2 + ridge ||A||^2,

and predicts the means of the other half. Right is a prediction whose nearest mean among that half is its own class's,
by L2 and by cosine: 20 % by chance with five. The network has seen all ten classes: zero-shot is the fit alone.

All seeds start from one pretrained network: the spread over them does not cover what another pretraining would change.
It is measured too, as it was before any of this training.

Reference: section 5.3.3 and Figure 5.6 of Gürbüz's thesis.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookalike import objectives
from lookalike._util.checks import check_count, check_range
from lookalike.data.pictures import Pictures
from lookalike.models import Embedder, create_backbone
from lookalike.report.seeds import check_seeds, count_in_words
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike.training.pretrain import pretrain, read_pixels
from lookalike_studies.framework.class_pictures import class_pictures
from lookalike_studies.framework.context import Context
from lookalike_studies.framework.study import Study, StudyResult, setting
from lookalike_studies.framework.train_pictures import Plan, create_embedder, inspect_pooling, train_pictures
from lookalike_studies.zero_shot_prediction.claims import (
    BEFORE,
    PLAIN,
    ZERO_SHOT,
    Predicted,
    Ridge,
    Run,
    claim,
    of_runs,
    score,
    table,
)
from lookalike_studies.zero_shot_prediction.plots import Coloured, draw_accuracies, draw_histograms, draw_prototypes

BACKBONE = "resnet20"
AFTERWARDS = ("seeds", "splits", "relative_ridge")  # settings that no network depends on


@dataclass(frozen=True)
class ZeroShotPrediction:
    classes: int = setting("how many, the first of the data unless named")
    names: tuple[str, ...] = setting("of the classes, instead of the first ones")
    dim: int = setting("of the embedding")
    loss: str = setting("beside the zero-shot loss")
    preset: str = setting("whose settings the loss has")
    prototypes: int = setting("m of GSP")
    keep: float = setting("mu of GSP")
    sharpness: float = setting("epsilon of GSP")
    zero_shot: float = setting("lambda, the share of the zero-shot loss")
    ridge: float = setting("of the zero-shot loss, and of the fit that is measured")
    relative_ridge: float = setting("of a second fit, as a share of the spread of the fitted histograms")
    rate: float = setting("of Adam")
    proxy_rate: float = setting("of proxies and label embeddings")
    per_class: int = setting("pictures of each class in a batch of all classes")
    splits: int = setting("of the classes into halves", budget=True)
    pictures: int = setting("of each class that are measured, none of them seen in training", budget=True)
    training_pictures: int = setting("of each class at most", budget=True)
    pretraining_steps: int = setting("of 64 pictures, to classify the same pictures", budget=True)
    steps: int = setting("of every run", budget=True)
    seeds: tuple[int, ...] = setting("of every run", budget=True)
    shown: int = setting("pictures of each class on which prototypes are coloured", budget=True)

    def __post_init__(self) -> None:
        check_count("classes", self.classes, least=4)
        if self.names and len(self.names) < 4:
            raise ValueError(f"names must be of at least four classes, two in each half, got {', '.join(self.names)}")
        for name in ("dim", "prototypes", "splits", "pretraining_steps", "steps", "shown"):
            check_count(name, getattr(self, name))
        for name in ("per_class", "pictures", "training_pictures"):
            check_count(name, getattr(self, name), least=2)
        check_range("keep", self.keep, 0, 1)
        for name in ("sharpness", "ridge", "relative_ridge", "rate", "proxy_rate"):
            check_range(name, getattr(self, name), 0, None)
        if not 0 < self.zero_shot < 1:
            raise ValueError(f"zero_shot must lie in (0, 1), got {self.zero_shot}")
        check_seeds(self.seeds)
        objectives.create(self.loss, 2, self.dim, preset=self.preset)  # says what is wrong with them

    def plan(self, zero_shot: float, seed: int, classes: int) -> Plan:
        gsp = {"num_prototypes": self.prototypes, "keep": self.keep, "sharpness": self.sharpness}
        return Plan(
            "gsp",
            gsp,
            BACKBONE,
            self.dim,
            self.loss,
            self.preset,
            zero_shot,
            self.ridge,
            self.rate,
            self.proxy_rate,
            classes,
            self.per_class,
            epoch=self.steps,
            seed=seed,
        )


def run(settings: ZeroShotPrediction, context: Context) -> StudyResult:
    source = context.data or _drawn(settings)
    known, shown = class_pictures(
        source,
        classes=settings.classes,
        names=settings.names,
        pictures=settings.pictures,
        training_pictures=settings.training_pictures,
        fewest=settings.per_class,
    )
    weights, accuracy = _backbone(known, shown, settings, context)
    spec = create_backbone(BACKBONE, weights="none").spec
    pixels = read_pixels(known, spec, context.display), read_pixels(shown, spec, context.display)
    trained = {
        name: [_run(name, share, seed, weights, (known, shown), pixels, settings, context) for seed in settings.seeds]
        for name, share in ((PLAIN, 0.0), (ZERO_SHOT, settings.zero_shot))
    }
    runs = {BEFORE: [_begin(weights, shown, pixels, settings, context)], **trained}
    scores: dict[Ridge, dict[str, dict[str, Predicted]]] = {}
    with context.display.bar(2 * len(runs), "predicting class means", " fits") as tick:
        for ridge in (Ridge(settings.ridge), Ridge(settings.relative_ridge, is_relative=True)):
            scores[ridge] = {}
            for name, own in runs.items():
                scores[ridge][name] = score(own, settings.splits, ridge)
                tick(1)
    first = _first_of_each(shown, settings.shown)
    coloured = [Coloured(name, own[0].weights, own[0].nearest) for name, own in trained.items()]
    chance = 100 / (len(shown.classes) - len(shown.classes) // 2)
    return StudyResult(
        claims=[claim(by, ridge, chance, context.data) for ridge, by in scores.items()],
        figures={
            "histograms": (
                draw_histograms({name: own[0].histograms for name, own in trained.items()}, shown.classes),
                "Mean attribute histogram of each class, in percent of the weight: the share of each prototype; first "
                "seed.",
            ),
            "accuracy": (
                draw_accuracies(scores, chance),
                f"Class means that were predicted rightly, over {settings.splits} random halves: mean, and standard "
                f"deviation over {count_in_words(len(settings.seeds))}. Two controls: the network that all runs start "
                "from, and each network with its histograms permuted over the classes. The relative ridge is in "
                "proportion to the spread of the fitted histograms.",
            ),
            "prototypes": (
                draw_prototypes(pixels[1][first], [shown.classes[i] for i in shown.labels[first]], coloured),
                "The nearest prototype of every place; the fainter, the smaller its pooling weight, and numbered where "
                "that is above the mean. First seed.",
            ),
        },
        tables={"zero-shot-prediction": table(scores, runs)},
        numbers={
            "data": source,
            "classes": list(shown.classes),
            "accuracy of the backbone": accuracy,
            "runs": of_runs(scores, runs, settings.seeds),
        },
        notes=[
            f"Classes: {', '.join(shown.classes)}. {len(known)} pictures to learn from, {len(shown)} others measured. "
            "The network has learnt all of these classes, as the authors' has; zero-shot is the linear predictor.",
            f"The backbone classified the pictures first ({100 * accuracy:.1f} % of the others right). It is the same "
            "for all seeds: what another pretraining would change is not in the spread.",
        ],
    )


def _drawn(settings: ZeroShotPrediction) -> str:
    per_class = settings.pictures + settings.training_pictures
    classes = len(settings.names) or settings.classes
    return f"glyphs(cells=1, size=32, train_classes={classes}, test_classes=0, per_class={per_class})"


def _first_of_each(pictures: Pictures, count: int) -> NDArray[np.int64]:
    return np.concatenate([np.flatnonzero(pictures.labels == i)[:count] for i in range(len(pictures.classes))])


def _backbone(
    known: Pictures, shown: Pictures, settings: ZeroShotPrediction, context: Context
) -> tuple[dict[str, Tensor], float]:
    def compute() -> dict[str, Any]:
        context.display.say(f"ResNet-20 learns to classify {len(known.classes)} classes")
        found = pretrain(known, BACKBONE, steps=settings.pretraining_steps, test=shown, display=context.display)
        return {"accuracy": found.accuracy, **{f"w {name}": tensor.numpy() for name, tensor in found.weights.items()}}

    kept = context.cached("backbone", compute, ignore=(*AFTERWARDS, "steps", "shown"))
    accuracy = float(kept.pop("accuracy"))
    return {name.removeprefix("w "): torch.from_numpy(array) for name, array in kept.items()}, accuracy


def _run(
    name: str,
    share: float,
    seed: int,
    weights: dict[str, Tensor],
    pictures: tuple[Pictures, Pictures],
    pixels: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    settings: ZeroShotPrediction,
    context: Context,
) -> Run:
    known, shown = pictures

    def compute() -> dict[str, Any]:
        with context.display.bar(settings.steps, f"{name}, seed {seed}", " steps") as tick:
            plan = settings.plan(share, seed, len(known.classes))
            learnt = train_pictures(plan, weights, pixels[0], known.labels, tick=tick)
        return _measured(learnt.embedder, learnt.losses[-1], shown, pixels[1], settings)

    return Run(**context.cached(f"{name} {seed}", compute, ignore=AFTERWARDS))


def _begin(
    weights: dict[str, Tensor],
    shown: Pictures,
    pixels: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    settings: ZeroShotPrediction,
    context: Context,
) -> Run:
    """What all runs start from, whatever their seed: projection and prototypes come from the pictures."""

    def compute() -> dict[str, Any]:
        embedder = create_embedder(settings.plan(0.0, 0, len(shown.classes)), weights, pixels[0])
        return _measured(embedder, float("nan"), shown, pixels[1], settings)

    return Run(**context.cached(BEFORE, compute, ignore=(*AFTERWARDS, "steps")))


def _measured(
    embedder: Embedder, loss: float, shown: Pictures, pixels: NDArray[np.uint8], settings: ZeroShotPrediction
) -> dict[str, Any]:
    """What a ``Run`` is made of."""
    seen = inspect_pooling(embedder, pixels)
    of_class = [shown.labels == label for label in range(len(shown.classes))]
    first = _first_of_each(shown, settings.shown)
    return {
        "histograms": np.stack([seen.attributes[own].mean(0, dtype=np.float64) for own in of_class]),
        "means": np.stack([seen.vectors[own].mean(0, dtype=np.float64) for own in of_class]),
        "map_at_r": retrieval_metrics(seen.vectors, shown.labels)["MAP@R"],
        "loss": loss,
        "weights": seen.weights[first],
        "nearest": seen.nearest[first],
    }


STUDY = Study(
    name="zero-shot-prediction",
    title="Zero-shot prediction: what histograms over prototypes say about classes nobody fitted them to",
    about="A ResNet-20 with generalized sum pooling and eight prototypes learns ten classes, with and without the "
    "zero-shot loss. A linear predictor from a class's histogram over prototypes to its mean embedding is fitted on "
    "five of the classes and predicts the other five. Controls: the same before training, and with permuted "
    "histograms.",
    source="section 5.3.3 and Figure 5.6 of Gürbüz's thesis",
    settings=ZeroShotPrediction,
    run=run,
    data="CIFAR-10 or any class folders; else letters are drawn",
)
