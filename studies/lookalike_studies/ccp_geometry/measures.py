"""Measurements of vectors, their classes and the proxies of classes.

Proposition 3.2.2 bounds the gap between the mean loss over all pairs and over pairs with some anchors s,

    gap = | 1/n^2 sum_{i, j} l(z_i, z_j) - 1/(|s| n) sum_{i in s, j} l(z_i, z_j) |  <=  O(zeta delta) + ...

where delta is the largest distance of a picture from the nearest anchor of its class. For the loss of Lemma 3.2.1,

    l = max(0, d - positive margin) for the same class, max(0, negative margin - d) else,

zeta is 1 in the space of the vectors. If each anchor is weighted by the number of pictures nearest to it, the gap is
at most delta without any other term (T1 of the proof). The printed gap weights all anchors alike and needs the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lookalike.geometry import covering_radius, greedy_k_centre

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
CHUNK = 1000  # vectors whose distances from all others are held at once


class Gap(NamedTuple):
    """Covering radius and gaps of one set of anchors."""

    radius: float  # delta, the largest over the classes
    printed: float  # all anchors count alike
    weighted: float  # each counts for the pictures nearest to it


def by_class(vectors: Floats, labels: Labels) -> list[torch.Tensor]:
    return [torch.from_numpy(vectors[labels == label]).double() for label in np.unique(labels)]


def radii(vectors: Floats, labels: Labels, proxies: Floats) -> NDArray[np.float64]:
    """For each class, the largest distance from a vector to the nearest proxy of its class; proxies (classes, k, D)."""
    largest = []
    for points, class_proxies in zip(by_class(vectors, labels), torch.from_numpy(proxies).double(), strict=True):
        largest.append(float(covering_radius(points, class_proxies)))
    return np.array(largest)


def representative_radius(vectors: Floats, labels: Labels) -> float:
    """The covering radius by k = 1..n of a class's own vectors (greedy k-centre), mean over k and over the classes."""
    means = []
    for points in by_class(vectors, labels):
        means.append(float(greedy_k_centre(points, len(points)).radii.mean()))
    return float(np.mean(means))


def inter_class_distance(vectors: Floats, labels: Labels) -> float:
    """The mean distance of two vectors of different classes."""
    points = torch.from_numpy(vectors).double()
    differ = torch.from_numpy(labels[:, None] != labels[None, :])
    return float(torch.cdist(points, points)[differ].mean())


def spread(proxies: Floats) -> float:
    """The mean distance of two proxies of a class; proxies (classes, k, D)."""
    points = torch.from_numpy(proxies).double()
    count = points.shape[1]
    if count < 2:
        return 0.0
    return float(torch.cdist(points, points).sum() / (len(points) * count * (count - 1)))


def class_spread(vectors: Floats, labels: Labels) -> float:
    """The mean distance of two vectors of the same class, mean over the classes."""
    means = []
    for points in by_class(vectors, labels):
        if len(points) > 1:
            means.append(float(torch.pdist(points).mean()))
    return float(np.mean(means))


def gaps(vectors: Floats, labels: Labels, sets: list[Floats], margins: tuple[float, float]) -> list[Gap]:
    """Measure each set of anchors, (classes, k, D) in the order of the labels; margins: positive, negative."""
    points, point_labels = torch.from_numpy(vectors).double(), torch.from_numpy(labels)
    all_pairs = mean_losses(points, point_labels, points, point_labels, margins).mean()
    measured = []
    for anchors in sets:
        flat = torch.from_numpy(anchors).double().flatten(0, 1)
        anchor_labels = torch.from_numpy(np.repeat(np.unique(labels), anchors.shape[1]))
        losses = mean_losses(flat, anchor_labels, points, point_labels, margins)
        distances = torch.cdist(points, flat).masked_fill(point_labels[:, None] != anchor_labels, torch.inf)
        nearest_distances, nearest = distances.min(1)
        shares = torch.bincount(nearest, minlength=len(flat)).double() / len(points)
        printed = (all_pairs - losses.mean()).abs()
        weighted = (all_pairs - (shares * losses).sum()).abs()
        measured.append(Gap(float(nearest_distances.max()), float(printed), float(weighted)))
    return measured


def mean_losses(
    one: torch.Tensor, one_labels: torch.Tensor, other: torch.Tensor, labels: torch.Tensor, margins: tuple[float, float]
) -> torch.Tensor:
    """Mean loss of each of ``one`` over all of ``other``; in chunks, as all distances together take GBs."""
    means = []
    for points, point_labels in zip(one.split(CHUNK), one_labels.split(CHUNK), strict=True):
        distances = torch.cdist(points, other)
        same = point_labels[:, None] == labels
        means.append(torch.where(same, distances - margins[0], margins[1] - distances).clamp(min=0).mean(1))
    return torch.cat(means)


def anchor_sets(vectors: Floats, labels: Labels, counts: tuple[int, ...], seed: int) -> dict[str, list[Floats]]:
    """Choose k anchors of each class (classes, k, D), by k-centre and at random, for each k that all classes have."""
    classes = by_class(vectors, labels)
    possible = [count for count in counts if count <= min(map(len, classes))]
    rng = np.random.default_rng(seed)
    orders = [greedy_k_centre(points, max(possible, default=1)).indices for points in classes]
    sets: dict[str, list[Floats]] = {"k-centre": [], "random": []}
    for count in possible:
        covering, random = [], []
        for points, order in zip(classes, orders, strict=True):
            covering.append(points[order[:count]])
            random.append(points[rng.permutation(len(points))[:count]])
        sets["k-centre"].append(torch.stack(covering).float().numpy())
        sets["random"].append(torch.stack(random).float().numpy())
    return sets


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Spearman's rank correlation; 0 if one side is constant."""
    from scipy.stats import spearmanr

    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(spearmanr(one, other).statistic)
