"""An embedder learns from pictures that lie in memory: the plain loop of the studies on small pictures.

The backbone comes with weights (``pretraining.classify``), the projection starts from principal directions of local
features and prototypes from averages of pictures, by greedy k-centre. Then Adam; after every epoch the rate is halved,
or whatever ``decay`` says, if validation has not been better for more than ``patience`` epochs. The weights that were
best by validation are kept, or the last ones where nothing is held out.

    loss = (1 - lambda) * metric + lambda * zero-shot            lambda: Course.zero_shot
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookalike import objectives
from lookalike.data.sampler import ClassBatches
from lookalike.geometry import clip
from lookalike.models import Embedder, create_backbone
from lookalike.objectives import Composed, Objective, ZeroShot
from lookalike.pooling.base import StartsFromData
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike_studies.framework.pretraining import as_inputs, shifted

EVALUATION_BATCH = 64
START_PICTURES = 512
Pixels = NDArray[np.uint8]  # (n, S, S, 3)
Labels = NDArray[np.int64]  # (n,)


@dataclass(frozen=True)
class Course:
    """What is trained, and how."""

    pooling: str
    pooling_settings: Mapping[str, Any] = field(default_factory=dict)
    backbone: str = "resnet20"
    dim: int = 64
    loss: str = "c2"
    preset: str | None = None  # of the loss
    zero_shot: float = 0.0
    ridge: float = 0.05  # of the zero-shot loss
    rate: float = 1e-3
    proxy_rate: float = 1e-3  # of whatever the loss learns
    classes: int = 16  # in a batch
    per_class: int = 4
    epoch: int = 150  # steps
    epochs: int = 1
    patience: int = 5
    decay: float = 0.5
    seed: int = 0


class Learnt(NamedTuple):
    embedder: Embedder
    curve: list[tuple[int, float]]  # step, MAP@R of what was held out
    losses: list[float]  # mean of each epoch


class Seen(NamedTuple):
    """Of n pictures with N places."""

    vectors: NDArray[np.float32]  # (n, D)
    weights: NDArray[np.float32]  # (n, N)
    contributions: NDArray[np.float32]  # (n, N), how much of the pooled vector comes from each place; rows sum to 1
    attributes: NDArray[np.float32]  # (n, m)
    nearest: NDArray[np.int64]  # (n, N), the prototype that is nearest; (n, 0) where there are none


def learn(
    course: Course,
    weights: Mapping[str, Tensor],
    pixels: Pixels,
    labels: Labels,
    held_out: tuple[Pixels, Labels] | None = None,
    tick: Callable[[int], Any] = lambda _: None,
) -> Learnt:
    """``weights``: of the backbone's network, as ``classify`` gives them.  labels: 0, 1, ..."""
    torch.manual_seed(course.seed)
    chance = np.random.default_rng(course.seed)
    embedder = start(course, weights, pixels)
    objective = _objective(course, int(labels.max()) + 1)
    groups = [{"params": list(embedder.parameters()), "lr": course.rate}]
    if learnt := list(objective.parameters()):
        groups.append({"params": learnt, "lr": course.proxy_rate})
    optimiser = torch.optim.Adam(groups)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimiser, "max", factor=course.decay, patience=course.patience
    )
    batches = _batches(course, labels)
    curve = [] if held_out is None else [(0, _figure(embedder, held_out))]
    best: tuple[float, dict[str, Tensor]] | None = None
    losses = []
    for epoch in range(course.epochs):
        embedder.train()
        total = torch.zeros(())
        for _ in range(course.epoch):
            chosen = next(batches)
            images = as_inputs(shifted(pixels[chosen], chance), embedder.backbone.spec)
            pooled = embedder(images.contiguous(memory_format=torch.channels_last), details=True)
            attributes = pooled.attributes if course.zero_shot else None
            loss = objective(pooled.vector, torch.from_numpy(labels[chosen]), attributes).value
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            total += loss.detach()
            tick(1)
        losses.append(float(total) / course.epoch)
        if held_out is not None:
            figure = _figure(embedder, held_out)
            plateau.step(figure)
            curve.append(((epoch + 1) * course.epoch, figure))
            if best is None or figure > best[0]:
                best = figure, {name: value.clone() for name, value in embedder.state_dict().items()}
    if best is not None:
        embedder.load_state_dict(best[1])
    return Learnt(embedder.eval(), curve, losses)


