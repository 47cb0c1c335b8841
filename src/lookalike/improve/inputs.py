"""What a head trains on: stored vectors or cached local features, without a pass over the pictures.

StoredVectors   for a linear head over averaged features, as the whitening head of an index without labels. A linear
                map A, which starts as the identity, is trained on the vectors of the index. It is then multiplied into
                the projection: A (W x + b) = (A W) x + A b.
LocalFeatures   for any other head: projection and pooling, with their prototypes, are trained on local features.
                Pictures that are not in the feature cache go through the backbone once.
WholeFeatures   likewise for a model that sees whole pictures, whose local features differ in number. They are computed
                once for this training, in half precision as in the cache, and held in a temporary file.
"""

import shutil
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from lookalike._util.files import cache_folder
from lookalike._util.hashing import digest
from lookalike.improve.evidence import Evidence, Positions
from lookalike.index.base import Index
from lookalike.index.contents import content_of_stamp, file_of
from lookalike.index.folder import is_unchanged
from lookalike.index.items import Item, Vectors
from lookalike.inference.engine import forward_each
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, Head

BATCH = 64
SPARE_BYTES = 2**30  # of the disk that stay free
Tick = Callable[[int], None]


class Inputs(Protocol):
    """Source of inputs for a trainable head.

    Attributes:
        head: The head, in the state before training at first.
        start: Vectors (n, D) of all pictures before training.
        batch: Pictures of a training step: marked, labelled, others.
    """

    head: Head
    start: Vectors
    batch: tuple[int, int, int]

    def read(self, positions: Positions) -> Tensor:
        """Read the inputs (b, N, C) of pictures."""
        ...

    def model(self) -> TrainedModel:
        """Return the whole model with the head as it is now."""
        ...

    def vectors_of(self, items: Sequence[Item], stamps: Sequence[str]) -> Vectors:
        """Compute vectors (n, D) of items with the head as it is now."""
        ...


def open_inputs(
    idx: Index,
    model: TrainedModel,
    evidence: Evidence,
    cache: Path | None,
    bar: Callable[[int, str], Tick],
) -> Inputs:
    """Choose the source for a model.

    Args:
        idx: The index.
        model: Its model, loaded with torch.
        evidence: The pictures.
        cache: Folder of the feature cache; None: the user's.
        bar: Called with a number of pictures and the name of the work; returns what to call with finished pictures.

    Raises:
        ValueError: If the head has nothing to train, or pictures are missing.
    """
    settings = model.embedder.settings()
    if settings["pooling"] == {"name": "average", "settings": {}} and settings["normalise"] != "clip":
        return StoredVectors(idx, model, evidence)
    if not any(parameter.requires_grad for parameter in model.embedder.head.parameters()):
        raise ValueError("the head of this model has no weights: there is nothing to improve")
    if model.spec.sees_whole:
        return WholeFeatures(idx, model, evidence, bar)
    return LocalFeatures(idx, model, evidence, cache, bar)


class StoredVectors:
    """Trains a linear map of the vectors of the index; see the head of this file."""

    batch = (128, 64, 192)

    def __init__(self, idx: Index, model: TrainedModel, evidence: Evidence) -> None:
        self._idx, self._model = idx, model
        self.start = _stored_vectors(idx, evidence.items)
        if evidence.kept:
            self.start = np.concatenate([self.start, model.embed(evidence.kept)])
        dim = self.start.shape[1]
        self.head = Head(dim, dim, "average", normalise=model.embedder.head.normalise)
        assert self.head.projection is not None
        torch.nn.init.eye_(self.head.projection.weight)

    def read(self, positions: Positions) -> Tensor:
        """Read the stored vectors (b, 1, D) of pictures."""
        return torch.from_numpy(self.start[positions]).unsqueeze(1)

    @torch.no_grad()
    def model(self) -> TrainedModel:
        """Return the whole model with the map multiplied into its projection."""
        old, trained = self._model.embedder, self._map()
        has_bias = old.head.projection is not None and old.head.projection.bias is not None
        head = old.head
        embedder = Embedder(
            old.backbone, len(trained), "average", normalise=head.normalise, input_spec=old.input_spec, bias=has_bias
        )
        projection = embedder.head.projection
        assert projection is not None
        weight = trained.double()
        if head.projection is not None:
            weight = weight @ head.projection.weight.double().cpu()
            if has_bias:
                projection.bias.copy_(trained.double() @ head.projection.bias.double().cpu())
        projection.weight.copy_(weight)
        return _with_engine(self._model, embedder)

    @torch.no_grad()
    def vectors_of(self, items: Sequence[Item], stamps: Sequence[str]) -> Vectors:
        """Compute vectors of items from their stored ones."""
        del stamps
        vectors = torch.from_numpy(_stored_vectors(self._idx, items)) @ self._map().T
        if self.head.normalise == "l2":
            vectors = normalize(vectors)
        return vectors.numpy()

    def _map(self) -> Tensor:
        assert self.head.projection is not None
        return self.head.projection.weight.detach().cpu()


