"""The CIFAR collage: one picture that decides the class among three that every class shares.

Average pooling (GAP), generalized sum pooling (GSP) and GSP with the zero-shot loss train alike, from the same
ResNet-20, on collages of training sub-classes; MAP@R is measured on collages of sub-classes that were in no training
and no validation, foreground and background (``lookalike.data.collage``). "Distilled" is GAP on the picture that
decides, alone: nobody has to leave anything out there. What is measured are pictures of CIFAR-100's test part, which
the ResNet-20 has not classified before.

Reference: section 5.3.2 and Figure 5.5 of Gürbüz's thesis.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lookalike import data, objectives
from lookalike._util.checks import check_count, check_range
from lookalike.data.collage import collage, sub_classes
from lookalike.data.pictures import Pictures
from lookalike.demo.race import Contestant, Shots, draw, in_cell
from lookalike.report.seeds import check_seeds, in_words
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike.training.pretrain import pretrain
from lookalike_studies.collage.claims import DISTILLED, GAP, GSP, ZERO_SHOT, Run, claims, points, table
from lookalike_studies.collage.plots import draw_curves, draw_heat_maps
from lookalike_studies.framework.context import Context
from lookalike_studies.framework.study import Study, StudyResult, setting
from lookalike_studies.framework.train_pictures import Plan, create_embedder, inspect_pooling, train_pictures

BACKBONE = "resnet20"
PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Collage:
    split: str = setting("sub-classes that train/validate/test, or train/test")
    split_seed: int = setting("decides which sub-classes are in which part")
    pretraining: str = setting("what the backbone classifies before: training (sub-classes), or all")
    dim: int = setting("of the embedding")
    loss: str = setting("between collages")
    preset: str = setting("whose settings the loss has")
    prototypes: int = setting("m of GSP")
    keep: float = setting("mu of GSP")
    sharpness: float = setting("epsilon of GSP")
    zero_shot: float = setting("lambda, the share of the zero-shot loss")
    rate: float = setting("of Adam")
    decay: float = setting("of the rate on a plateau")
    patience: int = setting("epochs without a better validation before that")
    classes: int = setting("in a batch")
    per_class: int = setting("collages of each of them")
    pictures: str = setting("collages of each class that train/validate/test", budget=True)
    pretraining_steps: int = setting("of 64 pictures", budget=True)
    epoch: int = setting("steps", budget=True)
    epochs: int = setting("of every run", budget=True)
    seeds: tuple[int, ...] = setting("of every run", budget=True)
    shown: int = setting("collages of training and of test in the figure", budget=True)

    def __post_init__(self) -> None:
        sub_classes(self.split, self.split_seed)
        counts = self.pictures.split("/")
        if len(counts) != 3 or not all(each.isdecimal() and int(each) >= 2 for each in counts):
            raise ValueError(f"pictures must be three numbers from 2 on, as 600/150/300, got {self.pictures!r}")
        if self.pretraining not in ("training", "all"):
            raise ValueError(f"pretraining must be training or all, got {self.pretraining!r}")
        for name in ("dim", "prototypes", "patience", "pretraining_steps", "epoch", "epochs", "shown"):
            check_count(name, getattr(self, name))
        for name in ("classes", "per_class"):
            check_count(name, getattr(self, name), least=2)
        check_range("keep", self.keep, 0, 1)
        check_range("decay", self.decay, 0, 1)
        for name in ("sharpness", "rate"):
            check_range(name, getattr(self, name), 0, None)
        if not 0 < self.zero_shot < 1:
            raise ValueError(f"zero_shot must lie in (0, 1), got {self.zero_shot}")
        check_seeds(self.seeds)
        objectives.create(self.loss, 2, self.dim, preset=self.preset)  # says what is wrong with them

    @property
    def contestants(self) -> tuple[Contestant, ...]:
        gsp = {"num_prototypes": self.prototypes, "keep": self.keep, "sharpness": self.sharpness}
        return (
            Contestant(GAP, "average"),
            Contestant(GSP, "gsp", gsp),
            Contestant(ZERO_SHOT, "gsp", gsp, zero_shot=self.zero_shot),
            Contestant(DISTILLED, "average"),
        )

    def plan(self, contestant: Contestant, seed: int) -> Plan:
        return Plan(
            contestant.pooling,
            contestant.settings,
            BACKBONE,
            self.dim,
            self.loss,
            self.preset,
            contestant.zero_shot,
            rate=self.rate,
            proxy_rate=self.rate,
            classes=self.classes,
            per_class=self.per_class,
            epoch=self.epoch,
            epochs=self.epochs,
            patience=self.patience,
            decay=self.decay,
            seed=seed,
        )


def run(settings: Collage, context: Context) -> StudyResult:
    folder = folder_of(context.data)
    sources = {
        distilled: collage(
            folder,
            split=settings.split,
            seed=settings.split_seed,
            pictures=settings.pictures,
            cells=1 if distilled else 2,
            apart=True,
            progress=not distilled,
        )
        for distilled in (False, True)
    }
    shots = {distilled: {part: _shots(of.split(part)) for part in PARTS} for distilled, of in sources.items()}
    weights, told = _backbone(settings, folder, context)
    runs = {
        contestant.name: [
            _run(contestant, seed, weights, shots[contestant.name == DISTILLED], settings, context)
            for seed in settings.seeds
        ]
        for contestant in settings.contestants
    }
    for name, own in runs.items():
        context.display.say(f"{name}: MAP@R {in_words(points(own))} on unseen sub-classes")
    shown = [contestant for contestant in settings.contestants if contestant.name != DISTILLED]
    return StudyResult(
        claims=claims({name: points(own) for name, own in runs.items()}),
        figures={
            "learning": (
                draw_curves([(c, [run.curve for run in runs[c.name]]) for c in settings.contestants]),
                "MAP@R of the validation over training; mean and range over seeds. Step 0: the pretrained backbone.",
            ),
            "heat-maps": (
                draw_heat_maps(
                    shots[False]["train"],
                    shots[False]["test"],
                    [(c, runs[c.name][0].weights) for c in shown],
                    *(shown_of(shots[False][part], settings.shown) for part in ("train", "test")),
                ),
                "Pooling weights on collages of the training and of unseen sub-classes, the first seed. Outlined: the "
                "cell that decides the class. White: no weight; each picture's scale ends at its largest weight.",
            ),
        },
        tables={"collage": table(runs)},
        numbers={
            "pretraining": told,
            "runs": [
                {"run": name, "seed": seed, **{key: getattr(run, key) for key in Run._fields if key != "weights"}}
                for name, own in runs.items()
                for seed, run in zip(settings.seeds, own, strict=True)
            ],
        },
        notes=_notes(settings, told),
    )


def folder_of(source: str | None) -> Path:
    """``FOLDER``, ``cifar100:FOLDER`` or ``collage:FOLDER``."""
    text = source or ""
    for prefix in ("cifar100:", "collage:"):
        text = text.removeprefix(prefix)
    return Path(text.strip()).expanduser()


def shown_of(shots: Shots, count: int) -> NDArray[np.int64]:
    """Some collages, of as many classes as can be."""
    return np.linspace(0, len(shots.labels) - 1, count).astype(np.int64)


def _shots(pictures: Pictures) -> Shots:
    pixels, cells = draw(pictures, 0, len(pictures))
    return Shots(pixels, pictures.labels, cells)


def _backbone(settings: Collage, folder: Path, context: Context) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Weights of a backbone that has classified single pictures, and what is to be said about it."""

    def compute() -> dict[str, Any]:
        cifar = data.load(f"cifar100:{folder}", check=False)
        train = sub_classes(settings.split, settings.split_seed)["train"]
        names = [name for of in train.values() for name in of] if settings.pretraining == "training" else cifar.classes
        context.display.say(f"ResNet-20 learns to classify {len(names)} classes, or is found to have learnt it before")
        found = pretrain(
            cifar.split("train").with_classes(names),
            BACKBONE,
            steps=settings.pretraining_steps,
            test=cifar.split("test").with_classes(names),
            display=context.display,
        )
        told = {"classes": len(names), "accuracy": found.accuracy, "loss": found.loss}
        return {"told": told, **{f"w {name}": tensor.numpy() for name, tensor in found.weights.items()}}

    kept = context.cached("backbone", compute, ignore=("seeds", "epochs", "epoch", "pictures", "shown"))
    told: dict[str, Any] = kept.pop("told")
    return {name.removeprefix("w "): torch.from_numpy(array) for name, array in kept.items()}, told


