"""Images in requests: multipart forms, or JSON with base64. Names of files are never used."""

from __future__ import annotations

import base64
import binascii
import io
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from multipart import MultipartError, MultipartParser, parse_options_header
from pydantic import BaseModel, Field, ValidationError

from tapnet.web.problems import Problem
from tapnet.web.settings import Limits

_OTHER_FIELDS = 16  # of a form, besides the images
_BASE64: dict[str, Any] = {"format": "byte", "contentEncoding": "base64"}  # for OpenAPI 3.0 and 3.1


class EncodedImages(BaseModel, extra="forbid"):
    """Image files in base64."""

    images: list[Annotated[str, Field(json_schema_extra=_BASE64)]] = Field(min_length=1)


def _described(**schemas: dict[str, Any]) -> dict[str, Any]:
    """Return what OpenAPI says of a body of these types."""
    return {"requestBody": {"required": True, "content": {kind: {"schema": each} for kind, each in schemas.items()}}}


_FILE = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "required": ["images"], "properties": {"images": {"type": "array", "items": _FILE}}}
IMAGES_BODY = _described(**{"multipart/form-data": _FORM, "application/json": EncodedImages.model_json_schema()})
FILE_BODY = _described(**{"application/octet-stream": _FILE})


@dataclass(frozen=True)
class Upload:
    """A request with images, as it came."""

    content_type: str
    body: bytes

    def images(self, limits: Limits) -> list[bytes]:
        """Return the image files; raise `Problem` if there is none, or too many. Takes time: not for the event loop."""
        images = self._parse(limits)
        if not images:
            raise Problem(422, "Expected at least one image under `images`, got none.")
        if len(images) > limits.images:
            raise Problem(413, f"Expected at most {limits.images} images in one request, got {len(images)}.")
        if not all(images):
            raise Problem(422, "An image is empty: expected the bytes of an image file.")
        return images

    def _parse(self, limits: Limits) -> list[bytes]:
        kind, options = parse_options_header(self.content_type)
        if kind == "multipart/form-data":
            return _from_form(self.body, options.get("boundary", ""), limits)
        if kind == "application/json":
            return _from_json(self.body)
        raise Problem(415, f"Expected multipart/form-data or application/json, got {kind or 'no content type'}.")


async def upload_of(request: Request) -> Upload:
    return Upload(request.headers.get("content-type", ""), await request.body())


Uploaded = Annotated[Upload, Depends(upload_of)]


def _from_form(body: bytes, boundary: str, limits: Limits) -> list[bytes]:
    size = len(body) + 1  # nothing is written to disk
    try:
        parser = MultipartParser(
            io.BytesIO(body),
            boundary,
            len(body),
            part_limit=limits.images + _OTHER_FIELDS,
            spool_limit=size,
            memory_limit=size,
        )
        return [part.raw for part in parser if part.name == "images" and part.filename is not None]
    except (MultipartError, ValueError) as error:
        raise Problem(400, f"The form cannot be read: {str(error).rstrip('.')}.") from None


def _from_json(body: bytes) -> list[bytes]:
    try:
        encoded = EncodedImages.model_validate_json(body).images
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise Problem(400, "The body is not JSON.") from None
        raise Problem(422, 'Expected {"images": ["…"]} with files in base64.') from None
    try:
        return [base64.b64decode(each.partition("base64,")[2] or each, validate=True) for each in encoded]
    except (binascii.Error, ValueError):
        raise Problem(422, "An image is not in base64.") from None
