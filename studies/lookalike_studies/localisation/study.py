"""Localisation: a pooling's weights point at the object, although nobody ever showed them a box.

Poolings are trained alike on pictures in which one cell of four shows what decides the class, and their weights on
unseen classes (of the test) are held against where the object really is (``localisation_masks``): the share of the
weight that lies inside its mask, and whether the largest weight does. By chance both are the share of the picture that
the mask covers: that is average pooling. Masks are the true cell and, where letters are drawn, the letter's bounding
box and its ink.

A seed is network and batches both: each has its own network that has seen single letters, or single pictures, from
which all poolings start.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from lookalike import data
from lookalike._util.checks import check_count, check_range
from lookalike.data.glyphs import GlyphReader, glyphs
from lookalike.data.pictures import Pictures
from lookalike.demo.race import LEARNT_SHARE, Budget, Contestant, Outcome, Shots, draw, learn_letters, race
from lookalike.report.seeds import check_seeds, count_in_words
from lookalike_studies.framework.context import Context
from lookalike_studies.framework.study import Study, StudyResult, setting
from lookalike_studies.localisation.claims import CELL, claims, table
from lookalike_studies.localisation.masks import Masks, box_of, cell_masks, letter_mask, located, spread
from lookalike_studies.localisation.plots import Heat, bars, heat_maps

Network = dict[str, torch.Tensor]
BOX, INK = "letter's box", "ink"
EACH = ("seeds", "rates", "shown")  # settings that no network depends on: each has one seed, and one rate


@dataclass(frozen=True)
class Localisation:
    steps: int = setting("of every pooling, rate and seed", budget=True)
    alone_steps: int = setting("of every seed's network before, on single letters or single pictures", budget=True)
    rates: tuple[float, ...] = setting("learning rates to choose from by held-out classes", budget=True)
    seeds: tuple[int, ...] = setting("of network and batches both, the same for every pooling", budget=True)
    train_classes: int = setting("drawn letters to train on, a quarter of them held out", budget=True)
    test_classes: int = setting("drawn letters to measure on", budget=True)
    pictures: int = setting("drawn of each class", budget=True)
    keep: float = setting("mu of GSP")
    sharpness: float = setting("epsilon of GSP")
    prototypes: int = setting("m of GSP")
    shown: int = setting("pictures in the figure of heat maps", budget=True)

    def __post_init__(self) -> None:
        for name in ("steps", "alone_steps", "train_classes", "test_classes", "pictures", "prototypes", "shown"):
            check_count(name, getattr(self, name))
        check_range("keep", self.keep, 0, 1)
        check_range("sharpness", self.sharpness, 0, None)
        check_seeds(self.seeds)
        if not self.rates:
            raise ValueError("rates must name at least one, got none")
        for rate in self.rates:
            check_range("every one of rates", rate, 0, None)

    @property
    def budget(self) -> Budget:
        return Budget(
            steps=self.steps,
            letter_steps=self.alone_steps,
            evaluate_every=self.steps,
            rates=self.rates,
            seeds=self.seeds,
            train_classes=self.train_classes,
            test_classes=self.test_classes,
            pictures=self.pictures,
        )

    @property
    def contestants(self) -> tuple[Contestant, ...]:
        gsp = {"num_prototypes": self.prototypes, "keep": self.keep, "sharpness": self.sharpness}
        return (
            Contestant("average pooling", "average"),
            Contestant("CroW", "crow"),
            Contestant("DeLF", "delf", {"hidden": 64}),  # as many as the small network has channels, for 512
            Contestant("GSP", "gsp", gsp),
            Contestant("GSP + zero-shot loss", "gsp", gsp, zero_shot=0.1),
            replace(LEARNT_SHARE, name="GSP, learnt share"),
            Contestant("attention", "attention"),
        )


class Drawing(NamedTuple):
    """All that is trained and measured on."""

    alone: Pictures  # single letters, or pictures
    train: Pictures
    test: Pictures

    @property
    def is_drawn(self) -> bool:
        return isinstance(self.test.reader, GlyphReader)


def run(settings: Localisation, context: Context) -> StudyResult:
    drawing = _drawing(settings, context.data)
    budget, contestants = settings.budget, settings.contestants
    shots = {name: _shots(pictures, context, name) for name, pictures in drawing._asdict().items()}
    networks = {seed: _network(seed, shots["alone"], budget, context) for seed in budget.seeds}
    masks = _masks(drawing, shots["test"])
    outcomes: dict[str, list[Outcome]] = {}
    rates: dict[str, float] = {}
    for contestant in contestants:
        rates[contestant.name], outcomes[contestant.name] = _raced(contestant, networks, shots, budget, context)
    places = {name: [located(each.weights, masks) for each in own] for name, own in outcomes.items()}
    for name, own in places.items():
        told = f"{np.mean([each.share[CELL] for each in own]):.3f} of the weight in the true cell"
        context.display.say(f"{name}: {told}, points there in {np.mean([each.pointing[CELL] for each in own]):.1%}")
    chance = {name: float(mask.mean()) for name, mask in masks.items()}
    pooling = {contestant.name: contestant for contestant in contestants}
    heats = [Heat(pooling[name], own[0].weights) for name, own in outcomes.items()]
    chosen = np.linspace(0, len(shots["test"].labels) - 1, settings.shown).astype(np.int64)
    notes = [f"Rates, chosen by held-out classes: {', '.join(f'{name} {rate:g}' for name, rate in rates.items())}."]
    if context.data is not None:
        notes.append(
            "train_classes, test_classes and pictures are for what is drawn without --data, and had no say here."
        )
    if not drawing.is_drawn:
        notes.append(
            "Collage: 12 of the 16 super-classes train and 4 are held out to choose the rate; the test shows unseen "
            "sub-classes of all of them."
        )
    return StudyResult(
        claims=claims(places, chance, drawing.is_drawn),
        figures={
            "localisation": (
                bars({name: [each._asdict() for each in own] for name, own in places.items()}, chance, pooling),
                "How much of the pooling weight lies inside the object, and how often the largest weight does, on "
                f"unseen classes; {_over(settings.seeds)}. Dashed: by chance.",
            ),
            "heat-maps": (
                heat_maps(shots["test"], heats, spread, chosen),
                "Pooling weights on unseen classes, the first seed. Outlined: the true cell. White: no weight; the "
                "scale of each picture ends at its largest weight.",
            ),
        },
        tables={"localisation": table(places, outcomes, rates, chance)},
        numbers={
            "chance": chance,
            "rates": rates,
            "by_seed": {
                name: [{**each._asdict(), **outcome.figures} for each, outcome in zip(own, outcomes[name], strict=True)]
                for name, own in places.items()
            },
        },
        notes=notes,
    )


def _drawing(settings: Localisation, source: str | None) -> Drawing:
    if source is None:
        alone = glyphs(
            cells=1, size=32, per_class=settings.pictures, train_classes=settings.train_classes, test_classes=0
        )
        both = glyphs(
            per_class=settings.pictures, train_classes=settings.train_classes, test_classes=settings.test_classes
        )
        return Drawing(alone, both.split("train"), both.split("test"))
    both = data.load(source, check=False)
    if not hasattr(both.reader, "cell_of"):
        raise ValueError(f"the true cell must be known: --data takes collage:FOLDER or glyphs, got {source!r}")
    reader: Any = both.reader
    cells = reader.cells**2 if isinstance(reader, GlyphReader) else reader.places.shape[1]
    if cells != 4:
        raise ValueError(f"the race is for pictures of 2 x 2 cells, got {cells} cells")
    if source.startswith("glyphs"):
        pieces = source.removeprefix("glyphs").strip("() ")
        alone = data.load(f"glyphs({pieces + ', ' if pieces else ''}cells=1, size=32)").split("train")
    else:
        inside = source.removeprefix("collage").removeprefix(":").strip("()")
        alone = data.load(f"collage({inside}, cells=1)", check=False).split("train")
    return Drawing(alone, both.split("train"), both.split("test"))


def _shots(pictures: Pictures, context: Context, name: str) -> Shots:
    pieces = []
    with context.display.bar(len(pictures), f"drawing: {name}") as tick:
        for first in range(0, len(pictures), 100):
            pieces.append(draw(pictures, first, min(first + 100, len(pictures))))
            tick(len(pieces[-1][1]))
    pixels, cells = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return Shots(pixels, np.unique(pictures.labels, return_inverse=True)[1].astype(np.int64), cells)


def _network(seed: int, alone: Shots, budget: Budget, context: Context) -> Network:
    """The one from which all poolings start with this seed."""

    def compute() -> dict[str, Any]:
        with context.display.bar(budget.letter_steps, f"alone, seed {seed}", " steps") as tick:
            learnt = learn_letters(alone, seed, budget, tick)
        return {name: tensor.numpy() for name, tensor in learnt.items()}

    return {
        name: torch.from_numpy(array) for name, array in context.cached(f"network {seed}", compute, ignore=EACH).items()
    }


def _raced(
    contestant: Contestant, networks: dict[int, Network], shots: dict[str, Shots], budget: Budget, context: Context
) -> tuple[float, list[Outcome]]:
    """The rate that is best on held-out classes with the first seed, and the outcomes of all seeds with it."""

    def run(rate: float, seed: int) -> Outcome:
        def compute() -> dict[str, Any]:
            with context.display.bar(budget.steps, f"{contestant.name}, rate {rate:g}, seed {seed}", " steps") as tick:
                return race(
                    contestant, rate, seed, networks[seed], shots["train"], shots["test"], budget, tick
                )._asdict()

        return Outcome(**context.cached(f"{contestant.name} {rate:g} {seed}", compute, ignore=EACH))

    first = {rate: run(rate, budget.seeds[0]) for rate in budget.rates}
    best = max(first, key=lambda rate: first[rate].curve[-1][1])
    return best, [first[best], *(run(best, seed) for seed in budget.seeds[1:])]


def _over(seeds: tuple[int, ...]) -> str:
    counted = count_in_words(len(seeds))
    return counted if len(seeds) == 1 else f"mean and standard deviation over {counted}"


def _masks(drawing: Drawing, test: Shots) -> dict[str, Masks]:
    side = test.pixels.shape[1]
    reader: Any = drawing.test.reader
    masks = {CELL: cell_masks(test.cells, 2, side)}
    if drawing.is_drawn:
        ink = np.stack([letter_mask(reader, origin) for origin in drawing.test.origins.tolist()])
        masks |= {BOX: box_of(ink), INK: ink}
    return masks


STUDY = Study(
    name="localisation",
    title="Localisation: pooling weights point at the object, although nobody showed them a box",
    about="Poolings are trained alike on pictures of 2 x 2 cells of which one decides the class. With one seed all "
    "start from one network, which has seen single cells, and have the same batches; another seed is another network "
    "and other batches. On unseen classes, where does their weight lie?",
    source="beyond the papers; what they say of the poolings is in section 5.3.5 of Gürbüz's thesis",
    settings=Localisation,
    run=run,
    data="collage:FOLDER of CIFAR-100, or glyphs; else letters are drawn",
)
