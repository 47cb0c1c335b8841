"""``/items``: list, show, add and delete what is in the collection."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BeforeValidator

from lookalike._util.untrusted import parse_json
from lookalike.index.filters import Where
from lookalike.index.items import ID
from lookalike.server.batching import Vector
from lookalike.server.collection import Collection, check_entry, check_where
from lookalike.server.context import Context
from lookalike.server.errors import invalid, responses, with_timeout
from lookalike.server.keys import Access
from lookalike.server.limits import LARGEST_PAGE, LARGEST_SIDE, MOST_ITEMS
from lookalike.server.numbers import whole_number
from lookalike.server.pictures import Crop
from lookalike.server.schemas import Added, Deleted, Items, OneItem
from lookalike.server.uploads import form_openapi

Id = Annotated[str, Path(pattern=f"^{ID.pattern}$", description="of an item")]
ADD_FIELDS: dict[str, dict[str, Any]] = {
    "label": {"type": "string", "maxLength": 1000},
    "metadata": {"type": "string", "description": "a JSON object", "example": '{"year": 2020}'},
}
BLOCK = 50  # items read at a time
JPEG_RESPONSE = {
    "description": "The picture.",
    "content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}},
}


def routes(context: Context) -> APIRouter:
    """Create the routes of the collection.

    Args:
        context: Shared state of the server.

    Returns:
        The router.
    """
    router = APIRouter(tags=["collection"])
    collection = context.collection
    seconds = context.limits.seconds
    can_read = [context.requires(Access.READ)]
    can_write = [context.requires(Access.WRITE, changes=True)]

    @router.get(
        "/items", response_model=Items, dependencies=can_read, responses=responses(401, 409, 504), summary="List"
    )
    async def list_items(
        after: Annotated[str | None, Query(pattern=f"^({ID.pattern})?$", description="the id before the first")] = None,
        limit: Annotated[int, BeforeValidator(whole_number), Query(ge=1, le=MOST_ITEMS)] = 50,
        where: Annotated[str | None, Query(description="a filter: label=robin, year>=2020")] = None,
        area: Annotated[str | None, Query(description="corners x,y;x,y;... of an area of the map")] = None,
        map: Annotated[str | None, Query(description="revision of the map with this area")] = None,  # noqa: A002
    ) -> Response:
        """List items in order of id, page by page. Pages with long metadata have fewer items than ``limit``."""

        async def read() -> Response:
            restricted = await context.restrict(check_where(where), area, map)
            run = context.scan if restricted else context.in_index
            return await run(_read_page, collection, restricted, after or None, limit)

        return await with_timeout(seconds, read())

    @router.get("/items/{id}", dependencies=can_read, responses=responses(401, 404, 504), summary="One")
    async def one(id: Id) -> OneItem:  # noqa: A002 - the name in the path
        """Show one item."""
        return OneItem.of(await with_timeout(seconds, context.in_index(collection.get, id)))

    @router.get(
        "/items/{id}/image",
        dependencies=can_read,
        response_class=Response,
        responses={
            200: JPEG_RESPONSE,
            304: {"description": "Unchanged (If-None-Match)."},
            **responses(401, 404, 410, 504),
        },
        summary="Its picture",
    )
    async def image(
        request: Request,
        id: Id,  # noqa: A002
        side: Annotated[
            int,
            BeforeValidator(whole_number),
            Query(ge=16, le=LARGEST_SIDE, description="the longer side, at most"),
        ] = LARGEST_SIDE,
    ) -> Response:
        """Send the picture of an item as an upright JPEG without metadata."""

        async def encode() -> Response:
            item = await context.in_index(collection.get, id)
            stamp = await context.in_index(collection.stamp, item)
            etag = f'"{stamp}-{side}"'
            headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
            headers["Content-Disposition"] = f'inline; filename="{id}.jpg"'  # an id has no quotes
            if etag in request.headers.get("if-none-match", ""):
                return Response(status_code=304, headers=headers)
            jpeg = await context.item_jpeg(item, side, context.client_of(request))
            return Response(jpeg, media_type="image/jpeg", headers=headers)

        return await with_timeout(seconds, encode())

    @router.post(
        "/items",
        dependencies=[context.requires(Access.WRITE, adds=True, changes=True)],
        responses=responses(401, 408, 413, 415, 504),
        openapi_extra=form_openapi(ADD_FIELDS, required=["picture"]),
        summary="Add",
    )
    async def add(request: Request) -> Added:
        """Add a picture. It is on the disk when the answer comes. A file that is already indexed stays unchanged."""
        async with context.read_form(request, ADD_FIELDS) as form:
            data = form.required_picture()
            label = form.texts.get("label", "")
            metadata = parse_metadata(form.texts.get("metadata"))
            check_entry(label, metadata)

            async def prepare() -> tuple[bytes, Vector, dict[str, Vector]]:
                decoded = await context.decode(form, Crop(), jpeg_side=LARGEST_SIDE)
                vector = await context.embed(decoded)
                others = {}
                for served in context.served.values():
                    if served is not context.first:
                        crop = await context.decode(form, Crop(), served=served)
                        others[served.collection.idx.fingerprint] = await context.embed(crop, served)
                return decoded.jpeg or b"", vector, others

            jpeg, vector, others = await with_timeout(seconds, prepare())
            most_items = context.limits.items
            item_id, created = await context.change(
                collection.add, data, jpeg, vector, label, metadata, most_items, others
            )
        return Added(id=item_id, created=created)

    @router.delete("/items/{id}", dependencies=can_write, responses=responses(401, 404), summary="Delete")
    async def delete(id: Id) -> Deleted:  # noqa: A002
        """Remove an item from the index. Its file is deleted only if it was uploaded."""
        await context.change(collection.delete, id)
        return Deleted()

    return router


def _read_page(collection: Collection, where: Where, after: str | None, limit: int) -> Response:
    """Read items until the page is full, some at a time: with long metadata it has few."""
    page: list[str] = []
    size = 0
    last = None
    while True:
        missing = limit + 1 - len(page)
        items = collection.items(where, after, min(missing, BLOCK))
        for item in items:
            text = OneItem.of(item).model_dump_json()
            size += len(text)
            if len(page) == limit or (page and size > LARGEST_PAGE):
                return _page_as_json(page, last)
            page.append(text)
            last = item.id
        if len(items) < min(missing, BLOCK):
            return _page_as_json(page, None)
        after = last


def _page_as_json(items: list[str], following: str | None) -> Response:
    """Join items that have been encoded one by one, because their length counts. See ``Items``."""
    content = f'{{"items":[{",".join(items)}],"next":{json.dumps(following)}}}'
    return Response(content, media_type="application/json")


def parse_metadata(text: str | None) -> dict[str, Any]:
    """Parse the field ``metadata``; empty if there is none.

    Raises:
        ApiError: 422 if it is not a JSON object.
    """
    if text is None or not text.strip():
        return {}
    expected = 'metadata must be a JSON object, for example {"year": 2020}'
    try:
        values = parse_json(text)
    except ValueError:
        raise invalid(expected) from None
    if not isinstance(values, dict):
        raise invalid(expected)
    return values
