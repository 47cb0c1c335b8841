"""Localisation: do pooling weights point at the object, although no box was ever shown?

Poolings are trained alike on pictures of 2 x 2 cells of which one decides the class. On unseen classes, their weights
are compared with the true position of the object (``masks``): the share of the weight inside its mask, and whether the
largest weight lies inside. By chance both equal the share of the picture that the mask covers, as with average pooling.
Masks are the true cell and, for drawn letters, the letter's bounding box and its ink.

A seed decides network and batches: every seed has its own network, pretrained on single letters or pictures, from which
all poolings start. Training is that of the demo, ``lookalike.demo.training``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch

from lookalike import data
from lookalike.data.glyphs import GlyphReader, glyphs
from lookalike.data.pictures import Pictures
from lookalike.demo.pictures import Shots, draw
from lookalike.demo.training import LEARNT_SHARE, Budget, Contestant, Outcome, pretrain_letters, train_contestant
from lookalike_studies.framework.context import Context, Part, Tick
from lookalike_studies.framework.study import Study, StudyResult, StudySettings, create_from, setting
from lookalike_studies.framework.tables import format_seed_count
from lookalike_studies.localisation.claims import CELL, claims, table
from lookalike_studies.localisation.masks import Located, Masks, box_of, cell_masks, letter_mask, located
from lookalike_studies.localisation.plots import Heat, bars, heat_maps

Network = dict[str, torch.Tensor]
BOX, INK = "letter's box", "ink"
AFTERWARDS = ("seeds", "rates", "shown")  # settings that no single training depends on
DRAWN_AT_ONCE = 100


@dataclass(frozen=True)
class Localisation(StudySettings):
    """Settings of the study."""

    steps: int = setting("of every pooling, rate and seed", budget=True, least=1)
    alone_steps: int = setting("of pretraining on single letters or pictures, for every seed", budget=True, least=1)
    rates: tuple[float, ...] = setting("learning rates to choose from by held-out classes", budget=True, above=0)
    seeds: tuple[int, ...] = setting("of network and batches, the same for every pooling", budget=True)
    train_classes: int = setting("drawn letters for training, a quarter of them held out", budget=True, least=1)
    test_classes: int = setting("drawn letters for testing", budget=True, least=1)
    pictures: int = setting("drawn of each class", budget=True, least=1)
    keep: float = setting("mu of GSP", above=0, up_to=1)
    sharpness: float = setting("epsilon of GSP", above=0)
    prototypes: int = setting("m of GSP", least=1)
    shown: int = setting("pictures in the figure of heat maps", budget=True, least=1)

    @property
    def budget(self) -> Budget:
        """The size of the trainings."""
        return create_from(Budget, self, letter_steps=self.alone_steps, evaluate_every=self.steps)

    @property
    def contestants(self) -> tuple[Contestant, ...]:
        """The poolings."""
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
    """Data sets of the study."""

    alone: Pictures  # single letters or pictures, for pretraining
    train: Pictures  # training classes
    test: Pictures  # unseen classes

    @property
    def is_drawn(self) -> bool:
        """Whether the pictures are drawn letters."""
        return isinstance(self.test.reader, GlyphReader)


def run(settings: Localisation, context: Context) -> StudyResult:
    """Train all poolings and measure where their weights lie."""
    drawing = _drawing(settings, context.data)
    shots = {name: _draw(pictures, context, name) for name, pictures in drawing._asdict().items()}
    networks = _pretrain_all(shots["alone"], settings.budget, context)
    masks = _masks(drawing, shots["test"])
    chance = {name: float(mask.mean()) for name, mask in masks.items()}
    rates, outcomes = _train_all(settings.contestants, networks, shots, settings.budget, context)
    locations: dict[str, list[Located]] = {}
    for contestant in settings.contestants:
        name = contestant.name
        locations[name] = [located(outcome.weights, masks) for outcome in outcomes[name]]
        share = np.mean([one.share[CELL] for one in locations[name]])
        pointing = np.mean([one.pointing[CELL] for one in locations[name]])
        context.display.say(f"{name}: {share:.3f} of the weight in the true cell, points there in {pointing:.1%}")
    chosen = np.linspace(0, len(shots["test"].labels) - 1, settings.shown).astype(np.int64)
    heats = [Heat(contestant, outcomes[contestant.name][0].weights) for contestant in settings.contestants]
    by_seed: dict[str, list[dict[str, Any]]] = {}
    for name in outcomes:
        pairs = zip(locations[name], outcomes[name], strict=True)
        by_seed[name] = [{**location._asdict(), **outcome.metrics} for location, outcome in pairs]
    return StudyResult(
        claims=claims(locations, chance, drawing.is_drawn),
        figures={
            "localisation": (
                bars(locations, chance, settings.contestants),
                "How much of the pooling weight lies inside the object, and how often the largest weight does, on "
                f"unseen classes; {_over_seeds(settings.seeds)}. Dashed: by chance.",
            ),
            "heat-maps": (
                heat_maps(shots["test"], heats, chosen),
                "Pooling weights on unseen classes, the first seed. Outlined: the true cell. White: no weight; the "
                "scale of each picture ends at its largest weight.",
            ),
        },
        tables={"localisation": table(locations, outcomes, rates, chance)},
        numbers={"chance": chance, "rates": rates, "by_seed": by_seed},
        notes=_notes(rates, context.data, drawing),
    )


def _drawing(settings: Localisation, source: str | None) -> Drawing:
    if source is None:
        shared = {"per_class": settings.pictures, "train_classes": settings.train_classes}
        alone = glyphs(cells=1, size=32, test_classes=0, **shared)
        both = glyphs(test_classes=settings.test_classes, **shared)
        return Drawing(alone, both.split("train"), both.split("test"))
    both = data.load(source, check=False)
    if not hasattr(both.reader, "cell_of"):
        raise ValueError(f"the true cell must be known: --data takes collage:FOLDER or glyphs, got {source!r}")
    reader: Any = both.reader
    if isinstance(reader, GlyphReader):
        cells = reader.cells**2
    else:
        cells = reader.places.shape[1]
    if cells != 4:
        raise ValueError(f"the study needs pictures of 2 x 2 cells, got {cells} cells")
    if source.startswith("glyphs"):
        options = [source.removeprefix("glyphs").strip("() "), "cells=1", "size=32"]
        alone = data.load(f"glyphs({', '.join(filter(None, options))})").split("train")
    else:
        inside = source.removeprefix("collage").removeprefix(":").strip("()")
        alone = data.load(f"collage({inside}, cells=1)", check=False).split("train")
    return Drawing(alone, both.split("train"), both.split("test"))


def _draw(pictures: Pictures, context: Context, name: str) -> Shots:
    drawn = []
    with context.display.bar(len(pictures), f"drawing: {name}") as tick:
        for first in range(0, len(pictures), DRAWN_AT_ONCE):
            drawn.append(draw(pictures, first, first + DRAWN_AT_ONCE))
            tick(len(drawn[-1][0]))
    pixels, cells = map(np.concatenate, zip(*drawn, strict=True))
    labels = np.unique(pictures.labels, return_inverse=True)[1].astype(np.int64)
    return Shots(pixels, labels, cells)


def _pretrain_all(alone: Shots, budget: Budget, context: Context) -> dict[int, Network]:
    """Train the networks from which all poolings of a seed start."""
    parts = []
    for seed in budget.seeds:
        train = partial(_pretrain, alone, seed, budget)
        parts.append(Part(f"network {seed}", budget.letter_steps, train, f"alone, seed {seed}"))
    networks = {}
    for seed, arrays in zip(budget.seeds, context.train_all(parts, ignore=AFTERWARDS), strict=True):
        networks[seed] = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return networks


def _pretrain(alone: Shots, seed: int, budget: Budget, tick: Tick) -> dict[str, Any]:
    weights = pretrain_letters(alone, seed, budget, tick)
    return {name: tensor.numpy() for name, tensor in weights.items()}


def _train_all(
    contestants: Sequence[Contestant],
    networks: dict[int, Network],
    shots: dict[str, Shots],
    budget: Budget,
    context: Context,
) -> tuple[dict[str, float], dict[str, list[Outcome]]]:
    """Choose the rate of each contestant by held-out classes and the first seed.

    Returns:
        By contestant, the rate and the outcomes of all seeds.
    """
    searched = _train_some(list(product(contestants, budget.rates, budget.seeds[:1])), networks, shots, budget, context)
    rates: dict[str, float] = {}
    outcomes: dict[str, list[Outcome]] = {}
    for number, contestant in enumerate(contestants):
        by_rate = searched[number * len(budget.rates) : (number + 1) * len(budget.rates)]
        best = max(range(len(by_rate)), key=lambda i: by_rate[i].curve[-1][1])
        rates[contestant.name] = budget.rates[best]
        outcomes[contestant.name] = [by_rate[best]]
    runs = [(contestant, rates[contestant.name], seed) for contestant in contestants for seed in budget.seeds[1:]]
    for run_of_seed, outcome in zip(runs, _train_some(runs, networks, shots, budget, context), strict=True):
        outcomes[run_of_seed[0].name].append(outcome)
    return rates, outcomes


def _train_some(
    runs: Sequence[tuple[Contestant, float, int]],
    networks: dict[int, Network],
    shots: dict[str, Shots],
    budget: Budget,
    context: Context,
) -> list[Outcome]:
    """Train contestants with a rate and a seed each, or read them from the cache."""
    parts = []
    for contestant, rate, seed in runs:
        train = partial(_train, contestant, rate, seed, networks[seed], shots["train"], shots["test"], budget)
        name, title = f"{contestant.name} {rate:g} {seed}", f"{contestant.name}, rate {rate:g}, seed {seed}"
        parts.append(Part(name, budget.steps, train, title))
    return [Outcome(**values) for values in context.train_all(parts, ignore=AFTERWARDS)]


def _train(*arguments: Any) -> dict[str, Any]:
    return vars(train_contestant(*arguments))


def _over_seeds(seeds: tuple[int, ...]) -> str:
    if len(seeds) == 1:
        return "one seed"
    return f"mean and standard deviation over {format_seed_count(len(seeds))}"


def _notes(rates: dict[str, float], source: str | None, drawing: Drawing) -> list[str]:
    chosen = ", ".join(f"{name} {rate:g}" for name, rate in rates.items())
    notes = [f"Rates, chosen by held-out classes: {chosen}."]
    if source is not None:
        notes.append("train_classes, test_classes and pictures are for drawn letters without --data; not used here.")
    if not drawing.is_drawn:
        notes.append(
            "Collage: 12 of the 16 super-classes train and 4 are held out to choose the rate; the test shows unseen "
            "sub-classes of all of them."
        )
    return notes


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
    title="Localisation: pooling weights point at the object, without training on boxes",
    about="Poolings are trained alike on pictures of 2 x 2 cells of which one decides the class. With one seed all "
    "start from one network, which has seen single cells, and have the same batches; another seed is another network "
    "and other batches. On unseen classes, where does their weight lie?",
    source="beyond the papers; what they say of the poolings is in section 5.3.5 of Gürbüz's thesis",
    settings=Localisation,
    run=run,
    data="collage:FOLDER of CIFAR-100, or glyphs; else letters are drawn",
)
