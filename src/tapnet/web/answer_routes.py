"""Answers: predict, explain, and the map of a task."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import PlainValidator, WithJsonSchema

from tapnet.inference.confusion import Confusion
from tapnet.inference.predictor import AUTO, Reject
from tapnet.web.answering import Question, prediction_body
from tapnet.web.bodies import (
    ExamplePoint,
    ExplanationBody,
    LeaveOneOutBody,
    MapBody,
    Neighbor,
    Point,
    Predictions,
)
from tapnet.web.engine import Fitted
from tapnet.web.problems import Problem, describe_problems
from tapnet.web.services import Id, Parts, Services, services_of
from tapnet.web.uploads import IMAGES_BODY, Upload, Uploaded, upload_of

router = APIRouter(prefix="/v1/tasks")
ANSWER = describe_problems(409, 415)


def _parse_reject(text: str) -> Reject:
    """Return "auto" or a probability; raise ValueError for anything else."""
    if text == AUTO:
        return AUTO
    with suppress(ValueError):
        if 0 <= (probability := float(text)) <= 1:
            return probability
    raise ValueError(f'expected "{AUTO}" or a probability from 0 to 1, got {text!r}')


RejectQuery = Annotated[
    Reject,
    PlainValidator(_parse_reject),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "const": AUTO}]}),
    Query(description="Below this probability the label is unknown; with auto, the examples of the task decide."),
]


@router.post(
    "/{task}/predict", response_model=Predictions, tags=["answers"], responses=ANSWER, openapi_extra=IMAGES_BODY
)
async def predict(
    task: Id, request: Request, top: Annotated[int, Query(ge=1, le=1000)] = 5, reject: RejectQuery = 0.0
) -> Response:
    """Classify one image or many."""
    parts, upload = await services_of(request), await upload_of(request)  # as dependencies they would take longer
    answer = await parts.predict(Question(task, upload, top, reject))
    parts.metrics.images.inc(answer.images)
    return Response(answer.content, media_type="application/json")


@router.post("/{task}/explain", tags=["answers"], responses=ANSWER, openapi_extra=IMAGES_BODY)
async def explain(task: Id, upload: Uploaded, parts: Parts, reject: RejectQuery = 0.0) -> ExplanationBody:
    """Classify one image, and say why: the nearest examples, and where it lies on the map."""
    found = await parts.engine.run(partial(_explain, parts, task, upload, reject))
    parts.metrics.images.inc()
    return found


@router.get("/{task}/map", tags=["answers"], responses=ANSWER)
async def task_map(task: Id, parts: Parts) -> MapBody:
    """Get the examples and what stands for each class as points, and the leave-one-out accuracy."""
    return await parts.engine.run(partial(_map, parts, task))


def _explain(parts: Services, task: str, upload: Upload, reject: Reject) -> ExplanationBody:
    fitted = parts.engine.fitted(task)  # may have a class "unknown", unlike for predict: the page goes by `rejected`
    images = upload.images(parts.settings.limits)
    if len(images) != 1:
        raise Problem(422, f"Expected one image to explain, got {len(images)}.")
    found, points, rejected = fitted.explain(parts.engine.read(images, fitted.model)[0].pixels, reject)
    nearest = [Neighbor(id=fitted.example_ids[n.index], label=n.label, similarity=n.similarity) for n in found.nearest]
    return ExplanationBody(
        **prediction_body(found.ranked, rejected),
        nearest=nearest,
        reason=found.reason,
        point=Point.of(points, 0),
        revision=fitted.stored.revision,
    )


def _map(parts: Services, task: str) -> MapBody:
    fitted = parts.engine.fitted(task)
    engine, done, planes = parts.engine, fitted.task, fitted.planes
    return MapBody(
        revision=fitted.stored.revision,
        classes=list(done.classes),
        method=done.method,
        methods=engine.methods(done.network),
        network=done.network,
        projection_dim=fitted.stored.projection_dim,
        dimensions=fitted.model.method_named(done.method).max_projection_dim,
        exact=planes.exact,
        examples=[
            ExamplePoint(id=each, label=int(done.examples.labels[index]), point=Point.of(planes.examples, index))
            for index, each in enumerate(fitted.example_ids)
        ],
        centers=[Point.of(planes.centers, label) for label in range(len(done.classes))],
        leave_one_out=_left_out(fitted),
    )


def _left_out(fitted: Fitted) -> LeaveOneOutBody | None:
    found, classes = fitted.left_out, fitted.task.classes
    if found is None:
        return None
    confusion = Confusion.of(classes, [(classes[truth], classes[guess]) for truth, guess in found.pairs])
    values = {key: getattr(found, key) for key in ("hits", "total", "accuracy", "interval")}
    return LeaveOneOutBody(**values, confusion=confusion.counts.tolist())
