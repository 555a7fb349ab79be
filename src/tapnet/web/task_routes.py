"""Tasks, their classes and examples: create, also from a task file, list, get, change, delete, undo."""

from __future__ import annotations

import io
import random
import re
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray
from PIL import Image, ImageOps
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from tapnet.data import load_dataset
from tapnet.inference import read_task
from tapnet.inference.images import THUMBNAIL, Example, read_image
from tapnet.inference.model_selection import choose_method
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.task import Task, check_names_differ
from tapnet.web import bodies
from tapnet.web.engine import Engine, EngineDep
from tapnet.web.problems import Problem, first_fault, missing
from tapnet.web.store import Id, NetworkChanged, NewExample

router = APIRouter(prefix="/v1/tasks")
STORE_ROUTES = [  # method, path, method of the store that answers, status
    ("GET", "", "list_tasks", 200),
    ("GET", "/{task}", "get_task", 200),
    ("DELETE", "/{task}", "delete_task", 204),
    ("POST", "/{task}/undo", "undo", 200),
    ("POST", "/{task}/redo", "redo", 200),
    ("POST", "/{task}/classes", "add_class", 201),
    ("PATCH", "/{task}/classes/{class_id}", "rename_class", 200),
    ("DELETE", "/{task}/classes/{class_id}", "delete_class", 200),
    ("GET", "/{task}/examples", "list_examples", 200),
    ("DELETE", "/{task}/examples/{example}", "delete_example", 200),
]
READY = "Five drawings of five things"
THINGS = ("sailboat", "cat", "flower", "clock", "butterfly")
_FIRST = 5  # of each, whatever they look like: the accuracy on the page is that of drawings nobody chose
JPEG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}}}
_SIDE, _MARGIN = 112, 10  # of a drawing, in pixels
_SHA256 = re.compile("[0-9a-f]{64}")
_THUMBNAIL_PIXELS = 1_000_000  # ours have a hundredth of that; a file may hold thousands


@router.post("", status_code=201)
async def create_task(body: bodies.NewTask, engine: EngineDep) -> bodies.TaskBody:
    """Create a task, empty or the ready example."""
    if body.example:
        return await engine.run(_ready_example, engine, body.name)
    return await run_in_threadpool(_create, engine, body)


def _create(engine: Engine, body: bodies.NewTask) -> bodies.TaskBody:
    if body.network is not None:
        engine.check_network(body.network)
    if body.method is not None:
        engine.check_method(body.network, body.method, None)
    return engine.store.create_task(name=body.name, network=body.network, method=body.method)


def _ready_example(engine: Engine, name: str) -> bodies.TaskBody:
    drawings, content = load_dataset("quickdraw", "test"), []
    for thing in THINGS:
        rows = np.flatnonzero(drawings.labels == drawings.names.index(thing))[:_FIRST]
        model, new = engine.embed_examples([_png(pixels) for pixels in drawings.gather(rows)], "drawings")
        content.append((thing, new))
    name = READY if name == "Untitled" else name
    return engine.store.create_task(content, name=name, network=model.name, network_sha256=model.sha256)


def random_drawing(name: str = "") -> bytes:
    """Return a drawing that the ready example does not show, of the thing named or, if there is none, of any."""
    drawings = load_dataset("quickdraw", "test")
    known = name.lower() in drawings.names
    label = drawings.names.index(name.lower()) if known else random.randrange(len(drawings.names))
    rows = np.flatnonzero(drawings.labels == label)[_FIRST:]
    return _png(drawings.gather(rows[[random.randrange(len(rows))]])[0])


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a drawing of the bundled set as a PNG file, ink dark on white."""
    image = Image.fromarray(255 - pixels.squeeze(-1)).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    ImageOps.expand(image, _MARGIN, fill=255).save(stream, "PNG")
    return stream.getvalue()


@router.post("/file", status_code=201, openapi_extra=bodies.FILE_BODY)
async def upload_task(
    request: Request, engine: EngineDep, name: Annotated[str, Query(max_length=bodies.LONGEST_NAME)] = ""
) -> bodies.TaskBody:
    """Create a task from a task file, which is the body of the request: not a form with a file in it."""
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise Problem(415, "Expected the task file itself as the body (curl --data-binary @FILE), got a form.")
    content = await request.body()
    return await engine.run(_import, engine, content, name)


def _import(engine: Engine, content: bytes, name: str) -> bodies.TaskBody:
    """Store what a task file holds; its network needs to be one of the server's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "uploaded.task"
        path.write_bytes(content)
        try:
            task = read_task(path)
            given = *task.classes, name.strip() or "Uploaded task"
            *names, name = map(TypeAdapter(bodies.Name).validate_python, given)
            check_names_differ(names)
        except ValidationError as error:
            raise Problem(422, f"The file has a name that no task can have: {first_fault(error)}") from None
        except ValueError as error:
            raise Problem(422, str(error).replace(str(path), "The file")) from None
    examples, most = task.examples, engine.settings.limits.examples
    if not all(isinstance(sha256, str) and _SHA256.fullmatch(sha256) for sha256 in examples.hashes):
        raise Problem(422, "The file names an example by something other than a sha-256.")
    if len(examples) > most:
        raise Problem(409, f"A task may have {most} examples, the file has {len(examples)}.")
    model = engine.model(task.network)
    if task.precision != model.precision:
        raise Problem(422, f"The task was fitted in {task.precision}, this server computes in {model.precision}.")
    method, dim = _kept_method(engine, task, model)
    task.check_network(model)
    by_class: list[tuple[str, list[NewExample]]] = [(shown, []) for shown in names]
    columns = examples.labels, examples.features, examples.hashes, examples.thumbnails
    for label, row, sha256, jpeg in zip(*columns, strict=True):
        by_class[label][1].append(NewExample(sha256, row.tobytes(), _thumbnail(jpeg, model)))
    return engine.store.create_task(
        by_class, name=name, network=model.name, network_sha256=model.sha256, method=method, projection_dim=dim
    )


