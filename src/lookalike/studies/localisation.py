"""Localisation: a pooling's weights point at the object, although nobody ever showed them a box.

Poolings are trained alike on pictures in which one cell of four shows what decides the class, and their weights on
unseen classes (of the test) are held against where the object really is:

    share      of the weight that lies inside the object's mask, the weights spread bilinearly over the pixels
    pointing   whether the largest weight of a picture lies inside (Zhang et al., "Top-down Neural Attention by
               Excitation Backprop", ECCV 2016); where several pixels share the maximum, the share of them inside

By chance both are the share of the picture that the mask covers: that is average pooling. Masks are the true cell and,
where letters are drawn, the letter's bounding box and its ink.

Rules. "Above": the mean over seeds is larger, seed by seed, by what ``rules`` says and by more than 0.01; with one seed
nothing is tested. "Near": within 0.08, where the seeds agree better than that. Of a claim with several parts: all hold,
reproduced; none, not reproduced; else partly, but not for being near alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import interpolate

from lookalike import data
from lookalike.checks import check_count, check_range
from lookalike.data.glyphs import GlyphReader, _turned, glyphs
from lookalike.data.pictures import Pictures
from lookalike.report.tables import Column, Line, Table, number, words
from lookalike.studies.glyph_race import (
    LEARNT_SHARE,
    Budget,
    Contestant,
    Outcome,
    Shots,
    draw,
    learn_letters,
    race,
)
from lookalike.studies.localisation_plots import Heat, bars, heat_maps
from lookalike.studies.rules import Part, chance_margin, judged, paired
from lookalike.studies.study import Bench, Claim, Findings, Study, value

Masks = NDArray[np.bool_]
Weights = NDArray[np.float32]
CELL, BOX, INK = "cell", "letter's box", "ink"
SAME = 1e-5  # of the largest weight: smaller differences are rounding
FIRST_TRY = {"average pooling": 0.25, "GSP": 0.39, "attention": 0.63}  # of the weight in the true cell
LEAST = 0.01  # a smaller difference is none
NEAR = 0.08  # a share this close counts as the same


@dataclass(frozen=True)
class Localisation:
    steps: int = value("of every pooling, rate and seed", budget=True)
    letter_steps: int = value("of the network on single letters, or single pictures, before", budget=True)
    rates: tuple[float, ...] = value("learning rates to choose from by held-out classes", budget=True)
    seeds: tuple[int, ...] = value("of every pooling", budget=True)
    train_classes: int = value("drawn letters to train on, a quarter of them held out", budget=True)
    test_classes: int = value("drawn letters to measure on", budget=True)
    pictures: int = value("drawn of each class", budget=True)
    keep: float = value("mu of GSP")
    sharpness: float = value("epsilon of GSP")
    prototypes: int = value("m of GSP")
    shown: int = value("pictures in the figure of heat maps", budget=True)

    def __post_init__(self) -> None:
        for name in ("steps", "letter_steps", "train_classes", "test_classes", "pictures", "prototypes", "shown"):
            check_count(name, getattr(self, name))
        check_range("keep", self.keep, 0, 1)
        check_range("sharpness", self.sharpness, 0, None)
        if not self.seeds or not self.rates:
            raise ValueError("name at least one of seeds and rates")
        for rate in self.rates:
            check_range("every one of rates", rate, 0, None)

    @property
    def budget(self) -> Budget:
        return Budget(
            steps=self.steps,
            letter_steps=self.letter_steps,
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


class Located(NamedTuple):
    """Of one model, by mask: means over the test pictures."""

    share: dict[str, float]
    pointing: dict[str, float]


def letter_mask(reader: GlyphReader, index: int) -> Masks:
    """Where the ink of the letter of picture ``index`` is (size, size): drawn as the reader draws it, alone."""
    letter, random, true_cell = reader._begin(index)
    places = random.random((reader.cells**2, 7)).tolist()
    side = reader.size // reader.cells
    ink = Image.new("L", (reader.size, reader.size))
    corner = (side * (true_cell % reader.cells), side * (true_cell // reader.cells))
    ink.paste(_turned(letter, side, *places[true_cell][1:]), corner)
    return np.asarray(ink) > 127


def box_of(mask: Masks) -> Masks:
    """The bounding box of each mask (n, H, W)."""
    rows, columns = (_filled(np.asarray(mask.any(axis))) for axis in (2, 1))
    return np.asarray(rows[:, :, None] & columns[:, None, :])


def _filled(lines: Masks) -> Masks:
    """Between the first and the last True of each line (n, L)."""
    return np.asarray((lines.cumsum(1) > 0) & (lines[:, ::-1].cumsum(1) > 0)[:, ::-1])


def cell_masks(cells: NDArray[np.int64], grid: int, side: int) -> Masks:
    """The true cell of ``grid`` x ``grid`` in pictures of ``side`` pixels: (n, side, side)."""
    place = np.arange(side) * grid // side
    return np.asarray(grid * place[:, None] + place[None, :] == cells[:, None, None])


def spread(weights: Weights, side: int) -> Weights:
    """Weights (n, places of a square) over the pixels, bilinearly: (n, side, side), adding up to 1."""
    grid = round(weights.shape[1] ** 0.5)
    maps = torch.from_numpy(weights).view(len(weights), 1, grid, grid).double()
    pixels = interpolate(maps, size=(side, side), mode="bilinear", align_corners=False).squeeze(1)
    return np.asarray((pixels / pixels.sum((1, 2), keepdim=True)).numpy())


def located(weights: Weights, masks: dict[str, Masks]) -> Located:
    """Means of share and pointing over pictures; weights (n, places), masks (n, H, W)."""
    pixels = spread(weights, next(iter(masks.values())).shape[1])
    highest = pixels >= pixels.max((1, 2), keepdims=True) * (1 - SAME)
    share = {name: float((pixels * mask).sum((1, 2)).mean()) for name, mask in masks.items()}
    hits = {name: (highest & mask).sum((1, 2)) / highest.sum((1, 2)) for name, mask in masks.items()}
    return Located(share, {name: float(hit.mean()) for name, hit in hits.items()})


def above(name: str, one: Sequence[float], other: Sequence[float] | float) -> Part:
    """The part which says that ``one`` is larger, seed by seed."""
    return paired(name, one, other, LEAST)


def near(name: str, values: Sequence[float], known: float) -> Part:
    """The part which says that the mean is as known; the seeds must agree better than that."""
    coarse = not chance_margin(values) < NEAR
    return Part(name, float("nan") if coarse else abs(float(np.mean(values)) - known), NEAR, np.inf)


def find(settings: Localisation, bench: Bench) -> Findings:
    drawing = _drawing(settings, bench.data)
    budget, contestants = settings.budget, settings.contestants
    shots = {name: _shots(pictures, bench, name) for name, pictures in drawing._asdict().items()}
    backbone = _backbone(shots["alone"], budget, bench)
    masks = _masks(drawing, shots["test"])
    outcomes: dict[str, list[Outcome]] = {}
    rates: dict[str, float] = {}
    for contestant in contestants:
        rates[contestant.name], outcomes[contestant.name] = _raced(contestant, backbone, shots, budget, bench)
    places = {name: [located(each.weights, masks) for each in own] for name, own in outcomes.items()}
    for name, own in places.items():
        told = f"{np.mean([each.share[CELL] for each in own]):.3f} of the weight in the true cell"
        bench.display.say(f"{name}: {told}, points there in {np.mean([each.pointing[CELL] for each in own]):.1%}")
    chance = {name: float(mask.mean()) for name, mask in masks.items()}
    pooling = {contestant.name: contestant for contestant in contestants}
    heats = [Heat(pooling[name], own[0].weights) for name, own in outcomes.items()]
    chosen = np.linspace(0, len(shots["test"].labels) - 1, settings.shown).astype(np.int64)
    notes = [f"Rates, chosen by held-out classes: {', '.join(f'{name} {rate:g}' for name, rate in rates.items())}."]
    if not drawing.is_drawn:
        notes.append(
            "Collage: 12 of the 16 super-classes train and 4 are held out to choose the rate; the test shows unseen "
            "sub-classes of all of them."
        )
    return Findings(
        claims=_claims(places, chance, drawing.is_drawn),
        figures={
            "localisation": (
                bars({name: [each._asdict() for each in own] for name, own in places.items()}, chance, pooling),
                "How much of the pooling weight lies inside the object, and how often the largest weight does, on "
                f"unseen classes; mean and standard deviation over {len(settings.seeds)} seeds. Dashed: by chance.",
            ),
            "heat-maps": (
                heat_maps(shots["test"], heats, spread, chosen),
                "Pooling weights on unseen classes, the first seed. Outlined: the true cell. White: no weight; the "
                "scale of each picture ends at its largest weight.",
            ),
        },
        tables={"localisation": _table(places, outcomes, rates, chance)},
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


def _shots(pictures: Pictures, bench: Bench, name: str) -> Shots:
    pieces = []
    with bench.display.bar(len(pictures), f"drawing: {name}") as tick:
        for first in range(0, len(pictures), 100):
            pieces.append(draw(pictures, first, min(first + 100, len(pictures))))
            tick(len(pieces[-1][1]))
    pixels, cells = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return Shots(pixels, np.unique(pictures.labels, return_inverse=True)[1].astype(np.int64), cells)


def _backbone(alone: Shots, budget: Budget, bench: Bench) -> dict[str, torch.Tensor]:
    def compute() -> dict[str, Any]:
        with bench.display.bar(budget.letter_steps, "alone", " steps") as tick:
            learnt = learn_letters(alone, budget, tick)
        return {name: tensor.numpy() for name, tensor in learnt.items()}

    return {name: torch.from_numpy(array) for name, array in bench.part("backbone", compute).items()}


def _raced(
    contestant: Contestant, backbone: dict[str, torch.Tensor], shots: dict[str, Shots], budget: Budget, bench: Bench
) -> tuple[float, list[Outcome]]:
    """The rate that is best on held-out classes with the first seed, and the outcomes of all seeds with it."""

    def run(rate: float, seed: int) -> Outcome:
        def compute() -> dict[str, Any]:
            with bench.display.bar(budget.steps, f"{contestant.name}, rate {rate:g}, seed {seed}", " steps") as tick:
                return race(contestant, rate, seed, backbone, shots["train"], shots["test"], budget, tick)._asdict()

        return Outcome(**bench.part(f"{contestant.name} {rate:g} {seed}", compute))

    first = {rate: run(rate, budget.seeds[0]) for rate in budget.rates}
    best = max(first, key=lambda rate: first[rate].curve[-1][1])
    return best, [first[best], *(run(best, seed) for seed in budget.seeds[1:])]


def _masks(drawing: Drawing, test: Shots) -> dict[str, Masks]:
    side = test.pixels.shape[1]
    reader: Any = drawing.test.reader
    masks = {CELL: cell_masks(test.cells, 2, side)}
    if drawing.is_drawn:
        ink = np.stack([letter_mask(reader, origin) for origin in drawing.test.origins.tolist()])
        masks |= {BOX: box_of(ink), INK: ink}
    return masks


def _claims(places: dict[str, list[Located]], chance: dict[str, float], is_drawn: bool) -> list[Claim]:
    share, pointing = (
        {name: [getattr(each, what)[CELL] for each in own] for name, own in places.items()}
        for what in ("share", "pointing")
    )

    def told(*names: str) -> str:
        return "; ".join(f"{name}: share {_mean(share[name])}, pointing {_mean(pointing[name])}" for name in names)

    claims = [
        judged(
            "beyond the papers: GSP's weights point at the object without ever seeing a box",
            f"{told('GSP')}; by chance {chance[CELL]:.3f}",
            [above("share", share["GSP"], chance[CELL]), above("pointing", pointing["GSP"], chance[CELL])],
        )
    ]
    for one, other, why in (
        ("GSP", "CroW", "magnitude does not tell nuisance from object (section 5.3.5)"),
        ("GSP", "DeLF", "attention lacks explicit control (section 5.3.5)"),
        ("GSP", "attention", "not in the papers"),
        ("GSP, learnt share", "GSP", "not in the papers"),
        ("GSP, learnt share", "attention", "not in the papers"),
    ):
        parts = [above("share", share[one], share[other]), above("pointing", pointing[one], pointing[other])]
        claims.append(judged(f"{one} selects better than {other}: {why}", told(one, other), parts))
    if is_drawn:
        parts = [
            above("GSP above chance", share["GSP"], chance[CELL]),
            above("attention above GSP", share["attention"], share["GSP"]),
            *(near(f"{name} {known:g}", share[name], known) for name, known in FIRST_TRY.items()),
        ]
        paper = "a first try: of the weight lies in the true cell 0.25 by chance, 0.39 with GSP, 0.63 with attention"
        claims.append(judged(paper, told(*FIRST_TRY), parts))
    return claims


def _mean(values: Sequence[float]) -> str:
    spread_of = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread_of}"


def _table(
    places: dict[str, list[Located]],
    outcomes: dict[str, list[Outcome]],
    rates: dict[str, float],
    chance: dict[str, float],
) -> Table:
    columns = [Column("pooling", "left"), Column("rate"), Column("MAP@R", best="most")]
    for mask in chance:
        columns += [Column(f"share in {mask}", best="most"), Column(f"points at {mask}", best="most")]

    def entry(values: list[float]) -> Any:
        return number(
            100 * float(np.mean(values)), 100 * float(np.std(values, ddof=1)) if len(values) > 1 else None, digits=1
        )

    lines = []
    for name, own in places.items():
        entries = [words(name), words(f"{rates[name]:g}"), entry([each.figures["MAP@R"] for each in outcomes[name]])]
        for mask in chance:
            entries += [entry([each.share[mask] for each in own]), entry([each.pointing[mask] for each in own])]
        lines.append(Line(entries))
    covered = ", ".join(f"{mask} {100 * share:.1f}" for mask, share in chance.items())
    return Table(columns, lines, notes=[f"percent, on unseen classes; by chance: {covered}"])


STUDY = Study(
    name="localisation",
    title="Localisation: pooling weights point at the object, although nobody showed them a box",
    about="Poolings are trained alike, from the same network that has seen single letters (or pictures), on "
    "pictures of 2 x 2 cells of which one decides the class. On unseen classes, where does their weight lie?",
    source="beyond the papers; what they say of the poolings is in section 5.3.5 of Gürbüz's thesis",
    settings=Localisation,
    find=find,
    data="collage:FOLDER of CIFAR-100, or glyphs; else letters are drawn",
)
