"""Where a run gets its batches from: the pictures themselves, or features that a frozen backbone gave once.

Both feeds give endless training batches (inputs, labels, which pictures) from any step on, and evaluation batches in
order, of which each process takes its share. What comes is a pure function of the seed, the step and the rank.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lookalike.data.loading import training_loader
from lookalike.data.pictures import Pictures
from lookalike.data.sampler import ClassBatches
from lookalike.inference.preprocess import crop_loader, to_inputs
from lookalike.models.input_spec import InputSpec
from lookalike.training.evaluation import share
from lookalike.training.features import FeatureCache

EVALUATION_BATCH = 64


Batch = tuple[Tensor, Tensor, Tensor]  # inputs (B, ...), labels (B,), places in the training set (B,)


class Feed(Protocol):
    batches: ClassBatches

    def training(self, start: int) -> Iterator[Batch]: ...
    def evaluation(self, pictures: Pictures, rank: int = 0, world_size: int = 1) -> Iterator[Tensor]: ...


class PictureFeed:
    """Batches of pictures, augmented for training."""

    def __init__(self, train: Pictures, spec: InputSpec, batches: ClassBatches, **loading: Any) -> None:
        self.train, self.spec, self.batches = train, spec, batches
        self.workers = loading.pop("workers")
        self.loading = loading

    def training(self, start: int) -> Iterator[Batch]:
        order = self.batches
        loader = training_loader(
            self.train,
            self.spec,
            order.batch_size,
            order.per_class,
            seed=order.seed,
            rank=order.rank,
            world_size=order.world_size,
            start=start,
            workers=self.workers,
            **self.loading,
        )
        yield from loader

    def evaluation(self, pictures: Pictures, rank: int = 0, world_size: int = 1) -> Iterator[Tensor]:
        part = pictures.take(share(len(pictures), rank, world_size))
        for crops in crop_loader(part, self.spec, workers=self.workers):
            yield to_inputs(crops, self.spec)


class FeatureFeed:
    """Batches of cached features (B, N, C). Of several views of a picture, each epoch takes the next."""

    def __init__(self, train: Pictures, cache: FeatureCache, batches: ClassBatches, views: int) -> None:
        self.cache, self.batches, self.views = cache, batches, views
        self.labels = torch.from_numpy(train.labels)
        self.places = [cache.places(train, view) for view in range(views)]

    def training(self, start: int) -> Iterator[Batch]:
        self.batches.start = start
        for batch in self.batches:
            places = np.stack([self.places[(draw.epoch + draw.turn) % self.views][draw.index] for draw in batch])
            pictures = torch.tensor([draw.index for draw in batch])
            yield self.cache.read(places), self.labels[pictures], pictures

    def evaluation(self, pictures: Pictures, rank: int = 0, world_size: int = 1) -> Iterator[Tensor]:
        places = self.cache.places(pictures, 0)[share(len(pictures), rank, world_size)]
        for first in range(0, len(places), EVALUATION_BATCH):
            yield self.cache.read(places[first : first + EVALUATION_BATCH])
