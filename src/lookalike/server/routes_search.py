"""``POST /search``, ``/embed``, ``/explain`` and ``/match``: a picture in, hits, vector, weights or matches out."""

import time
from typing import Any, NamedTuple

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from lookalike.data.safe_decode import Decoded
from lookalike.index.calibrating import ERROR_RATE
from lookalike.index.items import ID
from lookalike.index.querying import Options, Results, compose_query
from lookalike.index.reranking import METHODS
from lookalike.inference.heatmap import Box, CropWeights, crop_box, spread
from lookalike.inference.match import Match, match_report
from lookalike.server.batching import Vector
from lookalike.server.collection import check_where
from lookalike.server.context import Context, as_json, model_pixels
from lookalike.server.errors import ApiError, invalid, responses, with_timeout
from lookalike.server.keys import Access
from lookalike.server.limits import MOST_HITS
from lookalike.server.numbers import decimal, whole_number
from lookalike.server.pictures import Crop
from lookalike.server.schemas import Embedding, Hits, Matched, OneHit, Weights
from lookalike.server.served import Served
from lookalike.server.uploads import Form, form_openapi

DEFAULT_HITS = 12
LONGEST_TEXT = 1000  # characters of a query; text towers read fewer words
MOST_EXAMPLES = 50  # items in like or unlike
CELLS = 56  # of the weights along the longer side of a picture; finer than any pooling grid

CROP_FIELD = {
    "type": "string",
    "pattern": r"^(0(\.\d{1,6})?|1),(0(\.\d{1,6})?|1),(0\.\d{1,6}|1),(0\.\d{1,6}|1)$",
    "description": "left,top,width,height as fractions of the picture",
    "example": "0.25,0,0.5,1",
}
ID_FIELD = {"type": "string", "pattern": f"^{ID.pattern}$", "description": "of an item, instead of a picture"}
MODEL_FIELD = {"type": "string", "description": "name of one of the models in GET /model; the first"}
EMBED_FIELDS: dict[str, dict[str, Any]] = {"crop": CROP_FIELD, "model": MODEL_FIELD}
EXPLAIN_FIELDS: dict[str, dict[str, Any]] = {"id": ID_FIELD, "crop": CROP_FIELD, "model": MODEL_FIELD}
MATCH_FIELDS: dict[str, dict[str, Any]] = {**EXPLAIN_FIELDS, "with": {**ID_FIELD, "description": "of the other item"}}
SEARCH_FIELDS: dict[str, dict[str, Any]] = {
    "id": ID_FIELD,
    "text": {"type": "string", "maxLength": LONGEST_TEXT, "description": "words, instead of a picture, for CLIP"},
    "model": MODEL_FIELD,
    "k": {"type": "integer", "minimum": 1, "maximum": MOST_HITS, "default": DEFAULT_HITS},
    "where": {"type": "string", "description": "a filter: label=robin, year>=2020", "example": "label=robin"},
    "crop": CROP_FIELD,
    "rerank": {"type": "string", "enum": list(METHODS), "default": "none"},
    "like": {"type": "string", "description": "ids of more items to look like, separated by commas"},
    "unlike": {"type": "string", "description": "ids of items not to look like, separated by commas"},
    "group": {"type": "string", "enum": ["true", "false"], "default": "false"},
    "diversity": {"type": "string", "description": "from 0, nearest first, to below 1", "example": "0.3"},
    "confidence": {"type": "string", "description": "smallest probability of a result", "example": "0.8"},
    "error_rate": {"type": "string", "description": "of the test for nothing; 0.05", "example": "0.05"},
    "include_query": {"type": "string", "enum": ["true", "false"], "default": "false"},
    "area": {
        "type": "string",
        "description": "corners x,y;x,y;... of an area of the map to search in, from 0 to 65535",
    },
    "map": {"type": "string", "description": "revision of the map on which the area was drawn"},
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
        response_model=Hits,
        responses=responses(*UPLOAD_ERRORS, 404, 409, 410),
        openapi_extra=form_openapi(SEARCH_FIELDS),
        summary="Search",
    )
    async def search(request: Request) -> Response:
        """Find the items nearest to a picture or to an item. The item itself is left out."""
        async with context.read_form(request, SEARCH_FIELDS) as form:
            return await with_timeout(seconds, _search(context, form))

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

    @router.post(
        "/match",
        response_model=Matched,
        responses=responses(*UPLOAD_ERRORS, 404, 409, 410),
        openapi_extra=form_openapi(MATCH_FIELDS),
        summary="Why these two",
    )
    async def match(request: Request) -> Response:
        """Split the cosine of a picture and an item into contributions of pairs of places."""
        async with context.read_form(request, MATCH_FIELDS) as form:
            return await with_timeout(seconds, _match(context, form))

    return router


