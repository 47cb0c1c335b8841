"""Batches of a run: pictures, or what frozen stages of the backbone computed once and a cache keeps on disk.

Both feeds give endless training batches from any step on, and evaluation batches in order, of which each process takes
its share. The batches depend only on seed, step and rank.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lookalike._util.files import cache_folder
from lookalike._util.progress import Display
from lookalike.data.loading import training_loader
from lookalike.data.pictures import Pictures
from lookalike.data.sampler import ClassBatches
from lookalike.data.transforms import Crop
from lookalike.inference.feature_cache import FeatureCache
from lookalike.inference.preprocess import crop_loader, to_inputs
from lookalike.models import Embedder
from lookalike.models.input_spec import InputSpec
from lookalike.models.stages import StageCut
from lookalike.training.settings import Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

EVALUATION_BATCH = 64

Batch = tuple[Tensor, Tensor, Tensor]  # inputs (B, ...), labels (B,), positions in the training set (B,)


class Feed(Protocol):
    """Source of batches."""

    sampler: ClassBatches

    def local_features(self, inputs: Tensor, backbone: nn.Module) -> Tensor:
        """Return the local features (B, N, C) of inputs: what is left to do for the backbone."""
        ...

    def training(self, start: int) -> Iterator[Batch]:
        """Return endless training batches, beginning with batch number ``start``."""
        ...

    def evaluation(self, pictures: Pictures, rank: int = 0, world_size: int = 1) -> Iterator[Tensor]:
        """Return the inputs of the pictures that process ``rank`` embeds, in order and not augmented."""
        ...


class PictureFeed:
    """Batches of pictures (B, 3, H, W), augmented for training.

    Args:
        train: Training pictures.
        spec: Input of the backbone.
        sampler: Chooses the pictures of every batch.
        workers: Processes that read pictures; None chooses by the machine.
        crop: Kind of random crop.
        flip: Whether half of the pictures are mirrored.
        erase: Share of the pictures in which a rectangle is erased.
    """

    def __init__(
        self,
        train: Pictures,
        spec: InputSpec,
        sampler: ClassBatches,
        *,
        workers: int | None = None,
        crop: Crop = "area",
        flip: bool = True,
        erase: float = 0.0,
    ) -> None:
        self.train, self.spec, self.sampler = train, spec, sampler
        self.workers, self.augmentation = workers, (crop, flip, erase)

    def local_features(self, inputs: Tensor, backbone: nn.Module) -> Tensor:
        """Return the local features (B, N, C) of pictures."""
        features: Tensor = backbone(inputs)
        return features

    def training(self, start: int) -> Iterator[Batch]:
        """Return endless training batches, beginning with batch number ``start``."""
        self.sampler.start = start
        crop, flip, erase = self.augmentation
        loader = training_loader(
            self.train, self.spec, self.sampler, crop=crop, flip=flip, erase=erase, workers=self.workers
        )
        yield from loader

    def evaluation(self, pictures: Pictures, rank: int = 0, world_size: int = 1) -> Iterator[Tensor]:
        """Return the inputs of the pictures that process ``rank`` embeds, in order and not augmented."""
        own_share = pictures.take(share(len(pictures), rank, world_size))
        for crops in crop_loader(own_share, self.spec, workers=self.workers):
            yield to_inputs(crops, self.spec)


class FeatureFeed:
    """Batches of cached features (B, N, C), or maps (B, ...) that enter the last stages.

    With several views of a picture, each epoch uses the next.
    """

    def __init__(self, train: Pictures, cache: FeatureCache, sampler: ClassBatches, views: int) -> None:
        self.cache, self.sampler, self.views = cache, sampler, views
        self.labels = torch.from_numpy(train.labels)
        self.rows = [cache.rows(train, view) for view in range(views)]

    def local_features(self, inputs: Tensor, backbone: nn.Module) -> Tensor:  # noqa: ARG002
        """Return the local features (B, N, C) of what the cache holds."""
        if self.cache.cut is not None:
            return self.cache.cut.tokens(inputs)
        return inputs

    def training(self, start: int) -> Iterator[Batch]:
        """Return endless training batches, beginning with batch number ``start``."""
        self.sampler.start = start
        for draws in self.sampler:
            rows = []
            for draw in draws:
                view = (draw.epoch + draw.turn) % self.views
                rows.append(self.rows[view][draw.index])
            positions = torch.tensor([draw.index for draw in draws])
            yield self.cache.read(np.stack(rows)), self.labels[positions], positions

    def evaluation(self, pictures: Pictures, rank: int = 0, world_size: int = 1) -> Iterator[Tensor]:
        """Return the features of the pictures that process ``rank`` embeds, in order and not augmented."""
        rows = self.cache.rows(pictures)[share(len(pictures), rank, world_size)]
        for first in range(0, len(rows), EVALUATION_BATCH):
            yield self.cache.read(rows[first : first + EVALUATION_BATCH])


def share(count: int, rank: int, world_size: int) -> NDArray[np.int64]:
    """Return the positions that one process embeds, of ``count``.

    A process without a share embeds the first one, and ``join_shares`` drops it.
    """
    start = rank if rank < count else 0
    return np.arange(start, count, world_size)


def join_shares(gathered: Tensor, count: int) -> Tensor:
    """Put the vectors of all shares, padded to (processes, longest share, D), in order: (count, D)."""
    return gathered.transpose(0, 1).reshape(-1, gathered.shape[-1])[:count]


def fill_cache(
    settings: Settings,
    embedder: Embedder,
    train: Pictures,
    validation: Pictures | None,
    fabric: "Fabric",
    display: Display,
    cut: StageCut | None = None,
) -> FeatureCache | None:
    """Open the feature cache of a run and compute what is missing, by all processes together.

    Args:
        settings: Settings of the run.
        embedder: Its model.
        train: Training pictures, cached in ``settings.views`` views.
        validation: Held-out pictures, or None.
        fabric: Launched Fabric.
        display: Prints notes and progress.
        cut: Cache the maps that enter the stages after it; None: the backbone's features.

    Returns:
        The cache; None if the disk has no space for it.
    """
    cache = FeatureCache(
        settings.cache or cache_folder(),
        embedder.backbone,
        embedder.input_spec,
        crop=settings.crop,
        flip=settings.flip,
        seed=settings.seed,
        engine=settings.engine,
        cut=cut,
    )
    wanted = [(train, settings.views)]
    if validation is not None:
        wanted.append((validation, 1))
    count = sum(len(pictures) * views for pictures, views in wanted)
    missing = cache.missing(wanted)
    lack = fabric.broadcast(cache.store.lacks_space(len(missing)))
    if lack is not None:
        display.say(f"{lack}: nothing is cached, pictures go through the frozen stages at every step (see --cache)")
        return None
    display.say(cache.describe(count, len(missing)))
    own_share = [view for view in missing if int(view.key[:8], 16) % fabric.world_size == fabric.global_rank]
    for views in (own_share, None):
        if views is None:  # machines with separate caches do not see what the others computed
            views = cache.missing(wanted)
        with display.bar(len(views), "features") as tick:
            cache.fill(views, workers=settings.workers, tick=tick)
        fabric.barrier()
        cache.store.refresh()
    return cache
