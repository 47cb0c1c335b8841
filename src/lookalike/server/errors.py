"""Every failure has one form: ``{"error": {"code": "too_large", "message": "one line"}}``.

Messages say what was expected. They never contain a path of this machine or a traceback; those go to the log.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

T = TypeVar("T")
RETRY = {"Retry-After": "1"}

DESCRIPTIONS = {
    400: "The request cannot be read.",
    401: "A key is needed: header X-API-Key.",
    403: "This key does not allow it, or the request comes from another site.",
    404: "Not found.",
    408: "The request took too long to arrive.",
    409: "This model cannot do that, or it is being improved.",
    410: "The picture of this item is missing or has changed since it was indexed.",
    413: "More bytes or pixels than allowed.",
    415: "Not a multipart form, or not a picture in a supported format.",
    421: "The server does not accept this name (header Host).",
    422: "A field has an invalid value.",
    429: "Beyond the quota of this key, or too many wrong keys; Retry-After says when to ask again.",
    500: "Internal error; see the server's log.",
    503: "Too busy; Retry-After says when to ask again.",
    504: "The answer took too long.",
}
EVERY_ROUTE = (400, 403, 421, 422, 429, 500, 503)  # errors that any request may get
CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 422: "invalid"}


class ErrorBody(BaseModel):
    """The content of an error."""

    code: str = Field(description="a stable word for programs")
    message: str = Field(description="one line for people")


class Error(BaseModel):
    """The JSON of every failed request."""

    error: ErrorBody


class ApiError(Exception):
    """An error that is sent to the client.

    Args:
        status: HTTP status code.
        code: A stable word for programs.
        message: One line for people.
        headers: Additional response headers.
    """

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})

    def response(self) -> JSONResponse:
        """Return the error as an HTTP response."""
        content = {"error": {"code": self.code, "message": " ".join(self.message.split())}}
        return JSONResponse(content, self.status, headers=self.headers)


def invalid(message: str) -> ApiError:
    """Create a 422 for a field with an invalid value."""
    return ApiError(422, "invalid", message)


def busy(message: str) -> ApiError:
    """Create a 503 that asks the client to retry in a second."""
    return ApiError(503, "busy", f"{message}: try again in a second", RETRY)


async def with_timeout(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Wait for ``work``. After a timeout its jobs leave the model's queue.

    Args:
        seconds: Longest wait.
        work: The coroutine to wait for.

    Returns:
        The result of ``work``.

    Raises:
        ApiError: 504 after ``seconds``.
    """
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        raise ApiError(504, "timeout", f"it took longer than {seconds:g} seconds: try again later", RETRY) from None


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe error responses for the OpenAPI document: ``statuses`` and those of every route."""
    documented: dict[int | str, dict[str, Any]] = {}
    for status in sorted({*EVERY_ROUTE, *statuses}):
        documented[status] = {"model": Error, "description": DESCRIPTIONS[status]}
    return documented


def install(app: FastAPI) -> None:
    """Give the framework's errors the same form as ours."""

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> JSONResponse:
        return error.response()

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        status = error.status_code
        default_code = "refused" if status < 500 else "failed"
        headers = dict(error.headers or {})
        if status == 405:  # Starlette lists the methods of one route only; others may share the path
            path = getattr(request.scope.get("route"), "path", "")
            document: dict[str, Any] | None = app.openapi_schema
            if document is None:
                document = await asyncio.to_thread(app.openapi)  # takes long
            methods = document["paths"].get(path, ["GET"])
            headers["Allow"] = ", ".join(sorted(map(str.upper, methods)))
        return ApiError(status, CODES.get(status, default_code), str(error.detail), headers).response()

    @app.exception_handler(RequestValidationError)
    async def validation_error(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"][1:])) or "the request"
        return invalid(f"{field}: {first['msg']}").response()

    @app.exception_handler(ClientDisconnect)
    async def disconnected(_: Request, __: ClientDisconnect) -> JSONResponse:
        return ApiError(400, "bad_request", "the request ended before it was complete").response()
