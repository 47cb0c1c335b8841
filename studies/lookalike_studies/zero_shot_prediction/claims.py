"""How well histograms predict class means, and what the thesis claims.

The authors do not say with which ridge they fit. That of the loss, made for batches, shrinks a fit of five rows a lot,
and any fixed one is much or little by how flat the histograms are, which the loss changes. So there is a second, in
proportion to how far the fitted histograms z_c lie from their mean: ridge = share * mean_c ||z_c - mean z||^2. Flatter
histograms that say the same predict as well with it. The claim is judged with both.

Controls: the network that all runs start from, measured alike, and every network with its histograms permuted over the
classes, anew for each split, which is chance as this procedure has it.

Verdicts. Gains of the zero-shot loss are in points of that accuracy, mean over splits, seed by seed, and sure as
``claims`` says. None is given while a better one may be true:

    "reproduced"       at least 30 points by both distances, and surely above 0
    "partly"           at least 5 by one of them, and surely above 0; 30 excluded for one of them
    "not reproduced"   5 excluded for both
    "not tested"       else: one seed, or seeds that differ too much
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lookalike.objectives.zero_shot import predict_across
from lookalike.report.seeds import count_in_words, deviation, entry, in_words
from lookalike.report.tables import Column, Entry, Line, Table, number, words
from lookalike_studies.framework.claims import Evidence, JudgedClaim, Verdict, compare, remarks

BEFORE, PLAIN, ZERO_SHOT = "before training", "without zero-shot loss", "with zero-shot loss"
PERMUTED = "histograms permuted"
DISTANCES = ("L2", "cosine")
MUCH, SOME = 30.0, 5.0  # points
LEAST = 1e-12  # ridge: where all histograms are the same, no ridge at all would leave nothing to be solved
Array = NDArray[np.float64]


class Run(NamedTuple):
    """One network, on the pictures that are measured."""

    histograms: Array  # (classes, m), mean attributes
    means: Array  # (classes, D), mean embeddings
    map_at_r: float
    loss: float  # NaN before training
    weights: NDArray[np.float32]  # of the shown pictures (n, N)
    nearest: NDArray[np.int64]  # their places' prototypes (n, N)


@dataclass(frozen=True)
class Ridge:
    """
    >>> str(Ridge(0.05)), str(Ridge(0.01, is_relative=True))
    ('ridge 0.05', 'relative ridge 0.01')
    """

    size: float
    is_relative: bool = False  # to the spread of the histograms

    def of(self, histograms: Array) -> float:
        """For a fit on these (classes, m)."""
        if not self.is_relative:
            return self.size
        return max(LEAST, self.size * float(((histograms - histograms.mean(0)) ** 2).sum(1).mean()))

    def __str__(self) -> str:
        return f"{'relative ' if self.is_relative else ''}ridge {self.size:g}"


class Predicted(NamedTuple):
    """Class means predicted rightly in percent, mean over splits, of each seed."""

    right: list[float]
    permuted: list[float]


OfNetworks = Mapping[str, Mapping[str, Predicted]]  # by network and distance
Scores = Mapping[Ridge, OfNetworks]


def random_halves(classes: int, count: int, seed: int = 0) -> NDArray[np.bool_]:
    """(count, classes): True for those that the predictor is fitted on, the smaller half."""
    return np.asarray(random_orders(classes, count, seed) < classes // 2)


def random_orders(classes: int, count: int, seed: int) -> NDArray[np.int64]:
    """(count, classes)"""
    return np.argsort(np.random.default_rng(seed).random((count, classes)), axis=1)


def accuracies(
    histograms: Array,
    means: Array,
    halves: NDArray[np.bool_],
    ridge: Ridge,
    orders: NDArray[np.int64] | None = None,
) -> dict[str, Array]:
    """By distance, for each way to halve the classes (splits, classes), the share of the other half's means that are
    predicted rightly; NaN where a fit fails.  orders: (splits, classes), whose histogram each class is given."""
    found = {distance: np.full(len(halves), np.nan) for distance in DISTANCES}
    targets = torch.from_numpy(means)
    for i, half in enumerate(halves):
        own = histograms if orders is None else histograms[orders[i]]
        across = predict_across(torch.from_numpy(own), targets, torch.from_numpy(half), ridge.of(own[half]))
        predicted, others = across.numpy()[~half], means[~half]
        if np.isfinite(predicted).all():
            apart = ((predicted[:, None] - others) ** 2).sum(2), -(_unit(predicted) @ _unit(others).T)
            for distance, each in zip(DISTANCES, apart, strict=True):
                found[distance][i] = (each.argmin(1) == np.arange(len(others))).mean()
    return found


def score(runs: Sequence[Run], splits: int, ridge: Ridge) -> dict[str, Predicted]:
    """By distance."""
    classes = len(runs[0].means)
    halves, orders = random_halves(classes, splits), random_orders(classes, splits, seed=1)
    right = [accuracies(run.histograms, run.means, halves, ridge) for run in runs]
    permuted = [accuracies(run.histograms, run.means, halves, ridge, orders) for run in runs]
    return {
        distance: Predicted(*([100 * float(of[distance].mean()) for of in each] for each in (right, permuted)))
        for distance in DISTANCES
    }


def _unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def _parts(gains: Mapping[str, Sequence[float]]) -> list[Evidence]:
    return [compare(distance, of, 0.0, effect=SOME) for distance, of in gains.items()]


def _excludes(part: Evidence, points: float) -> bool:
    return part.difference + part.margin < points


def verdict(gains: Mapping[str, Sequence[float]]) -> Verdict:
    """``gains``: by distance, points of each seed."""
    parts = _parts(gains)
    if not all(part.is_measured for part in parts):
        return "not tested"
    if all(part.holds and part.difference >= MUCH for part in parts):
        return "reproduced"
    if all(_excludes(part, SOME) for part in parts):
        return "not reproduced"
    some = any(part.holds and part.difference >= SOME for part in parts)
    return "partly" if some and any(_excludes(part, MUCH) for part in parts) else "not tested"


def claim(predicted: OfNetworks, ridge: Ridge, chance: float, source: str | None) -> JudgedClaim:
    right = {name: {distance: own[distance].right for distance in DISTANCES} for name, own in predicted.items()}
    gains = {
        distance: [one - other for one, other in zip(right[ZERO_SHOT][distance], right[PLAIN][distance], strict=True)]
        for distance in DISTANCES
    }
    told = [
        f"{distance}: {in_words(right[ZERO_SHOT][distance])} % with, {in_words(right[PLAIN][distance])} % without, "
        f"{np.mean(gains[distance]):+.1f} points, {in_words(right[BEFORE][distance])} % before training"
        for distance in DISTANCES
    ]
    parts = _parts(gains)
    here = f"fit with {ridge}: {'; '.join(told)}; by chance {chance:.0f} %, with {PERMUTED} "
    here += f"{np.mean([_permuted(predicted, distance) for distance in DISTANCES]):.1f} %; "
    here += count_in_words(len(gains[DISTANCES[0]]))
    here += "" if source is not None and "cifar10:" in source else "; not the authors' data"
    here += remarks(parts)
    if any(part.holds and part.difference < MUCH and not _excludes(part, MUCH) for part in parts):
        here += f"; {MUCH:g} points may be there"
    return JudgedClaim(
        "the zero-shot loss makes prediction of unseen class means more than 30 points better (section 5.3.3, "
        "conclusions)",
        here,
        verdict(gains),
    )


def _permuted(predicted: OfNetworks, distance: str) -> list[float]:
    """Of all networks."""
    return [each for own in predicted.values() for each in own[distance].permuted]


def table(scores: Scores, runs: Mapping[str, Sequence[Run]]) -> Table:
    columns = [Column("", "left")]
    columns += [Column(f"{distance}, {ridge}", best="most") for ridge in scores for distance in DISTANCES]
    columns += [Column("MAP@R", best="most"), Column("spread of the histograms")]
    lines = []
    for name in (PLAIN, ZERO_SHOT, BEFORE):
        values = [by[name][distance].right for by in scores.values() for distance in DISTANCES]
        values += [[100 * run.map_at_r for run in runs[name]]]
        values += [[100 * float(run.histograms.std(0).mean()) for run in runs[name]]]
        told = [_unranked(of) if name == BEFORE else entry(of, digits=1) for of in values]
        lines.append(Line([words(name), *told], group="control" if name == BEFORE else ""))
    permuted = [_unranked(_permuted(by, distance)) for by in scores.values() for distance in DISTANCES]
    lines.append(Line([words(PERMUTED), *permuted, number(None), number(None)], group="control"))
    notes = [
        "percent, mean and standard deviation over seeds, of permuted histograms over all networks; spread: standard "
        "deviation over classes of a prototype's share, mean over prototypes"
    ]
    return Table(columns, lines, notes=notes)


def _unranked(values: Sequence[float]) -> Entry:
    return number(float(np.mean(values)), deviation(values), digits=1, ranked=False)


def of_runs(scores: Scores, runs: Mapping[str, Sequence[Run]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """For JSON; before training there is no seed."""
    return [
        {
            "run": name,
            "seed": None if name == BEFORE else seeds[i],
            "MAP@R": run.map_at_r,
            "loss": run.loss,
            "histograms": run.histograms,
            "accuracy": {
                f"{d}, {ridge}": by[name][d].right[i] / 100 for ridge, by in scores.items() for d in DISTANCES
            },
            PERMUTED: {
                f"{d}, {ridge}": by[name][d].permuted[i] / 100 for ridge, by in scores.items() for d in DISTANCES
            },
        }
        for name, own in runs.items()
        for i, run in enumerate(own)
    ]
