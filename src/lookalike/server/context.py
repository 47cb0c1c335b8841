"""Shared state of the routes: the index, the model's queue, thread pools and access control."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader

from lookalike.data.cropping import CropSize, Pixels
from lookalike.data.safe_decode import Bounds, Decoded, Job
from lookalike.index.base import Index
from lookalike.index.items import Item
from lookalike.index.storage import IndexInUse
from lookalike.inference.model import TrainedModel
from lookalike.server.access import KEY_HEADER, AccessControl, address_of, key_of
from lookalike.server.batching import Batcher, QueueFull, Vector
from lookalike.server.collection import Collection
from lookalike.server.decoding import Decoder
from lookalike.server.errors import RETRY, ApiError, busy, invalid
from lookalike.server.keys import INDEX_SUFFIX, Access, Keys
from lookalike.server.limits import LONGEST_UPLOAD_SIDE, MOST_ELONGATED, MOST_SCANS, Limits
from lookalike.server.metrics import Metrics
from lookalike.server.pictures import Crop
from lookalike.server.quotas import Quota
from lookalike.server.uploads import Form, UploadBudget, read_form

logger = logging.getLogger(__name__)
T = TypeVar("T")
INDEX_THREADS = 4


class Context:
    """Everything the routes share. Handlers stay on the event loop; blocking work runs in the pools here.

    Attributes:
        model: The loaded model.
        keys: Who may read and write.
        access: Checks keys and quotas.
        limits: Bounds on memory, time and work.
        collection: The index as the routes use it.
        metrics: Prometheus metrics of this app.
        batcher: The queue in front of the model.
        decoder: The processes that decode pictures.
        upload_budget: Bytes of the uploads in memory.
        decode_side: Shorter side to decode pictures at, large enough that resizing gives the same result.
    """

    def __init__(self, idx: Index, model: TrainedModel, keys: Keys, limits: Limits, quota: Quota) -> None:
        idx.check_model(model)
        self.model = model
        self.keys = keys
        self.limits = limits
        self.collection = Collection(idx)
        self.access = AccessControl(
            keys, quota, idx.path.resolve().name.removesuffix(INDEX_SUFFIX), limits.upload_bytes
        )
        self.metrics = Metrics()
        self.batcher = Batcher(model, queue=limits.queue, batch=limits.batch, observe=self.metrics.batches.observe)
        self.metrics.watch_queue(lambda: len(self.batcher))
        self.decode_side = model.preprocess.decode_side
        self.decoder = Decoder(limits.seconds)
        self.upload_budget = UploadBudget(limits.upload_memory)
        self._index_threads = ThreadPoolExecutor(INDEX_THREADS, thread_name_prefix="index")

    def close(self) -> None:
        """Kill the processes that decode, finish all other accepted work, then stop the threads."""
        self.decoder.close()
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

    def read_form(self, request: Request, fields: Iterable[str]) -> AbstractAsyncContextManager[Form]:
        """Read the form of a request, see ``uploads.read_form``."""
        return read_form(request, self.limits, tuple(fields), self.upload_budget, self.client_of(request))

    def client_of(self, request: Request) -> str:
        """Return who sends a request: its key, which was checked, or without keys its address."""
        return self.access.keys.grant(key_of(request)).key or address_of(request)

    async def decode(self, form: Form, crop: Crop, *, jpeg_side: int | None = None) -> Decoded:
        """Decode an uploaded picture in another process.

        Args:
            form: Has the bytes of the file.
            crop: The region that the model will see.
            jpeg_side: If given, the whole picture is also encoded, with at most this longer side.

        Returns:
            The pixels for the model and, if asked for, the JPEG.

        Raises:
            ApiError: 413 or 415 if the picture is not accepted, 422 if it costs too much, 503 if the server is busy.
        """
        self.refuse_if_full()  # before spending time on the picture
        bounds = Bounds(self.limits.pixels, LONGEST_UPLOAD_SIDE, MOST_ELONGATED, MOST_SCANS)
        job = self._job(crop)._replace(bounds=bounds, jpeg_side=jpeg_side, full_jpeg=True)
        return await self._decode(job, form.required_picture(), form.client)

    async def decode_item(self, item: Item, crop: Crop, client: str) -> Decoded:
        """Decode the picture of an indexed item for the model. ``client`` is who asks for it."""
        self.refuse_if_full()
        return await self._decode_file(item, self._job(crop), client)

    async def item_jpeg(self, item: Item, side: int, client: str) -> bytes:
        """Encode the picture of an indexed item as a JPEG with at most this longer ``side``."""
        decoded = await self._decode_file(item, Job(at_least=side, jpeg_side=side), client)
        return decoded.jpeg or b""

    def _job(self, crop: Crop) -> Job:
        spec = self.model.spec
        size = CropSize(spec.size, spec.resize_to, spec.interpolation)
        return Job(at_least=crop.side_for(self.decode_side), crop=size, region=crop)

    async def _decode_file(self, item: Item, job: Job, client: str) -> Decoded:
        with self.upload_budget.hold(await self.in_index(self.collection.size, item)):
            data = await self.in_index(self.collection.read, item)
            return await self._decode(job, data, client)

    async def _decode(self, job: Job, data: bytes, client: str) -> Decoded:
        return await asyncio.wrap_future(self.decoder.submit(job, data, client))

    async def embed(self, decoded: Decoded) -> Vector:
        """Compute the vector (D,) of a decoded picture.

        Raises:
            ApiError: 503 if the queue is full, 422 if the model gives no usable vector.
        """
        vector: Vector = await self.in_model(lambda: self.batcher.embed(model_pixels(decoded)))
        if not np.isfinite(vector).all() or not vector.any():
            raise invalid("the model has no vector for this picture: the result is zero or not finite")
        return vector

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
            self.access.admit(request, least)

        if not self.keys:
            return Depends(check)
        header = APIKeyHeader(name=KEY_HEADER, auto_error=False)

        # The unused header parameter puts the key into the OpenAPI document.
        async def check_and_document(request: Request, _: Annotated[str | None, Security(header)]) -> None:
            await check(request)

        return Depends(check_and_document)


def model_pixels(decoded: Decoded) -> Pixels:
    """Return the pixels that a job of ``Context.decode`` always has."""
    if decoded.pixels is None:
        raise ValueError("the job did not ask for pixels")
    return decoded.pixels


async def _run(threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work)
