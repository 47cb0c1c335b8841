"""``GET /map`` and ``/map/progress``: the collection as points of the plane, and how far their layout is."""

import gzip

from fastapi import APIRouter, Request, Response

from lookalike.server.context import Context
from lookalike.server.errors import responses, with_timeout
from lookalike.server.keys import Access
from lookalike.server.schemas import Map, MapProgress

JSON = "application/json"


def routes(context: Context) -> APIRouter:
    """Create the routes.

    Args:
        context: Shared state of the server.

    Returns:
        The router.
    """
    router = APIRouter(tags=["about"], dependencies=[context.requires(Access.READ)])
    seconds = context.limits.seconds

    @router.get(
        "/map",
        response_class=Response,
        responses={200: {"model": Map, "description": "The map."}, **responses(401, 504)},
        summary="A map of the collection",
    )
    async def map_(request: Request) -> Response:
        """Place items in the unit square, similar ones close together; at most 100,000 of them.

        The first answer may have a fast layout. A better one is computed in the background, see /map/progress.
        """
        compressed = await with_timeout(seconds, context.from_index(context.map.answer()))
        headers = {"Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            content = await context.in_index(gzip.decompress, compressed)
            return Response(content, media_type=JSON, headers=headers)
        return Response(compressed, media_type=JSON, headers={**headers, "Content-Encoding": "gzip"})

    @router.get("/map/progress", responses=responses(401, 504), summary="How far its layout is")
    async def progress() -> MapProgress:
        """Report whether a better layout is being computed. A new revision means that GET /map has other points."""
        return context.map.progress()

    return router
