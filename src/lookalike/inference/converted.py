"""A converted model: everything that a query needs, without torch.

    MODEL/engine/engine.json     engine, precision, fingerprint of the model, digests of all files, and a vector to
                                 compare with
    MODEL/engine/backbone.*      inputs (1, 3, size, size) -> local features (1, H', W', C)
    MODEL/engine/head.*          local features (1, N, C) -> vectors (1, D), and for poolings with weights also the
                                 weights (1, N) and attributes (1, m); any N if the model sees whole pictures
    MODEL/engine/places.*        local features (1, N, C) -> contributions of the places to the vector (1, N, D), for
                                 ``match``; only for poolings that are weighted sums

``write_converted`` in ``inference.write_converted`` makes these files. Every time they are read, the digests of
the model and of the converted files are checked, and the vector of a test picture is compared with torch's.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lookalike._util.checksums import hash_content
from lookalike._util.untrusted import read_json
from lookalike.data.cropping import Pixels, squares
from lookalike.inference.heatmap import Box
from lookalike.inference.match import Places
from lookalike.inference.picture_model import Array, PictureModel
from lookalike.inference.preprocess import to_arrays
from lookalike.inference.runtime import NETWORKS, SUFFIXES, Network
from lookalike.models.input_spec import InputSpec

if TYPE_CHECKING:
    from lookalike.inference.model import TrainedModel

FOLDER = "engine"
FILE = "engine.json"
PLACES = "places"
FORMAT = 2
TOLERANCE = 1e-4  # largest difference of vectors, relative to the largest entry
INT8_TOLERANCE = 0.05  # processors round sums of int8 products differently


class ConvertedModel(PictureModel):
    """A model that runs without torch.

    Args:
        settings: The settings of the model, as in ``model.json``.
        fingerprint: Of the model.
        engine: Name of the engine, "openvino" or "onnxruntime".
        backbone: Inputs -> local features.
        head: Local features -> vectors and, if the pooling has them, weights and attributes.
        places_file: The network for ``match``, loaded on first use; None: torch is loaded instead.

    Attributes:
        fingerprint: As given.
        engine: As given.
        places_file: As given.
        load_trained: Loads the same model with torch, for ``match`` without ``places_file``. The index that the model
            belongs to sets it.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        fingerprint: str,
        engine: str,
        backbone: Network,
        head: Network,
        places_file: Path | None = None,
    ) -> None:
        distance = "cosine" if settings["normalise"] == "l2" else "l2"
        super().__init__(InputSpec.from_dict(settings["input"]), distance)
        self.fingerprint = fingerprint
        self.engine = engine
        self.places_file = places_file
        self.load_trained: Callable[[], TrainedModel] | None = None
        self._settings = settings
        self._backbone = backbone
        self._head = head
        results = self._run(example_crops(self.spec.size)[:1])
        self.example_vector: NDArray[np.float32] = results[0][0]
        self._has_weights = len(results) > 1

    def __repr__(self) -> str:
        return self.describe(f"{self._settings['backbone']}, converted", f"with {self.engine}")

    @property
    def dim(self) -> int:
        """Size of the vectors."""
        return len(self.example_vector)

    @property
    def has_weights(self) -> bool:
        """Whether the pooling weighs places, so that ``explain`` works."""
        return self._has_weights

    def settings(self) -> dict[str, Any]:
        """The settings of the model, as in ``model.json``."""
        return self._settings

    def embed_crops(self, crops: Pixels) -> Array:
        """Compute the vectors (B, D) of crops (B, size, size, 3) uint8 that ``preprocess`` made."""
        return self._run(crops)[0]

    def weigh_crops(self, crops: Pixels) -> tuple[Array, Array]:
        """Compute the weights (B, rows, columns) and attributes (B, m) of crops (B, size, size, 3)."""
        maps = self._maps(crops)
        _, weights, *attributes = self._head.run(_as_tokens(maps))
        grids = weights.reshape(maps.shape[:3])
        if not attributes:
            return grids, np.zeros((len(crops), 0), np.float32)
        return grids, attributes[0]

    def places(self, crop: Pixels, box: Box) -> Places:
        """Split the vector of a crop (H, W, 3) into contributions; ``box`` is the area of the picture it covers."""
        if self.places_file is None:
            return self._trained.places(crop, box)
        maps = self._maps(crop[None])
        contributions = self._places.run(_as_tokens(maps))[0][0]
        return Places(contributions.astype(np.float64), (maps.shape[1], maps.shape[2]), box)

    @cached_property
    def _places(self) -> Network:
        network: Network = NETWORKS[self.engine](self.places_file)
        return network

    @cached_property
    def _trained(self) -> "TrainedModel":
        if self.load_trained is None:
            raise ValueError("this converted model belongs to no index: load the model with lookalike.load to match")
        return self.load_trained()

    def _run(self, crops: Pixels) -> list[Array]:
        return self._head.run(_as_tokens(self._maps(crops)))

    def _maps(self, crops: Pixels) -> Array:
        """Local features (B, H', W', C) of crops (B, H, W, 3) of one shape."""
        if not self.spec.sees_whole:
            return self._backbone.run(to_arrays(crops, self.spec))[0]
        axis, parts = squares(self.spec, crops.shape[1], crops.shape[2])
        columns = []
        for part in parts:
            (maps,) = self._backbone.run(to_arrays(crops[part.pixels], self.spec))
            columns.append(maps[part.cells])
        return np.concatenate(columns, axis)


