"""Prediction of class means from histograms over prototypes, for classes that the predictor was not fitted to.

Every class c has a mean attribute histogram z_c (m) and a mean embedding e_c (D). A ridge regression from z to e, (P3),
is fitted on one half of the classes,

    A = argmin_A sum_c ||z_c A - e_c||^2 + ridge ||A||^2,

and predicts the means of the other half. A prediction is right if its nearest mean among that half is its own class's.

The authors do not give the ridge of this fit. The ridge of the loss is made for batches and shrinks a fit of five rows
a lot, and the effect of any fixed ridge depends on how flat the histograms are, which the loss changes. So there is a
second ridge, relative to the spread of the fitted histograms: share * mean_c ||z_c - mean z||^2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lookalike.objectives.zero_shot import predict_across

DISTANCES = ("L2", "cosine")
SMALLEST_RIDGE = 1e-12  # equal histograms have no spread, and without any ridge the fit has no solution
Array = NDArray[np.float64]


class Run(NamedTuple):
    """One network on the measured pictures."""

    histograms: Array  # (classes, m), mean attributes
    means: Array  # (classes, D), mean embeddings
    map_at_r: float
    loss: float  # NaN before training
    weights: NDArray[np.float32]  # of the shown pictures (n, N)
    nearest: NDArray[np.int64]  # nearest prototypes of their positions (n, N)


@dataclass(frozen=True)
class Ridge:
    """Strength of the regularisation.

    >>> str(Ridge(0.05)), str(Ridge(0.01, is_relative=True))
    ('ridge 0.05', 'relative ridge 0.01')
    """

    size: float
    is_relative: bool = False  # to the spread of the fitted histograms

    def for_fit(self, histograms: Array) -> float:
        """Compute the ridge of a fit on histograms (classes, m)."""
        if not self.is_relative:
            return self.size
        spread = float(((histograms - histograms.mean(0)) ** 2).sum(1).mean())
        return max(SMALLEST_RIDGE, self.size * spread)

    def __str__(self) -> str:
        return f"relative ridge {self.size:g}" if self.is_relative else f"ridge {self.size:g}"


class Accuracy(NamedTuple):
    """Percentage of class means that are predicted rightly, mean over splits, one value per seed."""

    right: list[float]
    permuted: list[float]  # with histograms permuted over the classes


def random_orders(classes: int, count: int, seed: int) -> NDArray[np.int64]:
    """Draw permutations (count, classes)."""
    return np.argsort(np.random.default_rng(seed).random((count, classes)), axis=1)


def random_halves(classes: int, count: int, seed: int = 0) -> NDArray[np.bool_]:
    """Draw halves (count, classes): True for the smaller half, on which the predictor is fitted."""
    return np.asarray(random_orders(classes, count, seed) < classes // 2)


def accuracies(
    histograms: Array, means: Array, halves: NDArray[np.bool_], ridge: Ridge, orders: NDArray[np.int64] | None = None
) -> dict[str, Array]:
    """Measure the share of right predictions by distance and split; NaN where a fit fails.

    ``histograms`` (classes, m) and ``means`` (classes, D) are those of the classes, ``halves`` (splits, classes) the
    ways to halve them. ``orders`` (splits, classes) says whose histogram each class gets; None: its own.
    """
    shares = {distance: np.full(len(halves), np.nan) for distance in DISTANCES}
    for i, half in enumerate(halves):
        given = histograms
        if orders is not None:
            given = histograms[orders[i]]
        tensors = torch.from_numpy(given), torch.from_numpy(means), torch.from_numpy(half)
        predicted = predict_across(*tensors, ridge.for_fit(given[half])).numpy()[~half]
        targets = means[~half]
        if np.isfinite(predicted).all():
            indices = np.arange(len(targets))
            squared = ((predicted[:, None] - targets) ** 2).sum(2)
            shares["L2"][i] = (squared.argmin(1) == indices).mean()
            shares["cosine"][i] = ((predicted @ _unit(targets).T).argmax(1) == indices).mean()
    return shares


def measure_accuracy(runs: Sequence[Run], splits: int, ridge: Ridge) -> dict[str, Accuracy]:
    """Measure the accuracy of networks that differ in their seed, by distance."""
    classes = len(runs[0].means)
    halves, orders = random_halves(classes, splits), random_orders(classes, splits, seed=1)
    result = {distance: Accuracy([], []) for distance in DISTANCES}
    for run in runs:
        right = accuracies(run.histograms, run.means, halves, ridge)
        permuted = accuracies(run.histograms, run.means, halves, ridge, orders)
        for distance, accuracy in result.items():
            accuracy.right.append(100 * float(right[distance].mean()))
            accuracy.permuted.append(100 * float(permuted[distance].mean()))
    return result


def _unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))
