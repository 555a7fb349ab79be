"""What requests and answers hold: the schemas of the OpenAPI description."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from tapnet.web.records import StoredClass, StoredTask, Summary
from tapnet.web.settings import Limits

LONGEST_NAME = 100
MOST_DIMENSIONS = 100_000


def clean_name(text: str) -> str:
    """Return a name as it is shown, on one line; raise ValueError if nothing is left of it."""
    spaced = "".join(" " if unicodedata.category(letter) in ("Cc", "Zl", "Zp") else letter for letter in text)
    if any(unicodedata.category(letter) == "Cs" for letter in spaced):
        raise ValueError("expected text, got half of a character (a lone surrogate)")
    name = " ".join(spaced.split())
    if not name:
        raise ValueError("expected a name, got nothing but spaces")
    return name


Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, examples=["robin"]), AfterValidator(clean_name)]


class NewTask(BaseModel, extra="forbid"):
    """A task to create; with `example` it is not empty, but has five drawings of each of five things."""

    name: Name = "Untitled"
    network: str | None = Field(
        None, description="One of the server's networks; chosen by the first examples if left out."
    )
    method: str | None = Field(None, description="Chosen as `tapnet fit` does if left out.")
    example: bool = False


class TaskChange(BaseModel, extra="forbid"):
    """What to change; what is left out stays."""

    name: Name | None = None
    method: str | None = Field(None, description="null to let it be chosen as `tapnet fit` does.")
    projection_dim: int | None = Field(None, ge=1, le=MOST_DIMENSIONS, description="null for all dimensions.")


class NewClass(BaseModel, extra="forbid"):
    """A class to add, or its new name."""

    name: Name


class TaskBody(BaseModel):
    """A task as it is now; `revision` counts its changes."""

    id: str
    name: str
    network: str | None
    method: str | None
    projection_dim: int | None
    revision: int
    created: float
    updated: float
    classes: tuple[StoredClass, ...]
    can_undo: bool
    can_redo: bool

    @classmethod
    def of(cls, task: StoredTask) -> TaskBody:
        return cls.model_validate(vars(task) | {"network": task.network or task.asked_network})


class TaskList(BaseModel):
    """A page of the tasks, the last changed first."""

    tasks: list[Summary]
    total: int


class ListedExample(BaseModel):
    """An example in a list, with where to find its thumbnail."""

    id: str
    sha256: str
    class_id: str
    class_name: str
    thumbnail: str


class ExampleList(BaseModel):
    """The examples of a task."""

    examples: list[ListedExample]


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


class Point(BaseModel):
    """Where something lies in the embedding space, and where the method compares it; both in two dimensions."""

    embedding: tuple[float, float]
    projection: tuple[float, float]

    @classmethod
    def of(cls, pair: Any, index: int) -> Point:
        """From coordinates (n, 2) in both planes."""
        rounded = [tuple(round(float(value), 5) for value in plane[index]) for plane in pair]
        return cls(embedding=rounded[0], projection=rounded[1])


class Neighbor(BaseModel):
    """An example near the image; `similarity` is the cosine of their angle."""

    id: str
    label: str
    similarity: float


class ExplanationBody(PredictionBody):
    """An answer, the examples nearest to the image, and where it lies."""

    nearest: list[Neighbor]
    reason: str = Field(description="Why the answer is not the class of the nearest example; empty if it is.")
    point: Point
    revision: int


class ExamplePoint(BaseModel):
    """An example as a point."""

    id: str
    label: int
    point: Point


class LeaveOneOutBody(BaseModel):
    """How many examples are classified correctly by a task fitted without them, with the 95% interval."""

    hits: int
    total: int
    accuracy: float
    interval: tuple[float, float]
    confusion: list[list[int]] = Field(description="Rows: true class; columns: predicted class.")


class MapBody(BaseModel):
    """The task in two dimensions: `exact` where the nearest center in the plane wins."""

    revision: int
    classes: list[str]
    method: str
    methods: list[str]
    network: str
    projection_dim: int | None
    dimensions: int = Field(description="The largest projection_dim; 0 if the method has no projection.")
    exact: bool
    examples: list[ExamplePoint]
    centers: list[Point]
    leave_one_out: LeaveOneOutBody | None


class Status(BaseModel):
    """Whether the server works."""

    status: str


class About(BaseModel):
    """What this server offers."""

    version: str
    networks: list[str]
    formats: list[str]
    limits: Limits
