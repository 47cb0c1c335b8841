"""The nearest neighbours of a run's held-out pictures, before and after training."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lookalike.data.pictures import Pictures
from lookalike.experiments.cells import test_vectors
from lookalike.inference.model import TrainedModel, load
from lookalike.models import Embedder
from lookalike.retrieval.search import neighbours
from lookalike.training.evaluate import roles
from lookalike.training.held_out import read_pictures, sample_classes
from lookalike.training.model import create_embedder
from lookalike.training.settings import Settings

NEAREST = 10  # neighbours that are counted
MOST_CACHED, MOST_COMPUTED = 20_000, 2_000  # pictures that are measured, if the backbone's features are cached or not

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class HeldOut:
    """Held-out pictures and their nearest neighbours.

    Attributes:
        model: The trained model.
        pictures: The pictures that are compared.
        total: How many were held out; ``pictures`` has fewer if they are too many.
        unseen: Whether their classes were not trained on.
        queries: (q,) positions of the queries. Each has at least ``k`` pictures of its class to find.
        k: How many of the nearest are counted.
        after: (q, k) positions of the nearest pictures for the trained model.
        before: (q, k) for the averaged features of the backbone before training.
    """

    model: TrainedModel
    pictures: Pictures
    total: int
    unseen: bool
    queries: Positions
    k: int
    after: Positions
    before: Positions

    def right(self, nearest: Positions) -> NDArray[np.int64]:
        """Count the nearest pictures of the same class, (q,)."""
        labels = self.pictures.labels
        same = labels[nearest] == labels[self.queries][:, None]
        return same.sum(axis=1)

    def sentence(self) -> str:
        """What training has done, in one sentence."""
        after, before = self.right(self.after).mean(), self.right(self.before).mean()
        kind = "an unseen class" if self.unseen else "a class, for a picture that was not trained on"
        nearest = f"the {self.k} nearest pictures"
        if self.k == 1:
            return (
                f"The nearest picture of {kind} is right in {100 * after:.0f} % of the cases; "
                f"before training in {100 * before:.0f} %."
            )
        if _short(after) == _short(before):
            return f"Of {nearest} of {kind}, {_short(after)} are right, as before training."
        return f"Of {nearest} of {kind}, {_short(after)} are right; before training {_short(before)}."


def read_held_out(run: Path, settings: Settings) -> HeldOut | None:
    """Find the neighbours of the held-out pictures of a run.

    Args:
        run: Folder of the run.
        settings: Its settings.

    Returns:
        The neighbours; None if nothing was held out, or no class has two pictures.

    Raises:
        ValueError: If the pictures or the model can no longer be read, or the data has changed.
    """
    train, pictures = read_pictures(run, settings)
    if pictures is None:
        return None
    total = len(pictures)
    pictures = sample_classes(pictures, MOST_CACHED if settings.head_only else MOST_COMPUTED, settings.seed)
    queries, gallery = roles(pictures)
    if queries is None or gallery is None:
        queries = gallery = np.arange(len(pictures))
    to_find = np.bincount(pictures.labels[gallery], minlength=len(pictures.classes))[pictures.labels[queries]]
    to_find = to_find - np.isin(queries, gallery)
    if not np.any(to_find > 0):
        return None
    k = int(min(NEAREST, np.median(to_find[to_find > 0])))
    queries = queries[to_find >= k]
    model = load(run, settings.device if settings.device != "auto" else None, settings.engine, view="crop")
    after = test_vectors(model, settings, pictures)
    before_model = _before_training(model, settings)
    before = test_vectors(before_model, settings, pictures)
    return HeldOut(
        model=model,
        pictures=pictures,
        total=total,
        unseen=not set(pictures.classes) & set(train.classes),
        queries=queries,
        k=k,
        after=_nearest(after, queries, gallery, k, model.distance),
        before=_nearest(before, queries, gallery, k, before_model.distance),
    )


def _before_training(model: TrainedModel, settings: Settings) -> TrainedModel:
    """The backbone with its weights before training; its local features are averaged."""
    backbone = model.embedder.backbone
    if not settings.head_only:
        torch.manual_seed(settings.seed)
        backbone = create_embedder(settings).backbone.to(model.device)
    embedder = Embedder(backbone, dim=None, pooling="average", input_spec=model.spec)
    return TrainedModel(embedder.to(model.device), settings.engine, source="before training")


def _nearest(vectors: NDArray[np.float32], queries: Positions, gallery: Positions, k: int, distance: str) -> Positions:
    """The ``k`` nearest pictures of each query without itself, (q, k)."""
    among = min(k + 1, len(gallery))
    ranked = gallery[neighbours(vectors[queries], vectors[gallery], among, distance=distance).indices.cpu().numpy()]
    is_self = ranked == queries[:, None]
    is_self[~is_self.any(axis=1), -1] = True  # a query that is not in the gallery: drop the farthest
    rows = ranked[~is_self]
    return rows.reshape(len(queries), among - 1)[:, :k]


def _short(count: float) -> str:
    return f"{count:.1f}".removesuffix(".0")
