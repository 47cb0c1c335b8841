"""Limits of the server: every number that bounds memory, time and work."""

from dataclasses import dataclass, fields

from lookalike._util.checks import check_count, check_range

MOST_HITS = 200  # per search
MOST_ITEMS = 500  # per page of a listing
MOST_POINTS = 2000  # on the map
MOST_SCANS = 200  # per progressive JPEG; a small file with thousands of scans would decode for an hour
LARGEST_FIELD = 16 * 1024  # bytes per text field of a form
LARGEST_SIDE = 4096  # pixels per side of a picture that is sent
PILLOW_MAX_PIXELS = 89_478_485  # above this, Pillow warns or refuses by itself


@dataclass(frozen=True)
class Limits:
    """Limits of one server process.

    Args:
        upload_bytes: Bytes per request body, counted as they arrive; more get 413.
        pixels: Pixels per picture, checked before decoding; more get 413.
        requests: Requests at the same time; more get 503.
        queue: Pictures waiting for the model; more get 503.
        batch: Pictures per forward pass.
        seconds: Time to answer a complete request; then 504.
        upload_seconds: Time for a request to arrive; then 408.

    Raises:
        ValueError: If a limit is not positive, or ``pixels`` exceeds what Pillow accepts.

    >>> Limits(queue=0)
    Traceback (most recent call last):
    ValueError: queue must be at least 1, got 0
    """

    upload_bytes: int = 20_000_000
    pixels: int = 50_000_000
    requests: int = 128
    queue: int = 64
    batch: int = 16
    seconds: float = 30.0
    upload_seconds: float = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type is int:
                check_count(field.name, getattr(self, field.name))
            else:
                check_range(field.name, getattr(self, field.name), 0, None)
        if self.pixels > PILLOW_MAX_PIXELS:
            raise ValueError(f"pixels must be at most {PILLOW_MAX_PIXELS:,}, got {self.pixels:,}")