class LocalFeatures:
    """Trains projection and pooling on local features; see the head of this file."""

    batch = (64, 32, 64)

    def __init__(
        self, idx: Index, model: TrainedModel, evidence: Evidence, cache: Path | None, bar: Callable[[int, str], Tick]
    ) -> None:
        self._idx, self._model = idx, model
        self._cache = model.open_cache(cache)
        self._tick = bar
        self.head = deepcopy(model.embedder.head).float()
        keys = self._fill(evidence.items, evidence.stamps)
        if evidence.kept:
            keys += self._fill_files(evidence.kept)
        self._rows = self._cache.store.find(keys)
        self.start = _stored_vectors(idx, evidence.items)
        if evidence.kept:
            kept = self._cache.read(self._rows[len(evidence.items) :])
            with torch.no_grad():
                self.start = np.concatenate([self.start, self.head.eval()(kept).numpy()])

    def read(self, positions: Positions) -> Tensor:
        """Read the local features (b, N, C) of pictures."""
        return self._cache.read(self._rows[positions])

    def model(self) -> TrainedModel:
        """Return the whole model with the trained head."""
        return _with_head(self._model, self.head)

    @torch.inference_mode()
    def vectors_of(self, items: Sequence[Item], stamps: Sequence[str]) -> Vectors:
        """Compute vectors of items from their local features."""
        rows = self._cache.store.find(self._fill(items, stamps))
        head = self.head.eval()
        vectors = []
        for first in range(0, len(rows), BATCH):
            vectors.append(forward_each(head, self._cache.read(rows[first : first + BATCH])))
        return torch.cat(vectors).numpy()

    def _fill(self, items: Sequence[Item], stamps: Sequence[str]) -> list[str]:
        """Make sure that features of items are cached; return their keys."""
        contents = [content_of_stamp(stamp) for stamp in stamps]
        keys = [digest(content, "") if content else "" for content in contents]
        self._cache.drop_damaged(keys)
        missing = [number for number, key in enumerate(keys) if key not in self._cache.store]
        if missing:
            files = [file_of(self._idx, items[number]) for number in missing]
            _require_files(self._idx, files)
            for number, key in zip(missing, self._fill_files(files), strict=True):
                if contents[number] and key != keys[number]:
                    raise ValueError(
                        f"{file_of(self._idx, items[number])} has changed since it was indexed: update the index"
                    )
                keys[number] = key
        return keys

    def _fill_files(self, files: Sequence[Path]) -> list[str]:
        keys = self._cache.file_keys(files)
        missing = [file for file, key in zip(files, keys, strict=True) if key not in self._cache.store]
        if missing:
            lack = self._cache.store.lacks_space(len(missing))
            if lack is not None:
                raise ValueError(lack)
            tick = self._tick(len(missing), "computing features")
            self._model.cache = self._cache
            for first in range(0, len(missing), BATCH):
                batch = missing[first : first + BATCH]
                self._model.embed(batch)
                if self._model.cache is None:
                    raise ValueError("the local features of this model cannot be cached: it cannot be improved")
                tick(len(batch))
            self._model.cache = None
            self._cache.store.refresh()
        return keys


