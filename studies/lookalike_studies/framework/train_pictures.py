"""Trains an embedder on small pictures in memory, and looks at what its pooling does.

The backbone comes with pretrained weights. Adam trains all of it; the learning rate falls when validation does not
improve. The weights that are best by validation are kept. Without validation, the last ones are kept, and the rate
falls when the training loss does not improve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
class Recipe:
    """Model, loss and training."""

    pooling: str  # name of the pooling
    pooling_settings: Mapping[str, Any] = field(default_factory=dict)  # its settings
    backbone: str = "resnet20"  # name of the backbone
    dim: int = 64  # size of the embedding
    loss: str = "c2"  # name of the objective
    preset: str | None = None  # data set whose settings the objective has; None: its defaults
    zero_shot: float = 0.0  # share of the zero-shot loss
    ridge: float = 0.05  # ridge of the zero-shot loss
    rate: float = 1e-3  # learning rate of the embedder
    proxy_rate: float = 1e-3  # learning rate of the objective's own parameters
    classes: int = 16  # classes in a batch
    per_class: int = 4  # pictures of each of them
    epoch: int = 150  # steps of an epoch
    epochs: int = 1  # number of epochs
    patience: int = 5  # epochs without better validation (or training loss) before the learning rate falls
    decay: float = 0.5  # factor by which it falls
    augment: bool = True  # shift and flip the pictures
    seed: int = 0  # seed of the batches and the augmentation


class Trained(NamedTuple):
    """A trained embedder."""

    embedder: Embedder  # the embedder, in eval mode
    curve: list[tuple[int, float]]  # steps and MAP@R of the held-out pictures, from step 0 on; empty without them
    losses: list[float]  # mean loss of each epoch


class Pooling(NamedTuple):
    """What an embedder computes for n pictures with N positions."""

    vectors: NDArray[np.float32]  # embeddings (n, D)
    weights: NDArray[np.float32]  # pooling weights (n, N)
    contributions: NDArray[np.float32]  # share of each position in the pooled vector (n, N); rows sum to 1
    attributes: NDArray[np.float32]  # histograms over prototypes (n, m)
    nearest: NDArray[np.int64]  # nearest prototype of each position (n, N); (n, 0) without prototypes


def create_embedder(recipe: Recipe, weights: Mapping[str, Tensor], pixels: Pixels) -> Embedder:
    """Create the embedder with which ``train_pictures`` begins, in eval mode.

    ``weights``: of the backbone's network, from ``lookalike.training.pretrain``. Projection and prototypes start from
    pictures (n, S, S, 3).
    """
    backbone = create_backbone(recipe.backbone, weights="none")
    backbone.network.load_state_dict(weights)
    embedder = Embedder(backbone, recipe.dim, recipe.pooling, recipe.pooling_settings)
    embedder = embedder.to(memory_format=torch.channels_last).eval()
    start_from_pixels(embedder, pixels)
    return embedder


def train_pictures(
    recipe: Recipe,
    weights: Mapping[str, Tensor],
    pixels: Pixels,
    labels: Labels,
    held_out: tuple[Pixels, Labels] | None = None,
    tick: Callable[[int], Any] = lambda _: None,
) -> Trained:
    """Train an embedder on pictures (n, S, S, 3) with labels (n,) from 0.

    ``weights`` as for ``create_embedder``; ``held_out``: pictures and labels of the validation; ``tick`` is called with
    1 after every step.
    """
    torch.manual_seed(recipe.seed)
    embedder = create_embedder(recipe, weights, pixels)
    classes = int(labels.max()) + 1
    metric = objectives.create(recipe.loss, classes, recipe.dim, preset=recipe.preset)
    objective = mix_with_zero_shot(metric, recipe.zero_shot, classes, recipe.dim, recipe.ridge)
    groups = [{"params": list(embedder.parameters()), "lr": recipe.rate}]
    if list(objective.parameters()):
        groups.append({"params": list(objective.parameters()), "lr": recipe.proxy_rate})
    optimizer = torch.optim.Adam(groups)
    plateau = ReduceLROnPlateau(optimizer, "max", factor=recipe.decay, patience=recipe.patience)
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

    sampling: Any = {"classes": recipe.classes, "per_class": recipe.per_class, "augment": recipe.augment}
    batches = pixel_batches(pixels, labels, embedder.backbone.spec, seed=recipe.seed, **sampling)
    fitted = fit(
        Learner(embedder, objective),
        batches,
        optimizer,
        steps=recipe.epoch * recipe.epochs,
        seed=recipe.seed,
        evaluate=evaluate,
        evaluate_every=recipe.epoch,
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
    """Embed pictures (n, S, S, 3), and look at the pooling: a weighted mean of projected features f with weights p.

    pooled = sum_j p_j f_j,        contribution_j = p_j <f_j, pooled> / <pooled, pooled>
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
