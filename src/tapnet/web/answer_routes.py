"""What a taught task gives: predictions, explanations, its map, and itself as a task file or as an ONNX file."""

from __future__ import annotations

import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from pydantic import PlainValidator, WithJsonSchema

from tapnet.inference import export, write_task
from tapnet.inference.explanation import Picture, draw_picture, explain_features, hardest_classes
from tapnet.inference.predictor import AUTO, Reject
from tapnet.inference.scoring import Confusion
from tapnet.web import bodies
from tapnet.web.engine import Engine, EngineDep, LoadedTask, Question, engine_of, prediction_body
from tapnet.web.problems import Problem
from tapnet.web.store import Id

router = APIRouter(prefix="/v1/tasks")
BINARY: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}


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


@router.post("/{task}/predict", response_model=bodies.Predictions, openapi_extra=bodies.IMAGES_BODY)
async def predict(
    task: Id, request: Request, top: Annotated[int, Query(ge=1, le=1000)] = 5, reject: RejectQuery = 0.0
) -> Response:
    """Classify one image or many."""
    engine, upload = await engine_of(request), await bodies.upload_of(request)  # dependencies are slower
    with engine.admitted():
        content = await engine.batcher.ask(Question(task, upload, top, reject), len(upload.body))
    return Response(content, media_type="application/json")


@router.post("/{task}/explain", openapi_extra=bodies.IMAGES_BODY)
async def explain(
    task: Id, upload: bodies.Uploaded, engine: EngineDep, reject: RejectQuery = 0.0
) -> bodies.ExplanationBody:
    """Classify one image, and say why: the nearest examples, and a picture of the classes it is weighed between."""
    return await engine.run(_explain, engine, task, upload, reject)


def _explain(engine: Engine, task: str, upload: bodies.Upload, reject: Reject) -> bodies.ExplanationBody:
    loaded = engine.load(task)  # may have a class "unknown", unlike for predict: the page goes by `rejected`
    images = upload.images(engine.settings.limits)
    if len(images) != 1:
        raise Problem(422, f"Expected one image to explain, got {len(images)}.")
    predictor = loaded.predictor
    pixels = engine.read(images, predictor.network)[0].pixels
    features = engine.embed(predictor.network, [pixels])
    _, rejected = predictor.answer_features(features, reject)
    explanation = explain_features(predictor, features, pixels)
    nearest = [
        bodies.NeighborBody(id=loaded.example_ids[near.index], label=near.label, similarity=near.similarity)
        for near in explanation.nearest
    ]
    return bodies.ExplanationBody(
        **prediction_body(explanation.ranked, bool(rejected[0])),
        nearest=nearest,
        reason=explanation.reason,
        picture=_picture(loaded, explanation.picture),
        revision=loaded.stored.revision,
    )


@router.get("/{task}/map")
async def task_map(task: Id, engine: EngineDep) -> bodies.MapBody:
    """Get a picture of the classes that are hardest to tell apart, and the leave-one-out accuracy."""
    return await engine.run(_map, engine, task)


def _map(engine: Engine, task_id: str) -> bodies.MapBody:
    loaded = engine.load(task_id)
    task, network, left_out = loaded.predictor.task, loaded.predictor.network, loaded.left_out
    logits, labels = loaded.predictor.example_logits, task.examples.labels
    return bodies.MapBody(
        revision=loaded.stored.revision,
        classes=list(task.classes),
        method=task.method,
        methods=list(network.offered_methods(way=2)),
        network=task.network,
        projection_dim=loaded.stored.projection_dim,
        dimensions=network.method_named(task.method).max_projection_dim,
        picture=_picture(loaded, draw_picture(logits, labels, hardest_classes(logits, labels), None)),
        leave_one_out=None if left_out is None else _leave_one_out(left_out),
    )


def _picture(loaded: LoadedTask, picture: Picture) -> bodies.PictureBody:
    labels, points = loaded.predictor.task.examples.labels, np.round(picture.points, 5).tolist()
    return bodies.PictureBody(
        classes=list(picture.classes),
        centers=picture.centers.tolist(),
        examples=[
            bodies.ExamplePoint(id=loaded.example_ids[row], label=int(labels[row]), point=point)
            for row, point in zip(picture.examples, points, strict=True)
        ],
        query=None if picture.query is None else np.round(picture.query, 5).tolist(),
    )


def _leave_one_out(left_out: Confusion) -> bodies.LeaveOneOutBody:
    return bodies.LeaveOneOutBody(
        hits=left_out.hits,
        total=left_out.total,
        accuracy=left_out.accuracy,
        interval=left_out.interval,
        confusion=left_out.counts.tolist(),
    )


@router.get("/{task}/file", response_class=Response, responses=BINARY)
async def download_task(task: Id, engine: EngineDep) -> Response:
    """Get the task as a file for `tapnet predict` and `TapNetClassifier.load`."""
    return await engine.run(_file, engine, task, ".task")


@router.get("/{task}/onnx", response_class=Response, responses=BINARY)
async def download_onnx(task: Id, engine: EngineDep) -> Response:
    """Get the task as one ONNX file: pixels in, probabilities out."""
    return await engine.run(_file, engine, task, ".onnx")


def _file(engine: Engine, task: str, ending: str) -> Response:
    loaded = engine.load(task)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"task{ending}"
        (export if ending == ".onnx" else write_task)(loaded.predictor.task, path)
        content = path.read_bytes()
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", loaded.stored.name).strip("-") or "task"
    headers = {"Content-Disposition": f'attachment; filename="{name}{ending}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)