def _as_tokens(maps: Array) -> Array:
    return maps.reshape(len(maps), -1, maps.shape[-1])


def read_converted(model_folder: Path, fingerprint: str) -> ConvertedModel:
    """Read a converted model and check it.

    Args:
        model_folder: Folder of the model that was converted.
        fingerprint: The fingerprint that the model must have.

    Raises:
        ValueError: If a file is damaged or of another model, or if the vector of the test picture has changed.
        OSError: If a file is missing.
    """
    folder = model_folder / FOLDER
    about = read_json(folder / FILE)
    if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("engine") not in NETWORKS:
        raise ValueError(f"{folder / FILE} does not describe a converted model")
    if about["fingerprint"] != fingerprint:
        raise ValueError(f"{folder} is of another model")
    engine = str(about["engine"])
    files = [model_folder / name for name in about["files"]]
    with ThreadPoolExecutor() as threads:
        networks = []
        for part in ("head", "backbone"):  # the head takes longer to load
            networks.append(threads.submit(NETWORKS[engine], folder / f"{part}{SUFFIXES[engine]}"))
        digests = threads.map(hash_content, files)
        for file, digest in zip(files, digests, strict=True):
            if digest != about["files"][file.relative_to(model_folder).as_posix()]:
                raise ValueError(f"{file} is damaged")
        head, backbone = [network.result() for network in networks]
    settings = read_json(model_folder / "model.json")
    places_file: Path | None = folder / f"{PLACES}{SUFFIXES[engine]}"
    if places_file not in files:
        places_file = None
    model = ConvertedModel(settings, fingerprint, engine, backbone, head, places_file)
    tolerance = INT8_TOLERANCE if about["precision"] == "int8" else TOLERANCE
    check_vector(model.example_vector, np.array(about["vector"], np.float32), tolerance)
    return model


def check_vector(vector: Array, expected: Array, tolerance: float = TOLERANCE) -> None:
    """Compare a vector (D,) of a converted model with that of the model.

    Raises:
        ValueError: If they differ by more than ``tolerance``.
    """
    if vector.shape != expected.shape:
        raise ValueError(f"its vectors have the shape {vector.shape}, not {expected.shape}")
    difference = float(np.abs(vector - expected).max() / max(float(np.abs(expected).max()), 1e-30))
    if not difference <= tolerance:  # also for NaN
        raise ValueError(f"its vectors differ from the model's by {difference:.1e} of the largest entry")


def example_crops(size: int) -> Pixels:
    """Draw three pictures (3, size, size, 3) with details of all sizes, the same ones everywhere."""
    across, down, colour = np.arange(size)[None, :, None], np.arange(size)[:, None, None], np.arange(3)
    rings = (across * across + down * down * (colour + 1)) // 16 % 256
    edges = (across // 32 * 85 + down // 24 * 60 + colour * 90) % 256
    fine = (across * 37 + down * 101 + across * down * 13 + colour * 29) % 256
    return np.stack([rings, edges, fine]).astype(np.uint8)
