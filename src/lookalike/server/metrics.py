"""Prometheus metrics. Each app has its own registry, so that several can run in one process."""

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lookalike.server.errors import DESCRIPTIONS

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
        self.waiting = Gauge("lookalike_queue_length", "Pictures waiting for the model.", registry=self.registry)
        self.in_flight = Gauge("lookalike_requests_in_flight", "Requests being answered.", registry=self.registry)
        self.items = Gauge("lookalike_items", "Items in the index.", registry=self.registry)

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
        """Read the queue length from ``length`` at every scrape."""
        self.waiting.set_function(length)

    def text(self, items: int) -> bytes:
        """Return all metrics in the Prometheus text format; ``items`` is the size of the index."""
        self.items.set(items)
        return generate_latest(self.registry)
