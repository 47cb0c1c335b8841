"""What every model does with pictures: ``embed`` and ``explain``, for whatever computes vectors of crops."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lookalike._util.checks import check_count
from lookalike.data.cropping import Pixels
from lookalike.inference.heatmap import Box, CropWeights, Explained, crop_box, spread
from lookalike.inference.match import Match, Places, can_match, match_places
from lookalike.inference.preprocess import Preprocess, as_image, as_list, decoded_batches
from lookalike.models.input_spec import InputSpec
from lookalike.models.text_names import text_refusal

Array = NDArray[np.float32]
BATCH = 16  # pictures that fit the caches of a CPU


class PictureModel(ABC):
    """Pictures -> vectors, normalised as trained.

    Args:
        spec: What the backbone expects of its inputs.
        distance: The distance between the vectors, "cosine" or "l2".

    Attributes:
        spec: As given.
        distance: As given.
        preprocess: Makes crops of pictures.
    """

    def __init__(self, spec: InputSpec, distance: str) -> None:
        self.spec = spec
        self.distance = distance
        self.preprocess = Preprocess(spec)

    @property
    @abstractmethod
    def dim(self) -> int:
        """Size of the vectors."""

    @property
    @abstractmethod
    def has_weights(self) -> bool:
        """Whether the pooling weighs places, so that ``explain`` works."""

    @property
    def can_match(self) -> bool:
        """Whether the pooling is a weighted sum over the places, so that ``match`` works."""
        return can_match(self.settings()["pooling"])

    def check_can_match(self) -> None:
        """Raise ValueError if the pooling is not a weighted sum over the places."""
        if not self.can_match:
            name = self.settings()["pooling"]["name"]
            raise ValueError(f"this model cannot match places: its pooling {name} is not a weighted sum over them")

    def describe(self, source: str, device: str) -> str:
        """One line on the model: where it comes from, what it does with a picture, and where."""
        settings = self.settings()
        steps = f"{settings['backbone']} -> {settings['pooling']['name']} -> {self.dim} numbers"
        input_size = f"{self.spec.size} x {self.spec.size} pixels of the centre"
        if self.spec.sees_whole:
            input_size = f"whole pictures in squares of {self.spec.size} pixels"
        return f"{type(self).__name__}({source}: {input_size} -> {steps}, {self.distance} distance, {device})"

    @property
    def text_refusal(self) -> str | None:
        """Why the model cannot compare texts with pictures; None if it can, with ``TrainedModel.embed_text``."""
        return text_refusal(self.settings())

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings of the model, as in ``model.json``."""

    @abstractmethod
    def places(self, crop: Pixels, box: Box) -> Places:
        """Split the vector of a crop (H, W, 3) into contributions; ``box`` is the area of the picture it covers."""

    @abstractmethod
    def embed_crops(self, crops: Pixels) -> Array:
        """Compute the vectors (B, D) of crops (B, size, size, 3) uint8 that ``preprocess`` made."""

    @abstractmethod
    def weigh_crops(self, crops: Pixels) -> tuple[Array, Array]:
        """Compute the weights (B, rows, columns) and attributes (B, m) of crops (B, size, size, 3)."""

    def default_batch(self) -> int:
        """Pictures in a batch if the caller gives no number."""
        return BATCH

    def embed(self, pictures: Sequence[Any] | Any, batch_size: int | None = None) -> Array:
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
        vectors = [np.zeros((0, self.dim), np.float32)]
        for crops in self._crops(pictures, batch_size, lambda i: self.preprocess.read_crop(pictures[i])):
            vectors.append(self.embed_crops(crops))
        return np.concatenate(vectors)

    @overload
    def explain(self, pictures: str | Path | Image.Image, batch_size: int | None = None) -> Explained: ...
    @overload
    def explain(self, pictures: Sequence[Any], batch_size: int | None = None) -> list[Explained]: ...
    @overload
    def explain(self, pictures: Any, batch_size: int | None = None) -> Explained | list[Explained]: ...
    def explain(self, pictures: Any, batch_size: int | None = None) -> Explained | list[Explained]:
        """Show where in pictures the pooling looked.

        Args:
            pictures: As for ``embed``.
            batch_size: As for ``embed``.

        Returns:
            Weights in the size of the upright picture, and more: see ``Explained``. A list for several pictures.

        Raises:
            ValueError: If the pooling does not weigh places (``has_weights`` is False).
        """
        if not self.has_weights:
            name = self.settings()["pooling"]["name"]
            raise ValueError(f"this model cannot explain: its pooling {name} does not weigh places")
        pictures, alone = as_list(pictures)
        sizes = [(0, 0)] * len(pictures)

        def crop(i: int) -> Pixels:
            image = as_image(pictures[i])
            sizes[i] = image.size
            return self.preprocess.crop(image)

        explained: list[Explained] = []
        for crops in self._crops(pictures, batch_size, crop):
            for weights in self._crop_weights(crops):
                width, height = sizes[len(explained)]
                box = crop_box(self.spec, width, height)
                spread_weights = spread(weights.grid, box, width, height)
                explained.append(Explained(spread_weights, weights.grid, box, weights.attributes))
        return explained[0] if alone else explained

    def match(self, a: Any, b: Any) -> Match:
        """Show which places of two pictures make them similar.

        Args:
            a: A picture, as for ``embed``.
            b: Another picture.

        Returns:
            The cosine of their vectors as a sum over all pairs of places, and more: see ``Match``.

        Raises:
            ValueError: If the pooling is not a weighted sum (``can_match`` is False), or a vector is zero.
        """
        crops = [self.preprocess.read_crop(a), self.preprocess.read_crop(b)]  # of just the pixels that embed sees
        boxes = [crop_box(self.spec, *as_image(picture).size) for picture in (a, b)]
        return self.match_crops(crops, boxes)

    def match_crops(self, crops: Sequence[Pixels], boxes: Sequence[Box]) -> Match:
        """Do the same as ``match`` for two crops.

        Args:
            crops: Two crops (H, W, 3) uint8, made by ``preprocess``.
            boxes: The areas of the pictures that they cover.

        Returns:
            See ``match``.

        Raises:
            ValueError: As for ``match``.
        """
        self.check_can_match()
        a, b = (self.places(crop, box) for crop, box in zip(crops, boxes, strict=True))  # their grids may differ
        return match_places(a, b)

    def explain_crop(self, crop: Pixels) -> CropWeights:
        """Show where in a crop the pooling looked, without weights per pixel of the picture.

        Args:
            crop: (size, size, 3) uint8, made by ``preprocess``.

        Returns:
            The weights of the pooling's grid. ``crop_box`` gives the area that it covers.
        """
        return self._crop_weights(crop[None])[0]

    def _crop_weights(self, crops: Pixels) -> list[CropWeights]:
        grids, attributes = self.weigh_crops(crops)
        weights = []
        for grid, shares in zip(grids, attributes, strict=True):
            weights.append(CropWeights(grid, shares if len(shares) else None))
        return weights

    def _crops(self, pictures: list[Any], batch_size: int | None, crop: Callable[[int], Pixels]) -> Iterator[Pixels]:
        """Batches of crops, where ``crop(i)`` reads picture i."""
        if batch_size is None:
            batch_size = self.default_batch()
        check_count("batch_size", batch_size)
        if not pictures:
            return
        with ThreadPoolExecutor() as threads:
            yield from decoded_batches(pictures, batch_size, crop, threads)
