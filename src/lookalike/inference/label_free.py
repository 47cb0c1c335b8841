"""A model for pictures without labels: a backbone with a whitening head, fitted on the pictures themselves."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from lookalike.data.pictures import UnreadablePicture
from lookalike.inference.engine_name import EngineName
from lookalike.inference.model import TrainedModel, untrained
from lookalike.models import Embedder, whitening
from lookalike.models.embedder import View

SAMPLE = 2000  # pictures that the head is fitted on
BATCH = 64


def whitened(
    pictures: Sequence[Any],
    backbone: str = "efficientnet_lite0",
    *,
    weights: str | Path = "auto",
    size: int | None = None,
    device: torch.device | str | None = None,
    engine: EngineName = "auto",
    view: View = "whole",
    total: Callable[[int], None] = lambda _: None,
    progress: Callable[[int], None] = lambda _: None,
) -> TrainedModel:
    """Load a backbone and fit a whitening head on pictures (see ``lookalike.models.projection``).

    No labels are needed and nothing is trained. Equal pictures give equal weights.

    Args:
        pictures: Paths, PIL images or arrays. Of many, ``SAMPLE`` are chosen at random; unreadable ones are left out.
        backbone: As for ``lookalike.inference.untrained``, like the next four.
        weights: Its weights.
        size: Side of the input in pixels; None for the backbone's own.
        device: Where to compute; None takes a GPU if there is one.
        engine: As for ``lookalike.load``.
        view: Likewise.
        total: Called once with the number of pictures that will be read.
        progress: Called after every batch with its number of pictures.

    Returns:
        The model. With fewer than two readable pictures there is no head but the average.

    Raises:
        ValueError: If the backbone has no pretrained weights.
    """
    plain = untrained(backbone, weights=weights, size=size, device=device, engine=engine, view=view)
    chosen = list(pictures)
    if len(chosen) > SAMPLE:
        chosen = random.Random(0).sample(chosen, SAMPLE)
    total(len(chosen))
    network = plain.embedder.backbone
    averaging = TrainedModel(Embedder(network, None, "average", normalise="none", input_spec=plain.spec), engine)
    vectors = []
    for start in range(0, len(chosen), BATCH):
        batch = chosen[start : start + BATCH]
        vectors += _averages(averaging, batch)
        progress(len(batch))
    if len(vectors) < 2:
        return plain
    fitted = whitening(torch.stack(vectors))
    embedder = Embedder(network, len(fitted.weight), "average", input_spec=plain.spec, bias=True)
    projection = embedder.head.projection
    assert projection is not None
    with torch.no_grad():
        projection.weight.copy_(fitted.weight)
        projection.bias.copy_(fitted.bias)
    model = TrainedModel(embedder.to(plain.device), engine, source=f"{backbone}, whitening head")
    model.engine = averaging.engine  # converted already
    return model


def _averages(model: TrainedModel, pictures: list[Any]) -> list[torch.Tensor]:
    """The averaged local features (C,) of each readable picture, not normalised."""
    while pictures:
        try:
            return list(torch.from_numpy(model.embed(pictures)))
        except UnreadablePicture as failure:
            readable = [picture for picture in pictures if str(picture) != failure.name]
            if len(readable) == len(pictures):
                raise
            pictures = readable
    return []
