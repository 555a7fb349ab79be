"""What a taught task gives: predictions, explanations, its map, and itself as a task file or as an ONNX file."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray
from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import to_json

from tapnet.data.preprocessing import Pixels
from tapnet.inference import export, write_task
from tapnet.inference.explanation import explain_features
from tapnet.inference.predictor import AUTO, UNKNOWN, Reject, rank_classes
from tapnet.inference.scoring import Confusion
from tapnet.web import bodies
from tapnet.web.engine import Engine, LoadedTask, ServicesDep, services_of
from tapnet.web.problems import Problem
from tapnet.web.store import Id

router = APIRouter(prefix="/v1/tasks")
BINARY: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}
Points = NDArray[np.float64]


def _parse_reject(text: str) -> Reject:
    """Return "auto" or a probability; raise ValueError for anything else."""
    with suppress(ValueError):
        if text == AUTO or 0 <= float(text) <= 1:
            return AUTO if text == AUTO else float(text)
    raise ValueError(f'expected "{AUTO}" or a probability from 0 to 1, got {text!r}')


RejectQuery = Annotated[
    Reject,
    PlainValidator(_parse_reject),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "const": AUTO}]}),
    Query(description="Below this probability the label is unknown; with auto, the examples of the task decide."),
]


@dataclass(frozen=True)
class Question:
    """A request for predictions."""

    task: str
    upload: bodies.Upload
    top: int
    reject: Reject


@router.post("/{task}/predict", response_model=bodies.Predictions, openapi_extra=bodies.IMAGES_BODY)
async def predict(
    task: Id, request: Request, top: Annotated[int, Query(ge=1, le=1000)] = 5, reject: RejectQuery = 0.0
) -> Response:
    """Classify one image or many."""
    services, upload = await services_of(request), await bodies.upload_of(request)  # dependencies are slower
    with services.engine.admitted():
        content = await services.batcher.ask(Question(task, upload, top, reject), len(upload.body))
    return Response(content, media_type="application/json")


def answer_questions(engine: Engine, questions: Sequence[Question]) -> list[bytes | Exception]:
    """Return for each question `Predictions` as JSON, or why not: one bad image does not spoil other requests.

    Each is read and ranked by itself; each network sees the images of all at once, each task their features.
    """
    load = cache(engine.load)  # the store is asked once for each task
    answers: dict[int, bytes | Exception] = {}
    read: list[tuple[int, Question, LoadedTask, list[Pixels]]] = []
    for number, question in enumerate(questions):
        try:
            loaded = load(question.task)
            loaded.predictor.check_options(reject=question.reject)
            images = engine.read(question.upload.images(engine.settings.limits), loaded.model)
            read.append((number, question, loaded, [image.pixels for image in images]))
        except Exception as error:
            answers[number] = error
    read.sort(key=lambda row: (row[2].model.name, row[1].task, str(row[1].reject)))
    for _, of_network in groupby(read, lambda row: row[2].model.name):
        rows = list(of_network)
        features = engine.embed(rows[0][2].model, [image for *_, pixels in rows for image in pixels])
        for (_, reject), of_task in groupby(rows, lambda row: (row[1].task, row[1].reject)):
            asked = list(of_task)
            sizes = [len(pixels) for *_, pixels in asked]
            these, features = features[: sum(sizes)], features[sum(sizes) :]
            probabilities, rejected = asked[0][2].predictor.answer_features(these, reject)
            ends = np.cumsum(sizes)
            for (number, question, loaded, _), size, end in zip(asked, sizes, ends, strict=True):
                of_question = slice(end - size, end)
                ranked = rank_classes(probabilities[of_question], loaded.task.classes, question.top)
                predictions = map(_prediction, ranked, map(bool, rejected[of_question]))
                answers[number] = to_json({"predictions": list(predictions)})
    return [answers[number] for number in range(len(questions))]


def _prediction(ranked: Sequence[tuple[str, float]], rejected: bool) -> dict[str, Any]:
    """Return a `PredictionBody` as plain values."""
    best, probability = ranked[0]
    return {
        "label": UNKNOWN if rejected else best,
        "rejected": rejected,
        "probability": probability,
        "ranked": [{"label": label, "probability": value} for label, value in ranked],
    }


@router.post("/{task}/explain", openapi_extra=bodies.IMAGES_BODY)
async def explain(
    task: Id, upload: bodies.Uploaded, services: ServicesDep, reject: RejectQuery = 0.0
) -> bodies.ExplanationBody:
    """Classify one image, and say why: the nearest examples, and where it lies on the map."""
    return await services.engine.run(partial(_explain, services.engine, task, upload, reject))


def _explain(engine: Engine, task: str, upload: bodies.Upload, reject: Reject) -> bodies.ExplanationBody:
    loaded = engine.load(task)  # may have a class "unknown", unlike for predict: the page goes by `rejected`
    images = upload.images(engine.settings.limits)
    if len(images) != 1:
        raise Problem(422, f"Expected one image to explain, got {len(images)}.")
    pixels = engine.read(images, loaded.model)[0].pixels
    features = engine.embed(loaded.model, [pixels])
    _, rejected = loaded.predictor.answer_features(features, reject)
    explanation = explain_features(loaded.predictor, features, pixels)
    nearest = [
        bodies.NeighborBody(id=loaded.example_ids[near.index], label=near.label, similarity=near.similarity)
        for near in explanation.nearest
    ]
    return bodies.ExplanationBody(
        **_prediction(explanation.ranked, bool(rejected[0])),
        nearest=nearest,
        reason=explanation.reason,
        point=_points(loaded.planes.locate(features))[0],
        revision=loaded.stored.revision,
    )


@router.get("/{task}/map")
async def task_map(task: Id, services: ServicesDep) -> bodies.MapBody:
    """Get the examples and what stands for each class as points, and the leave-one-out accuracy."""
    return await services.engine.run(partial(_map, services.engine, task))


def _map(engine: Engine, task_id: str) -> bodies.MapBody:
    loaded = engine.load(task_id)
    task, planes, labels = loaded.task, loaded.planes, loaded.task.examples.labels.tolist()
    points = zip(loaded.example_ids, labels, _points(planes.examples), strict=True)
    return bodies.MapBody(
        revision=loaded.stored.revision,
        classes=list(task.classes),
        method=task.method,
        methods=list(loaded.model.offered_methods(way=2)),
        network=task.network,
        projection_dim=loaded.stored.projection_dim,
        dimensions=loaded.model.method_named(task.method).max_projection_dim,
        exact=planes.exact,
        examples=[bodies.ExamplePoint(id=example_id, label=label, point=point) for example_id, label, point in points],
        centers=_points(planes.centers),
        leave_one_out=_left_out(loaded),
    )


def _points(planes: tuple[Points, Points]) -> list[bodies.PointBody]:
    """Return points from their coordinates (n, 2) in both planes."""
    embedding, projection = (np.round(plane, 5).tolist() for plane in planes)
    return [bodies.PointBody(embedding=one, projection=other) for one, other in zip(embedding, projection, strict=True)]


def _left_out(loaded: LoadedTask) -> bodies.LeaveOneOutBody | None:
    left_out, classes = loaded.left_out, loaded.task.classes
    if left_out is None:
        return None
    confusion = Confusion.of(classes, [(classes[truth], classes[guess]) for truth, guess in left_out.pairs])
    values = {name: getattr(left_out, name) for name in ("hits", "total", "accuracy", "interval")}
    return bodies.LeaveOneOutBody(**values, confusion=confusion.counts.tolist())


@router.get("/{task}/file", response_class=Response, responses=BINARY)
async def download_task(task: Id, services: ServicesDep) -> Response:
    """Get the task as a file for `tapnet predict` and `TapNetClassifier.load`."""
    return await services.engine.run(partial(_file, services.engine, task, ".task"))


@router.get("/{task}/onnx", response_class=Response, responses=BINARY)
async def download_onnx(task: Id, services: ServicesDep) -> Response:
    """Get the task as one ONNX file: pixels in, probabilities out."""
    return await services.engine.run(partial(_file, services.engine, task, ".onnx"))


def _file(engine: Engine, task: str, ending: str) -> Response:
    loaded = engine.load(task)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"task{ending}"
        (export if ending == ".onnx" else write_task)(loaded.task, path)
        content = path.read_bytes()
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", loaded.stored.name).strip("-") or "task"
    headers = {"Content-Disposition": f'attachment; filename="{name}{ending}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)
