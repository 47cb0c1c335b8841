"""Shared state of the routes: the index, the model's queue, thread pools and access control."""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader
from PIL import Image

from lookalike.index.base import Index
from lookalike.index.items import Item
from lookalike.index.storage import IndexInUse
from lookalike.inference.model import TrainedModel
from lookalike.inference.preprocess import Pixels
from lookalike.server.access import KEY_HEADER, Gate
from lookalike.server.batching import Batcher, QueueFull, Vector
from lookalike.server.collection import Collection
from lookalike.server.errors import RETRY, ApiError, busy, invalid
from lookalike.server.keys import INDEX_SUFFIX, Access, Keys
from lookalike.server.limits import Limits
from lookalike.server.metrics import Metrics
from lookalike.server.pictures import Crop, open_picture
from lookalike.server.quotas import Quota

logger = logging.getLogger(__name__)
T = TypeVar("T")
INDEX_THREADS = 4


class Context:
    """Everything the routes share. Handlers stay on the event loop; blocking work runs in the pools here.

    Attributes:
        model: The loaded model.
        keys: Who may read and write.
        gate: Checks keys and quotas.
        limits: Bounds on memory, time and work.
        collection: The index as the routes use it.
        metrics: Prometheus metrics of this app.
        batcher: The queue in front of the model.
        decode_side: Shorter side to decode pictures at, large enough that resizing gives the same result.
    """

    def __init__(self, idx: Index, model: TrainedModel, keys: Keys, limits: Limits, quota: Quota) -> None:
        idx.check_model(model)
        self.model = model
        self.keys = keys
        self.limits = limits
        self.collection = Collection(idx)
        self.gate = Gate(keys, quota, idx.path.resolve().name.removesuffix(INDEX_SUFFIX), limits.upload_bytes)
        self.metrics = Metrics()
        self.batcher = Batcher(model, queue=limits.queue, batch=limits.batch, observe=self.metrics.batches.observe)
        self.metrics.watch_queue(lambda: len(self.batcher))
        self.decode_side = model.preprocess.decode_side
        self._picture_threads = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="pictures")
        self._index_threads = ThreadPoolExecutor(INDEX_THREADS, thread_name_prefix="index")

    def close(self) -> None:
        """Finish all accepted work, then stop the threads."""
        self._picture_threads.shutdown(wait=True)
        self._index_threads.shutdown(wait=True)
        self.batcher.close()

    async def in_index(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a blocking call on the index in its thread pool.

        Args:
            work: The function to call.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The result of ``work``.

        Raises:
            ApiError: 503 if the index is locked by another process or cannot be reached.
        """
        try:
            return await _run(self._index_threads, partial(work, *args, **kwargs))
        except IndexInUse:
            raise busy("another program is writing to the index") from None
        except OSError as error:  # disk full, or store unreachable
            logger.error("the index failed", exc_info=error)
            raise ApiError(503, "unavailable", "the index is unavailable: try again later", RETRY) from None

    async def in_picture_thread(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run blocking picture work (decode, resize, encode) in its thread pool and return the result."""
        return await _run(self._picture_threads, partial(work, *args, **kwargs))

    async def decode_upload(self, data: bytes, crop: Crop | None = None) -> Image.Image:
        """Decode an uploaded picture.

        Args:
            data: The bytes of the file.
            crop: The region that will be used; large JPEGs are then decoded smaller. None decodes in full.

        Returns:
            The upright RGB picture.
        """
        at_least = None
        if crop is not None:
            at_least = crop.side_for(self.decode_side)
        return await self.in_picture_thread(open_picture, data, pixels=self.limits.pixels, at_least=at_least)

    async def decode_item(self, item: Item, crop: Crop) -> Image.Image:
        """Decode the picture of an indexed item, large enough for ``crop``."""
        at_least = crop.side_for(self.decode_side)
        return await self.in_picture_thread(self.collection.picture, item, at_least=at_least)

    async def embed(self, picture: Image.Image, crop: Crop | None = None) -> Vector:
        """Compute the vector of a picture.

        Args:
            picture: The upright RGB picture.
            crop: The region to embed. None embeds the whole picture.

        Returns:
            The vector (D,).

        Raises:
            ApiError: 503 if the queue is full, 422 if the model gives no usable vector.
        """
        self.refuse_if_full()  # before spending time on the picture
        pixels = await self.in_picture_thread(self.preprocess, picture, crop)
        vector: Vector = await self.in_model(lambda: self.batcher.embed(pixels))
        if not np.isfinite(vector).all() or not vector.any():
            raise invalid("the model has no vector for this picture: the result is zero or not finite")
        return vector

    def preprocess(self, picture: Image.Image, crop: Crop | None) -> Pixels:
        """Cut the region ``crop`` out of a picture and prepare it for the model: (size, size, 3) uint8."""
        if crop is not None:
            picture = crop.of(picture)
        return self.model.preprocess.crop(picture)

    async def in_model(self, submit: Callable[[], "Future[T]"]) -> T:
        """Submit work to the model's queue and wait for its result.

        Args:
            submit: Puts the work into the queue and returns its future.

        Returns:
            The result of the future.

        Raises:
            ApiError: 503 if the queue is full.
        """
        try:
            future = submit()
        except QueueFull as full:
            raise busy(str(full)) from None
        return await asyncio.wrap_future(future)

    def refuse_if_full(self) -> None:
        """Raise 503 if the model's queue is full."""
        if len(self.batcher) >= self.limits.queue:
            raise busy(f"{len(self.batcher)} pictures are waiting for the model")

    def requires(self, least: Access) -> Any:
        """Create a route dependency that checks key and quota before the body is read.

        Args:
            least: The access that the route needs.

        Returns:
            A FastAPI dependency.
        """

        async def check(request: Request) -> None:
            self.gate.admit(request, least)

        if not self.keys:
            return Depends(check)
        header = APIKeyHeader(name=KEY_HEADER, auto_error=False)

        # The unused header parameter puts the key into the OpenAPI document.
        async def check_and_document(request: Request, _: Annotated[str | None, Security(header)]) -> None:
            await check(request)

        return Depends(check_and_document)


async def _run(threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work)
