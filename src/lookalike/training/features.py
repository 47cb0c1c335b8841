"""Features of a frozen backbone, computed once for each picture and view and kept on disk."""

import os
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
from lookalike.data.loading import PictureLoader, default_workers, evaluation_batch
from lookalike.data.pictures import Pictures, Reader
from lookalike.data.transforms import Crop, training_transform
from lookalike.inference.model import forward_each
from lookalike.inference.preprocess import Preprocess
from lookalike.models.input_spec import InputSpec
from lookalike.training.feature_store import FeatureStore

TRANSFORMS = 2  # to be raised when a transform changes, so that no old features are taken for new ones


class View(NamedTuple):
    """One picture in one view; ``key`` covers the content and the view."""

    key: str
    pictures: Pictures
    place: int  # in the table
    number: int  # of the view


def default_folder() -> Path:
    """LOOKALIKE_CACHE, or where caches of this user lie."""
    chosen = os.environ.get("LOOKALIKE_CACHE")
    general = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(chosen) if chosen else Path(general) / "lookalike"


class FeatureCache:
    """Features (N, C) of one frozen backbone at one input size, under ``folder``.

    The store's name covers the backbone's weights and the input; a row's key covers the picture's content and its view.
    View 0 is the picture as it is evaluated, the others are augmented by ``crop``, ``flip`` and (seed, view, content).
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
    ) -> None:
        weights = digest(*(f"{name} {_content(value)}" for name, value in sorted(backbone.state_dict().items())))
        self.backbone, self.spec, self.crop, self.flip, self.seed = backbone.eval(), spec, crop, flip, seed
        self.device = next(backbone.parameters()).device
        shape = self.compute(torch.zeros(1, 3, spec.size, spec.size)).shape
        name = getattr(backbone, "name", type(backbone).__name__)  # the same weights may fit networks that differ
        about = {"backbone": name, "weights": weights, "input": spec.to_dict(), "transforms": TRANSFORMS}
        self.store = FeatureStore(folder, about, (shape[1], shape[2]))
        self._contents: dict[int, tuple[Reader, dict[int, str]]] = {}  # the reader is kept, that its id stays its own

    @torch.inference_mode()
    def compute(self, images: Tensor) -> NDArray[np.float16]:
        """(B, 3, H, W) -> (B, N, C) in half precision."""
        features: Tensor = forward_each(self.backbone, images.to(self.device))
        return features.half().cpu().numpy()

    def missing(self, wanted: Sequence[tuple[Pictures, int]]) -> list[View]:
        """What is not there yet, of every (pictures, number of views)."""
        views: dict[str, View] = {}
        for pictures, count in wanted:
            read_alike = Preprocess(self.spec).reading(pictures)
            for number in range(count):
                keys = self._keys(pictures, number)
                views.update(
                    (key, View(key, read_alike, i, number)) for i, key in enumerate(keys) if key not in self.store
                )
        return list(views.values())

    def fill(self, views: Sequence[View], *, workers: int | None = None, tick: Callable[[int], None]) -> None:
        """Compute and store these; ``tick`` hears after every batch how many were done. Safe to interrupt."""
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
            for images, _, positions in loader:
                writer.append([views[position].key for position in positions.tolist()], self.compute(images))
                tick(len(images))

    def places(self, pictures: Pictures, view: int = 0) -> NDArray[np.int64]:
        """Where the features of all pictures lie, (n, 2)."""
        return self.store.places(self._keys(pictures, view))

    def read(self, places: NDArray[np.int64]) -> Tensor:
        """(b, 2) -> (b, N, C) as float32."""
        return torch.from_numpy(self.store.read(places)).float()

    def _keys(self, pictures: Pictures, view: int) -> list[str]:
        """The keys of all pictures in one view; contents are hashed once, by a few threads."""
        _, contents = self._contents.setdefault(id(pictures.reader), (pictures.reader, {}))
        origins = pictures.origins.tolist()
        unknown = [i for i, origin in enumerate(origins) if origin not in contents]
        with ThreadPoolExecutor() as threads:
            for i, content in zip(unknown, threads.map(pictures.key, unknown), strict=True):
                contents[origins[i]] = content
        variant = "" if view == 0 else f"{view} {self.crop} {self.flip} {self.seed}"
        return [digest(contents[origin], variant) for origin in origins]


class _ViewSet(Dataset[tuple[Tensor, int, int]]):
    """Views for a loader: (numbers, number of the view, position in the list)."""

    def __init__(self, views: Sequence[View], spec: InputSpec, crop: Crop, flip: bool) -> None:
        self.views = views
        self.plain = Preprocess(spec)
        self.augmented = training_transform(spec, crop=crop, flip=flip)

    def __len__(self) -> int:
        return len(self.views)

    def __getitem__(self, position: int) -> tuple[Tensor, int, int]:
        view = self.views[position]
        image = view.pictures.image(view.place)
        if view.number == 0:
            return self.plain(image), view.number, position
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(view.key[:16], 16))
            return self.augmented(image), view.number, position


def _content(value: Tensor) -> str:
    array = value.detach().cpu().reshape(-1).contiguous()
    return digest(str(value.dtype), str(tuple(value.shape)), array.view(torch.uint8).numpy().tobytes())
