"""Statements of section 3.2 beside Proposition 3.2.2, measured: Proposition 3.2.1, (3.2.8) and Lemma 3.2.1.

Proposition 3.2.1. With m anchors drawn from the pictures, the mean loss over pairs with an anchor differs from that
over all pairs by at most

    zeta delta + L sqrt((2 K log 2 + 2 log 1/gamma) / m)      with probability 1 - gamma

delta: covering radius of the anchors; L: largest loss; K: size of a delta/2-cover, at least the number of classes. The
number of classes stands for K here, which makes the bound as small as it can be. Hoeffding's inequality,
L sqrt(log(2/gamma) / (2 m)), needs no cover at all and is smaller.

(3.2.8). expected loss <= L1 + L2 + L3: the loss between proxies and training pictures, the difference of the expected
loss and that over all training pairs, and the difference of the last two. It is a triangle inequality.

Lemma 3.2.1 says that the loss is sqrt(2) omega^L-Lipschitz for a network of L layers. Two faults of its proof:

- |sum_j w_j x_j|^2 <= sum_j w_j^2 x_j^2 is false. A layer that adds 8 inputs has omega = 1 and the norm 2.83. With
  ``columns``, the largest sum over the weights of an input, and ``rows``, over those of an output, the norm is at most
  sqrt(rows * columns).
- The clip to the unit ball is 1-Lipschitz, as every projection onto a convex set, not 2-Lipschitz.
"""

from __future__ import annotations

from math import log, sqrt
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lookalike.geometry import clip
from lookalike_studies.ccp_geometry.measures import Floats, Labels, mean_losses

GAMMA = 0.05
DRAWS = 200  # of anchors, for each number of them
POWER_STEPS = 50
SIDE = 16  # of the map on which the norm of a convolution is computed


class Deviation(NamedTuple):
    """Proposition 3.2.1 for one number of anchors, over many draws."""

    anchors: int  # m
    mean: float  # |loss over all pairs - loss over pairs with an anchor|
    most: float  # of a share 1 - gamma of the draws
    radius: float  # delta, mean over the draws that have anchors of every class; inf if none has
    bound: float  # of the proposition at that radius
    hoeffding: float
    within: float  # share of the draws below the bound at their own radius


class Terms(NamedTuple):
    """The terms of (3.2.8)."""

    expected: float
    training: float  # L1
    sampling: float  # L2
    subset: float  # L3


class LayerNorm(NamedTuple):
    """Spectral norm of a layer, and the sums of absolute weights that the lemma bounds it by."""

    spectral: float
    columns: float  # largest sum over the weights of an input: omega of the proof
    rows: float  # largest sum over the weights of an output: omega of the text


def deviations(
    vectors: Floats, labels: Labels, counts: tuple[int, ...], margins: tuple[float, float], seed: int
) -> list[Deviation]:
    """Measure Proposition 3.2.1 with so many anchors (``counts``, times the number of classes) drawn from all pictures.

    The vectors (n, D) lie in the unit ball; they are the distribution that anchors are drawn from.
    """
    points, point_labels = torch.from_numpy(vectors).double(), torch.from_numpy(labels)
    losses = mean_losses(points, point_labels, points, point_labels, margins).numpy()
    classes = len(np.unique(labels))
    largest = max(2 - margins[0], margins[1])
    rng = np.random.default_rng(seed)
    measured = []
    for count in counts:
        m = count * classes
        spread_term = largest * sqrt((2 * classes * log(2) + 2 * log(1 / GAMMA)) / m)
        draws = rng.integers(len(labels), size=(DRAWS, m))
        differences = np.abs(losses.mean() - losses[draws].mean(1))
        radii = np.array([_radius(points, point_labels, torch.from_numpy(draw)) for draw in draws])
        covered = radii[np.isfinite(radii)]
        radius = float(covered.mean()) if len(covered) else float("inf")
        measured.append(
            Deviation(
                m,
                float(differences.mean()),
                float(np.quantile(differences, 1 - GAMMA)),
                radius,
                radius + spread_term,
                largest * sqrt(log(2 / GAMMA) / (2 * m)),
                float((differences <= radii + spread_term).mean()),
            )
        )
    return measured


