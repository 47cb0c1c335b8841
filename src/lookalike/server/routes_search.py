"""``POST /search``, ``/embed`` and ``/explain``: an uploaded picture in, hits, vector or weights out."""

import time
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray

from lookalike.data.safe_decode import Decoded
from lookalike.index.items import ID
from lookalike.index.reranking import METHODS
from lookalike.inference.heatmap import Box, CropWeights, crop_box, spread
from lookalike.server.collection import check_where
from lookalike.server.context import Context, model_pixels
from lookalike.server.errors import ApiError, invalid, responses, with_timeout
from lookalike.server.keys import Access
from lookalike.server.limits import MOST_HITS
from lookalike.server.numbers import whole_number
from lookalike.server.pictures import Crop
from lookalike.server.schemas import Embedding, Hits, OneHit, Weights
from lookalike.server.uploads import Form, form_openapi

DEFAULT_HITS = 12
CELLS = 56  # of the weights along the longer side of a picture; finer than any pooling grid

CROP_FIELD = {
    "type": "string",
    "pattern": r"^(0(\.\d{1,6})?|1),(0(\.\d{1,6})?|1),(0\.\d{1,6}|1),(0\.\d{1,6}|1)$",
    "description": "left,top,width,height as fractions of the picture",
    "example": "0.25,0,0.5,1",
}
ID_FIELD = {"type": "string", "pattern": f"^{ID.pattern}$", "description": "of an item, instead of a picture"}
EMBED_FIELDS: dict[str, dict[str, Any]] = {"crop": CROP_FIELD}
EXPLAIN_FIELDS: dict[str, dict[str, Any]] = {"id": ID_FIELD, "crop": CROP_FIELD}
SEARCH_FIELDS: dict[str, dict[str, Any]] = {
    "id": ID_FIELD,
    "k": {"type": "integer", "minimum": 1, "maximum": MOST_HITS, "default": DEFAULT_HITS},
    "where": {"type": "string", "description": "a filter: label=robin, year>=2020", "example": "label=robin"},
    "crop": CROP_FIELD,
    "rerank": {"type": "string", "enum": list(METHODS), "default": "none"},
}
UPLOAD_ERRORS = (401, 408, 413, 415, 504)


def routes(context: Context) -> APIRouter:
    """Create the routes that use the model.

    Args:
        context: Shared state of the server.

    Returns:
        The router.
    """
    router = APIRouter(tags=["model"], dependencies=[context.requires(Access.READ)])
    seconds = context.limits.seconds

    @router.post(
        "/search",
        responses=responses(*UPLOAD_ERRORS, 404, 410),
        openapi_extra=form_openapi(SEARCH_FIELDS),
        summary="Search",
    )
    async def search(request: Request) -> Hits:
        """Find the items nearest to a picture or to an item. The item itself is left out."""
        async with context.read_form(request, SEARCH_FIELDS) as form:
            started = time.perf_counter()
            hits = await with_timeout(seconds, _search(context, form))
        return Hits(hits=hits, took_ms=round(1000 * (time.perf_counter() - started), 2))

    @router.post(
        "/embed",
        responses=responses(*UPLOAD_ERRORS),
        openapi_extra=form_openapi(EMBED_FIELDS, required=["picture"]),
        summary="Embed",
    )
    async def embed(request: Request) -> Embedding:
        """Compute the vector of a picture."""
        async with context.read_form(request, EMBED_FIELDS) as form:
            vector = await with_timeout(seconds, _embed(context, form))
        return Embedding(vector=vector, dim=len(vector))

    @router.post(
        "/explain",
        responses=responses(*UPLOAD_ERRORS, 404, 409, 410),
        openapi_extra=form_openapi(EXPLAIN_FIELDS),
        summary="Explain",
    )
    async def explain(request: Request) -> Weights:
        """Show where in a picture the model looks. With a crop, everything outside of it has no weight."""
        async with context.read_form(request, EXPLAIN_FIELDS) as form:
            return await with_timeout(seconds, _explain(context, form))

    return router


