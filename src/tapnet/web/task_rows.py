"""Rows of a task, inside a transaction: read, counted and inserted."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from sqlalchemy import Connection, Table, func, select

from tapnet.web import journal
from tapnet.web.problems import Problem
from tapnet.web.records import NewExample, StoredClass, StoredExample, StoredTask
from tapnet.web.schema import classes, examples, tasks


def missing(what: str, name: str) -> Problem:
    return Problem(404, f"There is no {what} {name!r}.")


def class_name(connection: Connection, task_id: str, class_id: str) -> str:
    where = classes.c.task_id == task_id, classes.c.id == class_id, classes.c.present
    name = connection.execute(select(classes.c.name).where(*where)).scalar()
    if name is None:
        raise missing("class", class_id)
    return str(name)


def insert_class(connection: Connection, task_id: str, name: str) -> str:
    last = connection.execute(select(func.max(classes.c.position)).where(classes.c.task_id == task_id)).scalar() or 0
    class_id = secrets.token_hex(8)
    values = {"id": class_id, "task_id": task_id, "name": name, "position": last + 1, "present": True}
    connection.execute(classes.insert().values(**values))
    return class_id


def insert_examples(connection: Connection, task_id: str, class_id: str, new: Sequence[NewExample]) -> list[str]:
    last = connection.execute(select(func.max(examples.c.position)).where(examples.c.task_id == task_id)).scalar() or 0
    rows = [
        {
            "id": secrets.token_hex(8),
            "task_id": task_id,
            "class_id": class_id,
            "sha256": each.sha256,
            "features": each.features,
            "thumbnail": each.thumbnail,
            "position": last + 1 + number,
            "present": True,
        }
        for number, each in enumerate(new)
    ]
    if rows:
        connection.execute(examples.insert(), rows)
    return [str(row["id"]) for row in rows]


def count_rows(connection: Connection, table: Table, task_ids: Sequence[str]) -> dict[str, int]:
    where = table.c.task_id.in_(task_ids), table.c.present
    query = select(table.c.task_id, func.count()).where(*where).group_by(table.c.task_id)
    return {row[0]: row[1] for row in connection.execute(query)}


def stored_task(connection: Connection, task_id: str) -> StoredTask:
    row = connection.execute(select(tasks).where(tasks.c.id == task_id)).first()
    if row is None:
        raise missing("task", task_id)
    columns = examples.c.class_id, examples.c.id, examples.c.sha256
    where = examples.c.task_id == task_id, examples.c.present
    by_class: dict[str, list[StoredExample]] = {}
    for each in connection.execute(select(*columns).where(*where).order_by(examples.c.position)):
        by_class.setdefault(each.class_id, []).append(StoredExample(each.id, each.sha256))
    where_class = classes.c.task_id == task_id, classes.c.present
    found = connection.execute(select(classes).where(*where_class).order_by(classes.c.position))
    stored = tuple(StoredClass(each.id, each.name, tuple(by_class.get(each.id, ()))) for each in found)
    can_undo, can_redo = journal.steps(connection, task_id)
    return StoredTask(**row._mapping, classes=stored, can_undo=can_undo, can_redo=can_redo)
