"""A trained model, ready for use: ``lookalike.load(run).embed(pictures)`` and ``.explain(picture)``.

The backbone runs in an engine (``inference.engine``), the head in torch. On a CPU every picture goes through both
alone. Torch chooses the code of a convolution also by the batch size,
so in a batch the last bits of a vector would depend on how many other pictures happen to be in it. Alone, a file has
the same vector, bit for bit, from ``embed``, from an index and from the server (same machine and number of threads).
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lookalike._util.checks import check_count
from lookalike.data.cropping import Pixels
from lookalike.data.loading import evaluation_batch
from lookalike.data.pictures import Pictures
from lookalike.inference.engine import Engine, create_engine, forward_each, joined, resolve_engine
from lookalike.inference.engine_name import EngineName
from lookalike.inference.heatmap import CropWeights, Explained, crop_box, spread
from lookalike.inference.preprocess import Preprocess, as_image, as_list, crop_loader, decoded_batches
from lookalike.models import Embedder, create_backbone, hub, load_model, starts_random


def load(run: str | Path, device: torch.device | str | None = None, engine: EngineName = "auto") -> "TrainedModel":
    """Load a trained model.

    Args:
        run: Folder with ``model.json`` and ``model.safetensors``, or ``"hf:owner/name"`` or
            ``"hf:owner/name@revision"`` for a model on the Hugging Face hub.
        device: Where to compute; None takes a GPU if there is one.
        engine: What computes the local features: "torch", "openvino", "onnxruntime", or "auto" for OpenVINO on a CPU
            if it is installed, else torch.

    Returns:
        The model, in eval mode.

    Raises:
        ValueError: If there is no such model or engine, or the files do not fit.
    """
    if hub.is_address(run):
        run = hub.fetch(str(run))
    return TrainedModel(load_model(run, device or _default_device()), engine)


def untrained(
    backbone: str,
    *,
    size: int | None = None,
    device: torch.device | str | None = None,
    engine: EngineName = "auto",
) -> "TrainedModel":
    """Load a backbone with its pretrained weights and average its local features: the baseline of a trained model.

    Args:
        backbone: Name as ``lookalike.models.create_backbone`` takes it.
        size: Side of the input in pixels; None for the backbone's own.
        device: Where to compute; None takes a GPU if there is one.
        engine: As for ``load``.

    Returns:
        The model, in eval mode.

    Raises:
        ValueError: If the backbone has no pretrained weights.
    """
    if starts_random(backbone):
        raise ValueError(f"{backbone} comes without weights: train it first")
    network = create_backbone(backbone)
    spec = network.spec if size is None else network.spec.resized(size)
    embedder = Embedder(network, dim=None, pooling="average", input_spec=spec)
    return TrainedModel(embedder.to(device or _default_device()), engine)


@torch.inference_mode()
def embed_batches(
    batches: Iterable[Tensor], forward: Callable[[Tensor], Any], *, device: torch.device, tick: Callable[[int], None]
) -> Any:
    """Run ``forward`` over batches and join the results on the CPU.

    Args:
        batches: Tensors (B, ...), at least one.
        forward: Gives one tensor (B, ...) for a batch, or a tuple of them.
        device: Where ``forward`` computes.
        tick: Called with the number of pictures after every batch, to show progress or to stop by an exception.

    Returns:
        One tensor (n, ...) in float32, or a tuple of them.
    """
    results: list[Any] = []
    for batch in batches:
        results.append(_on_cpu(forward(batch.to(device, non_blocking=True))))
        tick(len(batch))
    return joined(results)


class TrainedModel:
    """Pictures -> vectors, normalised as trained.

    Args:
        embedder: The network; it is put into eval mode. Its backbone must not change afterwards.
        engine: As for ``load``.

    Attributes:
        embedder: The network.
        spec: What the backbone expects of its inputs.
        preprocess: Makes inputs of pictures.
        device: Where it computes.
        distance: The distance between its vectors, "cosine" or "l2".
    """

    def __init__(self, embedder: Embedder, engine: EngineName = "auto") -> None:
        self.embedder = embedder.eval()
        self.spec = embedder.input_spec
        self.preprocess = Preprocess(self.spec)
        self.device = next(embedder.parameters()).device
        self.distance = embedder.head.distance
        self._engine_name = resolve_engine(engine, self.device)

    @cached_property
    def engine(self) -> Engine:
        """What computes the local features; a converted network is loaded on first use."""
        return create_engine(self.embedder.backbone, self.spec, self._engine_name)

    @property
    def dim(self) -> int:
        """Size of the vectors."""
        return self.embedder.head.dim

    @property
    def has_weights(self) -> bool:
        """Whether the pooling weighs places, so that ``explain`` works."""
        return self.embedder.head.pooling.has_weights

    def embed(self, pictures: Sequence[Any] | Any, batch_size: int | None = None) -> NDArray[np.float32]:
        """Compute the vectors of pictures.

        Args:
            pictures: One or several of: path, PIL image, array of uint8 (H, W), (H, W, 3) or (H, W, 4).
            batch_size: Pictures decoded together and, on a GPU, computed together; None chooses by the device.

        Returns:
            Vectors (n, D), also for one picture.

        Raises:
            UnreadablePicture: If a file cannot be read; the error names it.
            TypeError: If something is not a picture.
        """
        pictures, _ = as_list(pictures)
        vectors = self._run(pictures, batch_size, lambda i: self.preprocess.read_crop(pictures[i]), self.vectors)
        return self._no_vectors() if vectors is None else vectors.numpy()

    def embed_table(
        self, pictures: Pictures, *, workers: int | None = None, tick: Callable[[int], None] = lambda _: None
    ) -> NDArray[np.float32]:
        """Compute the vectors of a table of pictures, read by worker processes.

        Args:
            pictures: The table.
            workers: Processes that read pictures; None chooses by the machine, 0 reads in this process.
            tick: Called with the number of pictures after every batch.

        Returns:
            Vectors (n, D).
        """
        if not len(pictures):
            return self._no_vectors()
        crops = crop_loader(pictures, self.spec, workers=workers)
        vectors: Tensor = embed_batches(crops, self.vectors, device=self.device, tick=tick)
        return vectors.numpy()

    @torch.inference_mode()
    def vectors(self, crops: Tensor) -> Tensor:
        """Compute the vectors (B, D) of crops (B, size, size, 3) uint8 that ``preprocess`` made."""
        return forward_each(self.embedder.head, self._maps(crops).flatten(1, 2))

    @overload
    def explain(self, pictures: str | Path | Image.Image, batch_size: int | None = None) -> Explained: ...
    @overload
    def explain(self, pictures: Sequence[Any], batch_size: int | None = None) -> list[Explained]: ...
    @overload
    def explain(self, pictures: Any, batch_size: int | None = None) -> Explained | list[Explained]: ...
    def explain(self, pictures: Any, batch_size: int | None = None) -> Explained | list[Explained]:
        """Show where in a picture the pooling looked.

        Args:
            pictures: As for ``embed``. Files are decoded at full size.
            batch_size: As for ``embed``.

        Returns:
            Weights in the size of the upright picture, and more: see ``Explained``. A list for several pictures.

        Raises:
            ValueError: If the pooling does not weigh places (``has_weights`` is False).
        """
        if not self.has_weights:
            name = self.embedder.settings()["pooling"]["name"]
            raise ValueError(f"this model cannot explain: its pooling {name} does not weigh places")
        pictures, alone = as_list(pictures)
        sizes = [(0, 0)] * len(pictures)

        def crop(i: int) -> Pixels:
            image = as_image(pictures[i])
            sizes[i] = image.size
            return self.preprocess.crop(image)

        def forward(crops: Tensor) -> Any:
            return forward_each(self._weights, self._maps(crops))

        results = self._run(pictures, batch_size, crop, forward)
        if results is None:
            return []
        grids, attributes = results
        explained = []
        for grid, shares, (width, height) in zip(grids.numpy(), attributes.numpy(), sizes, strict=True):
            box = crop_box(self.spec, width, height)
            weights = spread(grid, box, width, height)
            explained.append(Explained(weights, grid, box, shares if len(shares) else None))
        return explained[0] if alone else explained

    @torch.inference_mode()
    def explain_crop(self, crop: Pixels) -> CropWeights:
        """Show where in a crop the pooling looked, without weights per pixel of the picture.

        Args:
            crop: (size, size, 3) uint8, made by ``preprocess``.

        Returns:
            The weights of the pooling's grid. ``crop_box`` gives the area that it covers.
        """
        grids, attributes = _on_cpu(forward_each(self._weights, self._maps(torch.from_numpy(crop)[None])))
        shares = attributes[0].numpy()
        return CropWeights(grids[0].numpy(), shares if len(shares) else None)

    def _maps(self, crops: Tensor) -> Tensor:
        return self.engine.maps(self.preprocess.inputs(crops.to(self.device, non_blocking=True)))

    def _weights(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        explanation = self.embedder.explain_maps(maps)
        return explanation.heat_maps, explanation.attributes

    def _no_vectors(self) -> NDArray[np.float32]:
        return np.zeros((0, self.dim), np.float32)

    def _run(
        self,
        pictures: list[Any],
        batch_size: int | None,
        crop: Callable[[int], Pixels],
        forward: Callable[[Tensor], Any],
    ) -> Any:
        """``forward`` over batches of crops, where ``crop(i)`` reads picture i; None without pictures."""
        if batch_size is None:
            batch_size = evaluation_batch()
        check_count("batch_size", batch_size)
        if not pictures:
            return None
        with ThreadPoolExecutor() as threads:
            batches = decoded_batches(pictures, batch_size, crop, threads)
            return embed_batches(batches, forward, device=self.device, tick=lambda _: None)


def _default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _on_cpu(results: Any) -> Any:
    if isinstance(results, Tensor):
        return results.float().cpu()
    return tuple(map(_on_cpu, results))
