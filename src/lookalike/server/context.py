"""Shared state of the routes: the index, the model's queue, thread pools and access control."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import Depends, Request, Response, Security
from fastapi.security import APIKeyHeader
from pydantic import BaseModel

from lookalike.data.cropping import Pixels
from lookalike.data.safe_decode import LONGEST_UPLOAD_SIDE, MOST_ELONGATED, MOST_SCANS, Bounds, Decoded, Job
from lookalike.index.base import Index
from lookalike.index.filters import Where, among, parse
from lookalike.index.items import Item
from lookalike.index.layout import Choice
from lookalike.index.second_models import model_name
from lookalike.index.storage import IndexInUse
from lookalike.inference.picture_model import PictureModel
from lookalike.server.access import KEY_HEADER, AccessControl, key_of
from lookalike.server.batching import QueueFull, Vector
from lookalike.server.budget import Budget
from lookalike.server.collection_map import CollectionMap
from lookalike.server.decoding import Decoder
from lookalike.server.errors import RETRY, ApiError, busy, invalid
from lookalike.server.findings import Findings
from lookalike.server.jobs import Examiner, Improver
from lookalike.server.keys import INDEX_SUFFIX, Access, Keys
from lookalike.server.limits import LARGEST_FIELD, Limits
from lookalike.server.marking import Marking
from lookalike.server.metrics import Metrics
from lookalike.server.pictures import Crop
from lookalike.server.polygon import read_corners
from lookalike.server.quotas import Buckets, Quota
from lookalike.server.scans import Scans
from lookalike.server.served import Served
from lookalike.server.turns import TurnPool
from lookalike.server.uploads import Form, read_form

logger = logging.getLogger(__name__)
T = TypeVar("T")
INDEX_THREADS = 4  # for reading what does not grow with the collection
SCAN_THREADS = 2  # for reading what may, a filter for example
LONG_SCAN_THREADS = 1  # for what has turned out to take long


class Context:
    """Everything the routes share. Handlers stay on the event loop; blocking work runs in the pools here.

    Attributes:
        model: The first model.
        keys: Who may read and write.
        access: Checks keys and quotas.
        limits: Bounds on memory, time and work.
        collection: The index as the routes use it.
        marking: Marks and labels as the routes use them.
        map: The map of the collection.
        metrics: Prometheus metrics of this app.
        read_only: Whether this server is a replica, which changes nothing.
        batcher: The queue in front of the first model.
        first: The first model, with which the index was made.
        served: All models by name.
        decoder: The processes that decode pictures.
        upload_budget: Bytes of the uploads in memory.
        improver: The process that improves the model.
        examiner: The process that looks for faults in the pictures.
        findings: What it found, with the decisions about it.
    """

    def __init__(
        self,
        idx: Index,
        model: PictureModel,
        keys: Keys,
        limits: Limits,
        quota: Quota,
        proxies: Iterable[str] = (),
        buckets: Buckets | None = None,
        read_only: bool = False,
        previous: "Context | None" = None,
        layout: Choice = "auto",
        others: Mapping[str, tuple[Index, PictureModel]] | None = None,
    ) -> None:
        if previous is None:
            name = idx.path.resolve().name.removesuffix(INDEX_SUFFIX)
            self.access = AccessControl(keys, quota, name, limits.upload_bytes, proxies, buckets)
            self.metrics = Metrics()
            self.decoder = Decoder(limits.seconds)
            self.upload_budget = Budget(limits.upload_memory, "too many large pictures are being uploaded")
            self.improver, self.examiner = Improver(idx.path), Examiner(idx.path)
        else:
            self.access, self.metrics, self.decoder = previous.access, previous.metrics, previous.decoder
            self.upload_budget = previous.upload_budget
            self.improver, self.examiner = previous.improver, previous.examiner
        observe = self.metrics.batches.observe
        self.first = Served(model_name(idx.about.run), idx, model, limits, observe)
        self.served = {self.first.name: self.first}
        for name, (other_idx, other_model) in (others or {}).items():
            self.served[name] = Served(name, other_idx, other_model, limits, observe)
        self.model = model
        self.keys = keys
        self.limits = limits
        self.collection = self.first.collection
        self.marking = Marking(self.collection)
        self.findings = Findings(self.marking)
        self.map = CollectionMap(idx, self.collection.state, layout, stores=not read_only)
        self.read_only = read_only
        self.batcher = self.first.batcher
        self.metrics.watch_queue(lambda: sum(len(served.batcher) for served in self.served.values()))
        self._index_threads = TurnPool(INDEX_THREADS, "index")
        self._change_threads = TurnPool(1, "changes")  # changes run one after the other
        self._scans = Scans(limits.seconds, TurnPool(SCAN_THREADS, "scan"), TurnPool(LONG_SCAN_THREADS, "long-scan"))

    def choose(self, name: str | None) -> Served:
        """Return the model with this name; the first for none.

        Raises:
            ApiError: 422 if there is none.
        """
        if not name:
            return self.first
        if name not in self.served:
            raise invalid(f"model must be one of {', '.join(self.served)}")
        return self.served[name]

    def close(self) -> None:
        """Kill the processes that decode, improve or examine, finish all other accepted work, then stop the threads."""
        self.improver.close()
        self.examiner.close()
        self.decoder.close()
        self.retire()

    def retire(self) -> None:
        """Stop the threads, after another context took over the rest."""
        self.map.close()
        for threads in (self._index_threads, self._change_threads, self._scans):
            threads.close()
        self.findings.close()
        self.marking.close()
        for served in self.served.values():
            served.batcher.close()

    async def in_index(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a blocking call on the index in its thread pool, one whose work does not grow with the collection.

        Args:
            work: The function to call.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The result of ``work``.

        Raises:
            ApiError: 503 if the index is locked by another process or cannot be reached.
        """
        return await self.from_index(self._index_threads.submit(partial(work, *args, **kwargs)))

    async def scan(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a call that only reads, but perhaps every item, where it holds up nobody else. It may run twice.

        Args:
            work: The function to call.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The result of ``work``.

        Raises:
            ApiError: As ``in_index``; 503 if others come first for too long, 422 if it takes too long.
        """
        return await self._scans.run(partial(work, *args, **kwargs), self.from_index)

    async def change(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a call that changes the index, or what belongs to it, after those before it.

        Args:
            work: The function to call.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The result of ``work``.

        Raises:
            ApiError: As ``in_index``.
        """
        return await self.from_index(self._change_threads.submit(partial(work, *args, **kwargs)))

    async def from_index(self, future: "Future[T]") -> T:
        """Wait for the result of work on the index.

        Raises:
            ApiError: As ``in_index``.
        """
        try:
            return await asyncio.wrap_future(future)
        except IndexInUse:
            raise busy("another program is writing to the index") from None
        except OSError as error:  # disk full, or store unreachable
            logger.error("the index failed", exc_info=error)
            raise ApiError(503, "unavailable", "the index is unavailable: try again later", RETRY) from None

    async def restrict(self, where: str | None, area: str | None, revision: str | None) -> Where:
        """Restrict a filter to an area of the map.

        Args:
            where: The filter, checked.
            area: Corners of the area as sent; None for no area.
            revision: Of the map on which it was drawn.

        Returns:
            The filter.

        Raises:
            ApiError: 422 if the area is malformed, 409 if the map has changed.
        """
        if not area:
            return where
        ids = await self.scan(self.map.ids_inside, revision or "", read_corners(area))
        return (*parse(where), among(ids))

    def read_form(
        self, request: Request, fields: Iterable[str], largest_field: int = LARGEST_FIELD
    ) -> AbstractAsyncContextManager[Form]:
        """Read the form of a request, see ``uploads.read_form``."""
        client = self.client_of(request)
        return read_form(request, self.limits, tuple(fields), self.upload_budget, client, largest_field)

    def client_of(self, request: Request) -> str:
        """Return who sends a request: its key, which was checked, or without keys its address."""
        return self.access.keys.grant(key_of(request)).key or self.access.address_of(request)

    def person_of(self, request: Request) -> str:
        """Return who sends a request, for the history: the name of the key, or a pseudonym; empty without keys.

        A pseudonym is a keyed hash with a secret of the index: it does not help to guess a key.
        """
        grant = self.access.keys.grant(key_of(request))
        if not grant.key or grant.name:
            return grant.name
        secret = self.marking.marks.salt().encode()
        return f"key {blake2b(grant.key.encode(), key=secret, digest_size=4).hexdigest()}"

    async def decode(
        self, form: Form, crop: Crop, *, jpeg_side: int | None = None, served: Served | None = None
    ) -> Decoded:
        """Decode an uploaded picture in another process.

        Args:
            form: Has the bytes of the file.
            crop: The region that the model will see.
            served: The model; None: the first.
            jpeg_side: If given, the whole picture is also encoded, with at most this longer side.

        Returns:
            The pixels for the model and, if asked for, the JPEG.

        Raises:
            ApiError: 413 or 415 if the picture is not accepted, 422 if it costs too much, 503 if the server is busy.
        """
        served = served or self.first
        served.refuse_if_full()  # before spending time on the picture
        bounds = Bounds(self.limits.pixels, LONGEST_UPLOAD_SIDE, MOST_ELONGATED, MOST_SCANS)
        job = served.job(crop)._replace(bounds=bounds, jpeg_side=jpeg_side, full_jpeg=True)
        return await self._decode(job, form.required_picture(), form.client)

    async def decode_item(self, item: Item, crop: Crop, client: str, served: Served | None = None) -> Decoded:
        """Decode the picture of an indexed item for a model, by default the first. ``client`` is who asks for it."""
        served = served or self.first
        served.refuse_if_full()
        return await self._decode_file(item, served.job(crop), client)

    async def item_jpeg(self, item: Item, side: int, client: str) -> bytes:
        """Encode the picture of an indexed item as a JPEG with at most this longer ``side``."""
        decoded = await self._decode_file(item, Job(at_least=side, jpeg_side=side), client)
        return decoded.jpeg or b""

    async def _decode_file(self, item: Item, job: Job, client: str) -> Decoded:
        with self.upload_budget.hold(await self.in_index(self.collection.size, item), client):
            data = await self.in_index(self.collection.read, item)
            return await self._decode(job, data, client)

    async def _decode(self, job: Job, data: bytes, client: str) -> Decoded:
        return await asyncio.wrap_future(self.decoder.submit(job, data, client))

    async def embed(self, decoded: Decoded, served: Served | None = None) -> Vector:
        """Compute the vector (D,) of a decoded picture with a model, by default the first.

        Raises:
            ApiError: 503 if the queue is full, 422 if the model gives no usable vector.
        """
        batcher = (served or self.first).batcher
        vector: Vector = await self.in_model(lambda: batcher.embed(model_pixels(decoded)))
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
            return await asyncio.wrap_future(submit())
        except QueueFull as full:
            raise busy(str(full)) from None

    def requires(self, least: Access, *, adds: bool = False, changes: bool = False) -> Any:
        """Create a route dependency that checks key and quota before the body is read.

        Args:
            least: The access that the route needs.
            adds: Whether the route adds a picture, which has a quota of its own.
            changes: Whether it changes the index, which a replica refuses (unless the method is GET).

        Returns:
            A FastAPI dependency.
        """

        async def check(request: Request) -> None:
            self.access.admit(request, least, adds=adds)
            if changes and self.read_only and request.method not in ("GET", "HEAD"):
                raise ApiError(403, "replica", "this server is a replica: changes go to the one that writes")

        if not self.keys:
            return Depends(check)
        header = APIKeyHeader(name=KEY_HEADER, auto_error=False)

        # The unused header parameter puts the key into the OpenAPI document.
        async def check_and_document(request: Request, _: Annotated[str | None, Security(header)]) -> None:
            await check(request)

        return Depends(check_and_document)


def as_json(make: Callable[..., BaseModel], *args: Any) -> Response:
    """Make an answer that may be large and encode it, in a thread: the event loop is for all."""
    return Response(make(*args).model_dump_json(), media_type="application/json")


def model_pixels(decoded: Decoded) -> Pixels:
    """Return the pixels that a job of ``Context.decode`` always has."""
    if decoded.pixels is None:
        raise ValueError("the job did not ask for pixels")
    return decoded.pixels