class WholeFeatures:
    """Trains projection and pooling on local features of whole pictures; see the head of this file."""

    batch = (64, 32, 64)

    def __init__(self, idx: Index, model: TrainedModel, evidence: Evidence, bar: Callable[[int, str], Tick]) -> None:
        self._idx, self._model = idx, model
        self.head = deepcopy(model.embedder.head).float()
        self.head.register_forward_pre_hook(_mask_padding, with_kwargs=True)
        files = [file_of(idx, item) for item in evidence.items]
        _require_files(idx, files)
        for file, stamp in zip(files, evidence.stamps, strict=True):
            if not is_unchanged(file, stamp):
                raise ValueError(f"{file} has changed since it was indexed: update the index")
        self._row_of = {item.id: row for row, item in enumerate(evidence.items)}
        self._ends = [0]
        self._file = TemporaryFile(dir=_scratch_folder())  # noqa: SIM115 - lives as long as this object
        tick = bar(len(files) + len(evidence.kept), "computing features")
        for picture in [*files, *evidence.kept]:
            self._store(model, picture)
            tick(1)
        self._file.flush()
        self._features = np.memmap(self._file, np.float16, "r").reshape(self._ends[-1], -1)
        self.start = _stored_vectors(idx, evidence.items)
        if evidence.kept:
            kept = np.arange(len(evidence.items), len(evidence.items) + len(evidence.kept))
            self.start = np.concatenate([self.start, self._vectors(kept)])

    def read(self, positions: Positions) -> Tensor:
        """Read the local features (b, N, C) of pictures; what is missing to the longest is NaN."""
        bags = []
        for position in positions:
            features = self._features[self._ends[position] : self._ends[position + 1]]
            bags.append(torch.from_numpy(features.astype(np.float32)))
        return pad_sequence(bags, batch_first=True, padding_value=torch.nan)

    def model(self) -> TrainedModel:
        """Return the whole model with the trained head."""
        return _with_head(self._model, self.head)

    def vectors_of(self, items: Sequence[Item], stamps: Sequence[str]) -> Vectors:
        """Compute vectors of items from their local features; new items go through the whole model."""
        del stamps
        model = self.model()
        vectors = np.empty((len(items), model.dim), np.float32)
        rows = np.array([self._row_of.get(item.id, -1) for item in items], np.int64)
        vectors[rows >= 0] = self._vectors(rows[rows >= 0])
        new = [file_of(self._idx, items[number]) for number in np.flatnonzero(rows < 0).tolist()]
        if new:
            vectors[rows < 0] = model.embed(new)
        return vectors

    def _store(self, model: TrainedModel, picture: Path) -> None:
        """Append the local features of a picture to the file."""
        crop = model.preprocess.read_crop(picture)
        with torch.inference_mode():
            features = model.maps(torch.from_numpy(crop)[None])[0].flatten(0, 1).cpu().half().numpy()
        if shutil.disk_usage(_scratch_folder()).free < SPARE_BYTES:
            raise ValueError(f"{_scratch_folder()} has too little space for the local features of the pictures")
        self._file.write(features.tobytes())
        self._ends.append(self._ends[-1] + len(features))

    @torch.inference_mode()
    def _vectors(self, positions: Positions) -> Vectors:
        """Vectors (n, D) of pictures, each alone."""
        head = self.head.eval()
        vectors = [np.zeros((0, head.dim), np.float32)]
        for position in positions:
            vectors.append(head(self.read(np.array([position]))).numpy())
        return np.concatenate(vectors)


def _mask_padding(_: torch.nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Any]) -> Any:
    """Give a head the mask of its inputs (b, N, C), in which places of NaN are missing."""
    features = inputs[0]
    is_missing = features[..., 0].isnan()
    mask = None
    if is_missing.any():
        mask = ~is_missing
    return (features.nan_to_num(), mask), named


def _scratch_folder() -> Path:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@torch.no_grad()
def head_vectors(head: Head, inputs: Inputs, positions: Positions) -> NDArray[np.float32]:
    """Compute the vectors (b, D) of pictures with a head, in batches."""
    vectors = [np.zeros((0, head.dim), np.float32)]
    for first in range(0, len(positions), BATCH):
        vectors.append(head(inputs.read(positions[first : first + BATCH])).numpy())
    return np.concatenate(vectors)


def _stored_vectors(idx: Index, items: Sequence[Item]) -> Vectors:
    return idx.vectors([item.id for item in items])


def _require_files(idx: Index, files: Sequence[Path]) -> None:
    gone = [file for file in files if not file.is_file()]
    if gone:
        raise ValueError(
            f"{len(gone):,} pictures are gone, the first is {gone[0]}: lookalike index {idx.path} "
            "--prune removes them from the index"
        )


def _with_head(old: TrainedModel, head: Head) -> TrainedModel:
    embedder = Embedder.from_settings(old.embedder.settings(), old.embedder.backbone)
    embedder.head.load_state_dict(head.state_dict())
    return _with_engine(old, embedder)


def _with_engine(old: TrainedModel, embedder: Embedder) -> TrainedModel:
    """A model with the same backbone; it need not be converted again."""
    model = TrainedModel(embedder.to(old.device), old.engine_name, source=old.source)
    if "engine" in vars(old):
        model.engine = old.engine
    return model
