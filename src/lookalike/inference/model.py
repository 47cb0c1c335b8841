"""A trained model, ready for use: ``lookalike.load(run).embed(pictures)`` and ``.explain(picture)``."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lookalike._util.checks import check_count
from lookalike.data.files import reading_at_least
from lookalike.data.loading import evaluation_batch, evaluation_loader
from lookalike.data.pictures import Pictures
from lookalike.inference.heatmap import Explained, evaluation_box, spread
from lookalike.inference.preprocess import Pixels, Preparation, as_image, batches, listed
from lookalike.models import Embedder, create_backbone, hub, load_model, starts_random


def load(run: str | Path, device: torch.device | str | None = None) -> "TrainedModel":
    """The model in the folder of a run (``model.json`` and ``model.safetensors``), on a GPU if there is one.

    ``"hf:owner/name"``, or ``"hf:owner/name@revision"``, fetches these files from the Hugging Face hub.
    """
    if hub.is_address(run):
        run = hub.fetch(str(run))
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


@torch.inference_mode()
def embed_batches(
    batches: Iterable[Tensor], forward: Callable[[Tensor], Any], *, device: torch.device, tick: Callable[[int], None]
) -> Any:
    """Run ``forward`` over batches and join the results on the CPU.

    Args:
        batches: Tensors (B, ...), of at least one batch.
        forward: Gives one tensor (B, ...) for a batch, or a tuple of them.
        device: Where ``forward`` computes.
        tick: Called with the number of pictures after every batch, to show progress or to stop by an exception.

    Returns:
        One tensor (n, ...) in float32, or a tuple of them.
    """
    columns: list[list[Tensor]] = []
    single = True
    for batch in batches:
        results = forward(batch.to(device, non_blocking=True))
        single = isinstance(results, Tensor)
        if single:
            results = (results,)
        columns = columns or [[] for _ in results]
        for column, result in zip(columns, results, strict=True):
            column.append(result.float().cpu())
        tick(len(batch))
    joined = tuple(map(torch.cat, columns))
    return joined[0] if single else joined


class TrainedModel:
    """Pictures -> vectors, normalised as trained."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder.eval()
        self.spec = embedder.input_spec
        self.device = next(embedder.parameters()).device
        self.distance = embedder.head.distance
        self._preparation = Preparation(self.spec)

    @property
    def dim(self) -> int:
        return self.embedder.head.dim

    def embed(self, pictures: Sequence[Any] | Any, batch_size: int | None = None) -> NDArray[np.float32]:
        """Vectors (n, D) of n pictures: paths, PIL images, or arrays of uint8, (H, W), (H, W, 3 or 4); one alone too.

        A picture that cannot be read raises ``UnreadablePicture`` with its name.
        """
        pictures, _ = listed(pictures)
        at_least = 2 * self.spec.resize_to  # of a JPEG, which may then be decoded smaller

        def crop(i: int) -> Pixels:
            return self._preparation.crop(as_image(pictures[i], at_least))

        vectors = self._over(pictures, batch_size, crop, self.embedder)
        return np.zeros((0, self.dim), np.float32) if vectors is None else vectors.numpy()

    @overload
    def explain(self, pictures: str | Path | Image.Image, batch_size: int | None = None) -> Explained: ...
    @overload
    def explain(self, pictures: Sequence[Any], batch_size: int | None = None) -> list[Explained]: ...
    @overload
    def explain(self, pictures: Any, batch_size: int | None = None) -> Explained | list[Explained]: ...
    def explain(self, pictures: Any, batch_size: int | None = None) -> Explained | list[Explained]:
        """What the pooling looked at in a picture, as whatever ``embed`` takes; of several, a list.

        The weights come in the size of the upright picture: see ``lookalike.inference.heatmap``. Raises
        ValueError where the pooling does not weigh places, ``has_weights`` being False.
        """
        if not self.has_weights:
            name = self.embedder.settings()["pooling"]["name"]
            raise ValueError(f"the pooling of this model, {name}, does not weigh places: there is nothing to explain")
        pictures, alone = listed(pictures)
        sizes = [(0, 0)] * len(pictures)

        def crop(i: int) -> Pixels:
            image = as_image(pictures[i])
            sizes[i] = image.size
            return self._preparation.crop(image)

        def look(images: Tensor) -> tuple[Tensor, Tensor]:
            seen = self.embedder.explain(images)
            return seen.heat_maps, seen.attributes

        found = self._over(pictures, batch_size, crop, look)
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
        vectors: Tensor = embed_batches(
            (images for images, _, _ in loader), self.embedder, device=self.device, tick=tick
        )
        return vectors.numpy()

    def _explained(
        self, grid: NDArray[np.float32], attributes: NDArray[np.float32], width: int, height: int
    ) -> Explained:
        box = evaluation_box(self.spec, width, height)
        return Explained(spread(grid, box, width, height), grid, box, attributes if len(attributes) else None)

    def _over(
        self, pictures: list[Any], size: int | None, crop: Callable[[int], Pixels], forward: Callable[[Tensor], Any]
    ) -> Any:
        """``forward`` over batches of pictures, the i-th of which ``crop(i)`` reads; None if there are none."""
        size = evaluation_batch() if size is None else size
        check_count("batch_size", size)
        if not pictures:
            return None
        with ThreadPoolExecutor() as threads:
            return embed_batches(
                batches(pictures, size, crop, threads),
                lambda pixels: forward(self._preparation.numbers(pixels)),
                device=self.device,
                tick=lambda _: None,
            )
