"""``POST /search``, ``/embed`` and ``/explain``: a picture in, what the model makes of it out."""

import time
from typing import Any

from fastapi import APIRouter, Request
from PIL import Image

from lookalike.index.items import ID
from lookalike.index.reranking import METHODS
from lookalike.inference.heatmap import Box, Explained, spread
from lookalike.server.collection import check_where
from lookalike.server.context import Context
from lookalike.server.errors import ApiError, invalid, responses, with_timeout
from lookalike.server.keys import Access
from lookalike.server.limits import MOST_HITS
from lookalike.server.pictures import Crop
from lookalike.server.schemas import Embedding, Hits, OneHit, Weights
from lookalike.server.uploads import Form, form_openapi, read_form

USUAL_HITS = 12
CELLS = 56  # along the longer side of a picture: finer than any grid of weights is smooth

CROP = {
    "type": "string",
    "pattern": r"^(0(\.\d{1,6})?|1),(0(\.\d{1,6})?|1),(0\.\d{1,6}|1),(0\.\d{1,6}|1)$",
    "description": "left,top,width,height as fractions of the picture",
    "example": "0.25,0,0.5,1",
}
KNOWN = {"type": "string", "pattern": f"^{ID.pattern}$", "description": "of an item, instead of a picture"}
SEARCH_FIELDS: dict[str, dict[str, Any]] = {
    "id": KNOWN,
    "k": {"type": "integer", "minimum": 1, "maximum": MOST_HITS, "default": USUAL_HITS},
    "where": {"type": "string", "description": "a filter: label=robin, year>=2020", "example": "label=robin"},
    "crop": CROP,
    "rerank": {"type": "string", "enum": list(METHODS), "default": "none"},
}
WRONG_PICTURE = (401, 408, 413, 415, 504)


def routes(context: Context) -> APIRouter:
    router = APIRouter(tags=["model"], dependencies=[context.requires(Access.READ)])
    seconds = context.limits.seconds

    @router.post(
        "/search",
        responses=responses(*WRONG_PICTURE, 404, 410),
        openapi_extra=form_openapi(SEARCH_FIELDS),
        summary="Search",
    )
    async def search(request: Request) -> Hits:
        """The items nearest to a picture, or to an item, which then is not among them."""
        form = await read_form(request, context.limits, SEARCH_FIELDS)
        started = time.perf_counter()
        hits = await with_timeout(seconds, _search(context, form))
        return Hits(hits=hits, took_ms=round(1000 * (time.perf_counter() - started), 2))

    @router.post(
        "/embed",
        responses=responses(*WRONG_PICTURE),
        openapi_extra=form_openapi({"crop": CROP}, required=["picture"]),
        summary="Embed",
    )
    async def embed(request: Request) -> Embedding:
        """The vector of a picture."""
        form = await read_form(request, context.limits, ["crop"])
        data, crop = form.required_picture(), Crop.read(form.texts.get("crop"))

        async def work() -> list[float]:
            vector = await context.embed(await context.uploaded(data, crop), crop)
            return [float(value) for value in vector]

        vector = await with_timeout(seconds, work())
        return Embedding(vector=vector, dim=len(vector))

    @router.post(
        "/explain",
        responses=responses(*WRONG_PICTURE, 404, 409, 410),
        openapi_extra=form_openapi({"id": KNOWN, "crop": CROP}),
        summary="Explain",
    )
    async def explain(request: Request) -> Weights:
        """Where in a picture the model looks. With a crop, where in that part of it; the rest then has no weight."""
        form = await read_form(request, context.limits, ["id", "crop"])
        known, crop = form.one_of_picture_and_id(), Crop.read(form.texts.get("crop"))
        return await with_timeout(seconds, _explain(context, form.picture, known, crop))

    return router


async def _search(context: Context, form: Form) -> list[OneHit]:
    known, crop = form.one_of_picture_and_id(), Crop.read(form.texts.get("crop"))
    k, where, rerank = _count(form.texts.get("k")), check_where(form.texts.get("where")), _rerank(form.texts)
    if known is not None and crop.is_whole:
        vector = await context.in_index(context.collection.vector, _id(known))
    else:
        vector = await context.embed(await _picture(context, form.picture, known, crop), crop)
    hits = await context.in_index(context.collection.search, vector, k, where, rerank=rerank, without=known)
    return [OneHit.of_hit(hit) for hit in hits]


async def _explain(context: Context, data: bytes | None, known: str | None, crop: Crop) -> Weights:
    if not context.model.has_weights:
        raise ApiError(409, "no_weights", "this model's pooling has no weights")
    picture = await _picture(context, data, known, crop)
    part = await context.on_pictures(lambda: _shrunk(crop.of(picture), context.side))
    explained: Explained = await context.in_model(lambda: context.batcher.run(lambda model: model.explain(part)))
    weights = _over_whole(explained, part.size, crop, picture.size)
    attributes = None if explained.attributes is None else [float(value) for value in explained.attributes]
    grid_rows, grid_columns = explained.grid.shape
    return Weights(
        rows=len(weights),
        columns=len(weights[0]),
        weights=weights,
        grid_rows=grid_rows,
        grid_columns=grid_columns,
        attributes=attributes,
    )


async def _picture(context: Context, data: bytes | None, known: str | None, crop: Crop) -> Image.Image:
    if data is not None:
        return await context.uploaded(data, crop)
    item = await context.in_index(context.collection.get, _id(known or ""))
    return await context.indexed(item, crop)


def _shrunk(picture: Image.Image, side: int) -> Image.Image:
    """A large picture and its weights need not be held in full for a model that sees it small."""
    factor = min(picture.size) // side
    return picture.reduce(factor) if factor > 1 else picture


def _over_whole(explained: Explained, seen: tuple[int, int], crop: Crop, whole: tuple[int, int]) -> list[list[float]]:
    """The weights in cells over all of a picture, about as wide as high.

    The model has seen its part ``crop`` in the size ``seen``, which is what the box of ``explained`` is in.
    """
    columns, rows = (max(1, round(CELLS * side / max(whole))) for side in whole)
    left, top, width, height = crop.pixels(*whole)
    box, across, down = explained.box, width / seen[0], height / seen[1]  # pixels of the whole for one that was seen
    place = Box(
        (left + box.left * across) * columns / whole[0],
        (top + box.top * down) * rows / whole[1],
        box.width * across * columns / whole[0],
        box.height * down * rows / whole[1],
    )
    return [[float(value) for value in row] for row in spread(explained.grid, place, columns, rows)]


def _id(text: str) -> str:
    if not ID.fullmatch(text):
        raise invalid("id must be 1 to 64 letters, digits or any of ._:-")
    return text


def _count(text: str | None) -> int:
    if text is None or not text.strip():
        return USUAL_HITS
    if not text.strip().isdecimal() or not 1 <= int(text.strip()[:9]) <= MOST_HITS:
        raise invalid(f"k must be a whole number from 1 to {MOST_HITS}")
    return int(text)


def _rerank(texts: dict[str, str]) -> str:
    if (method := texts.get("rerank") or "none") not in METHODS:
        raise invalid(f"rerank must be one of {', '.join(METHODS)}")
    return method
