"""``/items``: what is in the collection, and the ways in and out of it."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from lookalike.index.items import ID
from lookalike.server.collection import check_entry, check_where
from lookalike.server.context import Context
from lookalike.server.errors import invalid, responses, with_timeout
from lookalike.server.keys import Access
from lookalike.server.limits import LARGEST_SIDE, MOST_ITEMS
from lookalike.server.pictures import as_jpeg
from lookalike.server.schemas import Added, Deleted, Items, OneItem
from lookalike.server.uploads import form_openapi, read_form

Id = Annotated[str, Path(pattern=f"^{ID.pattern}$", description="of an item")]
LONGEST_INTEGER = 2**63
FIELDS: dict[str, dict[str, Any]] = {
    "label": {"type": "string", "maxLength": 1000},
    "metadata": {"type": "string", "description": "a JSON object", "example": '{"year": 2020}'},
}


def routes(context: Context) -> APIRouter:
    router = APIRouter(tags=["collection"])
    collection, seconds = context.collection, context.limits.seconds
    reading, writing = [context.requires(Access.READ)], [context.requires(Access.WRITE)]

    @router.get("/items", dependencies=reading, responses=responses(401, 504), summary="List")
    async def listing(
        after: Annotated[str | None, Query(pattern=f"^({ID.pattern})?$", description="the id before the first")] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_ITEMS)] = 50,
        where: Annotated[str | None, Query(description="a filter: label=robin, year>=2020")] = None,
    ) -> Items:
        """In the order of their ids, page by page."""
        found = await with_timeout(
            seconds, context.in_index(collection.items, check_where(where), after or None, limit + 1)
        )
        page = found[:limit]
        return Items(items=[OneItem.of(item) for item in page], next=page[-1].id if len(found) > limit else None)

    @router.get("/items/{id}", dependencies=reading, responses=responses(401, 404, 504), summary="One")
    async def one(id: Id) -> OneItem:  # noqa: A002 - what the path calls it
        return OneItem.of(await with_timeout(seconds, context.in_index(collection.get, id)))

    @router.get(
        "/items/{id}/image",
        dependencies=reading,
        response_class=Response,
        responses={
            200: {
                "description": "The picture.",
                "content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}},
            },
            304: {"description": "It is still as it was (If-None-Match)."},
            **responses(401, 404, 410, 504),
        },
        summary="Its picture",
    )
    async def image(
        request: Request,
        id: Id,  # noqa: A002
        side: Annotated[int, Query(ge=16, le=LARGEST_SIDE, description="the longer side, at most")] = LARGEST_SIDE,
    ) -> Response:
        """As JPEG, upright, without whatever else its file holds. Only what is indexed is sent."""

        async def work() -> Response:
            item = await context.in_index(collection.get, id)
            headers = {
                "ETag": f'"{await context.on_pictures(collection.stamp, item)}-{side}"',
                "Cache-Control": "private, no-cache",
            }
            if headers["ETag"] in request.headers.get("if-none-match", ""):
                return Response(status_code=304, headers=headers)
            content = await context.on_pictures(lambda: as_jpeg(collection.picture(item, at_least=side), side=side))
            return Response(content, media_type="image/jpeg", headers=headers)

        return await with_timeout(seconds, work())

    @router.post(
        "/items",
        dependencies=writing,
        responses=responses(401, 408, 413, 415, 504),
        openapi_extra=form_openapi(FIELDS, required=["picture"]),
        summary="Add",
    )
    async def add(request: Request) -> Added:
        """Keep a picture. When the answer comes it is on the disk. What is indexed as a file already stays as it is."""
        form = await read_form(request, context.limits, FIELDS)
        data, label = form.required_picture(), form.texts.get("label", "")
        metadata = _metadata(form.texts.get("metadata"))
        check_entry(label, metadata)

        async def prepare() -> tuple[bytes, Any]:
            picture = await context.uploaded(data)
            vector = await context.embed(picture)
            return await context.on_pictures(as_jpeg, picture, side=LARGEST_SIDE), vector

        jpeg, vector = await with_timeout(seconds, prepare())
        known, created = await context.in_index(collection.add, data, jpeg, vector, label, metadata)
        return Added(id=known, created=created)

    @router.delete("/items/{id}", dependencies=writing, responses=responses(401, 404), summary="Delete")
    async def delete(id: Id) -> Deleted:  # noqa: A002
        """Take an item out of the index. Its file stays where it is, unless it was uploaded."""
        await context.in_index(collection.delete, id)
        return Deleted()

    return router


def _metadata(text: str | None) -> dict[str, Any]:
    if text is None or not text.strip():
        return {}
    try:
        values = json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError):
        raise invalid('metadata must be a JSON object, {"year": 2020} say') from None
    if not isinstance(values, dict):
        raise invalid('metadata must be a JSON object, {"year": 2020} say')
    return values


def _integer(digits: str) -> int:
    if abs(number := int(digits)) >= LONGEST_INTEGER:
        raise ValueError("more than 64 bits, which not every store holds")
    return number
