"""``POST /export``: chosen items as a CSV file, a list of paths, a zip of the original files, or one file.

Paths and files are for those who may write: without keys everybody, else holders of a write key.
"""

import zipfile
from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import IO, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from lookalike._util.outside_text import csv_line
from lookalike.index.items import ID, Item
from lookalike.server.collection import Collection
from lookalike.server.context import Context
from lookalike.server.errors import ApiError, invalid, responses, with_timeout
from lookalike.server.keys import Access
from lookalike.server.schemas import name_of
from lookalike.server.uploads import form_openapi

MOST_ITEMS = 20_000  # in a CSV file or a list of paths
MOST_FILES = 400  # in a zip
LARGEST_IDS = 1_400_000  # bytes of the field
LARGEST_ZIP = 512 * 2**20  # bytes of the files in it
BLOCK = 2**16
FIELDS: dict[str, dict[str, Any]] = {
    "ids": {
        "type": "string",
        "description": f"ids of at most {MOST_ITEMS} items ({MOST_FILES} for a zip), separated by commas",
    },
    "kind": {"type": "string", "enum": ["csv", "paths", "zip", "original"], "default": "csv"},
}
BINARY = {"schema": {"type": "string", "format": "binary"}}
FILE_RESPONSE = {
    "description": "A file.",
    "content": {
        "text/csv": BINARY,
        "text/plain": BINARY,
        "application/zip": BINARY,
        "application/octet-stream": BINARY,
    },
}


def routes(context: Context) -> APIRouter:
    """Create the route.

    Args:
        context: Shared state of the server.

    Returns:
        The router.
    """
    router = APIRouter(tags=["collection"], dependencies=[context.requires(Access.WRITE)])

    @router.post(
        "/export",
        response_class=Response,
        responses={200: FILE_RESPONSE, **responses(401, 404, 408, 413, 415, 504)},
        openapi_extra=form_openapi(FIELDS, required=["ids"]),
        summary="Export",
    )
    async def export(request: Request) -> Response:
        """Send chosen items as CSV, as a list of paths, or as a zip of the original files."""
        async with context.read_form(request, FIELDS, LARGEST_IDS) as form:
            ids, kind = _read(form.texts)
            return await with_timeout(context.limits.seconds, context.scan(_export, context.collection, ids, kind))

    return router


def _read(texts: dict[str, str]) -> tuple[list[str], str]:
    ids = list(dict.fromkeys((texts.get("ids") or "").split(",")))
    kind = texts.get("kind") or "csv"
    if ids == [""]:
        raise invalid("nothing is selected: ids must name at least one item")
    most = MOST_FILES if kind == "zip" else MOST_ITEMS
    if len(ids) > most or not all(ID.fullmatch(item_id) for item_id in ids):
        what = " for a zip" if kind == "zip" else ""
        raise invalid(f"ids must be at most {most:,} ids of items{what}, separated by commas")
    if kind not in FIELDS["kind"]["enum"]:
        raise invalid("kind must be csv, paths, zip or original")
    if kind == "original" and len(ids) > 1:
        raise invalid("original is the file of one item; zip is for several")
    return ids, kind


def _export(collection: Collection, ids: list[str], kind: str) -> Response:
    items = collection.get_all(ids)
    if kind == "original":
        headers = {"Content-Disposition": f'attachment; filename="{ids[0]}"'}  # an id has no quotes
        return Response(collection.read(items[0]), media_type="application/octet-stream", headers=headers)
    headers = {"Content-Disposition": f'attachment; filename="selection.{"txt" if kind == "paths" else kind}"'}
    if kind == "csv":
        return Response(_as_csv(items), media_type="text/csv", headers=headers)
    if kind == "paths":
        paths = [item.path or name_of(item) for item in items]
        text = "\n".join(paths).encode("utf-8", "surrogateescape")
        return Response(text + b"\n", media_type="text/plain", headers=headers)
    return StreamingResponse(_blocks(_as_zip(collection, items)), media_type="application/zip", headers=headers)


def _as_csv(items: list[Item]) -> bytes:
    keys = sorted({key for item in items for key in item.metadata})
    lines = [csv_line(["id", "label", "path", *keys])]
    for item in items:
        lines.append(csv_line([item.id, item.label, item.path, *(item.metadata.get(key, "") for key in keys)]))
    return "".join(lines).encode("utf-8", "surrogateescape")


def _as_zip(collection: Collection, items: list[Item]) -> IO[bytes]:
    """The files, numbered so that their names differ; missing ones are listed in missing.txt."""
    if sum(collection.size(item) for item in items) > LARGEST_ZIP:
        raise ApiError(413, "too_large", f"the files have more than {LARGEST_ZIP // 2**20} MB: select fewer")
    file = TemporaryFile()  # noqa: SIM115 - closed after it was sent
    missing = []
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for number, item in enumerate(items, start=1):
            try:
                content = collection.read(item)
            except ApiError as error:
                missing.append(f"{name_of(item)}: {error.message}")
                continue
            archive.writestr(f"{number:03d}-{name_of(item)}".replace("\\", "_"), content)
        if missing:
            archive.writestr("missing.txt", "\n".join(missing) + "\n")
    file.seek(0)
    return file


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while block := file.read(BLOCK):
            yield block
