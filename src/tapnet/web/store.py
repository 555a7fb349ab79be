"""Tasks in a database: every method is one transaction, and what it returned is on disk.

Changes of one task are made one after another: each first takes the task's row and counts up its revision. A change
shows or hides rows (`present`), or renames a class; it is kept as JSON with what takes it back. Nothing else is ever
undone, and rows that no kept change can bring back are deleted.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, ScalarSelect, Table, delete, func, select, update

from tapnet.web.bodies import ClassBody, ExampleBody, TaskBody, TaskSummary
from tapnet.web.database import Database, changes, classes, examples, schema_version, tasks
from tapnet.web.problems import Problem, missing
from tapnet.web.settings import Limits

KEPT = 200  # changes of one task


@dataclass(frozen=True)
class NewExample:
    """An image that was read and embedded, ready to be stored."""

    sha256: str
    features: bytes = field(repr=False)
    thumbnail: bytes = field(repr=False)


class NetworkChanged(Exception):
    """The task got examples of another network in the meantime: embed these again, with that one."""


class Store:
    """All tasks. Raises `Problem` for what is not there, in the way, or too much."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self.database, self.limits = database, limits

    def create_task(self, content: Sequence[tuple[str, Sequence[NewExample]]] = (), **columns: Any) -> TaskBody:
        """Return a new task with these columns; `content` has for each class its name and examples."""
        now, task_id = time.time(), secrets.token_hex(8)
        with self.database.write() as connection:
            connection.execute(select(schema_version).with_for_update())  # one at a time, so that the limit holds
            count = connection.execute(select(func.count()).select_from(tasks)).scalar_one()
            if count >= self.limits.tasks:
                raise Problem(409, f"The server keeps {self.limits.tasks} tasks, and has {count}: delete one first.")
            connection.execute(tasks.insert().values(**columns, id=task_id, revision=1, created=now, updated=now))
            self._check_room(connection, task_id, sum(len(new) for _, new in content))
            if len(content) > self.limits.classes:
                raise Problem(409, f"A task may have {self.limits.classes} classes, the file has {len(content)}.")
            for name, new in content:
                _insert_examples(connection, task_id, _insert_class(connection, task_id, name), new)
            return _task(connection, task_id)

    def list_tasks(self, limit: int, offset: int) -> tuple[list[TaskSummary], int]:
        """Return a page of the tasks, the last changed first, and how many there are."""
        counts = (_count(table, tasks.c.id).label(table.name) for table in (classes, examples))
        page = select(tasks, *counts).order_by(tasks.c.updated.desc(), tasks.c.id).limit(limit).offset(offset)
        with self.database.read() as connection:
            total = connection.execute(select(func.count()).select_from(tasks)).scalar_one()
            return [TaskSummary(**row._mapping) for row in connection.execute(page)], total

    def get_task(self, task_id: str) -> TaskBody:
        with self.database.read() as connection:
            return _task(connection, task_id)

    def revision(self, task_id: str) -> int:
        """Return the number of changes of a task."""
        with self.database.read() as connection:
            revision = connection.execute(select(tasks.c.revision).where(tasks.c.id == task_id)).scalar()
        if revision is None:
            raise missing("task", task_id)
        return int(revision)

    def change_settings(self, task_id: str, values: dict[str, Any]) -> TaskBody:
        """Set the name, method or projection dimension of a task."""
        with self._change(task_id, **values) as connection:
            return _task(connection, task_id)

    def delete_task(self, task_id: str) -> None:
        with self.database.write() as connection:
            if not connection.execute(delete(tasks).where(tasks.c.id == task_id)).rowcount:
                raise missing("task", task_id)

    def add_class(self, task_id: str, name: str) -> TaskBody:
        with self._change(task_id) as connection:
            _check_class_name(connection, task_id, name)
            count = connection.execute(select(_count(classes, task_id))).scalar_one()
            if count >= self.limits.classes:
                raise Problem(409, f"A task may have {self.limits.classes} classes, and this one has {count}.")
            class_id = _insert_class(connection, task_id, name)
            _record(connection, task_id, {"present": True, "classes": [class_id], "examples": []})
            return _task(connection, task_id)

    def rename_class(self, task_id: str, class_id: str, name: str) -> TaskBody:
        with self._change(task_id) as connection:
            before = _class_name(connection, task_id, class_id)
            _check_class_name(connection, task_id, name, besides=class_id)
            if name != before:
                connection.execute(update(classes).where(classes.c.id == class_id).values(name=name))
                _record(connection, task_id, {"class": class_id, "before": before, "after": name})
            return _task(connection, task_id)

    def delete_class(self, task_id: str, class_id: str) -> TaskBody:
        """Delete a class with its examples; undoing that brings both back."""
        with self._change(task_id) as connection:
            _class_name(connection, task_id, class_id)
            of_class = select(examples.c.id).where(examples.c.class_id == class_id, examples.c.present)
            hidden = list(connection.execute(of_class).scalars())
            _show_or_hide(connection, task_id, False, [class_id], hidden)
            _record(connection, task_id, {"present": False, "classes": [class_id], "examples": hidden})
            return _task(connection, task_id)

    def add_examples(
        self, task_id: str, class_id: str, network: str, sha256: str, new: Sequence[NewExample]
    ) -> tuple[TaskBody, list[str]]:
        """Add images to a class, as embedded by a network; return the task and the ids of those it did not have.

        Raise `NetworkChanged` if the task has examples of another network by now, and `Problem` if another class has
        one of the images.
        """
        with self._change(task_id) as connection:
            name = _class_name(connection, task_id, class_id)
            this, of_task = tasks.c.id == task_id, examples.c.task_id == task_id
            known = connection.execute(select(tasks.c.network_sha256).where(this)).scalar()
            kept = select(examples.c.id).where(of_task).limit(1)  # deleted ones may come back, too
            if known != sha256 and connection.execute(kept).scalar():
                raise NetworkChanged
            connection.execute(update(tasks).where(this).values(network=network, network_sha256=sha256))
            owners = select(examples.c.sha256, classes.c.name).where(of_task, examples.c.present).join(classes)
            owner = {row.sha256: row.name for row in connection.execute(owners)}
            for example in new:
                if owner.get(example.sha256, name) != name:
                    taken = owner[example.sha256]
                    raise Problem(409, f"This image is already an example of {taken!r}: delete it there first.")
            fresh = {example.sha256: example for example in new if example.sha256 not in owner}
            self._check_room(connection, task_id, len(fresh))
            ids = _insert_examples(connection, task_id, class_id, list(fresh.values()))
            if ids:
                _record(connection, task_id, {"present": True, "classes": [], "examples": ids})
            return _task(connection, task_id), ids

    def delete_example(self, task_id: str, example_id: str) -> TaskBody:
        with self._change(task_id) as connection:
            if not _show_or_hide(connection, task_id, False, [], [example_id]):
                raise missing("example", example_id)
            _record(connection, task_id, {"present": False, "classes": [], "examples": [example_id]})
            return _task(connection, task_id)

    def step(self, task_id: str, back: bool) -> TaskBody:
        """Undo the last change, or redo the last one that was undone."""
        with self._change(task_id) as connection:
            order = changes.c.number.desc() if back else changes.c.number.asc()
            where = changes.c.task_id == task_id, changes.c.undone == (not back)
            row = connection.execute(select(changes).where(*where).order_by(order).limit(1)).first()
            if row is None:
                raise Problem(409, f"There is nothing to {'undo' if back else 'redo'}.")
            change = json.loads(row.content)
            if "class" in change:
                name = change["before" if back else "after"]
                connection.execute(update(classes).where(classes.c.id == change["class"]).values(name=name))
            else:
                present = change["present"] != back
                _show_or_hide(connection, task_id, present, change["classes"], change["examples"])
            this = changes.c.task_id == task_id, changes.c.number == row.number
            connection.execute(update(changes).where(*this).values(undone=back))
            return _task(connection, task_id)

    def thumbnail(self, task_id: str, example_id: str) -> bytes:
        """Return the small JPEG of an example."""
        with self.database.read() as connection:
            where = examples.c.task_id == task_id, examples.c.id == example_id
            thumbnail = connection.execute(select(examples.c.thumbnail).where(*where)).scalar()
        if thumbnail is None:
            raise missing("example", example_id)
        return bytes(thumbnail)

    def task_with_features(self, task_id: str) -> tuple[TaskBody, dict[str, NDArray[np.float32]], dict[str, bytes]]:
        """Return a task with the flat features and the thumbnails of its examples, by their ids."""
        with self.database.read() as connection:
            task = _task(connection, task_id)
            columns = examples.c.id, examples.c.features, examples.c.thumbnail
            rows = connection.execute(select(*columns).where(examples.c.task_id == task_id, examples.c.present)).all()
        features = {row.id: np.frombuffer(row.features, np.float32) for row in rows}
        return task, features, {row.id: bytes(row.thumbnail) for row in rows}

    @contextmanager
    def _change(self, task_id: str, **values: Any) -> Iterator[Connection]:
        """Inside, nobody else changes the task; columns of its row may be set."""
        with self.database.write() as connection:
            values |= {"revision": tasks.c.revision + 1, "updated": time.time()}
            if not connection.execute(update(tasks).where(tasks.c.id == task_id).values(**values)).rowcount:
                raise missing("task", task_id)
            yield connection

    def _check_room(self, connection: Connection, task_id: str, more: int) -> None:
        most, count = self.limits.examples, connection.execute(select(_count(examples, task_id))).scalar_one()
        if count + more > most:
            raise Problem(409, f"A task may have {most} examples; this one has {count}, and {more} more were given.")


