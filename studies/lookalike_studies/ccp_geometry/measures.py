"""What there is to measure about vectors, their classes and the proxies that stand for them.

Proposition 3.2.2 is about the gap between a mean loss over all pairs and over pairs with some anchors s alone,

    gap = | 1/n^2 sum_{i, j} l(z_i, z_j) - 1/(|s| n) sum_{i in s, j} l(z_i, z_j) |  <=  O(zeta delta) + ...

where delta is the largest distance of a picture from the nearest anchor of its class. For the loss of Lemma 3.2.1,

    l = max(0, d - positive margin) for the same class, max(0, negative margin - d) else,

zeta is 1 in the space of the vectors, and one part of the bound holds without any "..." : if each anchor counts for the
pictures that are nearest to it, n_a of its class's, the gap is at most delta (term T1 of the proof). The printed gap
counts all anchors alike, and needs the other terms.
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
    """Of one set of anchors."""

    radius: float  # delta, the largest over the classes
    printed: float  # all anchors count alike
    weighted: float  # each counts for the pictures nearest to it


def by_class(vectors: Floats, labels: Labels) -> list[torch.Tensor]:
    return [torch.from_numpy(vectors[labels == label]).double() for label in np.unique(labels)]


def radii(vectors: Floats, labels: Labels, proxies: Floats) -> NDArray[np.float64]:
    """For each class, the largest distance from a vector to the nearest proxy of its class; proxies (classes, k, D)."""
    of = zip(by_class(vectors, labels), torch.from_numpy(proxies).double(), strict=True)
    return np.array([float(covering_radius(points, own)) for points, own in of])


def representative_radius(vectors: Floats, labels: Labels) -> float:
    """The covering radius by k = 1..n of a class's own vectors (greedy k-centre), mean over k and over the classes."""
    return float(np.mean([float(greedy_k_centre(own, len(own)).radii.mean()) for own in by_class(vectors, labels)]))


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
    own = [float(torch.pdist(points).mean()) for points in by_class(vectors, labels) if len(points) > 1]
    return float(np.mean(own))


def gaps(vectors: Floats, labels: Labels, sets: list[Floats], margins: tuple[float, float]) -> list[Gap]:
    """Of each set of anchors, (classes, k, D) in the order of the labels.  margins: positive, negative."""
    points, own = torch.from_numpy(vectors).double(), torch.from_numpy(labels)
    everything = _mean_losses(points, own, points, own, margins).mean()
    found = []
    for anchors in sets:
        flat = torch.from_numpy(anchors).double().flatten(0, 1)
        anchor_labels = torch.from_numpy(np.repeat(np.unique(labels), anchors.shape[1]))
        with_anchors = _mean_losses(flat, anchor_labels, points, own, margins)
        far = torch.cdist(points, flat).masked_fill(own[:, None] != anchor_labels, torch.inf)
        distances, nearest = far.min(1)
        shares = torch.bincount(nearest, minlength=len(flat)).double() / len(points)
        printed, weighted = with_anchors.mean(), (shares * with_anchors).sum()
        found.append(
            Gap(float(distances.max()), float((everything - printed).abs()), float((everything - weighted).abs()))
        )
    return found


def _mean_losses(
    one: torch.Tensor, one_labels: torch.Tensor, other: torch.Tensor, labels: torch.Tensor, margins: tuple[float, float]
) -> torch.Tensor:
    """Of each of ``one``, over all of ``other``; by the thousand, as all distances of all test pictures take GBs."""
    means = []
    for points, own in zip(one.split(CHUNK), one_labels.split(CHUNK), strict=True):
        distances = torch.cdist(points, other)
        same = own[:, None] == labels
        means.append(torch.where(same, distances - margins[0], margins[1] - distances).clamp(min=0).mean(1))
    return torch.cat(means)


def anchor_sets(vectors: Floats, labels: Labels, counts: tuple[int, ...], seed: int) -> dict[str, list[Floats]]:
    """Anchors (classes, k, D) among the vectors for each k that the smallest class has: by k-centre, and by chance."""
    classes = by_class(vectors, labels)
    possible = [count for count in counts if count <= min(map(len, classes))]
    chance = np.random.default_rng(seed)
    spread_out = [greedy_k_centre(own, max(possible, default=1)).indices for own in classes]
    found: dict[str, list[Floats]] = {"k-centre": [], "random": []}
    for count in possible:
        rows = [order[:count] for order in spread_out]
        drawn = [torch.from_numpy(chance.permutation(len(own))[:count]) for own in classes]
        for name, which in (("k-centre", rows), ("random", drawn)):
            chosen = [own[index] for own, index in zip(classes, which, strict=True)]
            found[name].append(torch.stack(chosen).float().numpy())
    return found


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's; 0 where one of them does not vary."""
    from scipy.stats import spearmanr

    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(spearmanr(one, other).statistic)
