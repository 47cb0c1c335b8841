"""The page: files of the package, read once at start. The path of a request is never used as a file path."""

from hashlib import blake2b
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from lookalike.server.errors import ApiError, responses

CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}
PAGE = "index.html"


class _File(NamedTuple):
    content: bytes
    content_type: str
    etag: str


def page_files() -> dict[str, _File]:
    """Read all files of the page, by name."""
    page: dict[str, _File] = {}
    folder = files("lookalike.server").joinpath("page")
    if not folder.is_dir():
        return page
    for entry in folder.iterdir():
        content_type = CONTENT_TYPES.get(entry.name.rpartition(".")[2])
        if entry.is_file() and content_type is not None:
            content = entry.read_bytes()
            page[entry.name] = _File(content, content_type, f'"{blake2b(content, digest_size=12).hexdigest()}"')
    return page


def routes() -> APIRouter:
    """Create the routes ``/`` and ``/assets/{name}``.

    Returns:
        The router.
    """
    router = APIRouter(include_in_schema=False)
    page = page_files()

    def send(name: str, request: Request) -> Response:
        file = page.get(name)
        if file is None:
            raise ApiError(404, "not_found", "there is no such file")
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers={**headers, "Content-Type": file.content_type})

    @router.get("/", responses=responses())
    async def index(request: Request) -> Response:
        return send(PAGE, request)

    @router.get("/assets/{name}", responses=responses(404))
    async def asset(name: str, request: Request) -> Response:
        return send(name, request)

    return router
