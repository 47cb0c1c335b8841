"""Claim, table and numbers of the study ``zero-shot-prediction``.

Gains of the zero-shot loss are in points of accuracy, seed by seed, for both distances. A verdict is given only if no
better one can be true:

    "reproduced"       both gains count and are at least 30 points
    "partly"           one gain counts and is at least 5 points, and 30 points are excluded for one
    "not reproduced"   5 points are excluded for both
    "not tested"       otherwise: one seed, or too much noise

Controls: the network that all runs start from, and every network with its histograms permuted over the classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lookalike.report.tables import Column, Entry, Table, number
from lookalike_studies.framework.claims import JudgedClaim, Verdict, compare, remarks
from lookalike_studies.framework.tables import format_mean, format_seed_count, sample_std, tabulate
from lookalike_studies.zero_shot_prediction.prediction import DISTANCES, Accuracy, Ridge, Run

BEFORE, PLAIN, ZERO_SHOT = "before training", "without zero-shot loss", "with zero-shot loss"
PERMUTED = "histograms permuted"
PAPER = (
    "the zero-shot loss makes prediction of unseen class means more than 30 points better (section 5.3.3, conclusions)"
)
REPRODUCED_FROM, PARTLY_FROM = 30.0, 5.0  # points
TABLE_NOTE = (
    "percent, mean and standard deviation over seeds, of permuted histograms over all networks; spread: standard "
    "deviation over classes of a prototype's share, mean over prototypes"
)
ByNetwork = Mapping[str, Mapping[str, Accuracy]]  # network -> distance
Scores = Mapping[Ridge, ByNetwork]


def judge_gains(gains: Mapping[str, Sequence[float]], here: str = "") -> JudgedClaim:
    """Judge gains in points, by distance and seed; ``here`` describes them."""
    measured = [compare(distance, of_seeds, 0.0, effect=PARTLY_FROM) for distance, of_seeds in gains.items()]
    here += remarks(measured)
    gain = np.array([evidence.difference for evidence in measured])
    margin = np.array([evidence.margin for evidence in measured])
    counts, largest = gain > margin, gain + margin  # with one seed False and NaN
    verdict: Verdict = "not tested"
    if np.all(counts & (gain >= REPRODUCED_FROM)):
        verdict = "reproduced"
    elif np.all(largest < PARTLY_FROM):
        verdict = "not reproduced"
    elif not np.isnan(largest).any() and np.any(counts & (gain >= PARTLY_FROM)) and np.any(largest < REPRODUCED_FROM):
        verdict = "partly"
    if np.any(counts & (gain < REPRODUCED_FROM) & (largest >= REPRODUCED_FROM)):
        here += f"; {REPRODUCED_FROM:g} points may be there"
    return JudgedClaim(PAPER, here, verdict)


def judge_claim(scores: ByNetwork, ridge: Ridge, chance: float, source: str | None) -> JudgedClaim:
    """Judge the claim for one ridge; ``chance`` is the accuracy by chance in percent, ``source`` is --data."""
    gains, texts = {}, []
    for distance in DISTANCES:
        with_loss, without = scores[ZERO_SHOT][distance].right, scores[PLAIN][distance].right
        gains[distance] = np.subtract(with_loss, without).tolist()
        texts.append(
            f"{distance}: {format_mean(with_loss)} % with, {format_mean(without)} % without, "
            f"{np.mean(gains[distance]):+.1f} points, {format_mean(scores[BEFORE][distance].right)} % before training"
        )
    permuted = np.mean([_permuted(scores, distance) for distance in DISTANCES])
    here = f"fit with {ridge}: {'; '.join(texts)}; by chance {chance:.0f} %, with {PERMUTED} {permuted:.1f} %; "
    here += format_seed_count(len(gains["L2"]))
    if source is None or "cifar10:" not in source:
        here += "; not the authors' data"
    return judge_gains(gains, here)


def scores_table(scores: Scores, runs: Mapping[str, Sequence[Run]]) -> Table:
    """Tabulate accuracies, MAP@R and spread of the histograms by network."""
    columns: list[str | Column] = [""]
    permuted: list[Any] = [PERMUTED]
    for ridge, by_network in scores.items():
        for distance in DISTANCES:
            columns.append(Column(f"{distance}, {ridge}", best="most"))
            permuted.append(_unranked(_permuted(by_network, distance)))
    columns += [Column("MAP@R", best="most"), "spread of the histograms"]
    rows: list[list[Any]] = []
    for name in (PLAIN, ZERO_SHOT, BEFORE):
        values = [by_network[name][distance].right for by_network in scores.values() for distance in DISTANCES]
        values.append([100 * run.map_at_r for run in runs[name]])
        values.append([100 * float(run.histograms.std(0).mean()) for run in runs[name]])
        rows.append([name, *values])
    rows[2][1:] = map(_unranked, rows[2][1:])
    rows.append([*permuted, None, None])
    return tabulate(columns, rows, digits=1, groups=("", "", "control", "control"), notes=[TABLE_NOTE])


def collect_numbers(scores: Scores, runs: Mapping[str, Sequence[Run]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Collect everything about each network for JSON; the network before training has no seed."""
    numbers = []
    for name, of_seeds in runs.items():
        for i, run in enumerate(of_seeds):
            right, permuted = {}, {}
            for ridge, by_network in scores.items():
                for distance, accuracy in by_network[name].items():
                    right[f"{distance}, {ridge}"] = accuracy.right[i] / 100
                    permuted[f"{distance}, {ridge}"] = accuracy.permuted[i] / 100
            seed = None if name == BEFORE else seeds[i]
            metrics = {"MAP@R": run.map_at_r, "loss": run.loss, "histograms": run.histograms}
            numbers.append({"run": name, "seed": seed, **metrics, "accuracy": right, PERMUTED: permuted})
    return numbers


def _permuted(scores: ByNetwork, distance: str) -> list[float]:
    """Accuracies of all networks with permuted histograms."""
    accuracies: list[float] = []
    for by_distance in scores.values():
        accuracies += by_distance[distance].permuted
    return accuracies


def _unranked(values: Sequence[float]) -> Entry:
    return number(float(np.mean(values)), sample_std(values), digits=1, ranked=False)
