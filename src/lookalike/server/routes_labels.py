"""``/labels/...``: labels and metadata edited in place, with history and undo. For those who may write."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BeforeValidator

from lookalike.index.items import ID
from lookalike.server.collection import check_entry
from lookalike.server.context import Context
from lookalike.server.errors import invalid, responses, with_timeout
from lookalike.server.keys import Access
from lookalike.server.numbers import whole_number
from lookalike.server.routes_items import parse_metadata
from lookalike.server.routes_marks import CSV_RESPONSE, FORM_ERRORS, csv_file, ids_of, number_of, optional_number
from lookalike.server.schemas_marks import EditedItems, Edits, Suggestions
from lookalike.server.uploads import Form, form_openapi

MOST_ITEMS = 400  # whose labels change together
MOST_LISTED = 200
LONGEST_LABEL = 1000  # characters
LABEL_FIELD = {"type": "string", "maxLength": LONGEST_LABEL}
SET_FIELDS: dict[str, dict[str, Any]] = {
    "ids": {"type": "string", "description": f"ids of at most {MOST_ITEMS} items, separated by commas"},
    "label": {**LABEL_FIELD, "description": "empty removes the label"},
}
METADATA_FIELDS: dict[str, dict[str, Any]] = {
    "id": {"type": "string", "pattern": f"^{ID.pattern}$"},
    "metadata": {"type": "string", "description": "a JSON object, which replaces the old one", "example": '{"n": 1}'},
}
RENAME_FIELDS: dict[str, dict[str, Any]] = {
    "label": LABEL_FIELD,
    "to": LABEL_FIELD,
    "merge": {"type": "string", "enum": ["true", "false"], "default": "false", "description": "to may exist"},
}
UNDO_FIELDS: dict[str, dict[str, Any]] = {"edit": {"type": "integer", "minimum": 1}}


def routes(context: Context) -> APIRouter:
    """Create the routes.

    Args:
        context: Shared state of the server.

    Returns:
        The router.
    """
    router = APIRouter(tags=["labels"], dependencies=[context.requires(Access.WRITE, changes=True)])
    marking = context.marking
    seconds = context.limits.seconds

    @router.post(
        "/labels/set",
        responses=responses(*FORM_ERRORS),
        openapi_extra=form_openapi(SET_FIELDS, required=["ids"]),
        summary="Label items",
    )
    async def set_label(request: Request) -> EditedItems:
        """Give items a label. It is on the disk when the answer comes."""
        by = await context.in_index(context.person_of, request)
        async with context.read_form(request, SET_FIELDS) as form:
            ids = ids_of(form, MOST_ITEMS)
            label = _label(form, "label")
            return await context.change(marking.edit, lambda labels: labels.set_label(ids, label, by))

    @router.post(
        "/labels/metadata",
        responses=responses(*FORM_ERRORS),
        openapi_extra=form_openapi(METADATA_FIELDS, required=["id", "metadata"]),
        summary="Replace metadata",
    )
    async def set_metadata(request: Request) -> EditedItems:
        """Replace the metadata of an item."""
        by = await context.in_index(context.person_of, request)
        async with context.read_form(request, METADATA_FIELDS) as form:
            item_id = form.texts.get("id") or ""
            if not ID.fullmatch(item_id):
                raise invalid("id must be 1 to 64 letters, digits or any of ._:-")
            metadata = parse_metadata(form.texts.get("metadata"))
            check_entry("", metadata)
            return await context.change(marking.edit, lambda labels: labels.set_metadata(item_id, metadata, by))

    @router.post(
        "/labels/rename",
        responses=responses(*FORM_ERRORS),
        openapi_extra=form_openapi(RENAME_FIELDS, required=["label", "to"]),
        summary="Rename or merge labels",
    )
    async def rename(request: Request) -> EditedItems:
        """Rename a label, or with merge=true put its items under another label."""
        by = await context.in_index(context.person_of, request)
        async with context.read_form(request, RENAME_FIELDS) as form:
            old, new = form.texts.get("label") or "", _label(form, "to")
            if form.texts.get("merge") not in (None, "", "true", "false"):
                raise invalid("merge must be true or false")
            if form.texts.get("merge") == "true":
                return await context.change(marking.edit, lambda labels: labels.merge([old], new, by))
            return await context.change(marking.edit, lambda labels: labels.rename(old, new, by))

    @router.post(
        "/labels/undo",
        responses=responses(*FORM_ERRORS),
        openapi_extra=form_openapi(UNDO_FIELDS, required=["edit"]),
        summary="Undo an edit",
    )
    async def undo(request: Request) -> EditedItems:
        """Undo an edit of labels or metadata, also an undo. Items that were changed since stay as they are."""
        by = await context.in_index(context.person_of, request)
        async with context.read_form(request, UNDO_FIELDS) as form:
            number = number_of(form, "edit")
            missing = "there is no edit with this number"
            return await context.change(marking.edit, lambda labels: labels.undo(number, by), missing)

    @router.get("/labels/history", responses=responses(401, 504), summary="Edits")
    async def history(
        limit: Annotated[int, BeforeValidator(whole_number), Query(ge=1, le=MOST_LISTED)] = 50,
        before: Annotated[int | None, BeforeValidator(optional_number), Query(description="a number")] = None,
    ) -> Edits:
        """List edits of labels and metadata, the last one first."""
        return await with_timeout(seconds, context.scan(marking.edits, limit, before))

    @router.get("/labels/suggestions", responses=responses(401, 404, 504), summary="Likely labels")
    async def suggestions(
        id: Annotated[str, Query(pattern=f"^{ID.pattern}$", description="of an item")],  # noqa: A002
    ) -> Suggestions:
        """Suggest labels for an item, from its labelled neighbours."""
        return await with_timeout(seconds, context.scan(marking.suggestions, id))

    @router.get(
        "/labels.csv",
        response_class=Response,
        responses={200: CSV_RESPONSE, **responses(401, 504)},
        summary="All labels as CSV",
    )
    async def labels_csv() -> Response:
        """Send the labelled items as a table that lookalike train reads."""
        return csv_file(await with_timeout(seconds, context.scan(marking.labels_csv)), "labels.csv")

    return router


def _label(form: Form, name: str) -> str:
    label = form.texts.get(name) or ""
    check_entry(label, {})
    if len(label) > LONGEST_LABEL:
        raise invalid(f"{name} must have at most {LONGEST_LABEL:,} characters")
    return label
