"""Answers: predict, explain, the map of a task, and the task as a file."""

from __future__ import annotations

import io
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from PIL import Image

from tapnet.inference import export, read_task, write_task
from tapnet.inference.confusion import Confusion
from tapnet.inference.images import THUMBNAIL, Example, read_image
from tapnet.inference.predictor import UNKNOWN
from tapnet.inference.task import check_names_differ
from tapnet.inference.task_file import with_network
from tapnet.web.bodies import (
    ClassProbability,
    ExamplePoint,
    ExplanationBody,
    LeaveOneOutBody,
    MapBody,
    Neighbor,
    Point,
    PredictionBody,
    Predictions,
    TaskBody,
    clean_name,
)
from tapnet.web.engine import Fitted
from tapnet.web.problems import Problem, describe_problems
from tapnet.web.records import NewExample, StoredTask
from tapnet.web.services import Id, Parts, Services
from tapnet.web.uploads import FILE_BODY, IMAGES_BODY, Upload, Uploaded

router = APIRouter(prefix="/v1/tasks")
ANSWER = describe_problems(409, 415, 503)
Reject = Annotated[float, Query(ge=0, le=1, description="Below this probability the label is unknown.")]
_OPTIONS = {"selection": "optimal"}  # what a task file may hold besides, because it is the default
_BINARY: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}


@router.post("/{task}/predict", tags=["answers"], responses=ANSWER, openapi_extra=IMAGES_BODY)
async def predict(
    task: Id, upload: Uploaded, parts: Parts, top: Annotated[int, Query(ge=1, le=1000)] = 5, reject: Reject = 0.0
) -> Predictions:
    """Classify one image or many."""
    found = await parts.engine.run(partial(_predict, parts, task, upload, top, reject))
    parts.metrics.images.inc(len(found.predictions))
    return found


@router.post("/{task}/explain", tags=["answers"], responses=ANSWER, openapi_extra=IMAGES_BODY)
async def explain(task: Id, upload: Uploaded, parts: Parts, reject: Reject = 0.0) -> ExplanationBody:
    """Classify one image, and say why: the nearest examples, and where it lies on the map."""
    found = await parts.engine.run(partial(_explain, parts, task, upload, reject))
    parts.metrics.images.inc()
    return found


@router.get("/{task}/map", tags=["answers"], responses=ANSWER)
async def task_map(task: Id, parts: Parts) -> MapBody:
    """Get the examples and what stands for each class as points, and the leave-one-out accuracy."""
    return await parts.engine.run(partial(_map, parts, task))


@router.get("/{task}/file", tags=["files"], response_class=Response, responses=ANSWER | _BINARY)
async def download_task(task: Id, parts: Parts) -> Response:
    """Get the task as a file for `tapnet predict` and `TapNetClassifier.load`."""
    return await parts.engine.run(partial(_file, parts, task, ".task"))


@router.get("/{task}/onnx", tags=["files"], response_class=Response, responses=ANSWER | _BINARY)
async def download_onnx(task: Id, parts: Parts) -> Response:
    """Get the task as one ONNX file: pixels in, probabilities out."""
    return await parts.engine.run(partial(_file, parts, task, ".onnx"))


@router.post("/file", status_code=201, tags=["files"], responses=ANSWER, openapi_extra=FILE_BODY)
async def upload_task(request: Request, parts: Parts, name: Annotated[str, Query(max_length=100)] = "") -> TaskBody:
    """Create a task from a task file."""
    content = await request.body()
    return TaskBody.of(await parts.engine.run(partial(_import, parts, content, name)))


def _prediction(label: str, ranked: Any) -> PredictionBody:
    classes = [ClassProbability(label=each, probability=probability) for each, probability in ranked]
    return PredictionBody(label=label, probability=classes[0].probability, ranked=classes)


def _predict(parts: Services, task: str, upload: Upload, top: int, reject: float) -> Predictions:
    fitted = parts.engine.fitted(task)
    images = parts.engine.read(upload.images(parts.settings.limits), fitted.model)
    found = fitted.predict(images, top, reject)
    return Predictions(predictions=[_prediction(each.label, each.ranked) for each in found])


def _explain(parts: Services, task: str, upload: Upload, reject: float) -> ExplanationBody:
    fitted = parts.engine.fitted(task)
    images = upload.images(parts.settings.limits)
    if len(images) != 1:
        raise Problem(422, f"Expected one image to explain, got {len(images)}.")
    found, points = fitted.explain(*parts.engine.read(images, fitted.model)[0])
    rejected = found.ranked[0][1] < reject
    nearest = [Neighbor(id=fitted.example_ids[n.index], label=n.label, similarity=n.similarity) for n in found.nearest]
    return ExplanationBody(
        **_prediction(UNKNOWN if rejected else found.label, found.ranked).model_dump(),
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
    return LeaveOneOutBody(
        hits=found.hits,
        total=found.total,
        accuracy=found.accuracy,
        interval=found.interval,
        confusion=confusion.counts.tolist(),
    )


def _file(parts: Services, task: str, ending: str) -> Response:
    fitted = parts.engine.fitted(task)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"task{ending}"
        if ending == ".onnx":
            export(fitted.task, path)
        else:
            write_task(fitted.task, path)
        content = path.read_bytes()
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", fitted.stored.name).strip("-") or "task"
    headers = {"Content-Disposition": f'attachment; filename="{name}{ending}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


def _import(parts: Services, content: bytes, name: str) -> StoredTask:
    """Store what a task file holds; its network needs to be one of the server's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "uploaded.task"
        path.write_bytes(content)
        try:
            task = read_task(path)
        except ValueError as error:
            raise Problem(422, str(error).replace(str(path), "The file")) from None
    model = parts.engine.model(task.network)
    if task.method not in parts.engine.methods(task.network):
        raise Problem(422, f"This server cannot fit the method {task.method!r}.")
    dim = task.options.get("projection_dim")
    if strange := [
        key for key, value in task.options.items() if key != "projection_dim" and _OPTIONS.get(key) != value
    ]:
        raise Problem(422, f"The task has the option {strange[0]!r}, which this server does not keep.")
    if task.precision != model.precision:
        raise Problem(422, f"The task was fitted in {task.precision}, this server computes in {model.precision}.")
    task = with_network(task, model)
    rows = zip(
        task.examples.labels, task.examples.features, task.examples.hashes, task.examples.thumbnails, strict=True
    )
    new = [(label, NewExample(sha256, row.tobytes(), _thumbnail(jpeg, model))) for label, row, sha256, jpeg in rows]
    try:
        names = [clean_name(each) for each in task.classes]
        check_names_differ(names)
        shown = clean_name(name) if name.strip() else "Uploaded task"
    except ValueError as error:
        raise Problem(422, str(error)) from None
    classes = [(each, [e for k, e in new if k == label]) for label, each in enumerate(names)]
    return parts.store.import_task(shown, model.name, model.sha256, task.method, dim, classes)


def _thumbnail(jpeg: bytes, model: Any) -> bytes:
    """Return a thumbnail made anew: what a file claims to be one may be anything."""
    found = read_image(jpeg, model.image_preprocessing, thumbnail=True) if jpeg else None
    if isinstance(found, Example):
        return found.thumbnail
    stream = io.BytesIO()
    Image.fromarray(np.full((THUMBNAIL, THUMBNAIL), 200, np.uint8)).save(stream, "JPEG")
    return stream.getvalue()