def _kept_method(engine: Engine, task: Task, model: EmbeddingModel) -> tuple[str | None, int | None]:
    """Return the method, `None` if it is the one that `fit` chooses, and the projection dimension; refuse the rest."""
    defaults = {"selection": "optimal"}  # what a task file may name although the server does not keep it
    options = {key: value for key, value in task.options.items() if defaults.get(key) != value}
    if (task.method, options) == choose_method(model)[:2]:
        return None, None
    dim = options.pop("projection_dim", None)
    if options:
        raise Problem(422, f"The task has the option {next(iter(options))!r}, which this server does not keep.")
    if dim is not None and type(dim) is not int:
        raise Problem(422, f"Expected `projection_dim` to be a whole number above 0, got {dim!r}.")
    engine.check_method(task.network, task.method, dim)
    return task.method, dim


def _thumbnail(jpeg: bytes, model: EmbeddingModel) -> bytes:
    """Return a thumbnail made anew: what a file claims to be one may be anything."""
    example = read_image(jpeg, model.image_preprocessing, thumbnail=True, most_pixels=_THUMBNAIL_PIXELS)
    if isinstance(example, Example):
        return example.thumbnail
    stream = io.BytesIO()
    Image.new("L", (THUMBNAIL, THUMBNAIL), 200).save(stream, "JPEG")
    return stream.getvalue()


@router.patch("/{task}")
def change_task(task: Id, body: bodies.TaskChange, engine: EngineDep) -> bodies.TaskBody:
    """Rename a task, or change how it compares images."""
    values = body.model_dump(exclude_unset=True)
    if values.get("name", "") is None:
        raise Problem(422, "name: expected a name, got null.")
    if any(values.get(key) is not None for key in ("method", "projection_dim")):
        stored = engine.store.get_task(task)
        engine.check_method(stored.network, values.get("method", stored.method), values.get("projection_dim"))
    return engine.store.change_settings(task, **values)


@router.post("/{task}/classes/{class_id}/examples", status_code=201, openapi_extra=bodies.IMAGES_BODY)
async def add_examples(task: Id, class_id: Id, upload: bodies.Uploaded, engine: EngineDep) -> bodies.Added:
    """Add images to a class: all of them, or none if one cannot be read."""
    return await engine.run(_add, engine, task, class_id, upload)


def _add(engine: Engine, task: str, class_id: str, upload: bodies.Upload) -> bodies.Added:
    """Embed images with the network of the task, and store them."""
    images = upload.images(engine.settings.limits)
    while True:
        stored = engine.store.get_task(task)
        if not any(one.id == class_id for one in stored.classes):
            raise missing("class", class_id)
        model, new = engine.embed_examples(images, stored.network)
        try:
            changed, ids = engine.store.add_examples(task, class_id, model.name, model.sha256, new)
            return bodies.Added(added=ids, task=changed)
        except NetworkChanged:  # somebody added the first examples, of another kind, in the meantime
            if stored.network_sha256 is not None:
                raise Problem(409, f"The task was taught with another version of the network {model.name!r}.") from None


@router.get("/{task}/examples/{example}/thumbnail", response_class=Response, responses=JPEG)
def thumbnail(task: Id, example: Id, engine: EngineDep) -> Response:
    """Get an example as a small JPEG."""
    content = engine.store.thumbnail(task, example)
    return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=86400, immutable"})
