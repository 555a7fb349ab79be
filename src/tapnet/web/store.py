"""Tasks in a database: every method is one transaction, and what it returned is on disk.

Changes of one task are made one after another: each first takes the task's row and counts up its revision. Those of its
classes and examples lead to a new state; rows have the states in which they were added and removed, so that undo and
redo only move the task's state. Rows that no state in reach shows are deleted. Methods with `Id`s answer requests
directly; all raise `Problem` for what does not exist, conflicts, or exceeds a limit.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from fastapi import Body, Path, Query
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select, Table, delete, func, select, update

from tapnet.web.bodies import ClassBody, ExampleBody, ListedExample, Name, TaskBody, TaskList, TaskSummary
from tapnet.web.database import NEVER, Database, classes, examples, schema_version, tasks
from tapnet.web.problems import Problem, missing
from tapnet.web.settings import Limits

KEPT = 200  # changes of one task that can be undone

Id = Annotated[str, Path(pattern="^[0-9a-f]{1,32}$", examples=["9f86d081884c7d65"])]
NameBody = Annotated[Name, Body(embed=True)]


@dataclass(frozen=True)
class NewExample:
    """An image that was read and embedded, ready to be stored."""

    sha256: str
    features: bytes = field(repr=False)
    thumbnail: bytes = field(repr=False)


class NetworkChanged(Exception):
    """The task got examples of another network in the meantime: embed these again, with that one."""


class Store:
    """All tasks."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self.database, self.limits = database, limits

    def create_task(self, content: Sequence[tuple[str, Sequence[NewExample]]] = (), **columns: Any) -> TaskBody:
        """Return a new task with these columns; `content` has for each class its name and examples."""
        now, task = time.time(), secrets.token_hex(8)
        columns |= {"id": task, "revision": 1, "state": 0, "last_state": 0, "created": now, "updated": now}
        with self.database.write() as connection:
            connection.execute(select(schema_version).with_for_update())  # one at a time, so that the limit holds
            count = connection.execute(select(func.count()).select_from(tasks)).scalar_one()
            if count >= self.limits.tasks:
                raise Problem(409, f"The server keeps {self.limits.tasks} tasks, and has {count}: delete one first.")
            connection.execute(tasks.insert().values(**columns))
            self._check_room(connection, examples, task, 0, sum(len(new) for _, new in content))
            self._check_room(connection, classes, task, 0, len(content))
            for name, new in content:
                _insert_examples(connection, task, _insert_class(connection, task, 0, name), 0, new)
            return _task(connection, task)

    def list_tasks(
        self, limit: Annotated[int, Query(ge=1, le=1000)] = 100, offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0
    ) -> TaskList:
        """List the tasks, the last changed first."""
        counts = (_count(table, tasks.c.id, tasks.c.state).label(table.name) for table in (classes, examples))
        page = select(tasks, *counts).order_by(tasks.c.updated.desc(), tasks.c.id).limit(limit).offset(offset)
        with self.database.read() as connection:
            total = connection.execute(select(func.count()).select_from(tasks)).scalar_one()
            return TaskList(tasks=[TaskSummary(**row._mapping) for row in connection.execute(page)], total=total)

    def get_task(self, task: Id) -> TaskBody:
        """Get a task with its classes and examples."""
        with self.database.read() as connection:
            return _task(connection, task)

    def revision(self, task: str) -> int:
        """Return the number of changes of a task."""
        with self.database.read() as connection:
            return int(_scalar(connection, select(tasks.c.revision).where(tasks.c.id == task), "task", task))

    def change_settings(self, task: str, **columns: Any) -> TaskBody:
        """Set the name, method or projection dimension of a task."""
        with self._change(task, **columns) as (connection, _):
            return _task(connection, task)

    def delete_task(self, task: Id) -> None:
        """Delete a task with everything in it, for good."""
        with self.database.write() as connection:
            if not connection.execute(delete(tasks).where(tasks.c.id == task)).rowcount:
                raise missing("task", task)

    def add_class(self, task: Id, name: NameBody) -> TaskBody:
        """Add a class; it counts once it has an example."""
        with self._change(task) as (connection, state):
            _check_class_name(connection, task, state, name)
            self._check_room(connection, classes, task, state, 1)
            _insert_class(connection, task, _new_state(connection, task, state), name)
            return _task(connection, task)

    def rename_class(self, task: Id, class_id: Id, name: NameBody) -> TaskBody:
        """Rename a class."""
        with self._change(task) as (connection, state):
            before = _class_name(connection, task, state, class_id)
            _check_class_name(connection, task, state, name, besides=class_id)
            if name != before:
                new = _new_state(connection, task, state)
                this = classes.c.id == class_id, classes.c.removed == NEVER
                position = connection.execute(select(classes.c.position).where(*this)).scalar_one()
                connection.execute(update(classes).where(*this).values(removed=new))
                row = {"id": class_id, "task_id": task, "name": name, "position": position, "added": new}
                connection.execute(classes.insert().values(**row))
            return _task(connection, task)

    def delete_class(self, task: Id, class_id: Id) -> TaskBody:
        """Delete a class with its examples; undo brings them back."""
        with self._change(task) as (connection, state):
            _class_name(connection, task, state, class_id)
            new = _new_state(connection, task, state)
            for table, column in ((classes, classes.c.id), (examples, examples.c.class_id)):
                this = table.c.task_id == task, column == class_id, table.c.removed == NEVER
                connection.execute(update(table).where(*this).values(removed=new))
            return _task(connection, task)

    def add_examples(
        self, task: str, class_id: str, network: str, sha256: str, new: Sequence[NewExample]
    ) -> tuple[TaskBody, list[str]]:
        """Add images to a class, as embedded by a network; return the task and the ids of those it did not have.

        Raise `NetworkChanged` if the task has examples of another network by now, and `Problem` if another class has
        one of the images.
        """
        with self._change(task) as (connection, state):
            _class_name(connection, task, state, class_id)
            this = tasks.c.id == task
            known = connection.execute(select(tasks.c.network_sha256).where(this)).scalar()
            kept = select(examples.c.id).where(examples.c.task_id == task).limit(1)  # removed ones may come back, too
            if known != sha256 and connection.execute(kept).scalar():
                raise NetworkChanged
            connection.execute(update(tasks).where(this).values(network=network, network_sha256=sha256))
            owners = select(examples.c.sha256, examples.c.class_id).where(*_shown(examples, task, state))
            owner = {row.sha256: row.class_id for row in connection.execute(owners)}
            for example in new:
                if owner.get(example.sha256, class_id) != class_id:
                    name = _class_name(connection, task, state, owner[example.sha256])
                    raise Problem(409, f"This image is already an example of {name!r}: delete it there first.")
            fresh = {example.sha256: example for example in new if example.sha256 not in owner}
            self._check_room(connection, examples, task, state, len(fresh))
            ids = []
            if fresh:
                state = _new_state(connection, task, state)
                ids = _insert_examples(connection, task, class_id, state, list(fresh.values()))
            return _task(connection, task), ids

    def delete_example(self, task: Id, example: Id) -> TaskBody:
        """Delete an example; undo brings it back."""
        with self._change(task) as (connection, state):
            new = _new_state(connection, task, state)
            this = examples.c.task_id == task, examples.c.id == example, examples.c.removed == NEVER
            if not connection.execute(update(examples).where(*this).values(removed=new)).rowcount:
                raise missing("example", example)
            return _task(connection, task)

    def undo(self, task: Id) -> TaskBody:
        """Take the last change of classes or examples back."""
        return self._step(task, -1)

    def redo(self, task: Id) -> TaskBody:
        """Make the last change that was undone again."""
        return self._step(task, 1)

    def _step(self, task: str, step: int) -> TaskBody:
        with self._change(task) as (connection, state):
            before = _task(connection, task)
            if not (before.can_undo if step < 0 else before.can_redo):
                raise Problem(409, f"There is nothing to {'undo' if step < 0 else 'redo'}.")
            connection.execute(update(tasks).where(tasks.c.id == task).values(state=state + step))
            return _task(connection, task)

    def list_examples(self, task: Id) -> dict[str, list[ListedExample]]:
        """List the examples of all classes, with the addresses of their thumbnails."""
        listed = []
        for one in self.get_task(task).classes:
            for example in one.examples:
                where = f"/v1/tasks/{task}/examples/{example.id}/thumbnail"
                listed.append(ListedExample(**vars(example), class_id=one.id, class_name=one.name, thumbnail=where))
        return {"examples": listed}

    def thumbnail(self, task: str, example: str) -> bytes:
        """Return the small JPEG of an example."""
        thumbnail = select(examples.c.thumbnail).where(examples.c.task_id == task, examples.c.id == example)
        with self.database.read() as connection:
            return bytes(_scalar(connection, thumbnail, "example", example))

    def task_with_features(self, task: str) -> tuple[TaskBody, dict[str, NDArray[np.float32]], dict[str, bytes]]:
        """Return a task with the flat features and the thumbnails of its examples, by their ids."""
        columns = examples.c.id, examples.c.features, examples.c.thumbnail
        shown = _shown(examples, tasks.c.id, tasks.c.state)
        with self.database.read() as connection:
            stored = _task(connection, task)
            rows = connection.execute(select(*columns).join(tasks).where(*shown, tasks.c.id == task)).all()
        features = {row.id: np.frombuffer(row.features, np.float32) for row in rows}
        return stored, features, {row.id: bytes(row.thumbnail) for row in rows}

    @contextmanager
    def _change(self, task: str, **columns: Any) -> Iterator[tuple[Connection, int]]:
        """Inside, nobody else changes the task; it comes with its state, and columns of its row may be set."""
        columns |= {"revision": tasks.c.revision + 1, "updated": time.time()}
        with self.database.write() as connection:
            if not connection.execute(update(tasks).where(tasks.c.id == task).values(**columns)).rowcount:
                raise missing("task", task)
            yield connection, connection.execute(select(tasks.c.state).where(tasks.c.id == task)).scalar_one()

    def _check_room(self, connection: Connection, table: Table, task: str, state: int, more: int) -> None:
        most = getattr(self.limits, table.name)
        count = connection.execute(select(_count(table, task, state))).scalar_one()
        if count + more > most:
            words = f"A task may have {most} {table.name}; this one has {count}, and {more} more were given."
            raise Problem(409, words)


