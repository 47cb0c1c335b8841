"""What the routes share: the index, the model behind its queue, threads for what blocks, and who may do what."""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader
from PIL import Image

from lookalike.data.transforms import evaluation_transform
from lookalike.index.base import Index
from lookalike.index.items import Item
from lookalike.index.storage import IndexInUse
from lookalike.inference.model import TrainedModel
from lookalike.server.batching import Batcher, QueueFull, Vector
from lookalike.server.collection import Collection
from lookalike.server.errors import RETRY, ApiError, busy, invalid
from lookalike.server.keys import Access, Keys
from lookalike.server.limits import Limits
from lookalike.server.metrics import Metrics
from lookalike.server.pictures import Crop, open_picture

logger = logging.getLogger(__name__)
T = TypeVar("T")
KEY_HEADER = "X-API-Key"
INDEX_THREADS = 4


class Context:
    """Handlers run on the event loop and only wait; whatever takes time goes through here."""

    def __init__(self, idx: Index, model: TrainedModel, keys: Keys, limits: Limits) -> None:
        idx.check_model(model)
        self.model, self.keys, self.limits = model, keys, limits
        self.collection = Collection(idx)
        self.metrics = Metrics()
        self.batcher = Batcher(
            model, queue=limits.queue, batch=limits.batch, observe=lambda n: self.metrics.batches.observe(n)
        )
        self.metrics.watch_queue(lambda: len(self.batcher))
        self.side = 2 * model.spec.resize_to  # of a decoded picture, so that it looks the same after it is resized
        self._transform = evaluation_transform(model.spec)
        self._pictures = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="pictures")
        self._index = ThreadPoolExecutor(INDEX_THREADS, thread_name_prefix="index")

    def close(self) -> None:
        """Finish what was accepted."""
        for threads in (self._pictures, self._index):
            threads.shutdown(wait=True)
        self.batcher.close()

    async def in_index(self, work: Callable[..., T], *arguments: Any, **settings: Any) -> T:
        try:
            return await _run(self._index, partial(work, *arguments, **settings))
        except IndexInUse:
            raise busy("another program is writing to the index") from None
        except OSError as error:  # the disk is full, or the store is not to be reached
            logger.error("the index failed", exc_info=error)
            raise ApiError(503, "unavailable", "the index cannot be used just now: try again later", RETRY) from None

    async def on_pictures(self, work: Callable[..., T], *arguments: Any, **settings: Any) -> T:
        return await _run(self._pictures, partial(work, *arguments, **settings))

    async def uploaded(self, data: bytes, crop: Crop | None = None) -> Image.Image:
        """The picture of an upload, small enough to work with if it is only to be looked at."""
        side = None if crop is None else crop.side_for(self.side)
        return await self.on_pictures(open_picture, data, pixels=self.limits.pixels, at_least=side)

    async def indexed(self, item: Item, crop: Crop) -> Image.Image:
        return await self.on_pictures(self.collection.picture, item, at_least=crop.side_for(self.side))

    async def embed(self, picture: Image.Image, crop: Crop | None = None) -> Vector:
        self.refuse_if_full()  # before the work of preparing it
        numbers = await self.on_pictures(lambda: self._transform((crop or Crop()).of(picture)))
        vector: Vector = await self.in_model(lambda: self.batcher.embed(numbers))
        if not np.isfinite(vector).all() or not vector.any():
            raise invalid("the model has no vector for this picture: it gives zero or not a number")
        return vector

    async def in_model(self, submit: Callable[[], Any]) -> Any:
        try:
            future = submit()
        except QueueFull as full:
            raise busy(str(full)) from None
        return await asyncio.wrap_future(future)

    def refuse_if_full(self) -> None:
        if len(self.batcher) >= self.limits.queue:
            raise busy(f"{len(self.batcher)} pictures are waiting for the model")

    def access(self, request: Request) -> Access:
        bearer = request.headers.get("authorization", "")
        given = request.headers.get(KEY_HEADER) or (bearer[7:] if bearer[:7].lower() == "bearer " else None)
        return self.keys.access(given)

    def requires(self, least: Access) -> Any:
        """A dependency of routes: who has no key that allows ``least`` is turned away before the body is read."""

        async def check(request: Request) -> None:
            access = self.access(request)
            if access is Access.NONE:
                message = f"a key is needed, in the header {KEY_HEADER}"
                raise ApiError(401, "key_needed", message, {"WWW-Authenticate": f'ApiKey header="{KEY_HEADER}"'})
            if access < least:
                raise ApiError(403, "read_only", "this key may read but not write")

        if not self.keys:
            return Depends(check)
        header = APIKeyHeader(name=KEY_HEADER, auto_error=False)

        async def check_and_describe(request: Request, _: Annotated[str | None, Security(header)]) -> None:
            await check(request)

        return Depends(check_and_describe)


async def _run(threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work)
