"""How well histograms predict class means, and what the thesis claims.

Verdicts. Gains of the zero-shot loss are in points of that accuracy, mean over splits, seed by seed. "Reproduced" if
the mean gain over seeds is at least 30 by both distances and surely above 0, as ``rules`` says; "partly" if it is
surely above 0 and at least 5 by one of them; else "not reproduced". With one seed nothing is tested. The authors do not
say with which ridge they fit: that of the loss, made for batches, shrinks a fit of five rows a lot. So the claim is
judged twice, with that ridge and with nearly none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lookalike.objectives.zero_shot import predict_across
from lookalike.report.tables import Column, Line, Table, words
from lookalike.studies.over_seeds import count_in_words, entry, in_words
from lookalike.studies.rules import Part, paired, remarks
from lookalike.studies.study import Claim, Verdict

PLAIN, ZERO_SHOT = "without zero-shot loss", "with zero-shot loss"
DISTANCES = ("L2", "cosine")
MUCH, SOME = 30.0, 5.0  # points
Array = NDArray[np.float64]


class Run(NamedTuple):
    """One network, on the pictures that are measured."""

    histograms: Array  # (classes, m), mean attributes
    means: Array  # (classes, D), mean embeddings
    map_at_r: float
    loss: float
    weights: NDArray[np.float32]  # of the shown pictures (n, N)
    nearest: NDArray[np.int64]  # their places' prototypes (n, N)


def random_halves(classes: int, count: int, seed: int = 0) -> NDArray[np.bool_]:
    """(count, classes): True for those that the predictor is fitted on, the smaller half."""
    chance = np.random.default_rng(seed)
    order = np.argsort(chance.random((count, classes)), axis=1)
    return np.asarray(order < classes // 2)


def accuracies(
    histograms: Array, means: Array, halves: NDArray[np.bool_], ridge: float, distance: str
) -> NDArray[np.float64]:
    """For each way to halve the classes (splits, classes), the share of the other half's means predicted rightly."""
    found = np.empty(len(halves))
    attributes, targets = torch.from_numpy(histograms), torch.from_numpy(means)
    for i, half in enumerate(halves):
        predicted = predict_across(attributes, targets, torch.from_numpy(half), ridge).numpy()[~half]
        others = means[~half]
        if distance == "L2":
            apart = ((predicted[:, None] - others) ** 2).sum(2)
        else:
            apart = -(_unit(predicted) @ _unit(others).T)
        found[i] = (apart.argmin(1) == np.arange(len(others))).mean()
    return found


def _parts(gains: Mapping[str, Sequence[float]]) -> list[Part]:
    return [paired(distance, of, 0.0) for distance, of in gains.items()]


def verdict(gains: Mapping[str, Sequence[float]]) -> Verdict:
    """``gains``: by distance, points of each seed."""
    parts = _parts(gains)
    if not all(part.is_known for part in parts):
        return "not tested"
    if all(part.holds and part.lead >= MUCH for part in parts):
        return "reproduced"
    return "partly" if any(part.holds and part.lead >= SOME for part in parts) else "not reproduced"


def _unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def claim(right: Mapping[str, Mapping[str, Sequence[Array]]], ridge: float, chance: float, source: str | None) -> Claim:
    by_seed = {
        name: {distance: [100 * float(each.mean()) for each in of] for distance, of in own.items()}
        for name, own in right.items()
    }
    gains = {
        distance: [
            one - other for one, other in zip(by_seed[ZERO_SHOT][distance], by_seed[PLAIN][distance], strict=True)
        ]
        for distance in DISTANCES
    }
    parts = [
        f"{distance}: {in_words(by_seed[ZERO_SHOT][distance])} % with, {in_words(by_seed[PLAIN][distance])} % "
        f"without, {np.mean(gains[distance]):+.1f} points"
        for distance in DISTANCES
    ]
    seeds = len(gains[DISTANCES[0]])
    here = f"fit with ridge {ridge:g}: {'; '.join(parts)}; by chance {chance:.0f} %; "
    here += count_in_words(seeds)
    here += "" if source is not None and "cifar10:" in source else "; not the authors' data"
    here += remarks(_parts(gains))
    return Claim(
        "the zero-shot loss makes prediction of unseen class means more than 30 points better (section 5.3.3, "
        "conclusions)",
        here,
        verdict(gains),
    )


def table(
    right: Mapping[float, Mapping[str, Mapping[str, Sequence[Array]]]], runs: Mapping[str, Sequence[Run]]
) -> Table:
    columns = [Column("", "left")]
    columns += [Column(f"{distance}, ridge {ridge:g}", best="most") for ridge in right for distance in DISTANCES]
    columns += [Column("MAP@R", best="most"), Column("spread of the histograms")]
    lines = []
    for name, own in runs.items():
        values = [
            [100 * float(each.mean()) for each in by[name][distance]] for by in right.values() for distance in DISTANCES
        ]
        values += [[100 * run.map_at_r for run in own], [100 * float(run.histograms.std(0).mean()) for run in own]]
        lines.append(Line([words(name), *(entry(of, digits=1) for of in values)]))
    notes = [
        "percent, mean and standard deviation over seeds; spread: standard deviation over classes of a prototype's "
        "share, mean over prototypes"
    ]
    return Table(columns, lines, notes=notes)