def _count(table: Table, task_id: str | ColumnElement[str]) -> ScalarSelect[int]:
    where = table.c.task_id == task_id, table.c.present
    return select(func.count()).select_from(table).where(*where).scalar_subquery()


def _task(connection: Connection, task_id: str) -> TaskBody:
    row = connection.execute(select(tasks).where(tasks.c.id == task_id)).first()
    if row is None:
        raise missing("task", task_id)
    columns = examples.c.class_id, examples.c.id, examples.c.sha256
    where = examples.c.task_id == task_id, examples.c.present
    by_class: dict[str, list[ExampleBody]] = {}
    for example in connection.execute(select(*columns).where(*where).order_by(examples.c.position)):
        by_class.setdefault(example.class_id, []).append(ExampleBody(id=example.id, sha256=example.sha256))
    of_task = select(classes).where(classes.c.task_id == task_id, classes.c.present).order_by(classes.c.position)
    rows = connection.execute(of_task)
    bodies = [ClassBody(id=one.id, name=one.name, examples=by_class.get(one.id, [])) for one in rows]
    undone = set(connection.execute(select(changes.c.undone).where(changes.c.task_id == task_id).distinct()).scalars())
    return TaskBody(**row._mapping, classes=bodies, can_undo=False in undone, can_redo=True in undone)


