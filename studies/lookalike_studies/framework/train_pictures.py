"""Trains an embedder on small pictures in memory, and looks at what its pooling does.

The backbone comes with pretrained weights. Adam trains all of it; the learning rate falls when validation does not
improve. The weights that are best by validation are kept. Without validation, the last ones are kept, and the rate
falls when the training loss does not improve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lookalike import objectives
from lookalike.geometry import clip
from lookalike.models import Embedder, create_backbone
from lookalike.objectives import Loss
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike.training.in_memory import (
    Labels,
    Pixels,
    inference_batches,
    mix_with_zero_shot,
    pixel_batches,
    start_from_pixels,
)
from lookalike.training.loop import Metrics, fit
from lookalike.training.model import Learner


@dataclass(frozen=True)
class Plan:
    """Model, loss and training.

    Attributes:
        pooling: Name of the pooling.
        pooling_settings: Its settings.
        backbone: Name of the backbone.
        dim: Size of the embedding.
        loss: Name of the objective.
        preset: Data set whose settings the objective has; None: its defaults.
        zero_shot: Share of the zero-shot loss.
        ridge: Ridge of the zero-shot loss.
        rate: Learning rate of the embedder.
        proxy_rate: Learning rate of the objective's own parameters.
        classes: Classes in a batch.
        per_class: Pictures of each of them.
        epoch: Steps of an epoch.
        epochs: Number of epochs.
        patience: Epochs without better validation (or training loss) before the learning rate falls.
        decay: Factor by which it falls.
        augment: Shift and flip the pictures.
        seed: Seed of the batches and the augmentation.
    """

    pooling: str
    pooling_settings: Mapping[str, Any] = field(default_factory=dict)
    backbone: str = "resnet20"
    dim: int = 64
    loss: str = "c2"
    preset: str | None = None
    zero_shot: float = 0.0
    ridge: float = 0.05
    rate: float = 1e-3
    proxy_rate: float = 1e-3
    classes: int = 16
    per_class: int = 4
    epoch: int = 150
    epochs: int = 1
    patience: int = 5
    decay: float = 0.5
    augment: bool = True
    seed: int = 0


def plan_from(settings: Any, **others: Any) -> Plan:
    """Create a plan from the settings of a study that have the name of one of its fields, and from ``others``."""
    values = {}
    for entry in fields(Plan):
        if hasattr(settings, entry.name):
            values[entry.name] = getattr(settings, entry.name)
    return Plan(**{**values, **others})


class Trained(NamedTuple):
    """A trained embedder.

    Attributes:
        embedder: The embedder, in eval mode.
        curve: Steps and MAP@R of the held-out pictures, from step 0 on; empty without them.
        losses: Mean loss of each epoch.
    """

    embedder: Embedder
    curve: list[tuple[int, float]]
    losses: list[float]


class Pooling(NamedTuple):
    """What an embedder computes for n pictures with N positions.

    Attributes:
        vectors: Embeddings (n, D).
        weights: Pooling weights (n, N).
        contributions: Share of each position in the pooled vector (n, N); rows sum to 1.
        attributes: Histograms over prototypes (n, m).
        nearest: Nearest prototype of each position (n, N); (n, 0) without prototypes.
    """

    vectors: NDArray[np.float32]
    weights: NDArray[np.float32]
    contributions: NDArray[np.float32]
    attributes: NDArray[np.float32]
    nearest: NDArray[np.int64]


def create_embedder(plan: Plan, weights: Mapping[str, Tensor], pixels: Pixels) -> Embedder:
    """Create the embedder with which ``train_pictures`` begins.

    Args:
        plan: Model and training.
        weights: State dict of the backbone's network, from ``lookalike.training.pretrain``.
        pixels: Pictures (n, S, S, 3) from which projection and prototypes start.

    Returns:
        The embedder, in eval mode.
    """
    backbone = create_backbone(plan.backbone, weights="none")
    backbone.network.load_state_dict(weights)
    embedder = Embedder(backbone, plan.dim, plan.pooling, plan.pooling_settings)
    embedder = embedder.to(memory_format=torch.channels_last).eval()
    start_from_pixels(embedder, pixels)
    return embedder


def train_pictures(
    plan: Plan,
    weights: Mapping[str, Tensor],
    pixels: Pixels,
    labels: Labels,
    held_out: tuple[Pixels, Labels] | None = None,
    tick: Callable[[int], Any] = lambda _: None,
) -> Trained:
    """Train an embedder.

    Args:
        plan: Model and training.
        weights: State dict of the backbone's network, from ``lookalike.training.pretrain``.
        pixels: Training pictures (n, S, S, 3).
        labels: Their classes (n,), counted from 0.
        held_out: Pictures and labels of the validation; None: none.
        tick: Called with 1 after every step; may raise to stop.

    Returns:
        The embedder, with its validation and losses.
    """
    torch.manual_seed(plan.seed)
    embedder = create_embedder(plan, weights, pixels)
    classes = int(labels.max()) + 1
    metric = objectives.create(plan.loss, classes, plan.dim, preset=plan.preset)
    objective = mix_with_zero_shot(metric, plan.zero_shot, classes, plan.dim, plan.ridge)
    groups = [{"params": list(embedder.parameters()), "lr": plan.rate}]
    if list(objective.parameters()):
        groups.append({"params": list(objective.parameters()), "lr": plan.proxy_rate})
    optimizer = torch.optim.Adam(groups)
    plateau = ReduceLROnPlateau(optimizer, "max", factor=plan.decay, patience=plan.patience)
    curve: list[tuple[int, float]] = []
    evaluate = None
    if held_out is not None:
        validation = held_out

        def evaluate() -> Metrics:
            return {"MAP@R": map_at_r(embedder, *validation)}

        curve.append((0, evaluate()["MAP@R"]))

    epoch_losses: list[Tensor] = []

    def on_step(_: int, loss: Loss) -> None:
        epoch_losses.append(loss.value)
        tick(1)

    def on_evaluation(step: int, metrics: Metrics) -> None:
        if metrics:
            plateau.step(metrics["MAP@R"])
            curve.append((step, metrics["MAP@R"]))
        else:
            plateau.step(-float(torch.stack(epoch_losses).mean()))
        epoch_losses.clear()

    spec = embedder.backbone.spec
    batches = pixel_batches(
        pixels,
        labels,
        spec,
        classes=plan.classes,
        per_class=plan.per_class,
        seed=plan.seed,
        augment=plan.augment,
    )
    fitted = fit(
        Learner(embedder, objective),
        batches,
        optimizer,
        steps=plan.epoch * plan.epochs,
        seed=plan.seed,
        evaluate=evaluate,
        evaluate_every=plan.epoch,
        evaluate_start=False,
        restore_best=embedder,
        on_step=on_step,
        on_evaluation=on_evaluation,
    )
    return Trained(embedder.eval(), curve, fitted.losses)


def map_at_r(embedder: Embedder, pixels: Pixels, labels: Labels) -> float:
    """Compute MAP@R of pictures (n, S, S, 3) with labels (n,)."""
    return retrieval_metrics(inspect_pooling(embedder, pixels).vectors, labels)["MAP@R"]


@torch.inference_mode()
def inspect_pooling(embedder: Embedder, pixels: Pixels) -> Pooling:
    """Embed pictures and look at their pooling, a weighted mean of projected local features f with weights p:

        pooled = sum_j p_j f_j,        contribution_j = p_j <f_j, pooled> / <pooled, pooled>

    Args:
        embedder: The embedder; left in eval mode.
        pixels: Pictures (n, S, S, 3).

    Returns:
        Vectors, weights, contributions, attributes and nearest prototypes.
    """
    embedder.eval()
    head = embedder.head
    prototypes = getattr(head.pooling, "prototypes", None)
    rows: list[tuple[Tensor, ...]] = []
    for inputs in inference_batches(pixels, embedder.backbone.spec):
        tokens = embedder.backbone(inputs)
        pooled = head(tokens, details=True)
        features = head.project(tokens)
        weighted = pooled.weights.unsqueeze(2) * features  # (n, N, D)
        along = (weighted @ weighted.sum(1).unsqueeze(2)).squeeze(2)
        contributions = along / along.sum(1, keepdim=True).clamp_min(torch.finfo(along.dtype).tiny)
        nearest = tokens.new_zeros(len(tokens), 0, dtype=torch.int64)
        if prototypes is not None:
            nearest = torch.cdist(clip(features), clip(prototypes)).argmin(2)
        rows.append((pooled.vector, pooled.weights, contributions, pooled.attributes, nearest))
    return Pooling(*(torch.cat(column).numpy() for column in zip(*rows, strict=True)))
