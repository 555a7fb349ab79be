"""Undo and redo: each change of a task is kept with what takes it back.

A change shows or hides rows (`present`), or renames a class; nothing else is ever undone. Rows that no kept change can
bring back are deleted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from tapnet.web.schema import changes, classes, examples

KEPT = 200  # changes of one task


def show(class_ids: Sequence[str] = (), example_ids: Sequence[str] = ()) -> dict[str, Any]:
    """Return the change that adds these rows, which are there already."""
    return {"classes": list(class_ids), "examples": list(example_ids), "present": True}


def hide(class_ids: Sequence[str] = (), example_ids: Sequence[str] = ()) -> dict[str, Any]:
    """Return the change that deletes these rows, which are hidden already."""
    return show(class_ids, example_ids) | {"present": False}


def rename(class_id: str, before: str, after: str) -> dict[str, Any]:
    """Return the change of a class's name."""
    return {"class": class_id, "before": before, "after": after}


def record(connection: Connection, task_id: str, change: dict[str, Any]) -> None:
    """Remember a change that was made; what had been undone before it cannot be redone any more."""
    forgotten = connection.execute(delete(changes).where(changes.c.task_id == task_id, changes.c.undone)).rowcount
    last = connection.execute(select(func.max(changes.c.number)).where(changes.c.task_id == task_id)).scalar() or 0
    values = {"task_id": task_id, "number": last + 1, "content": json.dumps(change), "undone": False}
    connection.execute(changes.insert().values(**values))
    old = changes.c.number <= last + 1 - KEPT
    forgotten += connection.execute(delete(changes).where(changes.c.task_id == task_id, old)).rowcount
    if forgotten:
        _purge(connection, task_id)


def step(connection: Connection, task_id: str, back: bool) -> bool:
    """Undo the last change, or redo the last one undone; return whether there was one."""
    order = changes.c.number.desc() if back else changes.c.number.asc()
    where = changes.c.task_id == task_id, changes.c.undone == (not back)
    row = connection.execute(select(changes).where(*where).order_by(order).limit(1)).first()
    if row is None:
        return False
    _apply(connection, task_id, json.loads(row.content), back)
    this = changes.c.task_id == task_id, changes.c.number == row.number
    connection.execute(update(changes).where(*this).values(undone=back))
    return True


def steps(connection: Connection, task_id: str) -> tuple[bool, bool]:
    """Return whether there is a change to undo, and one to redo."""
    found = set(connection.execute(select(changes.c.undone).where(changes.c.task_id == task_id).distinct()).scalars())
    return False in found, True in found


def _apply(connection: Connection, task_id: str, change: dict[str, Any], back: bool) -> None:
    if "class" in change:
        name = change["before" if back else "after"]
        where = classes.c.task_id == task_id, classes.c.id == change["class"]
        connection.execute(update(classes).where(*where).values(name=name))
        return
    present = change["present"] != back
    for table, ids in ((classes, change["classes"]), (examples, change["examples"])):
        if ids:
            where = table.c.task_id == task_id, table.c.id.in_(ids)
            connection.execute(update(table).where(*where).values(present=present))


def _purge(connection: Connection, task_id: str) -> None:
    """Delete hidden rows that no remaining change names."""
    contents = connection.execute(select(changes.c.content).where(changes.c.task_id == task_id)).scalars()
    named = [json.loads(content) for content in contents]
    for table, key in ((examples, "examples"), (classes, "classes")):
        kept = {row for change in named for row in change.get(key, ())}
        hidden = connection.execute(select(table.c.id).where(table.c.task_id == task_id, ~table.c.present)).scalars()
        for row in sorted(set(hidden) - kept):
            connection.execute(delete(table).where(table.c.id == row))
