"""The CIFAR collage: one picture decides the class among three that every class shares.

Average pooling (GAP), generalized sum pooling (GSP), GSP with the zero-shot loss, DeLF and plain learnt attention train
from the same network, on collages of training sub-classes. MAP@R is measured on collages of other sub-classes,
foreground and background (``lookalike.data.collage``). "Distilled" is GAP on the deciding picture alone.

With ``pretraining: all``, as in the released code, the network has classified the sub-classes of the test, and with
``apart: false`` most of its very pictures: a leak. ``pretraining: training`` has none.

Reference: section 5.3.2 and Figure 5.5 of Gürbüz's thesis.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookalike import data, objectives
from lookalike.data.collage import collage, sub_classes
from lookalike.demo.pictures import Shots, draw, in_cell
from lookalike.demo.training import Contestant
from lookalike.models import is_backbone
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike.training.pretrain import Pretrained, pretrain
from lookalike_studies.collage.claims import (
    ATTENTION,
    DELF,
    DISTILLED,
    GAP,
    GSP,
    ZERO_SHOT,
    Run,
    judge_claims,
    percent,
    runs_table,
)
from lookalike_studies.collage.plots import draw_curves, draw_heat_maps
from lookalike_studies.framework.context import Context, Part, Tick
from lookalike_studies.framework.study import Study, StudyResult, StudySettings, create_from, setting
from lookalike_studies.framework.tables import format_mean
from lookalike_studies.framework.train_pictures import Recipe, create_embedder, inspect_pooling, train_pictures
from lookalike_studies.localisation.plots import Heat

SPLITS = ("train", "validation", "test")
STATISTICS = 1600  # collages for statistics of the training and of the start
NAMES = (GAP, GSP, ZERO_SHOT, DELF, ATTENTION, DISTILLED)


@dataclass(frozen=True)
class Collage(StudySettings):
    """Settings of the study."""

    contestants: tuple[str, ...] = setting(", ".join(NAMES))
    backbone: str = setting("network: bottleneck20, bottleneck29, resnet20, ...")
    split: str = setting("sub-classes that train/validate/test, or train/test")
    order: str = setting("which sub-classes: listed, or seeded")
    split_seed: int = setting("of the collages, and of the division if it is seeded")
    apart: bool = setting("test on CIFAR-100's test pictures, train on the others")
    pretraining: str = setting("what the backbone classifies before: training (sub-classes), or all")
    dim: int = setting("size of the embedding", least=1)
    loss: str = setting("between collages")
    preset: str = setting("data set whose settings the loss has")
    prototypes: int = setting("m of GSP", least=1)
    keep: float = setting("mu of GSP", above=0, up_to=1)
    sharpness: float = setting("epsilon of GSP", above=0)
    zero_shot: float = setting("lambda, the share of the zero-shot loss", above=0, below=1)
    augment: bool = setting("shift and flip training collages")
    rate: float = setting("learning rate of Adam", above=0)
    decay: float = setting("factor of the rate on a plateau", above=0, up_to=1)
    patience: int = setting("epochs without better validation before that", least=1)
    classes: int = setting("in a batch", least=2)
    per_class: int = setting("collages of each of them", least=2)
    pictures: str = setting("collages of each class that train/validate/test, or train/test", budget=True)
    pretraining_steps: int = setting("of 64 pictures", budget=True, least=1)
    epoch: int = setting("steps", budget=True, least=1)
    epochs: int = setting("of every run", budget=True, least=1)
    seeds: tuple[int, ...] = setting("of every run", budget=True)
    shown: int = setting("collages of training and of test in the figure", budget=True, least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        sub_classes(self.split, self.split_seed, self.order)
        counts = self.pictures.split("/")
        if len(counts) not in (2, 3) or not all(count.isdecimal() and int(count) >= 2 for count in counts):
            raise ValueError(f"pictures must be two or three numbers from 2 on, as 1800/1200, got {self.pictures!r}")
        unknown = sorted(set(self.contestants) - set(NAMES))
        if unknown:
            raise ValueError(f"contestants must be of {'; '.join(NAMES)}, got {unknown[0]!r}")
        if not is_backbone(self.backbone):
            raise ValueError(f"no backbone is called {self.backbone!r}")
        if self.pretraining not in ("training", "all"):
            raise ValueError(f"pretraining must be training or all, got {self.pretraining!r}")
        objectives.create(self.loss, 2, self.dim, preset=self.preset)  # checks their names

    @property
    def chosen(self) -> tuple[Contestant, ...]:
        """The contestants that take part."""
        gsp = {"num_prototypes": self.prototypes, "keep": self.keep, "sharpness": self.sharpness}
        every = (
            Contestant(GAP, "average"),
            Contestant(GSP, "gsp", gsp),
            Contestant(ZERO_SHOT, "gsp", gsp, zero_shot=self.zero_shot),
            Contestant(DELF, "delf", {"unit_features": False}),
            Contestant(ATTENTION, "attention"),
            Contestant(DISTILLED, "average"),
        )
        return tuple(contestant for contestant in every if contestant.name in self.contestants)

    def recipe(self, contestant: Contestant, seed: int) -> Recipe:
        """Choose how a contestant is trained."""
        model = {"pooling": contestant.pooling, "pooling_settings": contestant.settings}
        share, rate = contestant.zero_shot, self.rate
        return create_from(Recipe, self, **model, zero_shot=share, proxy_rate=rate, seed=seed)


def run(settings: Collage, context: Context) -> StudyResult:
    """Pretrain the backbone, train all contestants with all seeds, measure and judge."""
    folder = folder_of(context.data)
    collages = _read_collages(settings, folder, cells=2)
    single_pictures = _read_collages(settings, folder, cells=1)
    backbone, classes = _pretrain(settings, folder, context)
    runs = _train_all(settings, backbone, collages, single_pictures, context)
    map_at_r, heats = {}, []
    for contestant in settings.chosen:
        name = contestant.name
        map_at_r[name] = percent(runs[name])
        context.display.say(f"{name}: MAP@R {format_mean(map_at_r[name])} on unseen sub-classes")
        if name != DISTILLED:
            heats.append(Heat(contestant, runs[name][0].weights))
    known = _take(collages["train"], choose(collages["train"], settings.shown))
    unseen = _take(collages["test"], choose(collages["test"], settings.shown))
    numbers = []
    for name, of_seeds in runs.items():
        for seed, one in zip(settings.seeds, of_seeds, strict=True):
            values = one._asdict()
            del values["weights"]
            numbers.append({"run": name, "seed": seed, **values})
    return StudyResult(
        claims=judge_claims(map_at_r),
        figures={
            "learning": (
                draw_curves(settings.chosen, runs),
                "Over training, MAP@R of the validation (step 0: the pretrained backbone) or, without one, the mean "
                "training loss of each epoch; mean and range over seeds.",
            ),
            "heat-maps": (
                draw_heat_maps(known, unseen, heats),
                "Pooling weights on collages of the training and of unseen sub-classes, the first seed. Outlined: the "
                "cell that decides the class. White: no weight; each picture's scale ends at its largest weight.",
            ),
        },
        tables={"collage": runs_table(runs)},
        numbers={
            "pretraining": {"classes": classes, "accuracy": backbone.accuracy, "loss": backbone.loss},
            "runs": numbers,
        },
        notes=_write_notes(settings, classes, backbone),
    )


def folder_of(source: str | None) -> Path:
    """Return the folder of ``FOLDER``, ``cifar100:FOLDER`` or ``collage:FOLDER``."""
    text = (source or "").removeprefix("cifar100:").removeprefix("collage:")
    return Path(text.strip()).expanduser()


def choose(shots: Shots, count: int) -> NDArray[np.int64]:
    """Choose collages of as many classes as possible."""
    return np.linspace(0, len(shots.labels) - 1, count).astype(np.int64)


def _take(shots: Shots, indices: NDArray[np.int64]) -> Shots:
    return Shots(shots.pixels[indices], shots.labels[indices], shots.cells[indices])


def _read_collages(settings: Collage, folder: Path, cells: int) -> dict[str, Shots]:
    pictures = collage(
        folder,
        split=settings.split,
        order=settings.order,
        seed=settings.split_seed,
        pictures=settings.pictures,
        cells=cells,
        apart=settings.apart,
        progress=cells > 1,
    )
    shots = {}
    for split in SPLITS:
        if split == "validation" and settings.pictures.count("/") == 1:
            continue
        of_split = pictures.split(split)
        pixels, true_cells = draw(of_split, 0, len(of_split))
        shots[split] = Shots(pixels, of_split.labels, true_cells)
    return shots


def _pretrain(settings: Collage, folder: Path, context: Context) -> tuple[Pretrained, int]:
    """Pretrain the backbone, or read it from the cache; also return its number of classes."""
    cifar = data.load(f"cifar100:{folder}", check=False)
    names = list(cifar.classes)
    if settings.pretraining == "training":
        names = list(chain(*sub_classes(settings.split, settings.split_seed, settings.order)["train"].values()))
    context.display.say(f"{settings.backbone} learns to classify {len(names)} classes, unless the cache has it")
    train, test = cifar.split("train").with_classes(names), cifar.split("test").with_classes(names)
    steps = settings.pretraining_steps
    backbone = pretrain(train, settings.backbone, steps=steps, test=test, display=context.display)
    context.display.say(f"weights of the backbone, for lookalike benchmark --protocol collage: {backbone.file}")
    return backbone, len(names)


def _train_all(
    settings: Collage,
    backbone: Pretrained,
    collages: Mapping[str, Shots],
    single_pictures: Mapping[str, Shots],
    context: Context,
) -> dict[str, list[Run]]:
    """Train and measure all contestants with all seeds, or read them from the cache."""
    contestants = {contestant.name: contestant for contestant in settings.chosen}

    def part(name: str, seed: int) -> Part:
        shots = single_pictures if name == DISTILLED else collages
        train = partial(_train, contestants[name], seed, backbone, shots, settings)
        return Part(f"{name} {seed}", settings.epoch * settings.epochs, train, f"{name}, seed {seed}")

    trained = context.train_grid(contestants, settings.seeds, part, ignore=("seeds",))
    return {name: [Run(**values) for values in of_seeds] for name, of_seeds in trained.items()}


def _train(
    contestant: Contestant, seed: int, backbone: Pretrained, shots: Mapping[str, Shots], settings: Collage, tick: Tick
) -> dict[str, Any]:
    """Train and measure a contestant."""
    training, test = shots["train"], shots["test"]
    recipe, held_out = settings.recipe(contestant, seed), None
    if "validation" in shots:
        held_out = (shots["validation"].pixels, shots["validation"].labels)
    trained = train_pictures(recipe, backbone.weights, training.pixels, training.labels, held_out, tick)
    on_test = inspect_pooling(trained.embedder, test.pixels)
    in_cells, from_cells = {}, {}
    if contestant.name != DISTILLED:
        count = min(STATISTICS, len(test.labels))
        known, some = _take(training, choose(training, count)), _take(test, choose(test, count))
        on_training = inspect_pooling(trained.embedder, known.pixels)
        first = inspect_pooling(create_embedder(recipe, backbone.weights, training.pixels), some.pixels)
        in_cells["training"] = _share_in_cell(on_training.weights, known.cells)
        in_cells["test"] = _share_in_cell(on_test.weights, test.cells)
        from_cells["start"] = _share_in_cell(first.contributions, some.cells)
        from_cells["test"] = _share_in_cell(on_test.contributions, test.cells)
    shown = inspect_pooling(trained.embedder, training.pixels[choose(training, settings.shown)]).weights
    return {
        "curve": trained.curve,
        "losses": trained.losses,
        "figures": retrieval_metrics(on_test.vectors, test.labels),
        "in_cell": in_cells,
        "from_cell": from_cells,
        "weights": np.concatenate([shown, on_test.weights[choose(test, settings.shown)]]),
    }


def _share_in_cell(shares: NDArray[np.float32], cells: NDArray[np.int64]) -> float:
    """Mean over collages of the share in the true cell, of shares (n, positions)."""
    return float((shares * in_cell(cells, shares.shape[1]).numpy()).sum(1).mean())


def _write_notes(settings: Collage, classes: int, backbone: Pretrained) -> list[str]:
    seen = "has not seen the sub-classes of the test (the authors' has classified all of them): no leak"
    if settings.pretraining == "all":
        seen = "has seen the sub-classes of the test, as the authors' has, but in other pictures"
        if not settings.apart:
            seen = "has seen most pictures of the test with their sub-classes, as the authors' has: a leak"
    steered = "The weights that are best by the validation are tested."
    if settings.pictures.count("/") == 1:
        steered = "Nothing is held out: the last weights are tested."
    return [
        f"The backbone {settings.backbone} classified {classes} classes of CIFAR-100 for {settings.pretraining_steps} "
        f"steps ({100 * (backbone.accuracy or 0):.1f} % right on other pictures of them): it {seen}. Backbone and "
        "collages are the same for all seeds, so the spread does not cover another network or another division of the "
        "sub-classes (order, split_seed).",
        f"Sub-classes {settings.split}, {settings.order}; the labels, 16 super-classes, are the same in all splits. "
        f"{steered} Loss {settings.loss} with the settings of {settings.preset}: the authors do not give them for this "
        "figure.",
    ]


STUDY = Study(
    name="collage",
    title="CIFAR collage: one picture decides the class, three are background that every class shares",
    about="Collages of four pictures of CIFAR-100: one decides the label, a super-class, and three show what all "
    "classes share. Average pooling, generalized sum pooling with and without the zero-shot loss, DeLF and attention "
    "train a pretrained network on some sub-classes and are measured on others, foreground and background. Distilled: "
    "average pooling of the deciding picture alone.",
    source="section 5.3.2 and Figure 5.5 of Gürbüz's thesis; Figure 3 (b) of the GSP paper",
    settings=Collage,
    run=run,
    data="CIFAR-100 (torchvision's files or class folders)",
    needs_data=True,
)
