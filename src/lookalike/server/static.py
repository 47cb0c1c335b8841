"""The page: a handful of files that come with the package, read once. No request's path is ever a path here."""

from hashlib import blake2b
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from lookalike.server.errors import ApiError, responses

TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}
PAGE = "index.html"


class _File(NamedTuple):
    content: bytes
    kind: str
    tag: str


def page_files() -> dict[str, _File]:
    """All that the page consists of, by name."""
    found = {}
    folder = files("lookalike.server").joinpath("page")
    for entry in folder.iterdir() if folder.is_dir() else ():
        kind = TYPES.get(entry.name.rpartition(".")[2])
        if entry.is_file() and kind is not None:
            content = entry.read_bytes()
            found[entry.name] = _File(content, kind, f'"{blake2b(content, digest_size=12).hexdigest()}"')
    return found


def routes() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    known = page_files()

    def send(name: str, request: Request) -> Response:
        if name not in known:
            raise ApiError(404, "not_found", "there is nothing here")
        file = known[name]
        headers = {"ETag": file.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers={**headers, "Content-Type": file.kind})

    @router.get("/", responses=responses())
    async def page(request: Request) -> Response:
        return send(PAGE, request)

    @router.get("/assets/{name}", responses=responses(404))
    async def asset(name: str, request: Request) -> Response:
        return send(name, request)

    return router
