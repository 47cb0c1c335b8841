"""How much the server takes on: every number that bounds memory, time and work, in one place."""

from dataclasses import dataclass, fields

from lookalike._util.checks import check_count, check_range

MOST_HITS = 200  # of one search
MOST_ITEMS = 500  # of one page of a listing
MOST_POINTS = 2000  # of the map
MOST_SCANS = 200  # of a progressive JPEG: a small file of many thousand would be decoded for an hour
LARGEST_FIELD = 16 * 1024  # bytes of one text field of a form
LARGEST_SIDE = 4096  # pixels, of a picture that is sent
PILLOWS_PIXELS = 89_478_485  # above this Pillow itself takes a picture for a bomb and may warn or refuse


@dataclass(frozen=True)
class Limits:
    """What one process takes on before it says no.

    >>> Limits(queue=0)
    Traceback (most recent call last):
    ValueError: queue must be at least 1, got 0
    """

    upload_bytes: int = 20_000_000  # of one request's body, counted as it comes
    pixels: int = 50_000_000  # of one picture, looked at before it is decoded
    requests: int = 128  # answered at the same time; more get 503
    queue: int = 64  # pictures that wait for the model; more get 503
    batch: int = 16  # pictures that go through the model at once
    seconds: float = 30.0  # for an answer once the request is there; then 504
    upload_seconds: float = 60.0  # for the request to arrive; then 408

    def __post_init__(self) -> None:
        for entry in fields(self):
            if entry.type is int:
                check_count(entry.name, getattr(self, entry.name))
            else:
                check_range(entry.name, getattr(self, entry.name), 0, None)
        if self.pixels > PILLOWS_PIXELS:
            raise ValueError(f"pixels must be at most {PILLOWS_PIXELS:,}, got {self.pixels:,}")
