"""What average pooling does to local features, as chapter 4 of Gürbüz's thesis has it.

Histogram operator (4.2.5): with c_ij = ||v_i - x_j|| for prototypes v_i and the features x_j of a picture,

    p*, pi* = argmin <c, pi>   s.t.  sum_i pi_ij = 1/n,  sum_j pi_ij = p_i,  pi >= 0

Claim 4.2.1: pi* sends every feature to its nearest prototype. Proposition 4.2.1, with the norm that the triangle
inequality gives (the square, as printed, is false for a radius above 1):

    || sum_i p*_i v_i - mean_j x_j || <= covering radius of the prototypes over these features

Classification view (4.2.4): a linear layer on the average is the average of the linear layer on the places.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from lookalike.geometry import convex_hull
from lookalike.pooling.reference import linear_programme


class Combined(NamedTuple):
    """Of B pictures: the histogram over prototypes, what it makes of them, and the plain average."""

    nearest: Tensor  # (B, n) which prototype
    histogram: Tensor  # (B, m), rows sum to 1
    combination: Tensor  # (B, d) PCC: sum_i p*_i v_i
    average: Tensor  # (B, d) GAP
    radius: Tensor  # (B,) covering radius over the features of this very picture

    @property
    def error(self) -> Tensor:
        return torch.linalg.vector_norm(self.combination - self.average, dim=-1)

    def beyond(self, radius: float, rounding: float) -> int:
        """How many pictures have their average and their mixture farther apart than the radius."""
        return int((self.error > radius + rounding).sum())


def combine(features: Tensor, prototypes: Tensor) -> Combined:
    """Features (B, n, d), prototypes (m, d)."""
    mode = "donot_use_mm_for_euclid_dist"
    distance, nearest = torch.cdist(features.flatten(0, 1), prototypes, compute_mode=mode).min(-1)
    nearest = nearest.view(features.shape[:2])
    histogram = one_hot(nearest, len(prototypes)).to(features.dtype).mean(1)
    radius = distance.view(nearest.shape).amax(1)
    return Combined(nearest, histogram, histogram @ prototypes, features.mean(1), radius)


def histogram_programme(features: Tensor, prototypes: Tensor) -> Tensor:
    """The linear programme (4.2.5) of one picture (n, d), by a solver: p* (m,) in fp64. With everything to be moved
    it is the programme of generalized sum pooling."""
    cost = torch.cdist(prototypes.double(), features.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return torch.from_numpy(linear_programme(cost, keep=1.0)[1].sum(1))


def active_hulls(histogram: Tensor, labels: Tensor, prototypes: Tensor, least: float) -> list[Tensor]:
    """Of each class the hull of its active prototypes: those that get at least the share ``least`` of its features."""
    shares = [histogram[labels == label].mean(0) for label in range(int(labels.max()) + 1)]
    return [convex_hull(prototypes[share >= least]) for share in shares]


def fit_classes(vectors: Tensor, labels: Tensor, steps: int = 100) -> nn.Linear:
    """The class vectors (4.2.2): softmax regression of labels (B,) on vectors (B, d), by L-BFGS."""
    layer = nn.Linear(vectors.shape[1], int(labels.max()) + 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimiser = torch.optim.LBFGS(layer.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        # A little decay: classes that can be told apart without error would have vectors without end.
        value = cross_entropy(layer(vectors), labels) + 1e-4 * layer.weight.square().sum()
        value.backward()
        return value

    optimiser.step(closure)
    return layer.requires_grad_(False)