async def _search(context: Context, form: Form) -> list[OneHit]:
    item_id = _item_id(form)
    crop = Crop.read(form.texts.get("crop"))
    k = _hit_count(form.texts.get("k"))
    where = check_where(form.texts.get("where"))
    rerank = _rerank_method(form.texts.get("rerank"))
    if item_id is not None and crop.is_whole:
        vector = await context.in_index(context.collection.vector, item_id)
    else:
        vector = await context.embed(await _decode(context, form, item_id, crop))
    hits = await context.in_index(context.collection.search, vector, k, where, rerank=rerank, without=item_id)
    return [OneHit.of_hit(hit) for hit in hits]


async def _embed(context: Context, form: Form) -> list[float]:
    form.required_picture()
    vector = await context.embed(await context.decode(form, Crop.read(form.texts.get("crop"))))
    values: list[float] = vector.tolist()
    return values


async def _explain(context: Context, form: Form) -> Weights:
    item_id = _item_id(form)
    crop = Crop.read(form.texts.get("crop"))
    if not context.model.has_weights:
        raise ApiError(409, "no_weights", "this model's pooling has no weights")
    decoded = await _decode(context, form, item_id, crop)
    pixels = model_pixels(decoded)
    explained: CropWeights = await context.in_model(
        lambda: context.batcher.run(lambda model: model.explain_crop(pixels))
    )
    left, top, width, height = crop.pixels(*decoded.size)
    box = crop_box(context.model.spec, width, height)
    box_in_picture = Box(left + box.left, top + box.top, box.width, box.height)
    weights = _weights_of_picture(explained.grid, box_in_picture, decoded.size)
    grid_rows, grid_columns = explained.grid.shape
    attributes = None
    if explained.attributes is not None:
        attributes = explained.attributes.tolist()
    return Weights(
        rows=len(weights),
        columns=len(weights[0]),
        weights=weights,
        grid_rows=grid_rows,
        grid_columns=grid_columns,
        attributes=attributes,
    )


async def _decode(context: Context, form: Form, item_id: str | None, crop: Crop) -> Decoded:
    """Decode the uploaded picture, or the picture of the item."""
    if form.picture is not None:
        return await context.decode(form, crop)
    item = await context.in_index(context.collection.get, item_id)
    return await context.decode_item(item, crop, form.client)


def _weights_of_picture(grid: NDArray[np.float32], box: Box, size: tuple[int, int]) -> list[list[float]]:
    """Spread weights over square cells of the whole picture, at most CELLS per side; ``size`` is (width, height)."""
    width, height = size
    columns = max(1, round(CELLS * width / max(size)))
    rows = max(1, round(CELLS * height / max(size)))
    x_scale = columns / width
    y_scale = rows / height
    box_in_cells = Box(box.left * x_scale, box.top * y_scale, box.width * x_scale, box.height * y_scale)
    weights: list[list[float]] = spread(grid, box_in_cells, columns, rows).tolist()
    return weights


def _item_id(form: Form) -> str | None:
    item_id = form.one_of_picture_and_id()
    if item_id is not None and not ID.fullmatch(item_id):
        raise invalid("id must be 1 to 64 letters, digits or any of ._:-")
    return item_id


def _hit_count(text: str | None) -> int:
    if text is None or not text.strip():
        return DEFAULT_HITS
    expected = f"k must be a whole number from 1 to {MOST_HITS}"
    try:
        k = whole_number(text)
    except ValueError:
        raise invalid(expected) from None
    if not 1 <= k <= MOST_HITS:
        raise invalid(expected)
    return k


def _rerank_method(text: str | None) -> str:
    method = text or "none"
    if method not in METHODS:
        raise invalid(f"rerank must be one of {', '.join(METHODS)}")
    return method
