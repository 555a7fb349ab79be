"""Images in requests: multipart forms, JSON with base64, or the bytes of one file. Names of files are never used."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from tapnet.web.problems import Problem
from tapnet.web.settings import Limits

IMAGES_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "additionalProperties": False,
                    "properties": {
                        "images": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "string", "format": "byte", "description": "A file in base64."},
                        }
                    },
                }
            },
        },
    }
}
FILE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


async def read_uploads(request: Request, limits: Limits) -> list[bytes]:
    """Return the image files in a request; raise `Problem` if there is none, or too many."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == "multipart/form-data":
        images = await _from_form(request, limits)
    elif kind == "application/json":
        images = await asyncio.to_thread(_from_json, await request.body())
    else:
        raise Problem(415, f"Expected multipart/form-data or application/json, got {kind or 'no content type'}.")
    if not images:
        raise Problem(422, "Expected at least one image under `images`, got none.")
    if len(images) > limits.images:
        raise Problem(413, f"Expected at most {limits.images} images in one request, got {len(images)}.")
    if not all(images):
        raise Problem(422, "An image is empty: expected the bytes of an image file.")
    return images


async def _from_form(request: Request, limits: Limits) -> list[bytes]:
    try:
        async with request.form(max_files=limits.images + 1, max_fields=16) as form:
            files = [each for each in form.getlist("images") if isinstance(each, UploadFile)]
            return [await each.read() for each in files]
    except (MultiPartException, HTTPException) as error:
        detail = error.message if isinstance(error, MultiPartException) else error.detail
        raise Problem(400, f"The form cannot be read: {detail.rstrip('.')}.") from None


def _from_json(body: bytes) -> list[bytes]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(400, "The body is not JSON.") from None
    images = value.get("images") if isinstance(value, dict) else None
    if not isinstance(images, list) or not all(isinstance(each, str) for each in images):
        raise Problem(422, 'Expected {"images": ["…"]} with files in base64.')
    try:
        return [base64.b64decode(each.partition("base64,")[2] or each, validate=True) for each in images]
    except (binascii.Error, ValueError):
        raise Problem(422, "An image is not in base64.") from None
