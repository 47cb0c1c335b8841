"""Forms: ``multipart/form-data`` with one picture and a few short texts."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from lookalike.server.budget import Budget
from lookalike.server.errors import ApiError, invalid
from lookalike.server.limits import LARGEST_FIELD, Limits

PICTURE = "picture"
MULTIPART = "multipart/form-data"
UTF_8 = (b"utf-8", b"utf8")
PICTURE_FIELD = {
    "type": "string",
    "format": "binary",
    "contentMediaType": "application/octet-stream",
    "description": "a file: JPEG, PNG, WebP, GIF, BMP, TIFF, ...",
}


class Form(NamedTuple):
    """The fields of a form.

    Attributes:
        picture: The bytes of the uploaded file, if there is one.
        texts: The text fields that were sent.
        client: Who sent it: the key if there is one, else the address. Clients take turns.
    """

    picture: bytes | None
    texts: dict[str, str]
    client: str

    def one_of_picture_and_id(self) -> str | None:
        """Return the field ``id``, or None if there is a picture instead.

        Raises:
            ApiError: 422 if there are both or neither.
        """
        item_id = self.texts.get("id") or None
        if self.picture is not None and item_id is not None:
            raise invalid("send either a picture or the id of an item, not both")
        if self.picture is None and item_id is None:
            raise invalid("a picture is missing")
        return item_id

    def required_picture(self) -> bytes:
        """Return the bytes of the picture.

        Raises:
            ApiError: 422 if there is none.
        """
        if self.picture is None:
            raise invalid("a picture is missing: send a file in the field picture")
        return self.picture


@asynccontextmanager
async def read_form(
    request: Request,
    limits: Limits,
    fields: Collection[str],
    budget: Budget,
    client: str,
    largest_field: int = LARGEST_FIELD,
) -> AsyncIterator[Form]:
    """Read the form of a request. The middleware limits its bytes.

    Large files arrive on the disk, in temporary files without a name. They are read into memory within the budget,
    which is given back after the ``with`` block.

    Args:
        request: The request.
        limits: Has the time for the form to arrive.
        fields: Names of the accepted text fields.
        budget: Bytes of all uploads in memory.
        client: Who sends it.
        largest_field: Bytes of a text field.

    Yields:
        The form.

    Raises:
        ApiError: 415 if it is no multipart form, 408 if it arrives too slowly, 422 for wrong fields, 503 if the uploads
            in memory are too large.
    """
    content_type, parameters = parse_options_header(request.headers.get("content-type", ""))
    if content_type.decode("latin-1") != MULTIPART:
        raise ApiError(415, "not_a_form", f"the content type must be {MULTIPART}")
    if parameters.get(b"charset", b"utf-8").lower() not in UTF_8:  # a codec named by a client may fail, or be slow
        raise ApiError(415, "not_a_form", "the texts of a form must be in UTF-8")
    async with AsyncExitStack() as stack:
        parsed = request.form(max_files=1, max_fields=len(fields), max_part_size=largest_field)
        try:
            form = await asyncio.wait_for(stack.enter_async_context(parsed), limits.upload_seconds)
        except asyncio.TimeoutError:
            message = f"the request must arrive within {limits.upload_seconds:g} seconds"
            raise ApiError(408, "too_slow", message) from None
        values = _check_fields(form, fields)
        upload = values.pop(PICTURE, None)
        picture = None
        if upload is not None:
            stack.enter_context(budget.hold(upload.size or 0, client))
            picture = await upload.read()
            await upload.close()
            if not picture and not upload.filename:  # how a browser sends an empty file input
                picture = None
        yield Form(picture, values, client)


def _check_fields(form: FormData, fields: Collection[str]) -> dict[str, Any]:
    """Return the fields by name; the picture is a file, all others are texts, and none comes twice."""
    values: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name != PICTURE and name not in fields:
            raise invalid(f"unknown field; expected {PICTURE}, {', '.join(fields)}")
        if name in values:
            raise invalid(f"the field {name} was sent twice")
        is_file = isinstance(value, UploadFile)
        if name == PICTURE and not is_file:
            raise invalid(f"{name} must be a file")
        if name != PICTURE and is_file:
            raise invalid(f"{name} must be a text, not a file")
        values[name] = value
    return values


def form_openapi(fields: dict[str, dict[str, Any]], *, required: list[str] | None = None) -> dict[str, Any]:
    """Describe a form for the OpenAPI document.

    Args:
        fields: JSON schemas of the text fields, by name.
        required: Names of the required fields. None means either a picture or an id.

    Returns:
        The value of ``openapi_extra`` of a route.
    """
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {PICTURE: PICTURE_FIELD, **fields},
        "additionalProperties": False,
    }
    if required:
        schema["required"] = required
    else:
        schema["oneOf"] = [{"required": [PICTURE]}, {"required": ["id"]}]
    return {"requestBody": {"required": True, "content": {MULTIPART: {"schema": schema}}}}
