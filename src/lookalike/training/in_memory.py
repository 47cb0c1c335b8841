"""Training on pictures in memory, for small experiments such as the demo and the studies.

embedder = Embedder(create_backbone("resnet8-half"), 64, "gsp")
start_from_pixels(embedder, pixels)
learner = Learner(embedder, objectives.create("c2"))
batches = pixel_batches(pixels, labels, embedder.backbone.spec, classes=16, per_class=4)
fit(learner, batches, torch.optim.Adam(learner.parameters(), lr=1e-3), steps=500)
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookalike.data.sampler import ClassBatches
from lookalike.inference.preprocess import to_inputs
from lookalike.models import Embedder
from lookalike.models.backbone import in_eval_mode
from lookalike.models.input_spec import InputSpec
from lookalike.objectives import Composed, Objective, ZeroShot
from lookalike.training.model import start_from_features
from lookalike.training.pretrain import shifted

START_PICTURES = 512
INFERENCE_BATCH = 64
Pixels = NDArray[np.uint8]  # (n, S, S, 3)
Labels = NDArray[np.int64]  # (n,)


def mix_with_zero_shot(metric: Objective, share: float, classes: int, dim: int, ridge: float = 0.05) -> Objective:
    """Combine an objective with the zero-shot loss: (1 - share) * metric + share * zero-shot."""
    if not share:
        return metric
    return Composed({"metric": (1 - share, metric), "zero-shot": (share, ZeroShot(classes, dim, ridge=ridge))})


@torch.no_grad()
def start_from_pixels(embedder: Embedder, pixels: Pixels, *, median_norm: float = 2.0, radius: float = 1.0) -> None:
    """Start projection and prototypes from at most 512 pictures (n, S, S, 3), the same in every call.

    Unlike ``start_head``, it uses all local features of a picture. See ``start_from_features`` for the arguments.
    """
    chosen = np.sort(np.random.default_rng(0).permutation(len(pixels))[:START_PICTURES])
    with in_eval_mode(embedder):
        batches = inference_batches(pixels[chosen], embedder.backbone.spec)
        tokens = torch.cat([embedder.backbone(inputs) for inputs in batches])
        local, averages = tokens.flatten(0, 1), tokens.mean(1)
        start_from_features(embedder.head, local, averages, median_norm=median_norm, radius=radius)


def pixel_batches(
    pixels: Pixels,
    labels: Labels,
    spec: InputSpec,
    *,
    classes: int,
    per_class: int,
    seed: int = 0,
    augment: bool = True,
    masks: Tensor | None = None,
) -> Iterator[tuple[Tensor | None, ...]]:
    """Yield endless batches of classes for ``fit`` with a ``Learner``.

    Args:
        pixels: Pictures (n, S, S, 3).
        labels: Their classes (n,), counted from 0.
        spec: Normalisation of the input.
        classes: Classes in a batch; at most as many as there are.
        per_class: Pictures of each of them.
        seed: Seed of the batches and the augmentation.
        augment: Shift and flip the pictures.
        masks: Positions (n, N) that are pooled; None: all.

    Yields:
        Inputs (B, 3, S, S) and labels (B,). With ``masks``, also None, None and masks (B, N), see ``Learner``.
    """
    rng = np.random.default_rng(seed)
    size = min(classes, int(labels.max()) + 1) * per_class
    for draws in ClassBatches(labels, size, per_class, seed=seed):
        chosen = np.array([draw.index for draw in draws])
        batch = pixels[chosen]
        if augment:
            batch = shifted(batch, rng)
        targets = torch.from_numpy(labels[chosen])
        if masks is None:
            yield to_inputs(batch, spec), targets
        else:
            yield to_inputs(batch, spec), targets, None, None, masks[chosen]


def inference_batches(pixels: Pixels, spec: InputSpec) -> Iterator[Tensor]:
    """Yield inputs (B, 3, S, S) of all pictures, in order."""
    for first in range(0, len(pixels), INFERENCE_BATCH):
        yield to_inputs(pixels[first : first + INFERENCE_BATCH], spec)