@torch.inference_mode()
def see(embedder: Embedder, pixels: Pixels) -> Seen:
    """What an embedder makes of pictures, whose pooling p is a weighted mean of projected local features f:

    pooled = sum_j p_j f_j,        contribution_j = p_j <f_j, pooled> / <pooled, pooled>
    """
    embedder.eval()
    prototypes = getattr(embedder.head.pooling, "prototypes", None)
    found: list[list[Tensor]] = []
    for first in range(0, len(pixels), EVALUATION_BATCH):
        images = as_inputs(pixels[first : first + EVALUATION_BATCH], embedder.backbone.spec)
        tokens = embedder.backbone(images.contiguous(memory_format=torch.channels_last))
        pooled = embedder.head(tokens, details=True)
        features = embedder.head.project(tokens)
        parts = pooled.weights.unsqueeze(2) * features  # (n, N, D)
        along = parts @ parts.sum(1).unsqueeze(2)
        nearest = tokens.new_zeros(len(tokens), 0, dtype=torch.int64)
        if prototypes is not None:
            nearest = torch.cdist(clip(features), clip(prototypes)).argmin(2)
        shares = along.squeeze(2) / along.sum(1).clamp_min(torch.finfo(along.dtype).tiny)
        found.append([pooled.vector, pooled.weights, shares, pooled.attributes, nearest])
    return Seen(*(torch.cat(parts).numpy() for parts in zip(*found, strict=True)))


def _figure(embedder: Embedder, held_out: tuple[Pixels, Labels]) -> float:
    return retrieval_metrics(see(embedder, held_out[0]).vectors, held_out[1])["MAP@R"]


@torch.no_grad()
def start(course: Course, weights: Mapping[str, Tensor], pixels: Pixels) -> Embedder:
    """As ``learn`` begins."""
    backbone = create_backbone(course.backbone, weights="none")
    backbone.network.load_state_dict(weights)
    embedder = Embedder(backbone, course.dim, course.pooling, course.pooling_settings)
    embedder = embedder.to(memory_format=torch.channels_last).eval()
    chosen = np.sort(np.random.default_rng(0).permutation(len(pixels))[:START_PICTURES])
    tokens = torch.cat([backbone(as_inputs(part, backbone.spec)) for part in _in_batches(pixels[chosen])])
    embedder.head.start_from_pca(tokens.flatten(0, 1))
    if isinstance(embedder.head.pooling, StartsFromData):
        embedder.head.pooling.init_from(embedder.head.project(tokens.mean(1)))
    return embedder


def _objective(course: Course, classes: int) -> Objective:
    metric = objectives.create(course.loss, classes, course.dim, preset=course.preset)
    if not course.zero_shot:
        return metric
    zero_shot = ZeroShot(classes, course.dim, ridge=course.ridge)
    return Composed({"metric": (1 - course.zero_shot, metric), "zero-shot": (course.zero_shot, zero_shot)})


def _batches(course: Course, labels: Labels) -> Iterator[NDArray[np.int64]]:
    size = min(course.classes, int(labels.max()) + 1) * course.per_class
    for drawn in ClassBatches(labels, size, course.per_class, seed=course.seed):
        yield np.array([each.index for each in drawn])


def _in_batches(pixels: Pixels) -> Iterator[Pixels]:
    for first in range(0, len(pixels), EVALUATION_BATCH):
        yield pixels[first : first + EVALUATION_BATCH]
