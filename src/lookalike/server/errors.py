"""One form for everything that goes wrong: ``{"error": {"code": "too_large", "message": "one line"}}``.

The message is for people and says what was expected. It never holds a path of this machine or a trace: those go to the
log, and the client gets a plain 500.
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

MEANING = {
    400: "The request cannot be read.",
    401: "A key is needed: header X-API-Key.",
    403: "This key does not allow it, or the request comes from another site.",
    404: "There is no such thing.",
    408: "The request took too long to arrive.",
    409: "This model cannot do that.",
    410: "The picture of this item is no longer there.",
    413: "More bytes or pixels than allowed.",
    415: "Not a multipart form, or not a picture in a known format.",
    421: "The server does not go by this name (header Host).",
    422: "A field has a value that cannot be used.",
    500: "Something went wrong here.",
    503: "Too much to do just now; Retry-After says when to ask again.",
    504: "It took too long.",
}
CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 422: "invalid"}


class ErrorBody(BaseModel):
    code: str = Field(description="a word that programs can rely on")
    message: str = Field(description="one line for people")


class Error(BaseModel):
    error: ErrorBody


class ApiError(Exception):
    """Becomes the answer."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, dict(headers or {})

    def response(self) -> JSONResponse:
        content = {"error": {"code": self.code, "message": " ".join(self.message.split())}}
        return JSONResponse(content, self.status, headers=self.headers)


def invalid(message: str) -> ApiError:
    return ApiError(422, "invalid", message)


def busy(message: str) -> ApiError:
    return ApiError(503, "busy", f"{message}: try again in a second", RETRY)


async def with_timeout(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, or 504 after ``seconds``; what waits for the model then is taken out of the queue."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        raise ApiError(504, "timeout", f"it took longer than {seconds:g} seconds: try again later", RETRY) from None


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document: these, and what may happen to every request."""
    every = {400, 403, 421, 422, 500, 503, *statuses}
    return {status: {"model": Error, "description": MEANING[status]} for status in sorted(every)}


def install(app: FastAPI) -> None:
    """The framework's own errors in the same form."""

    @app.exception_handler(ApiError)
    async def own(_: Request, error: ApiError) -> JSONResponse:
        return error.response()

    @app.exception_handler(HTTPException)
    async def frameworks(request: Request, error: HTTPException) -> JSONResponse:
        code = CODES.get(error.status_code, "refused" if error.status_code < 500 else "failed")
        headers = dict(error.headers or {})
        if error.status_code == 405:  # by itself it knows only the methods of one route of several with this path
            path = getattr(request.scope.get("route"), "path", "")
            headers["Allow"] = ", ".join(sorted(map(str.upper, app.openapi()["paths"].get(path, ["GET"]))))
        return ApiError(error.status_code, code, str(error.detail), headers).response()

    @app.exception_handler(RequestValidationError)
    async def validation(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the request"
        return invalid(f"{where}: {first['msg']}").response()

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> JSONResponse:
        return ApiError(400, "bad_request", "the request ended before it was complete").response()