def _radius(points: Tensor, labels: Tensor, draw: Tensor) -> float:
    """Largest distance from a picture to the nearest anchor of its class; inf for a class without anchors."""
    distances = torch.cdist(points, points[draw]).masked_fill(labels.unsqueeze(1) != labels[draw], torch.inf)
    return float(distances.amin(1).max())


def slope(measured: list[Deviation]) -> float:
    """Return the exponent of m with which the mean deviation falls; -0.5 is that of the proposition."""
    anchors = np.log([deviation.anchors for deviation in measured])
    means = np.log([max(deviation.mean, 1e-12) for deviation in measured])
    return float(np.polyfit(anchors, means, 1)[0])


def decompose(
    train: tuple[Floats, Labels], test: tuple[Floats, Labels], proxies: Floats, margins: tuple[float, float]
) -> Terms:
    """Measure the terms of (3.2.8), with proxies (classes, k, D).

    ``train`` and ``test`` have vectors and classes; the test pictures stand for the distribution.
    """
    train_points, train_labels = torch.from_numpy(train[0]).double(), torch.from_numpy(train[1])
    test_points, test_labels = torch.from_numpy(test[0]).double(), torch.from_numpy(test[1])
    anchors = torch.from_numpy(proxies).double().flatten(0, 1)
    anchor_labels = torch.arange(len(proxies)).repeat_interleave(proxies.shape[1])
    expected = float(mean_losses(test_points, test_labels, test_points, test_labels, margins).mean())
    all_pairs = float(mean_losses(train_points, train_labels, train_points, train_labels, margins).mean())
    training = float(mean_losses(anchors, anchor_labels, train_points, train_labels, margins).mean())
    return Terms(expected, training, abs(expected - all_pairs), abs(all_pairs - training))


@torch.no_grad()
def layer_norms(model: nn.Module) -> NDArray[np.float64]:
    """Return (layers, 3), a ``LayerNorm`` for each convolution and linear layer; convolutions with zero padding."""
    rows = []
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            rows.append(layer_norm(module))
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def layer_norm(layer: nn.Conv2d | nn.Linear) -> LayerNorm:
    """Measure one layer; the spectral norm by power iteration, from below."""
    weight = layer.weight.detach().double().abs()
    if isinstance(layer, nn.Linear):
        spectral = float(torch.linalg.matrix_norm(layer.weight.detach().double(), 2))
        return LayerNorm(spectral, float(weight.sum(0).max()), float(weight.sum(1).max()))
    columns = 0.0
    for top in range(layer.stride[0]):  # an input takes part in every stride-th position of the kernel
        for left in range(layer.stride[1]):
            phase = weight[:, :, top :: layer.stride[0], left :: layer.stride[1]]
            columns = max(columns, float(phase.sum((0, 2, 3)).max()))
    rows = float(weight.sum((1, 2, 3)).max())
    return LayerNorm(_convolution_norm(layer), columns, rows)


def _convolution_norm(layer: nn.Conv2d) -> float:
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(1, layer.in_channels, SIDE, SIDE, generator=generator)
    norm = 0.0
    for _ in range(POWER_STEPS):
        maps = (maps / maps.norm()).requires_grad_()
        with torch.enable_grad():
            output = nn.functional.conv2d(
                maps, layer.weight.detach(), None, layer.stride, layer.padding, layer.dilation, layer.groups
            )
            (gradient,) = torch.autograd.grad(output.square().sum() / 2, maps)  # W^T W x
        norm, maps = float(output.detach().norm()), gradient.detach()
    return norm


def summing_layer(inputs: int = 8) -> LayerNorm:
    """Measure the counterexample to the lemma: a neuron that adds its inputs."""
    layer = nn.Linear(inputs, 1, bias=False)
    nn.init.ones_(layer.weight)
    return layer_norm(layer)


def clip_ratio(pairs: int = 100_000, seed: int = 0) -> float:
    """Return the largest ||clip(u) - clip(v)|| / ||u - v|| of random pairs in the plane, near and far."""
    generator = torch.Generator().manual_seed(seed)
    u = 2 * torch.randn(pairs, 2, generator=generator, dtype=torch.float64)
    scale = 10 ** (-4 * torch.rand(pairs, 1, generator=generator, dtype=torch.float64))
    v = u + scale * torch.randn(pairs, 2, generator=generator, dtype=torch.float64)
    ratios = (clip(u) - clip(v)).norm(dim=1) / (u - v).norm(dim=1)
    return float(ratios.max())
