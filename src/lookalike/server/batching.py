"""One thread owns the model; whoever wants something of it waits in a bounded queue.

While the thread computes one batch the next one collects, so a batch is as large as the load asks for, and a picture
that comes alone does not wait for company. What is not worth computing any more (its request was cancelled or timed
out) is passed over. Closing lets no more in and finishes what was accepted.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookalike.inference.model import TrainedModel

Vector = NDArray[np.float32]


class QueueFull(Exception):  # noqa: N818 - it names what is the case
    """No more is accepted, for now or, when closed, for good."""


class _Job(NamedTuple):
    future: "Future[Any]"
    numbers: Tensor | None  # (3, size, size) of a picture to embed
    work: Callable[[TrainedModel], Any] | None  # anything else, on its own


class Batcher:
    """Numbers (3, size, size) of single pictures -> vectors (D,), in batches of at most ``batch``."""

    def __init__(
        self, model: TrainedModel, *, queue: int, batch: int, observe: Callable[[int], None] = lambda _: None
    ) -> None:
        self._model, self._longest, self._batch, self._observe = model, queue, batch, observe
        self._jobs: deque[_Job] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._jobs)

    def embed(self, numbers: Tensor) -> "Future[Vector]":
        return self._accept(_Job(Future(), numbers, None))

    def run(self, work: Callable[[TrainedModel], Any]) -> "Future[Any]":
        """``work(model)``, when it is its turn."""
        return self._accept(_Job(Future(), None, work))

    def close(self) -> None:
        """Finish what was accepted, then end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _accept(self, job: _Job) -> "Future[Any]":
        with self._changed:
            if self._closed:
                raise QueueFull("the server is closing")
            if len(self._jobs) >= self._longest:
                raise QueueFull(f"{len(self._jobs)} pictures are waiting for the model")
            if self._thread is None:
                self._thread = Thread(target=self._work, name="model", daemon=True)
                self._thread.start()
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def _take(self) -> list[_Job]:
        """The next batch, in the order of arrival; empty when all is done and the batcher is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            taken: list[_Job] = []
            while self._jobs and len(taken) < self._batch:
                alone = self._jobs[0].numbers is None
                if taken and alone:
                    break
                job = self._jobs.popleft()
                if job.future.set_running_or_notify_cancel():
                    taken.append(job)
                    if alone:
                        break
            return taken

    def _work(self) -> None:
        while True:
            jobs = self._take()
            if jobs:
                self._compute(jobs)
            elif self._closed:
                return

    def _compute(self, jobs: list[_Job]) -> None:
        try:
            if jobs[0].work is not None:
                results: list[Any] = [jobs[0].work(self._model)]
            else:
                results = list(self._forward([job.numbers for job in jobs if job.numbers is not None]))
        except Exception as error:
            if len(jobs) > 1:  # too much at once, perhaps, or one of them spoils it for all
                for job in jobs:
                    self._compute([job])
            else:
                jobs[0].future.set_exception(error)
            return
        for job, result in zip(jobs, results, strict=True):
            job.future.set_result(result)

    @torch.inference_mode()
    def _forward(self, numbers: list[Tensor]) -> Vector:
        self._observe(len(numbers))
        batch = torch.stack(numbers).to(self._model.device, non_blocking=True)
        vectors: Vector = self._model.embedder(batch).float().cpu().numpy()
        return vectors
