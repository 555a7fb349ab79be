"""A task as a file: the task file and the ONNX file out, a task file in."""

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

from tapnet.data.preprocessing import Unreadable, image_size
from tapnet.inference import export, read_task, write_task
from tapnet.inference.images import THUMBNAIL, Example, read_image
from tapnet.inference.method_choice import choose_method
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.task import Task, check_names_differ
from tapnet.inference.task_file import with_network
from tapnet.web.bodies import LONGEST_NAME, MOST_DIMENSIONS, TaskBody, clean_name
from tapnet.web.problems import Problem, describe_problems
from tapnet.web.records import NewExample, StoredTask
from tapnet.web.services import Id, Parts, Services
from tapnet.web.uploads import FILE_BODY

router = APIRouter(prefix="/v1/tasks", tags=["files"])
ANSWER = describe_problems(409, 415)
_OPTIONS = {"selection": "optimal"}  # what a task file may hold besides, because it is the default
_BINARY: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}
_SHA256 = re.compile("[0-9a-f]{64}")
_THUMBNAIL_PIXELS = 1_000_000  # ours have a hundredth of that; a file may hold thousands


@router.get("/{task}/file", response_class=Response, responses=ANSWER | _BINARY)
async def download_task(task: Id, parts: Parts) -> Response:
    """Get the task as a file for `tapnet predict` and `TapNetClassifier.load`."""
    return await parts.engine.run(partial(_file, parts, task, ".task"))


@router.get("/{task}/onnx", response_class=Response, responses=ANSWER | _BINARY)
async def download_onnx(task: Id, parts: Parts) -> Response:
    """Get the task as one ONNX file: pixels in, probabilities out."""
    return await parts.engine.run(partial(_file, parts, task, ".onnx"))


@router.post("/file", status_code=201, responses=ANSWER, openapi_extra=FILE_BODY)
async def upload_task(
    request: Request, parts: Parts, name: Annotated[str, Query(max_length=LONGEST_NAME)] = ""
) -> TaskBody:
    """Create a task from a task file, which is the body of the request: not a form with a file in it."""
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise Problem(415, "Expected the task file itself as the body (curl --data-binary @FILE), got a form.")
    content = await request.body()
    return TaskBody.of(await parts.engine.run(partial(_import, parts, content, name)))


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
    task = _read(content)
    model = parts.engine.model(task.network)
    if len(task.examples) > parts.settings.limits.examples:
        most = parts.settings.limits.examples
        raise Problem(409, f"A task may have {most} examples, the file has {len(task.examples)}.")
    method, dim = _checked_method(parts, task, model)
    if task.precision != model.precision:
        raise Problem(422, f"The task was fitted in {task.precision}, this server computes in {model.precision}.")
    names = [_checked_name(each) for each in task.classes]
    shown = _checked_name(name) if name.strip() else "Uploaded task"
    task = with_network(task, model)
    content_of: list[tuple[str, list[NewExample]]] = [(each, []) for each in names]
    for label, example in zip(task.examples.labels, _examples(task, model), strict=True):
        content_of[label][1].append(example)
    return parts.store.import_task(shown, model.name, model.sha256, method, dim, content_of)


def _read(content: bytes) -> Task:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "uploaded.task"
        path.write_bytes(content)
        try:
            task = read_task(path)
            check_names_differ([clean_name(each) for each in task.classes])
        except ValueError as error:
            raise Problem(422, str(error).replace(str(path), "The file")) from None
    if not all(isinstance(each, str) and _SHA256.fullmatch(each) for each in task.examples.hashes):
        raise Problem(422, "The file names an example by something other than a sha-256.")
    return task


def _checked_method(parts: Services, task: Task, model: EmbeddingModel) -> tuple[str | None, int | None]:
    """Return the method, `None` if it is the one that `fit` chooses, and the projection dimension.

    Raise a problem for options that the server does not keep.
    """
    options = {key: value for key, value in task.options.items() if _OPTIONS.get(key) != value}
    if (task.method, options) == choose_method(model)[:2]:
        return None, None
    if task.method not in parts.engine.methods(task.network):
        raise Problem(422, f"This server cannot fit the method {task.method!r}.")
    dim = options.pop("projection_dim", None)
    if options:
        raise Problem(422, f"The task has the option {next(iter(options))!r}, which this server does not keep.")
    if dim is not None and (type(dim) is not int or not 1 <= dim <= MOST_DIMENSIONS):
        raise Problem(422, f"Expected `projection_dim` to be a whole number above 0, got {dim!r}.")
    parts.engine.check_method(task.network, task.method, dim)
    return task.method, dim


def _checked_name(text: str) -> str:
    try:
        name = clean_name(text)
    except ValueError as error:
        raise Problem(422, str(error)) from None
    if len(name) > LONGEST_NAME:
        raise Problem(422, f"Expected names of at most {LONGEST_NAME} characters, got one of {len(name)}.")
    return name


def _examples(task: Task, model: EmbeddingModel) -> list[NewExample]:
    examples = task.examples
    return [
        NewExample(sha256, row.tobytes(), _thumbnail(jpeg, model))
        for row, sha256, jpeg in zip(examples.features, examples.hashes, examples.thumbnails, strict=True)
    ]


def _thumbnail(jpeg: bytes, model: EmbeddingModel) -> bytes:
    """Return a thumbnail made anew: what a file claims to be one may be anything."""
    size = image_size(jpeg)
    if not isinstance(size, Unreadable) and size[0] * size[1] <= _THUMBNAIL_PIXELS:
        found = read_image(jpeg, model.image_preprocessing, thumbnail=True)
        if isinstance(found, Example):
            return found.thumbnail
    stream = io.BytesIO()
    Image.fromarray(np.full((THUMBNAIL, THUMBNAIL), 200, np.uint8)).save(stream, "JPEG")
    return stream.getvalue()
