"""What every request passes first, and every answer last.

In: the name in ``Host`` (a page of somebody else's whose name is made to point here, DNS rebinding, still sends its own
name), where the request comes from (a form on another site can post to this machine, but not hide that it does), how
many are being answered, and how many bytes the body has, counted as they come, whatever ``Content-Length`` says.
Out: headers that let a browser do with the answer only what the page needs, and no exception in any other form than
``{"error": ...}``; the log has the trace.
"""

import logging
import time
from collections.abc import Collection
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lookalike.server.errors import ApiError, busy
from lookalike.server.limits import Limits
from lookalike.server.metrics import UNMATCHED, Metrics

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
ALWAYS = ("/healthz", "/metrics")  # answered also when everything else is too much
HARMLESS = ("GET", "HEAD", "OPTIONS")


class GuardMiddleware:
    """hosts: the names the server goes by, without port; None for any."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None, limits: Limits, metrics: Metrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await (
                self._refuse_socket(receive, send) if scope["type"] == "websocket" else self.app(scope, receive, send)
            )
            return
        started, status = time.perf_counter(), 0

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": _with_headers(message.get("headers", []))}
            await send(message)

        self.in_flight += 1
        self.metrics.in_flight.set(self.in_flight)
        try:
            self._check(scope)
            await self.app(scope, _counted(scope, receive, self.limits.upload_bytes), guarded)
        except ApiError as error:
            await error.response()(scope, receive, guarded)
        except Exception as error:
            logger.error("%s %s failed", scope["method"], _route(scope), exc_info=error)
            if not status:
                await ApiError(500, "failed", "something went wrong here, the server's log has more").response()(
                    scope, receive, guarded
                )
        finally:
            self.in_flight -= 1
            self.metrics.in_flight.set(self.in_flight)
            self.metrics.observe(scope["method"], _route(scope), status, time.perf_counter() - started)

    def _check(self, scope: Scope) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "").lower()
        if self.hosts is not None and _name(host) not in self.hosts:
            raise ApiError(421, "wrong_host", "the server does not go by the name in the header Host")
        if scope["method"] not in HARMLESS and _from_elsewhere(headers, host):
            raise ApiError(403, "cross_site", "requests that come from the page of another site are refused")
        if self.in_flight > self.limits.requests and scope["path"] not in ALWAYS:
            raise busy("too many requests are being answered")

    async def _refuse_socket(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.close", "code": 1000})


def _counted(scope: Scope, receive: Receive, most: int) -> Receive:
    """``receive`` until more than ``most`` bytes of the body have come."""
    too_large = ApiError(413, "too_large", f"a request must have at most {most:,} bytes")
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    came = 0

    async def counting() -> Message:
        nonlocal came
        if declared.isdigit() and int(declared[:20]) > most:
            raise too_large
        message = await receive()
        came += len(message.get("body", b""))
        if came > most:
            raise too_large
        return message

    return counting


def _from_elsewhere(headers: dict[bytes, str], host: str) -> bool:
    """Whether a browser says that the page of another site sends this; programs say nothing."""
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get(b"origin")
    return origin is not None and origin.lower().partition("://")[2] != host


def _name(host: str) -> str:
    """
    >>> _name("localhost:8000"), _name("[::1]:8000"), _name("[::1]")
    ('localhost', '[::1]', '[::1]')
    """
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and (not name.startswith("[") or name.endswith("]")) else host


def _route(scope: Scope) -> str:
    """The route's pattern, ``/items/{id}``, never what somebody made up."""
    return str(getattr(scope.get("route"), "path", UNMATCHED))


def _with_headers(given: Any) -> list[tuple[bytes, bytes]]:
    headers = list(given)
    there = {name.lower() for name, _ in headers}
    if b"cache-control" not in there:
        headers.append((b"cache-control", b"no-store"))
    return headers + [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in there]
