"""The toy map, its pooling weights, and where they go."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lookalike.pooling.reference import linear_programme
from lookalike.pooling.transport import partial_transport

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
SIDE, PATCH = 10, 5
RED, GREEN, BLUE = np.eye(3)
AVERAGE, PROGRAMME = "average pooling", "linear programme"
NOISES = (0.05, 0.1, 0.15)


class Spread(NamedTuple):
    """Where pooling weights go. A fair share is the whole weight divided evenly among the object's pixels."""

    on_object: float  # share of the weight on the object
    dropped: int  # object pixels with less than a millionth of a fair share
    starved: int  # object pixels with less than half of a fair share
    least: float  # smallest weight of an object pixel, in fair shares
    most: float  # largest weight of an object pixel, in fair shares


def toy_map(seed: int = 0, noise: float = 0.07) -> tuple[Array, Mask]:
    """Draw features (10, 10, 3), each channel within [0, 1]; return them and where the object is (10, 10)."""
    colours = np.tile(GREEN, (SIDE, SIDE, 1))
    colours[:PATCH, :PATCH] = RED
    colours[-PATCH:, -PATCH:] = BLUE
    offsets = np.abs(np.random.default_rng(seed).normal(0, noise, colours.shape)).clip(max=1)
    return np.abs(colours - offsets), colours[..., 1] == 0


def toy_cost(features: Array) -> Array:
    """Compute distances (2, n) from red and blue to features (..., 3), after clip(u) = u / max(1, ||u||)."""
    clipped = features.reshape(-1, 3)
    clipped = clipped / np.linalg.norm(clipped, axis=-1, keepdims=True).clip(min=1)
    return np.asarray(np.linalg.norm(np.stack((RED, BLUE))[:, None] - clipped, axis=-1))


def toy_weights(cost: Array, keep: float, sharpness: Sequence[float]) -> dict[str, Array]:
    """Compute pooling weights (n,) from distances (2, n): average pooling, linear programme, smoothed."""
    n = cost.shape[-1]
    programme = linear_programme(cost, keep)[1].sum(0) / keep
    if abs(programme.sum() - 1) > 1e-6:
        raise ValueError(f"keep is below what the linear programme can resolve, got {keep}; try {1 / n:g}, one pixel")
    weights = {AVERAGE: np.full(n, 1 / n), PROGRAMME: np.asarray(programme)}
    for epsilon in sharpness:
        weights[smoothed(epsilon)] = smoothed_weights(cost, keep, epsilon)
    return weights


def smoothed(sharpness: float) -> str:
    """Return the name of the smoothed weights."""
    return f"smoothed, sharpness {sharpness:g}"


def smoothed_weights(cost: Array, keep: float, sharpness: float) -> Array:
    """Compute the weights (n,) of the smoothed problem from distances (2, n)."""
    return np.asarray(partial_transport(torch.from_numpy(cost), keep, sharpness).weights.numpy())


def measure_spread(weights: Array, is_object: Mask) -> Spread:
    """Measure where weights (n,) go, given where the object is."""
    inside = weights[is_object.ravel()]
    shares = inside * len(inside)
    starved = int((shares < 0.5 - 1e-6).sum())  # average pooling gives exactly half, and rounding must not decide
    return Spread(float(inside.sum()), int((shares < 1e-6).sum()), starved, float(shares.min()), float(shares.max()))


def starved_by_noise(keep: float, sharpness: float, noise: float, maps: int) -> dict[float, float]:
    """Count the object pixels that the smoothed problem starves: by noise, the mean over maps with other seeds."""
    means = {}
    for level in sorted({noise, *NOISES}):
        counts = []
        for seed in range(1, maps + 1):
            features, is_object = toy_map(seed, level)
            weights = smoothed_weights(toy_cost(features), keep, sharpness)
            counts.append(measure_spread(weights, is_object).starved)
        means[level] = float(np.mean(counts))
    return means
