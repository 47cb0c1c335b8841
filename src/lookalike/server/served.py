"""One model of the server with its vectors of the collection and its queue."""

from collections.abc import Callable
from typing import Any

from lookalike.data.cropping import CropSize, Pixels
from lookalike.data.safe_decode import Job
from lookalike.index.base import Index
from lookalike.inference.heatmap import Box
from lookalike.inference.match import Match
from lookalike.inference.picture_model import PictureModel
from lookalike.server.batching import Batcher
from lookalike.server.collection import Collection
from lookalike.server.errors import busy
from lookalike.server.limits import Limits
from lookalike.server.pictures import Crop


class Served:
    """A model, the collection as it sees it, and the queue in front of it.

    Args:
        name: Name of the model.
        idx: The index with the vectors of this model.
        model: The loaded model.
        limits: Bounds of queue and batches.
        observe: Called with the size of every batch.

    Attributes:
        decode_side: Shorter side to decode pictures at, large enough that resizing gives the same result.
    """

    def __init__(
        self, name: str, idx: Index, model: PictureModel, limits: Limits, observe: Callable[[int], None]
    ) -> None:
        idx.check_model(model)
        self.name = name
        self.model = model
        self.collection = Collection(idx)
        self.batcher = Batcher(model, queue=limits.queue, batch=limits.batch, observe=observe)
        self.decode_side = model.preprocess.decode_side
        self._torch_model: Any = None

    def job(self, crop: Crop) -> Job:
        """Return what to decode of a picture for this model."""
        spec = self.model.spec
        size = CropSize(spec.size, spec.resize_to, spec.interpolation, spec.cells)
        return Job(at_least=crop.side_for(self.decode_side), crop=size, region=crop)

    def refuse_if_full(self) -> None:
        """Raise 503 if the model's queue is full."""
        if not self.batcher.has_room():
            raise busy(f"{len(self.batcher)} pictures are waiting for the model")

    def torch_model(self) -> Any:
        """Return the model with torch, in the model's thread. One that was loaded without torch is loaded once."""
        if self._torch_model is None:
            self._torch_model = self.model
            if not hasattr(self.model, "embed_text"):
                self._torch_model = self.collection.idx.trained_model("cpu")
        return self._torch_model

    def match_crops(self, crops: list[Pixels], boxes: list[Box]) -> Match:
        """Match two crops, in the model's thread."""
        return self.model.match_crops(crops, boxes)
