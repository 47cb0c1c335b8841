"""Local features of pictures on disk: what a frozen backbone, or its frozen stages, computed once.

Training, evaluation and indexes share the cache. A store holds the features of one backbone at one input size; a
picture is found by its content.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from lookalike._util.hashing import digest
from lookalike.data.files import FileReader
from lookalike.data.loading import PictureLoader, default_workers, evaluation_batch
from lookalike.data.pictures import Pictures, Reader
from lookalike.data.transforms import Crop, training_transform
from lookalike.inference.engine import ConvertedEngine, Engine, create_engine
from lookalike.inference.engine_name import EngineName
from lookalike.inference.feature_store import FeatureStore, PartWriter
from lookalike.inference.preprocess import Preprocess
from lookalike.models.input_spec import InputSpec
from lookalike.models.stages import StageCut
from lookalike.models.weight_files import weights_key

logger = logging.getLogger(__name__)

VERSION = 2  # raise this when preprocessing, augmentation or the forward pass change


class View(NamedTuple):
    """One picture in one view."""

    key: str  # covers the picture's content and the view
    pictures: Pictures
    position: int  # of the picture
    number: int  # of the view


class FeatureCache:
    """Features (N, C) of pictures by one frozen backbone at one input size, on disk; or maps at a cut through it.

    The folder's name covers the backbone's weights, the input, the cut and ``VERSION``. A key covers the picture's
    content and its view. View 0 is the picture as it is evaluated; the others are augmented.
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
        engine: EngineName | Engine = "auto",
        cut: StageCut | None = None,
    ) -> None:
        self.spec, self.crop, self.flip, self.seed, self.cut = spec, crop, flip, seed, cut
        frozen = backbone if cut is None else cut.frozen
        if isinstance(engine, str):
            engine = create_engine(frozen.eval(), spec, engine)
        self.engine = engine
        self.device = next(backbone.parameters()).device
        shape = self.compute(torch.zeros(1, 3, spec.size, spec.size)).shape[1:]
        about = {
            "version": VERSION,
            "backbone": getattr(backbone, "name", type(backbone).__name__),  # the same weights may fit other networks
            "weights": weights_key(backbone),
            "input": spec.to_dict(),
        }
        if self.engine.name != "torch":
            about["engine"] = self.engine.name
        if isinstance(self.engine, ConvertedEngine) and self.engine.precision == "int8":
            about["network"] = self.engine.key  # depends on the pictures of the calibration
        if cut is not None:
            about["input_of"] = cut.frozen.entry
        self.store = FeatureStore(folder, about, shape)
        self._writer: PartWriter | None = None
        self._contents: dict[int, tuple[Reader, dict[int, str]]] = {}  # holds the reader, so that its id stays unique

    @torch.inference_mode()
    def compute(self, images: Tensor) -> NDArray[np.float16]:
        """Compute the features of images (B, 3, H, W): (B, N, C), or maps at the cut, in half precision."""
        features = self.engine.maps(images.to(self.device))
        if self.cut is None:
            features = features.flatten(1, 2)
        return features.half().cpu().numpy()

    def missing(self, wanted: Sequence[tuple[Pictures, int]]) -> list[View]:
        """List the views that are not cached. Damaged ones are dropped from the cache, with a warning.

        Returns:
            Views for ``fill``, each content once.
        """
        views: dict[str, View] = {}
        for pictures, count in wanted:
            pictures_as_evaluated = Preprocess(self.spec).reading(pictures)
            for number in range(count):
                keys = self._keys(pictures, number)
                self.drop_damaged(keys)
                for position, key in enumerate(keys):
                    if key not in self.store:
                        views[key] = View(key, pictures_as_evaluated, position, number)
        return list(views.values())

    def fill(self, views: Sequence[View], *, workers: int | None = None, tick: Callable[[int], None]) -> None:
        """Compute and store views; ``tick`` gets the size of every batch. Safe to interrupt."""
        if not views:
            return
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

    def drop_damaged(self, keys: Sequence[str]) -> None:
        """Forget stored features that do not match their checksums, with a warning."""
        damaged = self.store.drop_damaged(keys)
        if damaged:
            logger.warning("%s computed again, damaged in %s", counted_rows(damaged), self.store.folder)

    def put(self, keys: Sequence[str], features: NDArray[np.float16]) -> None:
        """Store features (b, ...) that were computed elsewhere. They are found after ``store.refresh``."""
        if self._writer is None:
            self._writer = self.store.writer()  # stays open: to open a part, all of its keys are read
        self._writer.append(keys, features)

    def file_keys(self, files: Sequence[Path]) -> list[str]:
        """Return the keys of picture files as they are evaluated (view 0).

        Raises:
            UnreadablePicture: If a file cannot be read.
        """
        reader = FileReader(Path(), [str(file) for file in files])
        with ThreadPoolExecutor() as threads:
            return [digest(content, "") for content in threads.map(reader.key, range(len(files)))]

    def describe(self, count: int, missing: int) -> str:
        """Say in one line how much of ``count`` views is cached, and where."""
        size = f"{self.store.size / 1e9:.2f} GB"
        return f"features: {count - missing:,} of {count:,} are in {self.store.folder} ({size})"

    def rows(self, pictures: Pictures, view: int = 0) -> NDArray[np.int64]:
        """Find the features of all pictures in one view: rows (n, 2) for ``read``."""
        return self.store.find(self._keys(pictures, view))

    def read(self, rows: NDArray[np.int64]) -> Tensor:
        """Read the features at rows (b, 2): (b, ...) as float32."""
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


def counted_rows(count: int) -> str:
    """Write a number of rows with its verb."""
    return "1 row is" if count == 1 else f"{count:,} rows are"


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
