"""A trained model, ready for use: ``lookalike.load(run).embed(pictures)`` and ``.explain(picture)``."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lookalike.checks import check_count
from lookalike.data.files import reading_at_least
from lookalike.data.loading import evaluation_batch, evaluation_loader
from lookalike.data.pictures import Pictures
from lookalike.data.reading import as_rgb, read_picture
from lookalike.data.transforms import evaluation_transform
from lookalike.models import Embedder, create_backbone, load_model, starts_random
from lookalike.training.evaluation import distance_for, embed
from lookalike.weight_maps import Explained, evaluation_box, spread


def load(run: str | Path, device: torch.device | str | None = None) -> "TrainedModel":
    """The model in the folder of a run (``model.json`` and ``model.safetensors``), on a GPU if there is one."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return TrainedModel(load_model(run, device))


def untrained(backbone: str, *, size: int | None = None, device: torch.device | str | None = None) -> "TrainedModel":
    """A backbone as it comes, its local features averaged: what a trained model has to beat."""
    if starts_random(backbone):
        raise ValueError(f"{backbone} comes without weights: there is nothing to measure before it is trained")
    network = create_backbone(backbone)
    spec = network.spec if size is None else network.spec.resized(size)
    embedder = Embedder(network, dim=None, pooling="average", input_spec=spec)
    return TrainedModel(embedder.to(device or ("cuda" if torch.cuda.is_available() else "cpu")))


class TrainedModel:
    """Pictures -> vectors, normalised as trained."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder.eval()
        self.spec = embedder.input_spec
        self.device = next(embedder.parameters()).device
        self.distance = distance_for(embedder.head.normalise)
        self._transform = evaluation_transform(self.spec)

    @property
    def dim(self) -> int:
        return self.embedder.head.dim

    def embed(self, pictures: Sequence[Any] | Any, batch_size: int | None = None) -> NDArray[np.float32]:
        """Vectors (n, D) of n pictures: paths, PIL images, or arrays of uint8, (H, W), (H, W, 3 or 4); one alone too.

        A picture that cannot be read raises ``UnreadablePicture`` with its name.
        """
        pictures, _ = _listed(pictures)
        at_least = 2 * self.spec.resize_to  # of a JPEG, which may then be decoded smaller
        vectors = self._over(
            pictures, batch_size, lambda i: self._transform(_image(pictures[i], at_least)), self.embedder
        )
        return np.zeros((0, self.dim), np.float32) if vectors is None else vectors.numpy()

    @overload
    def explain(self, pictures: str | Path | Image.Image, batch_size: int | None = None) -> Explained: ...
    @overload
    def explain(self, pictures: Sequence[Any], batch_size: int | None = None) -> list[Explained]: ...
    @overload
    def explain(self, pictures: Any, batch_size: int | None = None) -> Explained | list[Explained]: ...
    def explain(self, pictures: Any, batch_size: int | None = None) -> Explained | list[Explained]:
        """What the pooling looked at in a picture, as whatever ``embed`` takes; of several, a list.

        The weights come in the size of the upright picture: see ``lookalike.weight_maps``. Raises ValueError where the
        pooling does not weigh places, ``has_weights`` being False.
        """
        if not self.has_weights:
            name = self.embedder.settings()["pooling"]["name"]
            raise ValueError(f"the pooling of this model, {name}, does not weigh places: there is nothing to explain")
        pictures, alone = _listed(pictures)
        sizes = [(0, 0)] * len(pictures)

        def numbers(i: int) -> Tensor:
            image = _image(pictures[i])
            sizes[i] = image.size
            return self._transform(image)

        def look(images: Tensor) -> tuple[Tensor, Tensor]:
            seen = self.embedder.explain(images)
            return seen.heat_maps, seen.attributes

        found = self._over(pictures, batch_size, numbers, look)
        grids, attributes = (found[0].numpy(), found[1].numpy()) if found else ([], [])
        explained = [
            self._explained(grid, row, *size) for grid, row, size in zip(grids, attributes, sizes, strict=True)
        ]
        return explained[0] if alone else explained

    @property
    def has_weights(self) -> bool:
        """Whether ``explain`` has something to say."""
        return self.embedder.head.pooling.has_weights

    def embed_table(
        self, pictures: Pictures, *, workers: int | None = None, tick: Callable[[int], None] = lambda _: None
    ) -> NDArray[np.float32]:
        """Vectors (n, D) of a table of pictures, read by worker processes."""
        if not len(pictures):
            return np.zeros((0, self.dim), np.float32)
        loader = evaluation_loader(reading_at_least(pictures, 2 * self.spec.resize_to), self.spec, workers=workers)
        vectors: Tensor = embed((images for images, _, _ in loader), self.embedder, device=self.device, tick=tick)
        return vectors.numpy()

    def _explained(
        self, grid: NDArray[np.float32], attributes: NDArray[np.float32], width: int, height: int
    ) -> Explained:
        box = evaluation_box(self.spec, width, height)
        return Explained(spread(grid, box, width, height), grid, box, attributes if len(attributes) else None)

    def _over(
        self, pictures: list[Any], size: int | None, numbers: Callable[[int], Tensor], forward: Callable[[Tensor], Any]
    ) -> Any:
        """``forward`` over batches of pictures, the i-th of which ``numbers(i)`` prepares; None if there are none."""
        size = evaluation_batch() if size is None else size
        check_count("batch_size", size)
        if not pictures:
            return None
        with ThreadPoolExecutor() as threads:
            batches = _batches(pictures, size, numbers, threads)
            return embed(batches, forward, device=self.device, tick=lambda _: None)


def _batches(
    pictures: list[Any], size: int, numbers: Callable[[int], Tensor], threads: ThreadPoolExecutor
) -> Iterator[Tensor]:
    """While one batch is computed the next is decoded."""

    def decode(first: int) -> list[Future[Tensor]]:
        batch = range(first, min(first + size, len(pictures)))
        for i in batch:
            if isinstance(pictures[i], Image.Image):
                pictures[i].load()  # here: two threads must not decode one picture, should it come twice
        return [threads.submit(numbers, i) for i in batch]

    ahead = decode(0)
    for first in range(0, len(pictures), size):
        current, ahead = ahead, decode(first + size)
        yield torch.stack([future.result() for future in current])


def _listed(pictures: Any) -> tuple[list[Any], bool]:
    """One picture or several -> a list, and whether it was one."""
    alone = isinstance(pictures, (str, Path, Image.Image)) or getattr(pictures, "ndim", None) in (2, 3)
    return [pictures] if alone else list(pictures), alone


def _image(picture: Any, at_least: int | None = None) -> Image.Image:
    """The upright picture in RGB; ``at_least`` as for ``read_picture``."""
    if isinstance(picture, (str, Path)):
        return read_picture(picture, at_least=at_least)
    if isinstance(picture, Image.Image):
        return as_rgb(picture)
    array = np.asarray(picture)
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        raise TypeError(
            "a picture must be a path, a PIL image or an array of uint8, (H, W), (H, W, 3) or (H, W, 4), "
            f"got {array.dtype} of shape {array.shape}"
        )
    return as_rgb(Image.fromarray(array))