class _Query(NamedTuple):
    """A search whose pictures and words have been embedded."""

    item_id: str | None
    like: list[str]
    unlike: list[str]
    vectors: list[Vector]  # of the uploaded picture, of a region of it or of the item, and of the words
    is_whole: bool  # no region of the picture
    has_text: bool
    options: Options


async def _search(context: Context, form: Form) -> Response:
    started = time.perf_counter()
    served = context.choose(form.texts.get("model"))
    like, unlike = _ids(form, "like"), _ids(form, "unlike")
    item_id = None
    text = _text(form, served)
    if form.picture is not None or form.texts.get("id"):
        item_id = _item_id(form)
    elif not like and text is None:
        reason = ": negative examples alone do not say what to look for" if unlike else ""
        raise invalid(f"a picture is missing{reason}")
    crop = Crop.read(form.texts.get("crop"))
    options = _options(form)
    options.where = await context.restrict(check_where(form.texts.get("where")), *map(form.texts.get, ("area", "map")))
    vectors = []
    if form.picture is not None or (item_id is not None and not crop.is_whole):
        vectors.append(await context.embed(await _decode(context, form, item_id, crop, served), served))
    if text is not None:
        vectors.append(await _embed_text(context, served, text))
    query = _Query(item_id, like, unlike, vectors, crop.is_whole, text is not None, options)
    run = context.scan if options.where else context.in_index
    return await run(_answer_search, context, served, form, query, started)  # one turn for all of it


def _answer_search(context: Context, served: Served, form: Form, query: _Query, started: float) -> Response:
    """Search, and make the answer. Blocks."""
    found, place, left_out = _find(context, served, form, query)
    marks = context.marking.verdicts(_marked_query(form), [result.hit.item.id for result in found.results])

    def make_hits() -> Hits:
        return Hits(
            hits=[OneHit.of_result(result, marks.get(result.hit.item.id)) for result in found.results],
            nothing=found.nothing,
            p_value=found.p_value,
            calibration=found.note,
            place=place,
            left_out=left_out,
            took_ms=round(1000 * (time.perf_counter() - started), 2),
        )

    return as_json(make_hits)


def _find(context: Context, served: Served, form: Form, query: _Query) -> tuple[Results, list[float] | None, int]:
    """The results, the place of the query on the map, and how many items were left out as copies of the upload."""
    collection = served.collection
    positives = list(query.vectors)
    without = [*query.like, *query.unlike]
    copies: list[str] = []
    if query.item_id is not None:
        without.append(query.item_id)
        if query.is_whole:
            positives.insert(0, collection.vector(query.item_id))
    elif form.picture is not None and query.is_whole:
        copies = collection.copies(form.picture, positives[0])
    positives += [collection.vector(other) for other in query.like]
    negatives = [collection.vector(other) for other in query.unlike]
    try:
        vector = compose_query(np.array(positives), np.array(negatives), distance=collection.idx.distance)
    except ValueError as error:
        raise invalid(str(error)) from None
    options = query.options
    if form.texts.get("include_query") == "true":
        copies = []
    else:
        options.without = tuple(dict.fromkeys([*without, *copies]))
    options.one_picture = query.is_whole and not query.has_text and len(positives) + len(negatives) == 1
    found = collection.search(vector, options)
    return found, context.map.place(vector, collection.idx), len(copies)


def _text(form: Form, served: Served) -> str | None:
    """The words of the query; None for a query without words."""
    text = form.texts.get("text")
    if text is None or not text.strip():
        return None
    if form.picture is not None or form.texts.get("id"):
        raise invalid("send either a picture, the id of an item, or a text; like takes more items")
    if len(text) > LONGEST_TEXT:
        raise invalid(f"text must be at most {LONGEST_TEXT:,} characters")
    if served.model.text_refusal is not None:
        raise ApiError(409, "no_text", f"this model cannot search by text: {served.model.text_refusal}")
    return text


