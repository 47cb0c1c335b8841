"""What the server tells Prometheus; each app counts for itself, so that several live in one process."""

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
UNMATCHED = "unmatched"  # one name for every path that leads nowhere: anybody can make up new ones


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "lookalike_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "lookalike_request_seconds",
            "From a request's first line to its answer's last byte.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batches = Histogram(
            "lookalike_batch_pictures",
            "Pictures that went through the model at once.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self.registry,
        )
        self.waiting = Gauge("lookalike_queue_length", "Pictures that wait for the model.", registry=self.registry)
        self.in_flight = Gauge("lookalike_requests_in_flight", "Requests being answered.", registry=self.registry)
        self.items = Gauge("lookalike_items", "Items in the index.", registry=self.registry)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests.labels(method if method.isupper() and len(method) < 8 else "OTHER", route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def watch_queue(self, length: Callable[[], int]) -> None:
        self.waiting.set_function(length)

    def text(self, items: int) -> bytes:
        self.items.set(items)
        return generate_latest(self.registry)