def _shown(
    table: Table, task: str | ColumnElement[str], state: int | ColumnElement[int]
) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for rows of a task in one of its states."""
    return table.c.task_id == task, table.c.added <= state, table.c.removed > state


def _count(table: Table, task: str | ColumnElement[str], state: int | ColumnElement[int]) -> ScalarSelect[int]:
    return select(func.count()).select_from(table).where(*_shown(table, task, state)).scalar_subquery()


def _scalar(connection: Connection, query: Select[Any], what: str, name: str) -> Any:
    value = connection.execute(query).scalar()
    if value is None:
        raise missing(what, name)
    return value


def _task(connection: Connection, task: str) -> TaskBody:
    row = connection.execute(select(tasks).where(tasks.c.id == task)).first()
    if row is None:
        raise missing("task", task)
    columns = examples.c.class_id, examples.c.id, examples.c.sha256
    shown = select(*columns).where(*_shown(examples, task, row.state))
    by_class: dict[str, list[ExampleBody]] = {}
    for example in connection.execute(shown.order_by(examples.c.added, examples.c.position)):
        by_class.setdefault(example.class_id, []).append(ExampleBody(id=example.id, sha256=example.sha256))
    rows = connection.execute(select(classes).where(*_shown(classes, task, row.state)).order_by(classes.c.position))
    bodies = [ClassBody(id=one.id, name=one.name, examples=by_class.get(one.id, [])) for one in rows]
    can_undo, can_redo = row.state > max(0, row.last_state - KEPT), row.state < row.last_state
    return TaskBody(**row._mapping, classes=bodies, can_undo=can_undo, can_redo=can_redo)


def _new_state(connection: Connection, task: str, state: int) -> int:
    """Return the number of the state after this one; what was undone before cannot be redone any more."""
    new = state + 1
    for table in (classes, examples):
        of_task = table.c.task_id == task
        out_of_reach = (table.c.added > state) | (table.c.removed <= new - KEPT)
        connection.execute(delete(table).where(of_task, out_of_reach))
        undone = table.c.removed.between(new, NEVER - 1)
        connection.execute(update(table).where(of_task, undone).values(removed=NEVER))
    connection.execute(update(tasks).where(tasks.c.id == task).values(state=new, last_state=new))
    return new


def _class_name(connection: Connection, task: str, state: int, class_id: str) -> str:
    name = select(classes.c.name).where(*_shown(classes, task, state), classes.c.id == class_id)
    return str(_scalar(connection, name, "class", class_id))


def _check_class_name(connection: Connection, task: str, state: int, name: str, besides: str = "") -> None:
    """Raise a problem if another class has the name, in upper or lower case."""
    others = select(classes.c.name).where(*_shown(classes, task, state), classes.c.id != besides)
    for other in connection.execute(others).scalars():
        if other.casefold() == name.casefold():
            raise Problem(409, f"There is already a class {other!r}: choose another name.")


def _insert_class(connection: Connection, task: str, state: int, name: str) -> str:
    last = connection.execute(select(func.max(classes.c.position)).where(classes.c.task_id == task)).scalar() or 0
    row = {"id": secrets.token_hex(8), "task_id": task, "name": name, "position": last + 1, "added": state}
    connection.execute(classes.insert().values(**row))
    return str(row["id"])


def _insert_examples(
    connection: Connection, task: str, class_id: str, state: int, new: Sequence[NewExample]
) -> list[str]:
    common = {"task_id": task, "class_id": class_id, "added": state}
    rows = [common | {"id": secrets.token_hex(8), "position": n} | vars(example) for n, example in enumerate(new)]
    if rows:
        connection.execute(examples.insert(), rows)
    return [str(row["id"]) for row in rows]