def _run(
    contestant: Contestant,
    seed: int,
    weights: dict[str, torch.Tensor],
    shots: Mapping[str, Shots],
    settings: Collage,
    context: Context,
) -> Run:
    train, validation, test = (shots[part] for part in PARTS)

    def compute() -> dict[str, Any]:
        plan, held_out = settings.plan(contestant, seed), (validation.pixels, validation.labels)
        with context.display.bar(settings.epoch * settings.epochs, f"{contestant.name}, seed {seed}", " steps") as tick:
            learnt = train_pictures(plan, weights, train.pixels, train.labels, held_out, tick)
        known = shown_of(train, len(test.labels))
        seen = {
            "training": inspect_pooling(learnt.embedder, train.pixels[known]),
            "test": inspect_pooling(learnt.embedder, test.pixels),
        }
        weight, vector = {}, {}
        if contestant.name != DISTILLED:
            begun = inspect_pooling(create_embedder(plan, weights, train.pixels), test.pixels)
            weight = {
                "training": _in_cell(seen["training"].weights, train.cells[known]),
                "test": _in_cell(seen["test"].weights, test.cells),
            }
            vector = {
                "start": _in_cell(begun.contributions, test.cells),
                "test": _in_cell(seen["test"].contributions, test.cells),
            }
        shown = inspect_pooling(learnt.embedder, train.pixels[shown_of(train, settings.shown)]).weights
        return {
            "curve": learnt.curve,
            "losses": learnt.losses,
            "figures": retrieval_metrics(seen["test"].vectors, test.labels),
            "in_cell": weight,
            "from_cell": vector,
            "weights": np.concatenate([shown, seen["test"].weights[shown_of(test, settings.shown)]]),
        }

    kept = context.cached(f"{contestant.name} {seed}", compute, ignore=("seeds",))
    return Run(**{**kept, "curve": [(int(step), float(figure)) for step, figure in kept["curve"]]})


