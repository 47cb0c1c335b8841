"""Centres on a sphere that a regulariser moves, how far apart they come to rest, and what is known about the best.

Tammes     the largest possible smallest angle: 109.47 degrees for N = 4, 63.43 for 12 (icosahedron)
Thomson    the least possible E_1 = sum over pairs of 1 / d: 3.674 for N = 4, 49.165 for 12
universal  for N = 4, 6 and 12 one arrangement is the best under every energy, UniformFace and every power mean of
           a knob below 2 (Cohn and Kumar, 2007: they are completely monotone functions of the squared distance)
knob 2     the mean squared distance is 2 N / (N - 1) (1 - ||mean of the centres||^2): whatever has its mean in the
           middle is a maximum
above 2    half of the centres on one pole and half on the other is the maximum (Björck, 1956)
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, pi
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from lookalike.objectives import create_centres
from lookalike.skewed_means import SkewedMean

Array = NDArray[np.float64]

# By number of centres: Tammes's angle in degrees and Thomson's energy (Sloane's tables; Cambridge Cluster Database).
BEST_KNOWN = {
    4: (109.4712206, 3.674234614),
    6: (90.0, 9.985281374),
    12: (63.4349488, 49.165253058),
    24: (43.6907671, 223.347074052),
    32: (37.4752140, 412.261274651),
}
NEAREST, FARTHEST, MEAN, CROWDING = "nearest", "farthest", "mean distance", "R1 as printed"
ENERGIES = ("E_2", "E_1", "E_0", "UniformFace")
FARTHEST_PAIRS, NEAREST_PAIRS = "the N farthest pairs", "the N nearest pairs"
SAME_PLACE = 1.0  # degrees


class Arrangement(NamedTuple):
    """Of N centres: angles in degrees, distances of unit vectors."""

    least_angle: float
    nearest_angle: float  # mean over the centres of the angle to the nearest other
    mean_distance: float
    energy: float  # E_1, each pair once
    places: int  # that are more than a degree apart


def regularisers(count: int, knobs: tuple[float, ...], sharpness: float) -> dict[str, dict[str, Any]]:
    """Settings for ``create_centres`` by name, from nearest to farthest."""
    named = {"E_2": "mhe-2", "E_1": "mhe-1", "E_0": "mhe-0", "UniformFace": "uniform-face"}
    low = {knob_name(knob): {"kind": "power", "knob": knob} for knob in sorted(knobs) if knob < 1}
    high = {knob_name(knob): {"kind": "power", "knob": knob} for knob in sorted(knobs) if knob > 1}
    return {
        NEAREST: {"preset": "nearest"},
        NEAREST_PAIRS: {"kind": "k", "knob": -count},
        CROWDING: {"preset": "r1", "sharpness": sharpness},
        **low,
        **{name: {"preset": preset} for name, preset in named.items()},
        MEAN: {"kind": "power", "knob": 1.0},
        **high,
        FARTHEST_PAIRS: {"kind": "k", "knob": count},
        FARTHEST: {"preset": "farthest"},
    }


def knob_name(knob: float) -> str:
    return {-inf: NEAREST, -2: "E_2", -1: "E_1", 0: "E_0", 1: MEAN, inf: FARTHEST}.get(knob, f"knob {knob:g}")


def by_chance(count: int, dim: int, seed: int) -> Tensor:
    """Centres (N, D), anywhere on the sphere."""
    rng = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, dim, generator=rng, dtype=torch.float64))


def crowd(count: int, degrees: float, seed: int) -> Tensor:
    """Centres (N, 3) within so many degrees of a pole: one in the middle has others all around it."""
    rng = torch.Generator().manual_seed(seed)
    draws = torch.rand(count, 2, generator=rng, dtype=torch.float64)
    height = 1 - draws[:, 0] * (1 - np.cos(np.radians(degrees)))
    turn, radius = 2 * pi * draws[:, 1], (1 - height.square()).sqrt()
    return torch.stack((radius * turn.cos(), radius * turn.sin(), height), 1)


def settle(
    start: Tensor,
    settings: dict[str, Any],
    steps: int,
    rate: float,
    tick: Callable[[int], None] = lambda _: None,
    *,
    memory: float = 0.999,
) -> tuple[Array, Array]:
    """Move centres (N, D) by Adam, with a rate that falls to 0.

    This minimises a closed-form energy and has no batches, so it uses torch.optim directly instead of ``fit``.
    ``memory`` is the second beta of Adam: the longer large gradients are remembered, such as those of a crowd, the
    longer steps stay small. Returns the last centres, and the least angle at the start and after each step (steps +
    1,).
    """
    centres = nn.Parameter(start.clone())
    regulariser = create_centres(**settings, proxies_of=centres)
    optimizer = torch.optim.Adam([centres], lr=rate, betas=(0.9, memory))
    batch = centres.new_zeros(1, centres.shape[1]), torch.zeros(1, dtype=torch.int64)  # is ignored
    angles = np.empty(steps + 1)
    for step in range(steps):
        angles[step] = least_angle(centres.detach())
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps) ** 2
        optimizer.zero_grad(set_to_none=True)
        regulariser(*batch).value.backward()
        optimizer.step()
        with torch.no_grad():
            centres.copy_(normalize(centres))
        tick(1)
    angles[steps] = least_angle(centres.detach())
    return centres.detach().numpy(), angles


def measure(centres: Array) -> Arrangement:
    angles = np.degrees(2 * np.arcsin((pairwise_distances(centres) / 2).clip(max=1)))
    table = np.full((len(centres), len(centres)), np.inf)
    rows, columns = np.triu_indices(len(centres), 1)
    table[rows, columns] = table[columns, rows] = angles
    distances = pairwise_distances(centres)
    energy = float((1 / distances.clip(min=1e-6)).sum())
    return Arrangement(
        float(angles.min()), float(table.min(1).mean()), float(distances.mean()), energy, len(places(centres))
    )


def places(centres: Array) -> list[tuple[Array, int]]:
    """Group centres by place, and count them: those within a degree of the first one count as one place."""
    groups: list[tuple[Array, int]] = []
    reach = 2 * np.sin(np.radians(SAME_PLACE) / 2)
    for centre in centres:
        for i, (place, count) in enumerate(groups):
            if np.linalg.norm(place - centre) < reach:
                groups[i] = (place, count + 1)
                break
        else:
            groups.append((centre, 1))
    return groups


def pairwise_distances(centres: Array) -> Array:
    """Distances of all pairs, each once, (N (N - 1) / 2,)."""
    rows, columns = np.triu_indices(len(centres), 1)
    return np.asarray(np.linalg.norm(centres[rows] - centres[columns], axis=1))


def equalities(centres: Array) -> dict[str, tuple[float, float]]:
    """Compute both sides of the equalities of the text, by name; E_s are sums over i != j, as in the regularisers."""
    distances = torch.from_numpy(pairwise_distances(centres))
    pairs, parameter = 2 * len(distances), nn.Parameter(torch.from_numpy(centres))
    batch = torch.zeros(1, centres.shape[1], dtype=torch.float64), torch.zeros(1, dtype=torch.int64)  # is ignored

    def energy(preset: str) -> float:
        return float(create_centres(preset, proxies_of=parameter)(*batch).value.detach())

    def mean(knob: float) -> float:
        return float(SkewedMean("power", knob)(distances))

    return {
        "E_0 = -pairs log M_0": (energy("mhe-0"), -pairs * float(np.log(mean(0)))),
        "E_1 = pairs / M_-1": (energy("mhe-1"), pairs / mean(-1)),
        "E_2 = pairs / M_-2^2": (energy("mhe-2"), pairs / mean(-2) ** 2),
        "UniformFace = (10) at lambda -1, the mean distance": (energy("uniform-face"), mean(1)),
    }


def push_on_the_farther_half(centres: Array, sharpness: float) -> float:
    """The share of R1's push, |dR1 / dd|, on the pairs whose distance is above the median."""
    distances = np.linalg.norm(centres[:, None] - centres, axis=-1)
    exponents = sharpness * (1 - distances**2 / 2)  # the similarity of unit vectors
    np.fill_diagonal(exponents, -np.inf)
    weights = np.exp(exponents - exponents.max(1, keepdims=True))
    push = distances * weights / weights.sum(1, keepdims=True)
    rows, columns = np.triu_indices(len(centres), 1)
    both = (push + push.T)[rows, columns]
    far = distances[rows, columns] > np.median(distances[rows, columns])
    return float(both[far].sum() / both.sum())


def least_angle(centres: Tensor) -> float:
    """In degrees."""
    return float(torch.rad2deg(2 * (torch.pdist(centres).min() / 2).clamp(max=1).asin()))


def simplex_angle(count: int) -> float:
    """Between any two of ``count`` points that all have the same distance, as far as can be: cos = -1 / (count - 1)."""
    return float(np.degrees(np.arccos(-1 / (count - 1))))
