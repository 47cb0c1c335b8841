"""Batches of a run: pictures, or features that a frozen backbone computed once and a cache keeps on disk.

Both feeds give endless training batches from any step on, and evaluation batches in order, of which each process takes
its share. The batches depend only on seed, step and rank.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from lookalike._util.files import cache_folder
from lookalike._util.hashing import digest
from lookalike._util.progress import Display
from lookalike.data.loading import PictureLoader, default_workers, evaluation_batch, training_loader
from lookalike.data.pictures import Pictures, Reader
from lookalike.data.sampler import ClassBatches
from lookalike.data.transforms import Crop, training_transform
from lookalike.inference.engine import create_engine
from lookalike.inference.engine_name import EngineName
from lookalike.inference.preprocess import Preprocess, crop_loader, to_inputs
from lookalike.models import Embedder
from lookalike.models.input_spec import InputSpec
from lookalike.models.weight_files import weights_key
from lookalike.training.feature_store import FeatureStore
from lookalike.training.settings import Settings

VERSION = 2  # raise this when preprocessing, augmentation or the forward pass change
EVALUATION_BATCH = 64

Batch = tuple[Tensor, Tensor, Tensor]  # inputs (B, ...), labels (B,), positions in the training set (B,)


class Feed(Protocol):
    """Source of batches."""

    sampler: ClassBatches

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
    """Batches of cached features (B, N, C). With several views of a picture, each epoch uses the next."""

    def __init__(self, train: Pictures, cache: "FeatureCache", sampler: ClassBatches, views: int) -> None:
        self.cache, self.sampler, self.views = cache, sampler, views
        self.labels = torch.from_numpy(train.labels)
        self.rows = [cache.rows(train, view) for view in range(views)]

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


class View(NamedTuple):
    """One picture in one view."""

    key: str  # covers the picture's content and the view
    pictures: Pictures
    position: int  # of the picture
    number: int  # of the view


def fill_cache(
    settings: Settings,
    embedder: Embedder,
    train: Pictures,
    validation: Pictures | None,
    fabric: Fabric,
    display: Display,
) -> "FeatureCache":
    """Open the feature cache of a run and compute what is missing, by all processes together."""
    cache = FeatureCache(
        settings.cache or cache_folder(),
        embedder.backbone,
        embedder.input_spec,
        crop=settings.crop,
        flip=settings.flip,
        seed=settings.seed,
        engine=settings.engine,
    )
    wanted = [(train, settings.views)]
    if validation is not None:
        wanted.append((validation, 1))
    count = sum(len(pictures) * views for pictures, views in wanted)
    missing = cache.missing(wanted)
    display.say(f"features: {count - len(missing):,} of {count:,} are in {cache.store.folder}")
    own_share = [view for view in missing if int(view.key[:8], 16) % fabric.world_size == fabric.global_rank]
    for views in (own_share, None):
        if views is None:  # machines with separate caches do not see what the others computed
            views = cache.missing(wanted)
        with display.bar(len(views), "features") as tick:
            cache.fill(views, workers=settings.workers, tick=tick)
        fabric.barrier()
        cache.store.refresh()
    return cache


class FeatureCache:
    """Features (N, C) of pictures by one frozen backbone at one input size, on disk.

    The folder's name covers the backbone's weights, the input and ``VERSION``. A key covers the picture's content and
    its view. View 0 is the picture as it is evaluated; the others are augmented.
    """

    def __init__(
        self,
        folder: Path,
        backbone: nn.Module,
        spec: InputSpec,
        *,
        crop: Crop = "area",
        flip: bool = True,
        seed: int = 0,
        engine: EngineName = "auto",
    ) -> None:
        self.spec, self.crop, self.flip, self.seed = spec, crop, flip, seed
        self.engine = create_engine(backbone.eval(), spec, engine)
        self.device = next(backbone.parameters()).device
        shape = self.compute(torch.zeros(1, 3, spec.size, spec.size)).shape
        about = {
            "version": VERSION,
            "backbone": getattr(backbone, "name", type(backbone).__name__),  # the same weights may fit other networks
            "weights": weights_key(backbone),
            "input": spec.to_dict(),
        }
        if self.engine.name != "torch":
            about["engine"] = self.engine.name
        self.store = FeatureStore(folder, about, (shape[1], shape[2]))
        self._contents: dict[int, tuple[Reader, dict[int, str]]] = {}  # holds the reader, so that its id stays unique

    @torch.inference_mode()
    def compute(self, images: Tensor) -> NDArray[np.float16]:
        """Compute the features of images (B, 3, H, W): (B, N, C) in half precision."""
        features = self.engine.maps(images.to(self.device)).flatten(1, 2)
        return features.half().cpu().numpy()

    def missing(self, wanted: Sequence[tuple[Pictures, int]]) -> list[View]:
        """List the views that are not cached.

        Returns:
            Views for ``fill``, each content once.
        """
        views: dict[str, View] = {}
        for pictures, count in wanted:
            pictures_as_evaluated = Preprocess(self.spec).reading(pictures)
            for number in range(count):
                for position, key in enumerate(self._keys(pictures, number)):
                    if key not in self.store:
                        views[key] = View(key, pictures_as_evaluated, position, number)
        return list(views.values())

    def fill(self, views: Sequence[View], *, workers: int | None = None, tick: Callable[[int], None]) -> None:
        """Compute and store views; ``tick`` gets the size of every batch. Safe to interrupt."""
        if not views:
            return
        self.store.require_space(len(views))
        loader = PictureLoader(
            _ViewSet(views, self.spec, self.crop, self.flip),
            batch_size=evaluation_batch(),
            num_workers=default_workers() if workers is None else workers,
            generator=torch.Generator(),
        )
        with self.store.writer() as writer:
            for images, indices in loader:
                keys = [views[index].key for index in indices.tolist()]
                writer.append(keys, self.compute(images))
                tick(len(images))

    def rows(self, pictures: Pictures, view: int = 0) -> NDArray[np.int64]:
        """Find the features of all pictures in one view: rows (n, 2) for ``read``."""
        return self.store.find(self._keys(pictures, view))

    def read(self, rows: NDArray[np.int64]) -> Tensor:
        """Read the features at rows (b, 2): (b, N, C) as float32."""
        return torch.from_numpy(self.store.read(rows)).float()

    def _keys(self, pictures: Pictures, view: int) -> list[str]:
        """Keys of all pictures in one view; contents are hashed once, by several threads."""
        _, contents = self._contents.setdefault(id(pictures.reader), (pictures.reader, {}))
        origins = pictures.origins.tolist()
        unhashed = [position for position, origin in enumerate(origins) if origin not in contents]
        with ThreadPoolExecutor() as threads:
            for position, content in zip(unhashed, threads.map(pictures.key, unhashed), strict=True):
                contents[origins[position]] = content
        variant = ""
        if view > 0:
            variant = f"{view} {self.crop} {self.flip} {self.seed}"
        return [digest(contents[origin], variant) for origin in origins]


class _ViewSet(Dataset[tuple[Tensor, int]]):
    """Views for a loader: inputs (3, H, W) and the index of the view."""

    def __init__(self, views: Sequence[View], spec: InputSpec, crop: Crop, flip: bool) -> None:
        self.views = views
        self.plain = Preprocess(spec)
        self.augmented = training_transform(spec, crop=crop, flip=flip)

    def __len__(self) -> int:
        return len(self.views)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        view = self.views[index]
        image = view.pictures.image(view.position)
        if view.number == 0:
            return self.plain(image), index
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(view.key[:16], 16))
            return self.augmented(image), index
