"""Tasks in a database: every method is one transaction, and what it returned is on disk.

Changes of one task are made one after another: each first takes the task's row and counts up its revision.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, delete, func, select, update

from tapnet.web import journal
from tapnet.web.database import Database
from tapnet.web.problems import Problem
from tapnet.web.records import NewExample, StoredTask, Summary
from tapnet.web.schema import classes, examples, schema_version, tasks
from tapnet.web.settings import Limits
from tapnet.web.task_rows import class_name, count_rows, insert_class, insert_examples, missing, stored_task

_SETTINGS = ("name", "method", "projection_dim")


class Store:
    """All tasks. Raises `Problem` for what is not there, in the way, or too much."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self.database, self.limits = database, limits

    def check(self) -> None:
        """Raise an error unless the database answers."""
        with self.database.read() as connection:
            connection.execute(select(func.count()).select_from(tasks).where(tasks.c.id == "")).scalar()

    def create_task(self, name: str, network: str | None = None, method: str | None = None) -> StoredTask:
        """Return a new task without classes."""
        with self.database.write() as connection:
            return stored_task(connection, self._insert_task(connection, name, network, method))

    def import_task(
        self,
        name: str,
        network: str,
        sha256: str,
        method: str | None,
        dim: int | None,
        content: Sequence[tuple[str, Any]],
    ) -> StoredTask:
        """Return a new task with everything in it; `content` has for each class its name and its `NewExample`s."""
        with self.database.write() as connection:
            task_id = self._insert_task(connection, name, network, method)
            values = {"network": network, "network_sha256": sha256, "projection_dim": dim}
            connection.execute(update(tasks).where(tasks.c.id == task_id).values(**values))
            self._check_room(connection, task_id, sum(len(each) for _, each in content))
            if len(content) > self.limits.classes:
                raise Problem(409, f"A task may have {self.limits.classes} classes, the file has {len(content)}.")
            for name_of_class, new in content:
                class_id = insert_class(connection, task_id, name_of_class)
                insert_examples(connection, task_id, class_id, new)
            return stored_task(connection, task_id)

    def list_tasks(self, limit: int, offset: int) -> tuple[list[Summary], int]:
        """Return a page of the tasks, the last changed first, and how many there are."""
        with self.database.read() as connection:
            total = connection.execute(select(func.count()).select_from(tasks)).scalar_one()
            order = tasks.c.updated.desc(), tasks.c.id
            rows = connection.execute(select(tasks).order_by(*order).limit(limit).offset(offset)).all()
            ids = [row.id for row in rows]
            in_classes, in_examples = (count_rows(connection, table, ids) for table in (classes, examples))
            found = [
                Summary(
                    id=row.id,
                    name=row.name,
                    classes=in_classes.get(row.id, 0),
                    examples=in_examples.get(row.id, 0),
                    revision=row.revision,
                    created=row.created,
                    updated=row.updated,
                )
                for row in rows
            ]
            return found, total

    def get_task(self, task_id: str) -> StoredTask:
        with self.database.read() as connection:
            return stored_task(connection, task_id)

    def revision(self, task_id: str) -> int:
        """Return the number of changes of a task."""
        with self.database.read() as connection:
            found = connection.execute(select(tasks.c.revision).where(tasks.c.id == task_id)).scalar()
        if found is None:
            raise missing("task", task_id)
        return int(found)

    def change_settings(self, task_id: str, values: dict[str, Any]) -> StoredTask:
        """Set the name, method or projection dimension of a task."""
        with self._change(task_id) as connection:
            chosen = {key: value for key, value in values.items() if key in _SETTINGS}
            if chosen:
                connection.execute(update(tasks).where(tasks.c.id == task_id).values(**chosen))
            return stored_task(connection, task_id)

    def delete_task(self, task_id: str) -> None:
        with self.database.write() as connection:
            if not connection.execute(delete(tasks).where(tasks.c.id == task_id)).rowcount:
                raise missing("task", task_id)

    def add_class(self, task_id: str, name: str) -> StoredTask:
        with self._change(task_id) as connection:
            self._check_name(connection, task_id, name)
            count = count_rows(connection, classes, [task_id]).get(task_id, 0)
            if count >= self.limits.classes:
                raise Problem(409, f"A task may have {self.limits.classes} classes, and this one has {count}.")
            class_id = insert_class(connection, task_id, name)
            journal.record(connection, task_id, journal.show(class_ids=[class_id]))
            return stored_task(connection, task_id)

    def rename_class(self, task_id: str, class_id: str, name: str) -> StoredTask:
        with self._change(task_id) as connection:
            before = class_name(connection, task_id, class_id)
            self._check_name(connection, task_id, name, besides=class_id)
            if name != before:
                connection.execute(update(classes).where(classes.c.id == class_id).values(name=name))
                journal.record(connection, task_id, journal.rename(class_id, before, name))
            return stored_task(connection, task_id)

    def delete_class(self, task_id: str, class_id: str) -> StoredTask:
        """Delete a class with its examples; `undo` brings both back."""
        with self._change(task_id) as connection:
            class_name(connection, task_id, class_id)
            of_class = select(examples.c.id).where(examples.c.class_id == class_id, examples.c.present)
            gone = list(connection.execute(of_class).scalars())
            connection.execute(update(classes).where(classes.c.id == class_id).values(present=False))
            connection.execute(update(examples).where(examples.c.id.in_(gone)).values(present=False))
            journal.record(connection, task_id, journal.hide([class_id], gone))
            return stored_task(connection, task_id)

    def add_examples(
        self, task_id: str, class_id: str, network: str, sha256: str, new: Sequence[NewExample]
    ) -> tuple[StoredTask, list[str]]:
        """Add images to a class, as embedded by a network; return the task and the ids of those it did not have.

        Raise `NetworkChanged` if the task has examples of another network by now, and `Problem` if another class has
        one of the images.
        """
        with self._change(task_id) as connection:
            name = class_name(connection, task_id, class_id)
            row = connection.execute(select(tasks.c.network_sha256).where(tasks.c.id == task_id)).one()
            owners = (
                select(examples.c.sha256, classes.c.name)
                .join(classes, classes.c.id == examples.c.class_id)
                .where(examples.c.task_id == task_id, examples.c.present)
            )
            there = {each[0]: each[1] for each in connection.execute(owners)}
            kept = select(func.count()).select_from(examples).where(examples.c.task_id == task_id)
            if row.network_sha256 != sha256 and connection.execute(kept).scalar():  # deleted ones may come back, too
                raise NetworkChanged
            connection.execute(
                update(tasks).where(tasks.c.id == task_id).values(network=network, network_sha256=sha256)
            )
            if taken := [there[each.sha256] for each in new if there.get(each.sha256, name) != name]:
                raise Problem(409, f"This image is already an example of {taken[0]!r}: delete it there first.")
            fresh = {each.sha256: each for each in new if each.sha256 not in there}
            self._check_room(connection, task_id, len(fresh))
            ids = insert_examples(connection, task_id, class_id, list(fresh.values()))
            if ids:
                journal.record(connection, task_id, journal.show(example_ids=ids))
            return stored_task(connection, task_id), ids

    def delete_example(self, task_id: str, example_id: str) -> StoredTask:
        with self._change(task_id) as connection:
            where = examples.c.task_id == task_id, examples.c.id == example_id, examples.c.present
            if not connection.execute(update(examples).where(*where).values(present=False)).rowcount:
                raise missing("example", example_id)
            journal.record(connection, task_id, journal.hide(example_ids=[example_id]))
            return stored_task(connection, task_id)

    def undo(self, task_id: str) -> StoredTask:
        """Take the last change back."""
        return self._step(task_id, back=True)

    def redo(self, task_id: str) -> StoredTask:
        """Make the last change that was undone again."""
        return self._step(task_id, back=False)

    def thumbnail(self, task_id: str, example_id: str) -> bytes:
        """Return the small JPEG of an example."""
        with self.database.read() as connection:
            where = examples.c.task_id == task_id, examples.c.id == example_id
            found = connection.execute(select(examples.c.thumbnail).where(*where)).scalar()
        if found is None:
            raise missing("example", example_id)
        return bytes(found)

    def task_with_features(self, task_id: str) -> tuple[StoredTask, dict[str, NDArray[np.float32]], dict[str, bytes]]:
        """Return a task with the flat features and the thumbnails of its examples, by their ids."""
        with self.database.read() as connection:
            task = stored_task(connection, task_id)
            columns = examples.c.id, examples.c.features, examples.c.thumbnail
            rows = connection.execute(select(*columns).where(examples.c.task_id == task_id, examples.c.present)).all()
        features = {row.id: np.frombuffer(row.features, np.float32) for row in rows}
        return task, features, {row.id: bytes(row.thumbnail) for row in rows}

    @contextmanager
    def _change(self, task_id: str) -> Iterator[Connection]:
        """Inside, nobody else changes the task."""
        with self.database.write() as connection:
            values = {"revision": tasks.c.revision + 1, "updated": time.time()}
            if not connection.execute(update(tasks).where(tasks.c.id == task_id).values(**values)).rowcount:
                raise missing("task", task_id)
            yield connection

    def _step(self, task_id: str, back: bool) -> StoredTask:
        with self._change(task_id) as connection:
            if not journal.step(connection, task_id, back):
                raise Problem(409, f"There is nothing to {'undo' if back else 'redo'}.")
            return stored_task(connection, task_id)

    def _insert_task(self, connection: Connection, name: str, network: str | None, method: str | None) -> str:
        connection.execute(select(schema_version).with_for_update())  # one at a time, so that the limit holds
        count = connection.execute(select(func.count()).select_from(tasks)).scalar_one()
        if count >= self.limits.tasks:
            raise Problem(409, f"The server keeps {self.limits.tasks} tasks, and has {count}: delete one first.")
        now, task_id = time.time(), secrets.token_hex(8)
        values = {"id": task_id, "name": name, "asked_network": network, "method": method}
        connection.execute(tasks.insert().values(**values, revision=1, created=now, updated=now))
        return task_id

    def _check_name(self, connection: Connection, task_id: str, name: str, besides: str = "") -> None:
        """Raise a problem if another class has the name, in upper or lower case."""
        where = classes.c.task_id == task_id, classes.c.present, classes.c.id != besides
        for other in connection.execute(select(classes.c.name).where(*where)).scalars():
            if other.casefold() == name.casefold():
                raise Problem(409, f"There is already a class {other!r}: choose another name.")

    def _check_room(self, connection: Connection, task_id: str, more: int) -> None:
        count = count_rows(connection, examples, [task_id]).get(task_id, 0)
        if count + more > self.limits.examples:
            raise Problem(
                409,
                f"A task may have {self.limits.examples} examples; this one has {count}, and {more} more were given.",
            )


class NetworkChanged(Exception):
    """The task got examples of another network in the meantime: embed these again, with that one."""
