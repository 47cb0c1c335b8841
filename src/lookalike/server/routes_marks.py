"""``/marks``: what people say about results, and what to ask them next. For those who may write."""

from typing import Annotated, Any, cast, get_args

from fastapi import APIRouter, Query, Request, Response
from pydantic import BeforeValidator

from lookalike.index.active_choice import LONGEST_QUEUE, QUEUE
from lookalike.index.contents import CONTENT, MarkedPicture
from lookalike.index.items import ID
from lookalike.index.marks import MOST_PICTURES, Verdict
from lookalike.server.context import Context
from lookalike.server.errors import ApiError, invalid, responses, with_timeout
from lookalike.server.keys import Access
from lookalike.server.marking import KEPT_SIDE
from lookalike.server.numbers import whole_number
from lookalike.server.pictures import Crop
from lookalike.server.schemas_marks import Marked, MarkList, NextMarks, UndoneMarks
from lookalike.server.uploads import Form, form_openapi

MOST_LISTED = 200
VERDICT_FIELD = {"type": "string", "enum": list(get_args(Verdict))}
ID_FIELD = {"type": "string", "pattern": f"^{ID.pattern}$"}
MARK_FIELDS: dict[str, dict[str, Any]] = {
    "id": {**ID_FIELD, "description": "of the query, if it is an item"},
    "content": {"type": "string", "pattern": f"^{CONTENT.pattern}$", "description": "of the query, from an answer"},
    "with": {**ID_FIELD, "description": "of the result"},
    "verdict": VERDICT_FIELD,
}
GROUP_FIELDS: dict[str, dict[str, Any]] = {
    "ids": {"type": "string", "description": f"ids of 2 to {MOST_PICTURES} items, separated by commas"},
    "verdict": VERDICT_FIELD,
}
UNDO_FIELDS: dict[str, dict[str, Any]] = {"mark": {"type": "integer", "minimum": 1}}
FORM_ERRORS = (401, 404, 408, 413, 415, 504)
CSV_RESPONSE = {
    "description": "A table.",
    "content": {"text/csv": {"schema": {"type": "string", "format": "binary"}}},
}


def routes(context: Context) -> APIRouter:
    """Create the routes.

    Args:
        context: Shared state of the server.

    Returns:
        The router.
    """
    router = APIRouter(tags=["marks"], dependencies=[context.requires(Access.WRITE, changes=True)])
    marking = context.marking
    seconds = context.limits.seconds

    @router.get("/marks", responses=responses(401, 504), summary="Marks and contradictions")
    async def list_marks(
        limit: Annotated[int, BeforeValidator(whole_number), Query(ge=1, le=MOST_LISTED)] = 50,
        before: Annotated[int | None, BeforeValidator(optional_number), Query(description="a number of a mark")] = None,
    ) -> MarkList:
        """List marks, the last one first, and marks that contradict each other."""
        return await with_timeout(seconds, context.scan(marking.list_marks, limit, before))

    @router.get(
        "/marks.csv",
        response_class=Response,
        responses={200: CSV_RESPONSE, **responses(401, 504)},
        summary="All marks as CSV",
    )
    async def marks_csv() -> Response:
        """Send the whole history of marks, with the state of each."""
        return csv_file(await with_timeout(seconds, context.scan(marking.marks_csv)), "marks.csv")

    @router.get("/marks/next", responses=responses(401, 504), summary="What to label next")
    async def next_marks(
        k: Annotated[int, BeforeValidator(whole_number), Query(ge=1, le=LONGEST_QUEUE)] = QUEUE,
    ) -> NextMarks:
        """Choose pictures whose marks would change the ranking most."""
        return await with_timeout(seconds, context.scan(marking.next_marks, k))

    @router.post(
        "/marks",
        responses=responses(*FORM_ERRORS),
        openapi_extra=form_openapi(MARK_FIELDS, required=["with", "verdict"]),
        summary="Mark a result",
    )
    async def mark(request: Request) -> Marked:
        """Say whether a result shows the same thing as the query. The mark is on the disk when the answer comes."""
        by = await context.in_index(context.person_of, request)
        async with context.read_form(request, MARK_FIELDS) as form:
            verdict = _verdict(form)
            other = form.texts.get("with") or ""
            if not ID.fullmatch(other):
                raise invalid("with must be the id of an item")
            query = await with_timeout(seconds, _query(context, form))
            return await context.change(marking.mark, query, other, verdict, by)

    @router.post(
        "/marks/group",
        responses=responses(*FORM_ERRORS),
        openapi_extra=form_openapi(GROUP_FIELDS, required=["ids", "verdict"]),
        summary="Mark several items",
    )
    async def mark_group(request: Request) -> Marked:
        """Say that all of several items show the same thing, or no two of them do."""
        by = await context.in_index(context.person_of, request)
        async with context.read_form(request, GROUP_FIELDS) as form:
            ids = ids_of(form, MOST_PICTURES)
            return await context.change(marking.mark_group, ids, _verdict(form), by)

    @router.post(
        "/marks/undo",
        responses=responses(*FORM_ERRORS),
        openapi_extra=form_openapi(UNDO_FIELDS, required=["mark"]),
        summary="Undo a mark",
    )
    async def undo(request: Request) -> UndoneMarks:
        """Undo a mark and those that were set together with it. They stay in the history."""
        by = await context.in_index(context.person_of, request)
        async with context.read_form(request, UNDO_FIELDS) as form:
            return await context.change(marking.undo_mark, number_of(form, "mark"), by)

    return router


