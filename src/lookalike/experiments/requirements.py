"""Checks that a plan can run, before it starts: weights that fit, and sizes and settings that belong together.

Networks of timm are built without memory for their weights, so that this takes about a second. What is small is built
with memory, since without it torch loads its compiler to compute shapes.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch

from lookalike import models
from lookalike.data.pictures import Pictures
from lookalike.models.weight_files import ShapesOnly
from lookalike.training.model import attach_head, create_objective, require_trained
from lookalike.training.resolve import fill_in
from lookalike.training.settings import Settings

FEW_WEIGHTS = 2**22  # of projection and proxies, 16 MB


def check_run(settings: Settings, pictures: Pictures) -> None:
    """Check everything that a run needs but the weights of its backbone.

    Args:
        settings: of the run.
        pictures: with the splits of its fold.

    Raises:
        ValueError: pictures, backbone, pooling, loss or methods do not fit together.
    """
    train = pictures.split("train")
    pretrained = not models.starts_random(settings.backbone, settings.weights)
    has_gpu = settings.device != "cpu" and torch.cuda.is_available()
    settings, _ = fill_in(settings, len(train.classes), pretrained=pretrained, has_gpu=has_gpu, pictures=len(train))
    backbone = _backbone_shapes(settings.backbone)
    dim = settings.dim or backbone.channels
    building: AbstractContextManager[Any] = nullcontext()
    if (backbone.channels + len(train.classes)) * dim > FEW_WEIGHTS:
        building = ShapesOnly()
    with building:
        embedder = attach_head(backbone, settings)
        require_trained(settings, embedder)
        head = embedder.head
        create_objective(settings, len(train.classes), head.dim, head.pooling, validates=True)


def missing_weights(choices: Iterable[tuple[str, str]]) -> list[str]:
    """Problems with weights, given as (backbone, weights), each named once; they are read, but no network is built."""
    problems = []
    for backbone, weights in dict.fromkeys(choices):
        try:
            models.check_weights(backbone, weights)
        except (ValueError, OSError) as problem:
            problems.append(str(problem))
    return problems


@lru_cache(maxsize=4)
def _backbone_shapes(name: str) -> models.Backbone:
    try:
        with ShapesOnly():
            return models.create_backbone(name, weights="none")
    except (RuntimeError, NotImplementedError):  # a network that needs the values of its weights while it is built
        return models.create_backbone(name, weights="none")
