"""Prometheus metrics. Each app has its own registry, so that several can run in one process.

With several workers, each writes its values to files in the folder PROMETHEUS_MULTIPROC_DIR, and any of them answers
for all: counts and gauges are sums over the workers.
"""

import os
from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from lookalike.server.errors import DESCRIPTIONS
from lookalike.server.workers import METRICS_FOLDER

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
UNMATCHED = "unmatched"  # one label for all unknown paths; clients could invent any number of them
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
STATUSES = frozenset({200, 304, 405, *DESCRIPTIONS})
NO_ANSWER = 0  # the client has gone


class Metrics:
    """Counters, gauges and histograms of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "lookalike_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "lookalike_request_seconds",
            "From the first line of a request to the last byte of its answer.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batches = Histogram(
            "lookalike_batch_pictures",
            "Pictures per forward pass.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self.registry,
        )
        self.waiting = self._sum("lookalike_queue_length", "Pictures waiting for the model.")
        self.in_flight = self._sum("lookalike_requests_in_flight", "Requests being answered.")
        self._sum("lookalike_workers", "Processes that answer requests.").set(1)
        self.items = Gauge(
            "lookalike_items", "Items in the index.", registry=self.registry, multiprocess_mode="mostrecent"
        )
        self._queue_length: Callable[[], int] = lambda: 0

    def _sum(self, name: str, text: str) -> Gauge:
        """A gauge that adds up over the living workers."""
        return Gauge(name, text, registry=self.registry, multiprocess_mode="livesum")

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record one answered request.

        Args:
            method: HTTP method; others than ``METHODS`` are counted as "other".
            route: Pattern of the route, never a path as sent, or ``UNMATCHED``.
            status: HTTP status of the answer; others than ``STATUSES`` are counted as "other".
            seconds: Duration.
        """
        if method not in METHODS:
            method = "other"
        status_text = "other"
        if status in STATUSES or status == NO_ANSWER:
            status_text = str(status)
        self.requests.labels(method, route, status_text).inc()
        self.seconds.labels(route).observe(seconds)

    def watch_queue(self, length: Callable[[], int]) -> None:
        """Read the queue length from ``length`` at every request."""
        self._queue_length = length

    def track(self, in_flight: int) -> None:
        """Record how many requests are being answered, and how many pictures wait."""
        self.in_flight.set(in_flight)
        self.waiting.set(self._queue_length())

    def text(self, items: int) -> bytes:
        """Return all metrics in the Prometheus text format; ``items`` is the size of the index."""
        self.items.set(items)
        self.waiting.set(self._queue_length())
        registry = self.registry
        folder = os.environ.get(METRICS_FOLDER)
        if folder:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, folder)
        return generate_latest(registry)
