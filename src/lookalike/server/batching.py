"""A bounded queue in front of the model, worked off in batches by one thread.

While the thread computes one batch, the next one collects. Batches therefore grow with the load, and a single picture
never waits for others. Clients take turns. Cancelled and timed-out jobs are skipped. Closing accepts no new jobs and
finishes the old ones.
"""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.data.cropping import Pixels, stacks
from lookalike.inference.picture_model import PictureModel
from lookalike.server.turns import CLIENT, TurnQueue

Vector = NDArray[np.float32]


class QueueFull(Exception):  # noqa: N818 - names the state, as queue.Full does
    """The queue accepts no more jobs: it is full, or closed."""


class _Job(NamedTuple):
    future: "Future[Any]"
    crop: Pixels | None  # (size, size, 3) of a picture to embed; None for ``work``
    work: Callable[[PictureModel], Any] | None  # any other use of the model; runs alone


class Batcher:
    """Embeds single pictures in batches.

    Args:
        model: The model. Only the batcher's thread uses it.
        queue: Largest number of waiting jobs.
        batch: Largest number of pictures per forward pass.
        observe: Called with the size of every batch.
    """

    def __init__(
        self, model: PictureModel, *, queue: int, batch: int, observe: Callable[[int], None] = lambda _: None
    ) -> None:
        self._model = model
        self._max_batch = batch
        self._observe = observe
        self._jobs: TurnQueue[_Job] = TurnQueue(queue)
        self._changed = Condition()
        self._thread: Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        """Return the number of waiting jobs."""
        return len(self._jobs)

    def has_room(self) -> bool:
        """Return whether the queue would accept a job of the client of the current request."""
        with self._changed:
            return self._jobs.has_room(CLIENT.get())

    def embed(self, crop: Pixels) -> "Future[Vector]":
        """Queue one picture.

        Args:
            crop: The picture as the model's ``preprocess`` cropped it, (size, size, 3) uint8.

        Returns:
            A future of the vector (D,).

        Raises:
            QueueFull: If the queue is full or closed. The future fails with it if another client takes the place.
        """
        return self._submit(_Job(Future(), crop, None))

    def run(self, work: Callable[[PictureModel], Any]) -> "Future[Any]":
        """Queue ``work(model)``, which runs alone.

        Args:
            work: Called with the model in the batcher's thread.

        Returns:
            A future of its result.

        Raises:
            QueueFull: If the queue is full or closed.
        """
        return self._submit(_Job(Future(), None, work))

    def close(self) -> None:
        """Finish the accepted jobs, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _submit(self, job: _Job) -> "Future[Any]":
        with self._changed:
            if self._closed:
                raise QueueFull("the server is closing")
            client = CLIENT.get()
            if not self._jobs.has_room(client):
                raise QueueFull(f"{len(self._jobs)} pictures are waiting for the model")
            if self._thread is None:
                self._thread = Thread(target=self._loop, name="model", daemon=True)
                self._thread.start()
            displaced = self._jobs.add(job, client)
            self._changed.notify()
        if displaced is not None and displaced.future.set_running_or_notify_cancel():
            displaced.future.set_exception(QueueFull("other clients are waiting for the model"))
        return job.future

    def _loop(self) -> None:
        while True:
            jobs, clients = self._next_batch()
            if jobs:
                self._compute(jobs)
            elif self._closed:
                return
            with self._changed:
                for client in clients:
                    self._jobs.done(client)

    def _next_batch(self) -> tuple[list[_Job], list[str]]:
        """Wait for jobs; take them in turn. ``work`` is always a batch of its own."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            batch: list[_Job] = []
            clients: list[str] = []  # also of jobs that were cancelled
            while len(batch) < self._max_batch:
                first = self._jobs.next()
                if first is None:
                    break
                runs_alone = first.work is not None
                if batch and runs_alone:
                    break
                job, client = self._jobs.take()
                clients.append(client)
                if not job.future.set_running_or_notify_cancel():
                    continue
                batch.append(job)
                if runs_alone:
                    break
            return batch, clients

    def _compute(self, jobs: list[_Job]) -> None:
        try:
            results = self._results(jobs)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:  # out of memory, or one bad picture: retry one by one
                self._compute([job])
            return
        for job, result in zip(jobs, results, strict=True):
            job.future.set_result(result)

    def _results(self, jobs: list[_Job]) -> list[Any]:
        if jobs[0].work is not None:
            return [jobs[0].work(self._model)]
        return list(self._embed([job.crop for job in jobs if job.crop is not None]))

    def _embed(self, crops: list[Pixels]) -> Vector:
        self._observe(len(crops))
        return np.concatenate([self._model.embed_crops(stack) for stack in stacks(crops)])