def _class_name(connection: Connection, task_id: str, class_id: str) -> str:
    where = classes.c.task_id == task_id, classes.c.id == class_id, classes.c.present
    name = connection.execute(select(classes.c.name).where(*where)).scalar()
    if name is None:
        raise missing("class", class_id)
    return str(name)


def _check_class_name(connection: Connection, task_id: str, name: str, besides: str = "") -> None:
    """Raise a problem if another class has the name, in upper or lower case."""
    where = classes.c.task_id == task_id, classes.c.present, classes.c.id != besides
    for other in connection.execute(select(classes.c.name).where(*where)).scalars():
        if other.casefold() == name.casefold():
            raise Problem(409, f"There is already a class {other!r}: choose another name.")


def _next_position(connection: Connection, table: Table, task_id: str) -> int:
    return (connection.execute(select(func.max(table.c.position)).where(table.c.task_id == task_id)).scalar() or 0) + 1


def _insert_class(connection: Connection, task_id: str, name: str) -> str:
    row = {"id": secrets.token_hex(8), "task_id": task_id, "name": name, "present": True}
    connection.execute(classes.insert().values(**row, position=_next_position(connection, classes, task_id)))
    return str(row["id"])


def _insert_examples(connection: Connection, task_id: str, class_id: str, new: Sequence[NewExample]) -> list[str]:
    common = {"task_id": task_id, "class_id": class_id, "present": True}
    first = _next_position(connection, examples, task_id)
    rows = [
        {"id": secrets.token_hex(8), "position": first + number} | common | vars(example)
        for number, example in enumerate(new)
    ]
    if rows:
        connection.execute(examples.insert(), rows)
    return [str(row["id"]) for row in rows]


def _show_or_hide(
    connection: Connection, task_id: str, present: bool, class_ids: Sequence[str], example_ids: Sequence[str]
) -> int:
    """Return how many rows were hidden and are shown now, or the other way round."""
    changed = 0
    for table, ids in ((classes, class_ids), (examples, example_ids)):
        if ids:
            where = table.c.task_id == task_id, table.c.id.in_(ids), table.c.present != present
            changed += connection.execute(update(table).where(*where).values(present=present)).rowcount
    return changed


def _record(connection: Connection, task_id: str, change: dict[str, Any]) -> None:
    """Remember a change that was made; what had been undone before it cannot be redone any more."""
    of_task = changes.c.task_id == task_id
    forgotten = connection.execute(delete(changes).where(of_task, changes.c.undone)).rowcount
    number = (connection.execute(select(func.max(changes.c.number)).where(of_task)).scalar() or 0) + 1
    forgotten += connection.execute(delete(changes).where(of_task, changes.c.number <= number - KEPT)).rowcount
    values = {"task_id": task_id, "number": number, "content": json.dumps(change), "undone": False}
    connection.execute(changes.insert().values(**values))
    if not forgotten:
        return
    kept = [json.loads(text) for text in connection.execute(select(changes.c.content).where(of_task)).scalars()]
    for table, key in ((examples, "examples"), (classes, "classes")):
        named = {row_id for change in kept for row_id in change.get(key, ())}
        hidden = connection.execute(select(table.c.id).where(table.c.task_id == task_id, ~table.c.present)).scalars()
        for row_id in sorted(set(hidden) - named):
            connection.execute(delete(table).where(table.c.id == row_id))
