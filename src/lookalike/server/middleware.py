"""The guard around the app: checks every request first and completes every answer last.

Incoming:

- The name in ``Host`` must be ours. This stops DNS rebinding: a foreign page whose name points here sends its own name.
- A browser's cross-site request may not change anything.
- The number of parallel requests and the bytes of the body are limited. Bytes are counted as they arrive. One client
  may have as many requests in progress as it leaves to others, so that nobody can take all places and keep them.

Outgoing: security headers on every answer. Large answers are sent in pieces, as fast as the client reads. A request is
in progress until then, and the bytes of all large answers are limited. Exceptions become ``{"error": ...}``; the
traceback goes to the log.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lookalike.server.budget import Budget
from lookalike.server.errors import ApiError, busy
from lookalike.server.limits import ANSWER_MEMORY, Limits
from lookalike.server.metrics import UNMATCHED, Metrics
from lookalike.server.turns import CLIENT

logger = logging.getLogger(__name__)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
NEVER_BUSY = ("/health", "/healthz", "/ready", "/metrics")  # answered under any load
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
PIECE = 64 * 1024  # bytes of a large answer that are sent at a time


class GuardMiddleware:
    """Checks requests, counts them and completes answers.

    Args:
        app: The wrapped application.
        hosts: Accepted names in the ``Host`` header, without port. None accepts any.
        limits: Bounds on parallel requests and body size.
        metrics: Where requests are recorded.
        client_of: Tells who sends a request.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str] | None,
        limits: Limits,
        metrics: Metrics,
        client_of: Callable[[Request], str],
    ) -> None:
        self.app = app
        self.client_of = client_of
        self.limits = limits
        self.metrics = metrics
        self.hosts = None
        if hosts is not None:
            self.hosts = frozenset(map(str.lower, hosts))
        self.answers = Budget(ANSWER_MEMORY, "too many large answers are being sent", fair=True)
        self.in_flight = 0
        self.in_flight_of: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http":
            await self._handle(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            await self.app(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        status = 0
        head: Message | None = None  # is sent with the first bytes of the body
        refused: ApiError | None = None

        async def guarded_send(message: Message) -> None:
            nonlocal status, head, refused
            if message["type"] == "http.response.start":
                head = {**message, "headers": _with_security_headers(message.get("headers", []))}
                return
            if refused is not None:
                return
            size = len(message.get("body", b""))
            try:
                with self.answers.hold(size, client) if size > PIECE else nullcontext():
                    if head is not None:
                        status = head["status"]
                        await send(head)
                        head = None
                    await _send_in_pieces(send, message, self.limits.upload_seconds)
            except ApiError as error:
                refused = error

        client = self.client_of(Request(scope))
        CLIENT.set(client)
        self.in_flight += 1
        self.in_flight_of[client] += 1
        self.metrics.track(self.in_flight)
        try:
            self._check(scope, client)
            await self.app(scope, _limited(scope, receive, self.limits.upload_bytes), guarded_send)
            if refused is not None:
                answer, refused = refused.response(), None
                await answer(scope, receive, guarded_send)
        except ApiError as error:
            await error.response()(scope, receive, guarded_send)
        except Exception as error:
            logger.error("%s %s failed", scope["method"], _route(scope), exc_info=error)
            if not status:
                failed = ApiError(500, "failed", "internal error; the server's log has the details")
                await failed.response()(scope, receive, guarded_send)
        finally:
            self.in_flight -= 1
            self.in_flight_of[client] -= 1
            if not self.in_flight_of[client]:
                del self.in_flight_of[client]
            self.metrics.track(self.in_flight)
            self.metrics.observe(scope["method"], _route(scope), status, time.perf_counter() - started)

    def _check(self, scope: Scope, client: str) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "").lower()
        if self.hosts is not None and _without_port(host) not in self.hosts:
            raise ApiError(421, "wrong_host", "the server does not accept the name in the header Host")
        if scope["method"] not in SAFE_METHODS and _is_cross_site(headers, host):
            raise ApiError(403, "cross_site", "requests from pages of other sites are refused")
        if scope["path"] in NEVER_BUSY:
            return
        free = self.limits.requests - self.in_flight
        if free < 0:
            raise busy("too many requests are being answered")
        if self.in_flight_of[client] > max(1, free):
            raise busy("too many requests of this client are being answered")


async def _send_in_pieces(send: Send, message: Message, seconds: float) -> None:
    """Send a part of an answer. If the client does not read a large one in time, the rest is left out."""
    body = message.get("body", b"")
    if len(body) <= PIECE:
        await send(message)
        return

    async def send_all() -> None:
        for start in range(0, len(body), PIECE):
            end = start + PIECE
            more = end < len(body) or message.get("more_body", False)
            await send({**message, "body": body[start:end], "more_body": more})

    try:
        await asyncio.wait_for(send_all(), seconds)
    except asyncio.TimeoutError:  # the server closes the connection of an answer that is not complete
        logger.warning("a client took more than %g seconds to read an answer", seconds)


def _limited(scope: Scope, receive: Receive, max_bytes: int) -> Receive:
    """Wrap ``receive``: raise 413 once the body has more than ``max_bytes``."""
    too_large = ApiError(413, "too_large", f"a request must have at most {max_bytes:,} bytes")
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        if declared.isdigit() and int(declared.lstrip(b"0")[:20] or b"0") > max_bytes:
            raise too_large
        message = await receive()
        received += len(message.get("body", b""))
        if received > max_bytes:
            raise too_large
        return message

    return receive_limited


def _is_cross_site(headers: dict[bytes, str], host: str) -> bool:
    """Whether a browser says that another site's page sends this; other clients send neither header."""
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get(b"origin")
    return origin is not None and origin.lower().partition("://")[2] != host


def _without_port(host: str) -> str:
    """

    Examples:
        >>> _without_port("localhost:8000"), _without_port("[::1]:8000"), _without_port("[::1]")
        ('localhost', '[::1]', '[::1]')
    """
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdecimal():
        return host
    if name.startswith("[") and not name.endswith("]"):  # a colon inside an IPv6 address
        return host
    return name


def _route(scope: Scope) -> str:
    """The pattern of the route, ``/items/{id}``, never the path as sent."""
    return str(getattr(scope.get("route"), "path", UNMATCHED))


def _with_security_headers(given: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    headers = list(given)
    present = {name.lower() for name, _ in headers}
    for name, value in {"cache-control": "no-store", **HEADERS}.items():
        if name.encode() not in present:
            headers.append((name.encode(), value.encode()))
    return headers
