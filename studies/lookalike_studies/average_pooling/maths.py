"""Average pooling as a mixture of prototypes: chapter 4 of Gürbüz's thesis.

Histogram operator (4.2.5): with c_ij = ||v_i - x_j|| for prototypes v_i and the features x_j of a picture,

    p*, pi* = argmin <c, pi>   s.t.  sum_i pi_ij = 1/n,  sum_j pi_ij = p_i,  pi >= 0

Claim 4.2.1: pi* sends every feature to its nearest prototype. Proposition 4.2.1, with the norm that the triangle
inequality gives (the square, as printed, is false for a radius above 1):

    || sum_i p*_i v_i - mean_j x_j || <= covering radius of the prototypes over these features

Classification view (4.2.4): a linear layer on the average is the average of the linear layer on the positions.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from lookalike.geometry import greedy_k_centre
from lookalike.pooling.reference import linear_programme
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike_studies.framework.hulls import Overlap, class_hulls, convex_hull, overlap

EXACT, ROUNDING = 1e-6, 1e-4
EUCLIDEAN = "donot_use_mm_for_euclid_dist"  # of torch.cdist: without cancellation


class Mixtures(NamedTuple):
    """B pictures as mixtures of m prototypes, and their plain averages."""

    nearest: Tensor  # (B, n), prototype of each feature
    histogram: Tensor  # (B, m), rows sum to 1
    combination: Tensor  # (B, d), PCC: sum_i p*_i v_i
    average: Tensor  # (B, d), GAP
    radius: Tensor  # (B,), covering radius over the features of the picture

    @property
    def error(self) -> Tensor:
        """Distance between PCC and GAP, (B,)."""
        return torch.linalg.vector_norm(self.combination - self.average, dim=-1)

    def violations(self, radius: float, rounding: float) -> int:
        """Count pictures whose error exceeds a covering radius."""
        return int((self.error > radius + rounding).sum())


class Cover(NamedTuple):
    """Prototypes that cover all local features, chosen by greedy k-centre."""

    prototypes: Tensor  # (m, d)
    radius: float  # covering radius over all features
    mixtures: Mixtures
    hulls: list[Tensor]  # of the active prototypes of each class
    overlap: Overlap  # of these hulls


class Network(NamedTuple):
    """What one network makes of the pictures, and how far the theory holds."""

    features: Tensor  # (B, n, 2)
    cover: Cover
    layer: nn.Linear  # classes, fitted on the averages
    metrics: dict[str, float]


def scale_to_disc(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Divide local features (B, n, d) by the largest norm; angles and ratios of distances stay as they are."""
    largest = np.linalg.norm(features, axis=-1).max()
    return features / max(float(largest), np.finfo(np.float32).tiny)


def combine(features: Tensor, prototypes: Tensor) -> Mixtures:
    """Assign features (B, n, d) to their nearest prototypes (m, d)."""
    distance, nearest = torch.cdist(features.flatten(0, 1), prototypes, compute_mode=EUCLIDEAN).min(-1)
    nearest = nearest.view(features.shape[:2])
    histogram = one_hot(nearest, len(prototypes)).to(features.dtype).mean(1)
    radius = distance.view(nearest.shape).amax(1)
    return Mixtures(nearest, histogram, histogram @ prototypes, features.mean(1), radius)


def histogram_programme(features: Tensor, prototypes: Tensor) -> Tensor:
    """Solve the linear programme (4.2.5) of one picture (n, d): p* (m,) in fp64.

    It is the programme of generalized sum pooling with keep = 1.
    """
    cost = torch.cdist(prototypes.double(), features.double(), compute_mode=EUCLIDEAN)
    return torch.from_numpy(linear_programme(cost, keep=1.0)[1].sum(1))


def active_hulls(histogram: Tensor, labels: Tensor, prototypes: Tensor, least: float) -> list[Tensor]:
    """Compute the hull of each class's active prototypes, which get at least the share ``least`` of its features."""
    hulls = []
    for label in range(int(labels.max()) + 1):
        share = histogram[labels == label].mean(0)
        hulls.append(convex_hull(prototypes[share >= least]))
    return hulls


def cover_features(features: Tensor, labels: Tensor, count: int, active: float) -> Cover:
    """Cover features (B, n, d) of pictures with labels (B,) by ``count`` prototypes."""
    points = features.flatten(0, 1)
    indices, radii = greedy_k_centre(points, count)
    mixtures = combine(features, points[indices])
    hulls = active_hulls(mixtures.histogram, labels, points[indices], active)
    return Cover(points[indices], float(radii[-1]), mixtures, hulls, overlap(hulls))


def fit_classes(vectors: Tensor, labels: Tensor, steps: int = 100) -> nn.Linear:
    """Fit the class vectors (4.2.2): softmax regression of labels (B,) on vectors (B, d), by L-BFGS."""
    layer = nn.Linear(vectors.shape[1], int(labels.max()) + 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        # The decay keeps the weights finite if the classes are separable.
        value = cross_entropy(layer(vectors), labels) + 1e-4 * layer.weight.square().sum()
        value.backward()
        return value

    optimizer.step(closure)
    return layer.requires_grad_(False)


def measure_network(features: Tensor, labels: Tensor, count: int, active: float, programmes: int) -> Network:
    """Measure everything that the claims need, from local features (B, n, 2) of pictures with labels (B,)."""
    cover = cover_features(features, labels, count, active)
    mixtures = cover.mixtures
    solved = np.linspace(0, len(features) - 1, min(programmes, len(features))).astype(int)
    differences = []
    for i in solved:
        difference = histogram_programme(features[i], cover.prototypes) - mixtures.histogram[i]
        differences.append(float(difference.abs().max()))
    layer = fit_classes(mixtures.average, labels)
    scores = layer(features)
    mean_scores = scores.mean(1)
    decision = mean_scores.argmax(-1)
    picture_overlap = overlap(class_hulls(mixtures.average, labels))
    cells = torch.stack([mixtures.histogram[labels == label].sum(0) for label in range(int(labels.max()) + 1)])
    metrics = {
        "MAP@R": retrieval_metrics(mixtures.average, labels, distance="l2")["MAP@R"],
        "MAP@R of PCC": retrieval_metrics(mixtures.combination, labels, distance="l2")["MAP@R"],
        "programme off by": max(differences),
        "programmes": len(differences),
        "radius": cover.radius,
        "median norm": float(torch.linalg.vector_norm(features, dim=-1).median()),
        "error": float(mixtures.error.mean()),
        "largest error": float(mixtures.error.max()),
        "violations": mixtures.violations(cover.radius, EXACT),
        "scores off by": float((mean_scores - layer(mixtures.average)).abs().max()),
        "accuracy": _share(decision == labels),
        "places for the decision": _share(scores.argmax(-1) == decision.unsqueeze(1)),
        "overlapping pairs": cover.overlap.pairs,
        "overlap": cover.overlap.share,
        "overlapping pairs of pictures": picture_overlap.pairs,
        "overlap of pictures": picture_overlap.share,
        "purity": float(cells.amax(0).sum() / cells.sum()),
    }
    return Network(features, cover, layer, metrics)


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())
