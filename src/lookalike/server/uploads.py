"""Forms as they come over the wire: ``multipart/form-data`` with one picture and a few short texts."""

import asyncio
from collections.abc import Collection
from typing import Any, NamedTuple

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from lookalike.server.errors import ApiError, invalid
from lookalike.server.limits import LARGEST_FIELD, Limits

PICTURE = "picture"
MULTIPART = "multipart/form-data"


class Form(NamedTuple):
    picture: bytes | None
    texts: dict[str, str]

    def one_of_picture_and_id(self) -> str | None:
        """The id, or None where there is a picture; 422 for both or neither."""
        known = self.texts.get("id") or None
        if (self.picture is None) == (known is None):
            raise invalid("give either a picture or the id of an item, not both" if known else "a picture is missing")
        return known

    def required_picture(self) -> bytes:
        if self.picture is None:
            raise invalid("a picture is missing: send a file in the field picture")
        return self.picture


async def read_form(request: Request, limits: Limits, texts: Collection[str]) -> Form:
    """The picture and those of ``texts`` that are there. Bytes are counted on the way, see ``middleware``."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != MULTIPART:
        raise ApiError(415, "not_a_form", f"the content type must be {MULTIPART}")
    try:
        return await asyncio.wait_for(_read(request, texts), limits.upload_seconds)
    except asyncio.TimeoutError:
        raise ApiError(408, "too_slow", f"the request must arrive within {limits.upload_seconds:g} seconds") from None


async def _read(request: Request, texts: Collection[str]) -> Form:
    async with request.form(max_files=1, max_fields=len(texts), max_part_size=LARGEST_FIELD) as form:
        values = _single(form, texts)
        upload = values.pop(PICTURE, None)
        picture = await upload.read() if isinstance(upload, UploadFile) else None
        nothing_chosen = isinstance(upload, UploadFile) and not picture and not upload.filename
        return Form(None if nothing_chosen else picture, values)


def _single(form: FormData, texts: Collection[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name != PICTURE and name not in texts:
            raise invalid(f"there is no such field here: {PICTURE}, {', '.join(texts)} are expected")
        if name in values:
            raise invalid(f"the field {name} stands twice")
        if isinstance(value, UploadFile) != (name == PICTURE):
            raise invalid(f"{name} must be {'a file' if name == PICTURE else 'a text, not a file'}")
        values[name] = value
    return values


def form_openapi(texts: dict[str, dict[str, Any]], *, required: list[str] | None = None) -> dict[str, Any]:
    """The form in the OpenAPI document; without ``required`` it is either a picture or an id."""
    picture = {"type": "string", "format": "binary", "contentMediaType": "application/octet-stream"}
    either = [{"required": [PICTURE]}, {"required": ["id"]}]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {PICTURE: {**picture, "description": "a file: JPEG, PNG, WebP, GIF, BMP, TIFF, ..."}, **texts},
        "additionalProperties": False,
        **({"required": required} if required else {"oneOf": either}),
    }
    return {"requestBody": {"required": True, "content": {MULTIPART: {"schema": schema}}}}