async def _embed_text(context: Context, served: Served, text: str) -> Vector:
    served.refuse_if_full()
    try:
        vectors = await context.in_model(lambda: served.batcher.run(lambda _: served.torch_model().embed_text([text])))
    except ValueError as error:
        raise invalid(str(error)) from None
    vector: Vector = vectors[0]
    return vector


def _marked_query(form: Form) -> str | bytes | None:
    """What a mark on a result is about: the whole picture that was searched with."""
    if not Crop.read(form.texts.get("crop")).is_whole:
        return None
    return form.picture or form.texts.get("id") or None


def _options(form: Form) -> Options:
    texts = form.texts
    for name in ("group", "include_query"):
        if texts.get(name) not in (None, "", "true", "false"):
            raise invalid(f"{name} must be true or false")
    try:
        return Options(
            k=_hit_count(texts.get("k")),
            rerank=_rerank_method(texts.get("rerank")),
            group=texts.get("group") == "true",
            diversity=_number(texts, "diversity", 0.0),
            confidence=_number(texts, "confidence", None),
            error_rate=_number(texts, "error_rate", ERROR_RATE),
        )
    except ValueError as error:
        raise invalid(str(error)) from None


def _number(texts: dict[str, str], name: str, default: Any) -> Any:
    text = texts.get(name)
    if not text:
        return default
    try:
        return decimal(text)
    except ValueError:
        raise invalid(f"{name} must be a number between 0 and 1") from None


def _ids(form: Form, name: str) -> list[str]:
    """The ids in a field, without repetitions."""
    text = form.texts.get(name)
    if not text:
        return []
    ids = list(dict.fromkeys(text.split(",")))
    if len(ids) > MOST_EXAMPLES or not all(ID.fullmatch(item_id) for item_id in ids):
        raise invalid(f"{name} must be at most {MOST_EXAMPLES} ids of items, separated by commas")
    return ids


async def _embed(context: Context, form: Form) -> list[float]:
    form.required_picture()
    served = context.choose(form.texts.get("model"))
    vector = await context.embed(await context.decode(form, Crop.read(form.texts.get("crop")), served=served), served)
    values: list[float] = vector.tolist()
    return values


async def _explain(context: Context, form: Form) -> Weights:
    item_id = _item_id(form)
    crop = Crop.read(form.texts.get("crop"))
    served = context.choose(form.texts.get("model"))
    if not served.model.has_weights:
        raise ApiError(409, "no_weights", "this model's pooling has no weights")
    decoded = await _decode(context, form, item_id, crop, served)
    pixels = model_pixels(decoded)
    explained: CropWeights = await context.in_model(
        lambda: served.batcher.run(lambda model: model.explain_crop(pixels))
    )
    weights = _weights_of_picture(explained.grid, _seen_box(served, crop, decoded), decoded.size)
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


async def _match(context: Context, form: Form) -> Response:
    item_id = _item_id(form)
    crop = Crop.read(form.texts.get("crop"))
    other_id = form.texts.get("with") or ""
    if not ID.fullmatch(other_id):
        raise invalid("with must be the id of an item")
    served = context.choose(form.texts.get("model"))
    if not served.model.can_match:
        raise ApiError(409, "no_match", "this model's pooling is not a weighted sum over places")
    decoded = await _decode(context, form, item_id, crop, served)
    item = await context.in_index(context.collection.get, other_id)
    other = await context.decode_item(item, Crop(), form.client, served)
    crops = [model_pixels(decoded), model_pixels(other)]
    boxes = [_seen_box(served, crop, decoded), _seen_box(served, Crop(), other)]
    try:
        match: Match = await context.in_model(lambda: served.batcher.run(lambda _: served.match_crops(crops, boxes)))
    except ValueError as error:
        raise invalid(str(error)) from None
    return await context.in_index(as_json, lambda: Matched(**match_report(match, decoded.size, other.size)))


def _seen_box(served: Served, crop: Crop, decoded: Decoded) -> Box:
    """The area of the picture that the model sees."""
    left, top, width, height = crop.pixels(*decoded.size)
    box = crop_box(served.model.spec, width, height)
    return Box(left + box.left, top + box.top, box.width, box.height)


async def _decode(context: Context, form: Form, item_id: str | None, crop: Crop, served: Served) -> Decoded:
    """Decode the uploaded picture, or the picture of the item, for a model."""
    if form.picture is not None:
        return await context.decode(form, crop, served=served)
    item = await context.in_index(context.collection.get, item_id)
    return await context.decode_item(item, crop, form.client, served)


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