async def _query(context: Context, form: Form) -> MarkedPicture:
    """The marked query. A picture that is not in the index is kept, once for all its marks."""
    content = form.texts.get("content") or ""
    given = [form.picture is not None, bool(form.texts.get("id")), bool(content)]
    if sum(given) != 1:
        raise invalid("send one of picture, id and content")
    if content:
        if not CONTENT.fullmatch(content):
            raise invalid("content must be the hash from an earlier answer")
        known = await context.in_index(context.marking.known, content)
        if known is None:
            raise ApiError(404, "not_found", "there is no picture with this content: send the picture")
        return known
    if form.picture is None:
        item_id = form.texts["id"]
        if not ID.fullmatch(item_id):
            raise invalid("id must be 1 to 64 letters, digits or any of ._:-")
        return await context.in_index(context.marking.item, item_id)
    known = await context.in_index(context.marking.uploaded, form.picture)
    if known is not None:
        return known
    decoded = await context.decode(form, Crop(), jpeg_side=KEPT_SIDE)
    return await context.change(context.marking.keep, form.picture, decoded.jpeg or b"")


def ids_of(form: Form, most: int) -> list[str]:
    """Read the field ``ids``, without repetitions.

    Raises:
        ApiError: 422 if it is empty, too long or malformed.
    """
    ids = list(dict.fromkeys((form.texts.get("ids") or "").split(",")))
    if len(ids) > most or not all(ID.fullmatch(item_id) for item_id in ids):
        raise invalid(f"ids must be 1 to {most} ids of items, separated by commas")
    return ids


def number_of(form: Form, name: str) -> int:
    """Read a field with the number of a mark or an edit.

    Raises:
        ApiError: 422 if it is none.
    """
    try:
        return whole_number(form.texts.get(name) or "")
    except ValueError:
        raise invalid(f"{name} must be a whole number") from None


def csv_file(content: bytes, name: str) -> Response:
    """Send a table as a file."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(content, media_type="text/csv", headers=headers)


def _verdict(form: Form) -> Verdict:
    verdict = form.texts.get("verdict") or ""
    if verdict not in get_args(Verdict):
        raise invalid(f"verdict must be one of {', '.join(get_args(Verdict))}")
    return cast(Verdict, verdict)


def optional_number(text: object) -> int | None:
    """Parse a whole number, which may be missing or empty."""
    if text is None or text == "":
        return None
    return whole_number(text)
