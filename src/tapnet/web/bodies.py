"""What requests and answers hold: the schemas of the OpenAPI description."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tapnet.web.records import StoredTask, Summary

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


class Body(BaseModel):
    """A request that says no more than it may."""

    model_config = ConfigDict(extra="forbid")


class NewTask(Body):
    """A task to create; with `example` it is not empty, but has five drawings of each of five things."""

    name: Name = "Untitled"
    network: str | None = Field(
        None, description="One of the server's networks; chosen by the first examples if left out."
    )
    method: str | None = Field(None, description="The network's own if left out.")
    example: bool = False


class TaskChange(Body):
    """What to change; what is left out stays."""

    name: Name | None = None
    method: str | None = Field(None, description="null for the network's own.")
    projection_dim: int | None = Field(None, ge=1, le=MOST_DIMENSIONS, description="null for all dimensions.")


class NewClass(Body):
    """A class to add, or its new name."""

    name: Name


class ExampleBody(BaseModel):
    """An example; its thumbnail is at `/v1/tasks/{task}/examples/{id}/thumbnail`."""

    id: str
    sha256: str


class ClassBody(BaseModel):
    """A class with its examples."""

    id: str
    name: str
    examples: list[ExampleBody]


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
    classes: list[ClassBody]
    can_undo: bool
    can_redo: bool

    @classmethod
    def of(cls, task: StoredTask) -> TaskBody:
        classes = [
            ClassBody(
                id=each.id,
                name=each.name,
                examples=[ExampleBody(id=one.id, sha256=one.sha256) for one in each.examples],
            )
            for each in task.classes
        ]
        return cls(
            id=task.id,
            name=task.name,
            network=task.network or task.asked_network,
            method=task.method,
            projection_dim=task.projection_dim,
            revision=task.revision,
            created=task.created,
            updated=task.updated,
            classes=classes,
            can_undo=task.can_undo,
            can_redo=task.can_redo,
        )


class SummaryBody(BaseModel):
    """A task in a list."""

    id: str
    name: str
    classes: int
    examples: int
    revision: int
    created: float
    updated: float

    @classmethod
    def of(cls, summary: Summary) -> SummaryBody:
        return cls(**vars(summary))


class TaskList(BaseModel):
    """A page of the tasks, the last changed first."""

    tasks: list[SummaryBody]
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
    """The answer for one image: `label` is "unknown" where the best class is less probable than `reject`."""

    label: str
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


class LimitsBody(BaseModel):
    """What a client may ask for."""

    upload_bytes: int
    pixels: int
    images: int
    tasks: int
    classes: int
    examples: int


class About(BaseModel):
    """What this server offers."""

    version: str
    networks: list[str]
    formats: list[str]
    limits: LimitsBody
