"""Trainable tokens: what average pooling mixes in, generalized sum pooling leaves out, where one can see it.

16 classes of 4 tokens each and 4 background tokens, all of them trainable points of the plane; a sample is a bag of 50
of them, about half from the background (``token_race``). The loss is C2 on plain distances.

The authors say neither the margin of their loss nor their prototypes, keep and sharpness. Here every combination is
trained with a seed of its own and the best on validation samples is taken, for each margin; then average pooling and
generalized sum pooling train with every margin and all seeds, and the margin is chosen by validation for each of them.
The margin decides: that of the published settings is as large as the square in which the tokens live allows.

Reference: section 5.3.1 and Figure 5.4 of Gürbüz's thesis.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from operator import itemgetter
from typing import Any

from lookalike._util.checks import check_count, check_range
from lookalike.report.seeds import check_seeds
from lookalike_studies.framework.context import Context
from lookalike_studies.framework.study import Study, StudyResult, setting
from lookalike_studies.tokens.claims import (
    GAP,
    GSP,
    Results,
    claims,
    in_words,
    margin_table,
    notes,
    search_table,
    test_samples,
)
from lookalike_studies.tokens.plots import draw_curves, draw_margins, draw_planes
from lookalike_studies.tokens.race import Bags, Run, Trained, Training, train

SEARCH_SEED = 1000  # of none of the runs that count
CAPTIONS = {
    "margins": "MAP@R and overlap of the class hulls over the margin of the loss, mean and deviation over seeds.",
    "chosen": "The plane before and after training, the margin chosen by validation for each pooling (first seed).",
    "published": "The same with the published margin for both.",
    "training": "MAP@R over training, a line for each seed; marked where it was best, which is what was kept.",
}


@dataclass(frozen=True)
class Tokens:
    classes: int = setting("classes")
    tokens: int = setting("tokens of a class")
    background: int = setting("tokens that all classes have in common")
    size: int = setting("tokens in a sample")
    share: float = setting("of class tokens in a sample: the mean")
    spread: float = setting("and the deviation")
    bound: float = setting("coordinates of a token lie in -bound..bound")
    rate: float = setting("learning rate of Adam, of tokens and prototypes")
    per_class: int = setting("samples of each class in a batch")
    patience: int = setting("epochs without a better validation figure that end a run")
    epoch: int = setting("steps", budget=True)
    margins: tuple[float, ...] = setting("how far apart C2 wants classes, to choose from")
    published_margin: float = setting("the one of them that the papers publish for their benchmarks")
    prototypes: tuple[int, ...] = setting("m, to choose from")
    keep: tuple[float, ...] = setting("mu, to choose from")
    sharpness: tuple[float, ...] = setting("epsilon, to choose from")
    validation: int = setting("samples of each class to choose by", budget=True)
    test: int = setting("samples of each class to measure by", budget=True)
    search_epochs: int = setting("of every combination", budget=True)
    epochs: int = setting("at most, of the runs that count", budget=True)
    seeds: tuple[int, ...] = setting("of the runs that count", budget=True)

    def __post_init__(self) -> None:
        check_count("classes", self.classes, least=2)
        for name in ("tokens", "background", "size", "patience", "epoch", "search_epochs", "epochs"):
            check_count(name, getattr(self, name))
        for name in ("per_class", "validation", "test"):
            check_count(name, getattr(self, name), least=2)  # one has no other to be near to
        check_range("share", self.share, 0, 1)
        for name in ("spread", "bound", "rate"):
            check_range(name, getattr(self, name), 0, None)
        for name in ("margins", "prototypes", "keep", "sharpness"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one, got none")
        for m in self.prototypes:
            check_count("every one of prototypes", m)
            if m > self.bags.table:
                raise ValueError(f"prototypes start at tokens, of which there are {self.bags.table}, got {m}")
        for each in self.keep:
            check_range("every one of keep", each, 0, 1)
            if each == 1:
                raise ValueError("keep = 1 is average pooling, which is here anyway: every one of keep must be below 1")
        for each in (*self.sharpness, *self.margins):
            check_range("every one of sharpness and margins", each, 0, None)
        check_seeds(self.seeds)
        if SEARCH_SEED in self.seeds:
            raise ValueError(f"the seed {SEARCH_SEED} is for choosing; seeds must be others")
        if self.published_margin not in self.margins:
            raise ValueError(f"published_margin must be one of margins, got {self.published_margin}")

    @property
    def bags(self) -> Bags:
        return Bags(self.classes, self.tokens, self.background, self.size, self.share, self.spread)

    def training(self, epochs: int) -> Training:
        rates = (self.rate, self.rate)
        return Training(*rates, self.per_class, self.epoch, epochs, self.patience, self.bound, self.validation)


def run(settings: Tokens, context: Context) -> StudyResult:
    choices = product(settings.margins, settings.prototypes, settings.keep, settings.sharpness)
    grid = [Run(margin, SEARCH_SEED, keep, sharpness, m) for margin, m, keep, sharpness in choices]
    tried = [each.best for each in _train("choosing", grid, settings, settings.search_epochs, context)]
    chosen = {
        margin: max((pair for pair in zip(tried, grid, strict=True) if pair[1].margin == margin), key=itemgetter(0))[1]
        for margin in settings.margins
    }
    for margin, run in chosen.items():
        context.display.say(
            f"margin {margin:g}: {in_words(run)}, chosen among {len(grid) // len(chosen)} by validation"
        )
    runs = {
        GAP: [Run(margin, seed) for margin in settings.margins for seed in settings.seeds],
        GSP: [replace(chosen[margin], seed=seed) for margin in settings.margins for seed in settings.seeds],
    }
    trained = {name: _train(name, runs[name], settings, settings.epochs, context) for name in runs}
    results = Results(runs, trained, settings.margins, settings.bags, settings.test)
    best, published = results.best, dict.fromkeys(runs, settings.published_margin)

    samples = test_samples(settings.bags, settings.test, settings.seeds[0])
    planes = {}
    for title, margins in {"chosen": best, "published": published}.items():
        first = {name: results.which(name, margins[name])[0] for name in runs}
        shown = {name: (runs[name][i], trained[name][i]) for name, i in first.items()}
        planes[f"geometry-{title}"] = (draw_planes(shown, samples, settings.tokens), CAPTIONS[title])
    curves = {
        name: {margin: [trained[name][i].curve for i in results.which(name, margin)] for margin in settings.margins}
        for name in runs
    }
    return StudyResult(
        claims=claims(settings, chosen, results),
        figures={
            "margins": (draw_margins(settings.margins, results, settings.published_margin), CAPTIONS["margins"]),
            **planes,
            "training": (draw_curves(curves, settings.epoch, best, settings.published_margin), CAPTIONS["training"]),
        },
        tables={"margins": margin_table(settings, chosen, results), "choosing": search_table(grid, tried)},
        numbers={
            "chosen": {f"{margin:g}": asdict(run) for margin, run in chosen.items()},
            "margin by validation": best,
            "runs": [
                {"pooling": name, **asdict(run), **one, "curve": out.curve}
                for name in runs
                for run, one, out in zip(runs[name], results.measured[name], trained[name], strict=True)
            ],
        },
        notes=notes(settings, results),
    )


def _train(what: str, runs: Sequence[Run], settings: Tokens, epochs: int, context: Context) -> list[Trained]:
    def compute() -> dict[str, Any]:
        with context.display.bar(len(runs) * epochs * settings.epoch, what, " steps") as tick:
            found = train(runs, settings.bags, settings.training(epochs), tick)
        arrays = {
            f"{key} {i}": getattr(each, key)
            for i, each in enumerate(found)
            for key in ("first_tokens", "tokens", "first_prototypes", "prototypes")
        }
        return {"curves": [each.curve for each in found], **arrays}

    kept = context.cached(what, compute)
    return [
        Trained(curve, max(curve), *(kept[f"{key} {i}"] for key in Trained._fields[2:]))
        for i, curve in enumerate(kept["curves"])
    ]


STUDY = Study(
    name="tokens",
    title="Trainable tokens: average pooling mixes in the background, generalized sum pooling leaves it out",
    about="Classes are sets of trainable points of the plane, tokens; a sample is a bag of tokens, half of them from a "
    "background that all classes share. Tokens (and prototypes) are trained through average pooling and through "
    "generalized sum pooling. What happens to the plane can be seen, and how far apart the classes come is measured. "
    "The loss, C2 on plain distances, has a margin that the authors do not give; everything is shown for several.",
    source="section 5.3.1 and Figure 5.4 of Gürbüz's thesis; Figure 3 (a) of the GSP paper",
    settings=Tokens,
    run=run,
)
