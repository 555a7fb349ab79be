"""The tables of the store, and the migrations that make and change them."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy import Boolean, Column, Connection, Float, ForeignKey, Integer, LargeBinary, String, Table, Text

from tapnet.errors import UserError

metadata = sa.MetaData()
_LOCK = 7_402_019  # of PostgreSQL, while migrations run

schema_version = Table("schema_version", metadata, Column("version", Integer, primary_key=True))

tasks = Table(
    "tasks",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", Text, nullable=False),
    Column("asked_network", Text),  # NULL: chosen by what the first examples look like
    Column("network", Text),  # NULL as long as there is no example
    Column("network_sha256", Text),
    Column("method", Text),  # NULL: that of the network
    Column("projection_dim", Integer),
    Column("revision", Integer, nullable=False),  # counts changes
    Column("created", Float, nullable=False),
    Column("updated", Float, nullable=False),
)

classes = Table(
    "classes",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("task_id", ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("present", Boolean, nullable=False),  # false: deleted, but the deletion can be undone
)

examples = Table(
    "examples",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("task_id", ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    Column("class_id", ForeignKey("classes.id", ondelete="CASCADE"), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("features", LargeBinary, nullable=False),  # float32, as the network gave them
    Column("thumbnail", LargeBinary, nullable=False),  # a small JPEG
    Column("position", Integer, nullable=False),
    Column("present", Boolean, nullable=False),
    sa.Index("examples_of_task", "task_id", "position"),
)

changes = Table(
    "changes",
    metadata,
    Column("task_id", ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("content", Text, nullable=False),  # JSON, of `journal`
    Column("undone", Boolean, nullable=False),
)


def _first_tables(connection: Connection) -> None:
    metadata.create_all(connection, [tasks, classes, examples, changes])


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_first_tables,)  # the n-th makes version n; append only


def migrate(connection: Connection) -> int:
    """Bring the tables to the newest version and return it; one process at a time, all in one transaction.

    Raise UserError if the database was written by a later version of the package.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    if not sa.inspect(connection).has_table(schema_version.name):
        schema_version.create(connection)
    found = connection.execute(sa.select(schema_version.c.version)).scalar() or 0
    newest = len(MIGRATIONS)
    if found > newest:
        raise UserError(
            f"The store has version {found}, this tapnet knows {newest}: update tapnet, or use another store.",
            parameter="store",
        )
    for migration in MIGRATIONS[found:]:
        migration(connection)
    if found < newest:
        connection.execute(schema_version.delete())
        connection.execute(schema_version.insert().values(version=newest))
    return newest
