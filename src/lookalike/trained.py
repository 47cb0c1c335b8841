"""A trained model, ready for use: ``lookalike.load(run).embed(pictures)``."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
        batch_size = evaluation_batch() if batch_size is None else batch_size
        check_count("batch_size", batch_size)
        if isinstance(pictures, (str, Path, Image.Image)) or getattr(pictures, "ndim", None) in (2, 3):
            pictures = [pictures]
        pictures = list(pictures)
        if not pictures:
            return np.zeros((0, self.dim), np.float32)
        with ThreadPoolExecutor() as threads:
            vectors: Tensor = embed(
                self._batches(pictures, batch_size, threads), self.embedder, device=self.device, tick=lambda _: None
            )
        return vectors.numpy()

    def embed_table(
        self, pictures: Pictures, *, workers: int | None = None, tick: Callable[[int], None] = lambda _: None
    ) -> NDArray[np.float32]:
        """Vectors (n, D) of a table of pictures, read by worker processes."""
        if not len(pictures):
            return np.zeros((0, self.dim), np.float32)
        loader = evaluation_loader(reading_at_least(pictures, 2 * self.spec.resize_to), self.spec, workers=workers)
        vectors: Tensor = embed((images for images, _, _ in loader), self.embedder, device=self.device, tick=tick)
        return vectors.numpy()

    def _batches(self, pictures: list[Any], size: int, threads: ThreadPoolExecutor) -> Iterator[Tensor]:
        """While one batch is computed the next is decoded."""

        def decode(first: int) -> list[Future[Tensor]]:
            batch = pictures[first : first + size]
            for picture in batch:
                if isinstance(picture, Image.Image):
                    picture.load()  # here: two threads must not decode one picture, should it come twice
            return [threads.submit(self._numbers, picture) for picture in batch]

        ahead = decode(0)
        for first in range(0, len(pictures), size):
            current, ahead = ahead, decode(first + size)
            yield torch.stack([future.result() for future in current])

    def _numbers(self, picture: Any) -> Tensor:
        if isinstance(picture, (str, Path)):
            return self._transform(read_picture(picture, at_least=2 * self.spec.resize_to))
        if isinstance(picture, Image.Image):
            return self._transform(as_rgb(picture))
        array = np.asarray(picture)
        if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
            raise TypeError(
                "a picture must be a path, a PIL image or an array of uint8, (H, W), (H, W, 3) or (H, W, 4), "
                f"got {array.dtype} of shape {array.shape}"
            )
        return self._transform(as_rgb(Image.fromarray(array)))
