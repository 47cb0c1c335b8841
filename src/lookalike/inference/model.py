"""A trained model, ready for use: ``lookalike.load(run).embed(pictures)`` and ``.explain(picture)``.

The backbone runs in an engine (``inference.engine``), the head in torch. On a CPU every picture goes through both
alone. Torch chooses the code of a convolution also by the batch size, so in a batch the last bits of a vector would
depend on how many other pictures happen to be in it. Alone, a file has the same vector of this model, bit for bit, from
``embed``, from an index and from the server (same machine and number of threads). The converted model of an index
(``inference.converted``) also converts the head, which changes the last bits.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookalike._util.files import cache_folder
from lookalike.data.cropping import Pixels, squares
from lookalike.data.loading import evaluation_batch
from lookalike.data.pictures import Pictures
from lookalike.inference.engine import Engine, create_engine, forward_each, head_each, joined
from lookalike.inference.engine_name import EngineName, resolve_engine
from lookalike.inference.feature_cache import FeatureCache
from lookalike.inference.feature_store import NotCacheable
from lookalike.inference.heatmap import Box
from lookalike.inference.match import Places
from lookalike.inference.picture_model import PictureModel
from lookalike.inference.preprocess import as_list, crop_loader
from lookalike.models import Embedder, create_backbone, hub, load_model, starts_random
from lookalike.models.embedder import View

logger = logging.getLogger(__name__)

CACHED_BATCH = 64  # pictures whose cached features are read together


def load(
    run: str | Path,
    device: torch.device | str | None = None,
    engine: EngineName = "auto",
    view: View | None = None,
) -> "TrainedModel":
    """Load a trained model.

    Args:
        run: Folder with ``model.json`` and ``model.safetensors``, or ``"hf:owner/name"`` or
            ``"hf:owner/name@revision"`` for a model on the Hugging Face hub.
        device: Where to compute; None takes a GPU if there is one.
        engine: What computes the local features: "torch", "openvino", "onnxruntime", or "auto" for OpenVINO on a CPU
            if it is installed, else torch.
        view: "whole": the whole picture is seen; "crop": only the centre crop, as in the protocols of the papers;
            None: as the files say, the centre crop if they do not.

    Returns:
        The model, in eval mode.

    Raises:
        ValueError: If there is no such model or engine, or the files do not fit.
    """
    source = str(run)
    if hub.is_address(run):
        run = hub.fetch(str(run))
    else:
        source = str(Path(run).absolute())
    embedder = load_model(run, device or default_device())
    if view is not None:
        embedder.input_spec = embedder.spec_seeing(view)
    return TrainedModel(embedder, engine, source=source)


def untrained(
    backbone: str,
    *,
    weights: str | Path = "auto",
    size: int | None = None,
    device: torch.device | str | None = None,
    engine: EngineName = "auto",
    view: View = "crop",
) -> "TrainedModel":
    """Load a backbone with its pretrained weights and average its local features: the baseline of a trained model.

    Args:
        backbone: Name as ``lookalike.models.create_backbone`` takes it.
        weights: Its weights, likewise.
        size: Side of the input in pixels; None for the backbone's own.
        device: Where to compute; None takes a GPU if there is one.
        engine: As for ``load``.
        view: As for ``load``.

    Returns:
        The model, in eval mode.

    Raises:
        ValueError: If the backbone has no pretrained weights.
    """
    if starts_random(backbone, weights):
        raise ValueError(f"{backbone} has random weights: train it first, or give weights")
    network = create_backbone(backbone, weights=weights)
    spec = network.spec if size is None else network.spec.resized(size)
    embedder = Embedder(network, dim=None, pooling="average", input_spec=spec)
    if view == "whole":
        embedder.input_spec = embedder.spec_seeing(view)
    return TrainedModel(embedder.to(device or default_device()), engine, source=f"{backbone}, untrained head")


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


class TrainedModel(PictureModel):
    """A trained network that makes vectors of pictures; see also ``PictureModel``.

    Args:
        embedder: The network; it is put into eval mode. Its backbone must not change afterwards.
        engine: As for ``load``.
        source: Where the model comes from, for messages and the model card.

    Attributes:
        embedder: The network.
        source: Where the model comes from.
        spec: What the backbone expects of its inputs.
        preprocess: Makes inputs of pictures.
        device: Where it computes.
        engine_name: The engine that computes the local features.
        distance: The distance between its vectors, "cosine" or "l2".
        engine_name: What computes the local features.
        cache: Cache of local features for ``embed`` with files and ``embed_table``, see ``open_cache``; None: none.
    """

    def __init__(self, embedder: Embedder, engine: EngineName = "auto", source: str = "a model in memory") -> None:
        super().__init__(embedder.input_spec, embedder.head.distance)
        self.embedder = embedder.eval()
        self.source = source
        self.device = next(embedder.parameters()).device
        self.cache: FeatureCache | None = None
        self.engine_name = resolve_engine(engine, self.device)

    def __repr__(self) -> str:
        return self.describe(self.source, f"on {self.device}")

    @cached_property
    def engine(self) -> Engine:
        """What computes the local features; a converted network is loaded on first use."""
        return create_engine(self.embedder.backbone, self.spec, self.engine_name)

    @property
    def precision(self) -> str:
        """Precision of the local features: "fp32", or "int8" after ``inference.quantised.quantise``."""
        engine: Engine | None = vars(self).get("engine")
        return "fp32" if engine is None else engine.precision  # an engine not yet created computes in fp32

    def open_cache(self, folder: Path | None = None) -> FeatureCache:
        """Open the cache of local features. Assign it to ``cache`` to use it for files and tables.

        It holds half precision: vectors differ from those that are computed directly by at most about 1e-4.

        Args:
            folder: Folder of all caches; None: LOOKALIKE_CACHE, or the user's cache folder.

        Raises:
            ValueError: If it cannot be written.
        """
        return FeatureCache(folder or cache_folder(), self.embedder.backbone, self.spec, engine=self.engine)

    @property
    def dim(self) -> int:
        """Size of the vectors."""
        return self.embedder.head.dim

    @property
    def has_weights(self) -> bool:
        """Whether the pooling weighs places, so that ``explain`` works."""
        return self.embedder.head.pooling.has_weights

    def settings(self) -> dict[str, Any]:
        """The settings of the model, as in ``model.json``."""
        return self.embedder.settings()

    def default_batch(self) -> int:
        """Pictures in a batch if the caller gives no number."""
        return evaluation_batch()

    def embed(self, pictures: Sequence[Any] | Any, batch_size: int | None = None) -> NDArray[np.float32]:
        """Compute the vectors (n, D) of pictures, see ``PictureModel``; files use ``cache``."""
        pictures, _ = as_list(pictures)
        if self.cache is not None and pictures and all(isinstance(picture, (str, Path)) for picture in pictures):
            files = [Path(picture) for picture in pictures]
            cache, results = self.cache, []
            for first in range(0, len(files), CACHED_BATCH):
                results.append(self._embed_cached(files[first : first + CACHED_BATCH], batch_size, cache))
            return np.concatenate(results)
        return super().embed(pictures, batch_size)

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
            return np.zeros((0, self.dim), np.float32)
        if self.cache is not None:
            return self._embed_cached_table(pictures, workers, tick, self.cache)
        crops = crop_loader(pictures, self.spec, workers=workers)
        vectors: Tensor = embed_batches(crops, self.vectors, device=self.device, tick=tick)
        return vectors.numpy()

    def _embed_cached_table(
        self, pictures: Pictures, workers: int | None, tick: Callable[[int], None], cache: FeatureCache
    ) -> NDArray[np.float32]:
        missing = cache.missing([(pictures, 1)])
        tick(len(pictures) - len(missing))
        try:
            cache.fill(missing, workers=workers, tick=tick)
        except (NotCacheable, OSError) as error:
            self._stop_caching(error)
            return self.embed_table(pictures, workers=workers)
        cache.store.refresh()
        rows = cache.rows(pictures)
        batches = [rows[first : first + CACHED_BATCH] for first in range(0, len(rows), CACHED_BATCH)]

        def head(features: Tensor) -> Tensor:
            vectors: Tensor = head_each(self.embedder.head, features)
            return vectors

        vectors: Tensor = embed_batches(map(cache.read, batches), head, device=self.device, tick=lambda _: tick(0))
        return vectors.numpy()

    @torch.inference_mode()
    def vectors(self, crops: Tensor) -> Tensor:
        """Compute the vectors (B, D) of crops (B, size, size, 3) uint8 that ``preprocess`` made."""
        return head_each(self.embedder.head, self.maps(crops).flatten(1, 2))

    def embed_crops(self, crops: Pixels) -> NDArray[np.float32]:
        """Compute the vectors (B, D) of crops (B, size, size, 3) uint8 that ``preprocess`` made."""
        vectors: Tensor = _on_cpu(self.vectors(torch.from_numpy(crops)))
        return vectors.numpy()

    @torch.inference_mode()
    def embed_text(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Compute the vectors (n, D) of texts, to compare with those of pictures.

        Args:
            texts: The texts. What is longer than the tower's context is cut off.

        Raises:
            ValueError: If the model has no text tower (``text_refusal`` says why), or a text is empty.
        """
        refusal = self.text_refusal
        if refusal is not None:
            raise ValueError(f"this model cannot search by text: {refusal}")
        if not all(text.strip() for text in texts):
            raise ValueError("a text query needs words")
        network: Any = self.embedder.backbone.network
        vectors: Tensor = _on_cpu(torch.nn.functional.normalize(network.encode_texts(texts), dim=-1))
        return vectors.numpy()

    @torch.inference_mode()
    def places(self, crop: Pixels, box: Box) -> Places:
        """Split the vector of a crop (H, W, 3) into contributions; ``box`` is the area of the picture it covers."""
        maps = self.maps(torch.from_numpy(crop)[None])
        contributions = self.embedder.head.contributions(maps.flatten(1, 2))[0]
        return Places(contributions.double().cpu().numpy(), (maps.shape[1], maps.shape[2]), box)

    @torch.inference_mode()
    def weigh_crops(self, crops: Pixels) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Compute the weights (B, rows, columns) and attributes (B, m) of crops (B, size, size, 3)."""
        grids, attributes = _on_cpu(forward_each(self._weights, self.maps(torch.from_numpy(crops))))
        return grids.numpy(), attributes.numpy()

    def maps(self, crops: Tensor) -> Tensor:
        """Local features (B, H', W', C) of crops (B, H, W, 3) of one shape."""
        crops = crops.to(self.device, non_blocking=True)
        if not self.spec.sees_whole:
            return self.engine.maps(self.preprocess.inputs(crops))
        axis, parts = squares(self.spec, crops.shape[1], crops.shape[2])
        pixels = torch.cat([crops[part.pixels] for part in parts])
        maps = self.engine.maps(self.preprocess.inputs(pixels)).split(len(crops))
        return torch.cat([some_maps[part.cells] for part, some_maps in zip(parts, maps, strict=True)], axis)

    @torch.inference_mode()
    def _embed_cached(self, files: list[Path], batch_size: int | None, cache: FeatureCache) -> NDArray[np.float32]:
        """Vectors of files, from cached features where there are any; the others are computed and stored."""
        keys = cache.file_keys(files)
        cache.drop_damaged(keys)
        missing = [i for i, key in enumerate(keys) if key not in cache.store]
        cached = [i for i, key in enumerate(keys) if key in cache.store]
        vectors = np.empty((len(files), self.dim), np.float32)
        if missing:
            maps = []
            for crops in self._crops(missing, batch_size, lambda i: self.preprocess.read_crop(files[missing[i]])):
                maps.append(self.maps(torch.from_numpy(crops)).float().cpu())
            features = torch.cat(maps).flatten(1, 2)
            try:
                cache.put([keys[i] for i in missing], features.half().numpy())
                features = features.half().float()  # the same vectors as from the cache
            except (NotCacheable, OSError) as error:
                self._stop_caching(error)
            vectors[missing] = head_each(self.embedder.head, features.to(self.device)).cpu()
        if cached:
            stored = cache.read(cache.store.find([keys[i] for i in cached]))
            vectors[cached] = head_each(self.embedder.head, stored.to(self.device)).cpu()
        return vectors

    def _stop_caching(self, error: Exception) -> None:
        logger.warning("features are not cached: %s", error)
        self.cache = None

    def _weights(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        explanation = self.embedder.explain_maps(maps)
        return explanation.heat_maps, explanation.attributes


def default_device() -> str:
    """Return "cuda" if there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _on_cpu(results: Any) -> Any:
    if isinstance(results, Tensor):
        return results.float().cpu()
    return tuple(map(_on_cpu, results))
