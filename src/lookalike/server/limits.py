"""Limits of the server: every number that bounds memory, time and work."""

from dataclasses import dataclass

from lookalike._util.settings import check_settings, setting
from lookalike.data.safe_decode import PILLOW_MAX_PIXELS

MOST_HITS = 200  # per search
MOST_ITEMS = 500  # per page of a listing
MOST_POINTS = 100_000  # on the map; of more items a random sample
LARGEST_FIELD = 16 * 1024  # bytes per text field of a form
LARGEST_SIDE = 4096  # pixels per side of a picture that is sent
LARGEST_PAGE = 1_000_000  # characters of the items on a page of a listing, as JSON
ANSWER_MEMORY = 100_000_000  # bytes of answers that are being sent; small ones do not count


@dataclass(frozen=True)
class Limits:
    """Limits of one server process.

    Args:
        upload_bytes: Bytes per request body, counted as they arrive; more get 413.
        pixels: Pixels per picture, checked before decoding; more get 413.
        requests: Requests at the same time; more get 503.
        queue: Pictures waiting for the model; more get 503.
        batch: Pictures per forward pass.
        upload_memory: Bytes of all uploaded pictures in memory at a time; more get 503.
        seconds: Time to answer a complete request; then 504.
        upload_seconds: Time for a request to arrive; then 408. Also for the next part of an answer to be read.
        header_seconds: Time for the headers of a request to arrive; then the connection is closed.
        items: Items in the collection; a request to add more gets 403. None is unlimited.

    Raises:
        TypeError: If a limit is not a number.
        ValueError: If a limit is not positive, or ``pixels`` exceeds what Pillow accepts.

    Examples:
        >>> Limits(queue=0)
        Traceback (most recent call last):
        ValueError: queue must be at least 1, got 0
    """

    upload_bytes: int = setting(20_000_000, "bytes per request body", least=1)
    pixels: int = setting(50_000_000, "pixels per picture", least=1, up_to=PILLOW_MAX_PIXELS)
    requests: int = setting(128, "requests at the same time", least=1)
    queue: int = setting(64, "pictures waiting for the model", least=1)
    batch: int = setting(16, "pictures per forward pass", least=1)
    upload_memory: int = setting(200_000_000, "bytes of uploads in memory", least=1)
    seconds: float = setting(30.0, "time to answer a complete request", above=0)
    upload_seconds: float = setting(60.0, "time for a request to arrive", above=0)
    header_seconds: float = setting(10.0, "time for the headers of a request to arrive", above=0)
    items: int | None = setting(None, "items in the collection", least=1)

    def __post_init__(self) -> None:
        check_settings(self)
