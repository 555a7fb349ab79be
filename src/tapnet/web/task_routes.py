"""Tasks, their classes and examples: create, list, get, change, delete, undo."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.concurrency import run_in_threadpool

from tapnet.web.bodies import Added, ExampleList, ListedExample, NewClass, NewTask, TaskBody, TaskChange, TaskList
from tapnet.web.example import NAME, example_images
from tapnet.web.problems import Problem, describe_problems
from tapnet.web.records import StoredTask
from tapnet.web.services import Id, Parts, Services
from tapnet.web.store import NetworkChanged
from tapnet.web.uploads import IMAGES_BODY, Upload, Uploaded

router = APIRouter(prefix="/v1/tasks")
CREATED = describe_problems(409)
UPLOAD = describe_problems(409, 415)


@router.post("", status_code=201, tags=["tasks"], responses=CREATED)
async def create_task(body: NewTask, parts: Parts) -> TaskBody:
    """Create a task, empty or the ready example."""
    if body.example:
        return TaskBody.of(await parts.engine.run(partial(_ready_example, parts, body.name)))
    return TaskBody.of(await run_in_threadpool(_create, parts, body))


@router.get("", tags=["tasks"])
def list_tasks(
    parts: Parts,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> TaskList:
    """List the tasks, the last changed first."""
    found, total = parts.store.list_tasks(limit, offset)
    return TaskList(tasks=found, total=total)


@router.get("/{task}", tags=["tasks"])
def get_task(task: Id, parts: Parts) -> TaskBody:
    """Get a task with its classes and examples."""
    return TaskBody.of(parts.store.get_task(task))


@router.patch("/{task}", tags=["tasks"])
def change_task(task: Id, body: TaskChange, parts: Parts) -> TaskBody:
    """Rename a task, or change how it compares images."""
    values = body.model_dump(exclude_unset=True)
    if values.get("name", "") is None:
        raise Problem(422, "name: expected a name, got null.")
    if any(values.get(key) is not None for key in ("method", "projection_dim")):
        stored = parts.store.get_task(task)
        network, method = stored.network or stored.asked_network, values.get("method", stored.method)
        parts.engine.check_method(network, method, values.get("projection_dim"))
    return TaskBody.of(parts.store.change_settings(task, values))


@router.delete("/{task}", status_code=204, tags=["tasks"])
def delete_task(task: Id, parts: Parts) -> None:
    """Delete a task with everything in it, for good."""
    parts.store.delete_task(task)


@router.post("/{task}/undo", tags=["tasks"], responses=CREATED)
def undo(task: Id, parts: Parts) -> TaskBody:
    """Take the last change of classes or examples back."""
    return TaskBody.of(parts.store.undo(task))


@router.post("/{task}/redo", tags=["tasks"], responses=CREATED)
def redo(task: Id, parts: Parts) -> TaskBody:
    """Make the last change that was undone again."""
    return TaskBody.of(parts.store.redo(task))


@router.post("/{task}/classes", status_code=201, tags=["classes"], responses=CREATED)
def add_class(task: Id, body: NewClass, parts: Parts) -> TaskBody:
    """Add a class; it counts once it has an example."""
    return TaskBody.of(parts.store.add_class(task, body.name))


@router.patch("/{task}/classes/{class_id}", tags=["classes"], responses=CREATED)
def rename_class(task: Id, class_id: Id, body: NewClass, parts: Parts) -> TaskBody:
    """Rename a class."""
    return TaskBody.of(parts.store.rename_class(task, class_id, body.name))


@router.delete("/{task}/classes/{class_id}", tags=["classes"])
def delete_class(task: Id, class_id: Id, parts: Parts) -> TaskBody:
    """Delete a class with its examples; undo brings them back."""
    return TaskBody.of(parts.store.delete_class(task, class_id))


@router.post(
    "/{task}/classes/{class_id}/examples",
    status_code=201,
    tags=["examples"],
    responses=UPLOAD,
    openapi_extra=IMAGES_BODY,
)
async def add_examples(task: Id, class_id: Id, upload: Uploaded, parts: Parts) -> Added:
    """Add images to a class: all of them, or none if one cannot be read."""
    stored, ids = await parts.engine.run(partial(_add, parts, task, class_id, upload))
    return Added(added=ids, task=TaskBody.of(stored))


@router.get("/{task}/examples", tags=["examples"])
def list_examples(task: Id, parts: Parts) -> ExampleList:
    """List the examples of all classes, with the addresses of their thumbnails."""
    stored = parts.store.get_task(task)
    return ExampleList(
        examples=[
            ListedExample(
                **vars(each),
                class_id=one.id,
                class_name=one.name,
                thumbnail=f"/v1/tasks/{task}/examples/{each.id}/thumbnail",
            )
            for one in stored.classes
            for each in one.examples
        ]
    )


@router.get(
    "/{task}/examples/{example}/thumbnail",
    tags=["examples"],
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}}},
)
def thumbnail(task: Id, example: Id, parts: Parts) -> Response:
    """Get an example as a small JPEG."""
    content = parts.store.thumbnail(task, example)
    return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=86400, immutable"})


@router.delete("/{task}/examples/{example}", tags=["examples"])
def delete_example(task: Id, example: Id, parts: Parts) -> TaskBody:
    """Delete an example; undo brings it back."""
    return TaskBody.of(parts.store.delete_example(task, example))


def _create(parts: Services, body: NewTask) -> StoredTask:
    if body.network is not None and body.network not in parts.engine.networks:
        raise Problem(422, f"This server has the networks {', '.join(parts.engine.networks)}, got {body.network!r}.")
    if body.method is not None:
        parts.engine.check_method(body.network, body.method, None)
    return parts.store.create_task(body.name, body.network, body.method)


def _add(parts: Services, task: str, class_id: str, upload: Upload) -> tuple[StoredTask, list[str]]:
    """Embed images with the network of the task, and store them."""
    images = upload.images(parts.settings.limits)
    while True:
        stored = parts.store.get_task(task)
        if not any(each.id == class_id for each in stored.classes):
            raise Problem(404, f"There is no class {class_id!r}.")
        model, new = parts.engine.embed(images, stored.network or stored.asked_network)
        parts.metrics.images.inc(len(new))
        try:
            return parts.store.add_examples(task, class_id, model.name, model.sha256, new)
        except NetworkChanged:  # somebody added the first examples, of another kind, in the meantime
            if stored.network == model.name:
                raise Problem(409, f"The task was taught with another version of the network {model.name!r}.") from None


def _ready_example(parts: Services, name: str) -> StoredTask:
    content, images = [], example_images()
    for thing, drawings in images.items():
        model, new = parts.engine.embed(drawings, "drawings")
        content.append((thing, new))
    shown = NAME if name == "Untitled" else name
    return parts.store.import_task(shown, model.name, model.sha256, None, None, content)
