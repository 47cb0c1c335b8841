"""Forms: ``multipart/form-data`` with one picture and a few short texts."""

import asyncio
from collections.abc import Collection
from typing import Any, NamedTuple

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from lookalike.server.errors import ApiError, invalid
from lookalike.server.limits import LARGEST_FIELD, Limits

PICTURE = "picture"
MULTIPART = "multipart/form-data"
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
    """

    picture: bytes | None
    texts: dict[str, str]

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


async def read_form(request: Request, limits: Limits, fields: Collection[str]) -> Form:
    """Read the form of a request. The middleware limits its bytes.

    Args:
        request: The request.
        limits: Has the time for the form to arrive.
        fields: Names of the accepted text fields.

    Returns:
        The form.

    Raises:
        ApiError: 415 if it is no multipart form, 408 if it arrives too slowly, 422 for wrong fields.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != MULTIPART:
        raise ApiError(415, "not_a_form", f"the content type must be {MULTIPART}")
    try:
        return await asyncio.wait_for(_read(request, fields), limits.upload_seconds)
    except asyncio.TimeoutError:
        raise ApiError(408, "too_slow", f"the request must arrive within {limits.upload_seconds:g} seconds") from None


async def _read(request: Request, fields: Collection[str]) -> Form:
    async with request.form(max_files=1, max_fields=len(fields), max_part_size=LARGEST_FIELD) as form:
        values = _check_fields(form, fields)
        upload = values.pop(PICTURE, None)
        if upload is None:
            return Form(None, values)
        picture = await upload.read()
        if not picture and not upload.filename:  # how a browser sends an empty file input
            return Form(None, values)
        return Form(picture, values)


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
