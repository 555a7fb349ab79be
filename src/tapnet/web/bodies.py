"""What requests and answers hold: the schemas of the OpenAPI description, and images in forms or in JSON."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from multipart import MultipartError, MultipartParser, parse_options_header
from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import from_json

from tapnet.web.problems import Problem
from tapnet.web.settings import Limits

LONGEST_NAME = 100
MOST_DIMENSIONS = 100_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def clean_name(text: str) -> str:
    """Return a name as it is shown, on one line; raise ValueError if nothing is left of it."""
    name = " ".join(_CONTROL.sub(" ", text).split())
    if not name:
        raise ValueError("expected a name, got nothing but spaces")
    return name


Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, examples=["robin"]), AfterValidator(clean_name)]


class NewTask(BaseModel, extra="forbid"):
    """A task to create; with `example` it is not empty, but has five drawings of each of five things."""

    name: Name = "Untitled"
    network: str | None = Field(None, description="One of the server's; chosen by the first examples if left out.")
    method: str | None = Field(None, description="Chosen as `tapnet fit` does if left out.")
    example: bool = False


class TaskChange(BaseModel, extra="forbid"):
    """What to change; what is left out stays."""

    name: Name | None = None
    method: str | None = Field(None, description="null to let it be chosen as `tapnet fit` does.")
    projection_dim: int | None = Field(None, ge=1, le=MOST_DIMENSIONS, description="null for all dimensions.")


class ExampleBody(BaseModel):
    """An example; its thumbnail is at `/v1/tasks/{task}/examples/{id}/thumbnail`."""

    id: str
    sha256: str


class ClassBody(BaseModel):
    """A class and its examples, in the order in which they were added."""

    id: str
    name: str
    examples: list[ExampleBody]


class TaskBody(BaseModel):
    """A task as it was at one revision, which counts its changes."""

    id: str
    name: str
    network: str | None
    network_sha256: str | None
    method: str | None
    projection_dim: int | None
    revision: int
    created: float
    updated: float
    classes: list[ClassBody]
    can_undo: bool
    can_redo: bool


class TaskSummary(BaseModel):
    """A task in a list, with the numbers of its classes and examples."""

    id: str
    name: str
    classes: int
    examples: int
    revision: int
    created: float
    updated: float


class TaskList(BaseModel):
    """A page of the tasks, the last changed first."""

    tasks: list[TaskSummary]
    total: int


class ListedExample(ExampleBody):
    """An example in a list, with where to find its thumbnail."""

    class_id: str
    class_name: str
    thumbnail: str


class Added(BaseModel):
    """The examples that were added, without those that the class had already, and the task as it is now."""

    added: list[str]
    task: TaskBody


class ClassProbability(BaseModel):
    """A class and how probable it is."""

    label: str
    probability: float


class PredictionBody(BaseModel):
    """The answer for one image: `label` is the best class, or "unknown" if it was rejected."""

    label: str
    rejected: bool
    probability: float
    ranked: list[ClassProbability]


class Predictions(BaseModel):
    """One answer per image, in order."""

    predictions: list[PredictionBody]


class ExamplePoint(BaseModel):
    """An example of a picture; `label` counts the classes of the task."""

    id: str
    label: int
    point: tuple[float, float]


class PictureBody(BaseModel):
    """Up to three classes, in which the nearest center has the larger probability, exactly."""

    classes: list[int] = Field(description="Positions among the classes of the task, for an image the best first.")
    centers: list[tuple[float, float]]
    examples: list[ExamplePoint]
    query: tuple[float, float] | None = Field(description="Where the image lies, if there is one.")


class NeighborBody(BaseModel):
    """An example near the image; `similarity` is the cosine of their angle."""

    id: str
    label: str
    similarity: float


class ExplanationBody(PredictionBody):
    """An answer, the examples nearest to the image, and a picture of the most probable classes."""

    nearest: list[NeighborBody]
    reason: str = Field(description="Why the answer is not the class of the nearest example; empty if it is.")
    picture: PictureBody
    revision: int


class LeaveOneOutBody(BaseModel):
    """How many examples are classified correctly by a task fitted without them, with the 95% interval."""

    hits: int
    total: int
    accuracy: float
    interval: tuple[float, float]
    confusion: list[list[int]] = Field(description="Rows: true class; columns: predicted class.")


class MapBody(BaseModel):
    """What can be shown of a task without an image: the classes that are hardest to tell apart, and how good it is."""

    revision: int
    classes: list[str]
    method: str
    methods: list[str]
    network: str
    projection_dim: int | None
    dimensions: int = Field(description="The largest projection_dim; 0 if the method has no projection.")
    picture: PictureBody
    leave_one_out: LeaveOneOutBody | None


def _described(**schemas: dict[str, Any]) -> dict[str, Any]:
    """Return what OpenAPI says of a body of these types."""
    content = {kind: {"schema": schema} for kind, schema in schemas.items()}
    return {"requestBody": {"required": True, "content": content}}


def _images(item: dict[str, str]) -> dict[str, Any]:
    return {"type": "object", "required": ["images"], "properties": {"images": {"type": "array", "items": item}}}


_FILE = {"type": "string", "format": "binary"}
_BASE64 = {"type": "string", "format": "byte", "contentEncoding": "base64"}  # for OpenAPI 3.0 and 3.1
IMAGES_BODY = _described(**{"multipart/form-data": _images(_FILE), "application/json": _images(_BASE64)})
FILE_BODY = _described(**{"application/octet-stream": _FILE})


@dataclass(frozen=True)
class Upload:
    """A request with images, as it came; names of files are never used."""

    content_type: str
    body: bytes

    def images(self, limits: Limits) -> list[bytes]:
        """Return the image files; raise `Problem` if there is none, or too many. Takes time: not for the event loop."""
        kind, options = parse_options_header(self.content_type)
        if kind == "multipart/form-data":
            images = self._from_form(options.get("boundary", ""), limits)
        elif kind == "application/json":
            images = self._from_json(limits)
        else:
            raise Problem(415, f"Expected multipart/form-data or application/json, got {kind or 'no content type'}.")
        if not images:
            raise Problem(422, "Expected at least one image under `images`, got none.")
        _check_number(len(images), limits)
        if not all(images):
            raise Problem(422, "An image is empty: expected the bytes of an image file.")
        return images

    def _from_form(self, boundary: str, limits: Limits) -> list[bytes]:
        size = len(self.body)
        most = {"part_limit": limits.images + 16, "spool_limit": size + 1, "memory_limit": size + 1}
        try:  # with these limits a form has room for other fields, and nothing is written to disk
            parts = MultipartParser(io.BytesIO(self.body), boundary, size, **most)
            return [part.raw for part in parts if part.name == "images" and part.filename is not None]
        except (MultipartError, ValueError) as error:
            raise Problem(400, f"The form cannot be read: {str(error).rstrip('.')}.") from None

    def _from_json(self, limits: Limits) -> list[bytes]:
        try:
            body = from_json(self.body)
        except ValueError:
            raise Problem(400, "The body is not JSON.") from None
        images = body["images"] if isinstance(body, dict) and list(body) == ["images"] else None
        if not isinstance(images, list):
            raise Problem(422, 'Expected {"images": ["…"]} with files in base64.')
        _check_number(len(images), limits)  # before anything is said about millions of items
        try:
            return [base64.b64decode(text.partition("base64,")[2] or text, validate=True) for text in images]
        except (AttributeError, ValueError):  # not text at all, or not in base64
            raise Problem(422, "An image is not in base64.") from None


def _check_number(images: int, limits: Limits) -> None:
    if images > limits.images:
        raise Problem(413, f"Expected at most {limits.images} images in one request, got {images}.")


async def upload_of(request: Request) -> Upload:
    return Upload(request.headers.get("content-type", ""), await request.body())


Uploaded = Annotated[Upload, Depends(upload_of)]
