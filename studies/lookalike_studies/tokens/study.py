"""Trainable tokens: average pooling mixes in the background, generalized sum pooling leaves it out.

16 classes of 4 tokens each and 4 background tokens, all of them trainable points of the plane. A sample is a bag of 50
tokens, about half of them from the background. The loss is C2 on plain distances.

The authors give neither the margin of their loss nor m, keep and sharpness. For each margin, every combination of these
is trained with a seed of its own and validation chooses one. Then both poolings train with every margin and all seeds,
and validation chooses the margin of each. The published margin is about as large as the square of the tokens allows.

Reference: section 5.3.1 and Figure 5.4 of Gürbüz's thesis.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from lookalike_studies.framework.context import Context, Part, Tick
from lookalike_studies.framework.study import Study, StudyResult
from lookalike_studies.tokens import claims, plots
from lookalike_studies.tokens.claims import GAP, GSP, Results
from lookalike_studies.tokens.model import SEARCH_SEED, Run, Tokens, Trained, train


def run(settings: Tokens, context: Context) -> StudyResult:
    """Choose settings, train both poolings with every margin, measure and judge."""
    grid = []
    for margin, m, keep, sharpness in product(settings.margins, settings.prototypes, settings.keep, settings.sharpness):
        grid.append(Run(margin, SEARCH_SEED, keep, sharpness, m))
    (searched,) = _train_all({"choosing": grid}, settings, settings.search_epochs, context)
    validation = [trained.best for trained in searched]
    best = np.reshape(validation, (len(settings.margins), -1)).argmax(1)  # the grid is ordered by margin
    count = len(grid) // len(best)
    chosen: dict[float, Run] = {}
    for i, margin in enumerate(settings.margins):
        chosen[margin] = grid[i * count + best[i]]
        context.display.say(f"margin {margin:g}: {claims.describe(chosen[margin])}, chosen among {count} by validation")
    runs: dict[str, list[Run]] = {GAP: [], GSP: []}
    for margin, seed in product(settings.margins, settings.seeds):
        runs[GAP].append(Run(margin, seed))
        runs[GSP].append(replace(chosen[margin], seed=seed))
    outcomes = []
    all_trained = _train_all(runs, settings, settings.epochs, context)
    for (pooling, of_pooling), trained in zip(runs.items(), all_trained, strict=True):
        for one, weights in zip(of_pooling, trained, strict=True):
            outcomes.append(claims.measure(pooling, one, weights, settings))
    results, published = Results(outcomes), settings.published_margin

    samples = claims.draw_test_samples(settings, settings.seeds[0])
    at_best, at_published = [], []
    for pooling in runs:
        at_best.append(results.at(pooling, results.best_margin[pooling])[0])
        at_published.append(results.at(pooling, published)[0])
    numbers = []
    for outcome in outcomes:
        run_settings, curve = asdict(outcome.run), outcome.trained.curve
        numbers.append({"pooling": outcome.pooling, **run_settings, **outcome.metrics, "curve": curve})
    return StudyResult(
        claims=claims.judge_claims(results, published),
        figures={
            "margins": (
                plots.draw_margins(results, published),
                "MAP@R and overlap of the class hulls over the margin of the loss, mean and deviation over seeds.",
            ),
            "geometry-chosen": (
                plots.draw_planes(at_best, samples, settings.tokens),
                "The plane before and after training with the chosen margin of each pooling (first seed).",
            ),
            "geometry-published": (
                plots.draw_planes(at_published, samples, settings.tokens),
                "The same with the published margin for both.",
            ),
            "training": (
                plots.draw_curves(results, settings.epoch, published),
                "MAP@R over training, a line for each seed. The best epoch is marked; it is the one measured.",
            ),
        },
        tables={"margins": claims.margin_table(results, published), "choosing": claims.search_table(grid, validation)},
        numbers={
            "chosen": {f"{margin:g}": asdict(one) for margin, one in chosen.items()},
            "margin by validation": results.best_margin,
            "runs": numbers,
        },
        notes=claims.write_notes(results, settings),
    )


def _train_all(
    runs: Mapping[str, Sequence[Run]], settings: Tokens, epochs: int, context: Context
) -> list[list[Trained]]:
    """Train runs by the name of their part, or read them from the cache."""
    parts = []
    for name, of_part in runs.items():
        parts.append(Part(name, len(of_part) * epochs * settings.epoch, partial(_train, of_part, settings, epochs)))
    results = []
    for cached in context.train_all(parts):
        outcomes = []
        for i, curve in enumerate(cached["curves"]):
            outcomes.append(Trained(curve, *[cached[f"{field} {i}"] for field in Trained._fields[1:]]))
        results.append(outcomes)
    return results


def _train(runs: Sequence[Run], settings: Tokens, epochs: int, tick: Tick) -> dict[str, Any]:
    outcomes = train(runs, settings, epochs, tick)
    content: dict[str, Any] = {"curves": [outcome.curve for outcome in outcomes]}
    for i, outcome in enumerate(outcomes):
        for field, points in zip(Trained._fields[1:], outcome[1:], strict=True):
            content[f"{field} {i}"] = points
    return content


STUDY = Study(
    name="tokens",
    title="Trainable tokens: average pooling mixes in the background, generalized sum pooling leaves it out",
    about="Classes are sets of trainable points of the plane, tokens; a sample is a bag of tokens, half of them from a "
    "background that all classes share. Tokens (and prototypes) are trained through average pooling and through "
    "generalized sum pooling. The figures show the plane, and the distance between classes is measured. The loss, C2 "
    "on plain distances, has a margin that the authors do not give; results are shown for several.",
    source="section 5.3.1 and Figure 5.4 of Gürbüz's thesis; Figure 3 (a) of the GSP paper",
    settings=Tokens,
    run=run,
)