def _in_cell(shares: NDArray[np.float32], cells: NDArray[np.int64]) -> float:
    """Mean over collages of what lies in the true cell, of shares (n, places)."""
    return float((shares * in_cell(cells, shares.shape[1]).numpy()).sum(1).mean())


def _notes(settings: Collage, told: Mapping[str, Any]) -> list[str]:
    seen = (
        "has seen the sub-classes of the test, as the authors' has, but in other pictures"
        if settings.pretraining == "all"
        else ("has not seen the sub-classes of the test (the authors' has classified all of them)")
    )
    return [
        f"The backbone classified {told['classes']} classes of CIFAR-100 for {settings.pretraining_steps} steps "
        f"({100 * told['accuracy']:.1f} % right on other pictures of them): it {seen}. It is the same for all seeds, "
        "and so are the collages: what another network or another division of the sub-classes (split_seed) changes is "
        "not in the spread.",
        f"Sub-classes {settings.split}; the labels, 16 super-classes, are the same in all parts. Loss "
        f"{settings.loss} with the settings of {settings.preset}: the authors do not give them for this figure.",
    ]


STUDY = Study(
    name="collage",
    title="CIFAR collage: one picture decides the class, three are background that every class shares",
    about="Collages of four pictures of CIFAR-100, of which one decides the label, a super-class, and three show what "
    "all classes share. Average pooling, generalized sum pooling and the zero-shot loss train a ResNet-20 on some "
    "sub-classes and are measured on others, which nobody has trained on; so is the background. Distilled: average "
    "pooling of that one picture alone.",
    source="section 5.3.2 and Figure 5.5 of Gürbüz's thesis; Figure 3 (b) of the GSP paper",
    settings=Collage,
    run=run,
    data="CIFAR-100 (torchvision's files or class folders)",
    needs_data=True,
)
