"""The tables of the store, in SQLite or PostgreSQL, and transactions that mean the same in both."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import sqlalchemy as sa
from filelock import FileLock
from sqlalchemy import Column, Connection, Float, ForeignKey, Integer, LargeBinary, String, Table, Text
from sqlalchemy.exc import OperationalError

from tapnet.errors import UserError

VERSION = 2  # of the tables
_LOCK = 7_402_019  # of PostgreSQL, while tables are created
_WRITES = "tapnet_writes"

metadata = sa.MetaData()

schema_version = Table("schema_version", metadata, Column("version", Integer, primary_key=True))

tasks = Table(
    "tasks",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", Text, nullable=False),
    Column("network", Text),  # NULL: chosen by what the first examples look like
    Column("network_sha256", Text),  # NULL as long as there is no example
    Column("method", Text),  # NULL: that of the network
    Column("projection_dim", Integer),
    Column("revision", Integer, nullable=False),  # counts changes
    Column("state", Integer, nullable=False),  # counts changes of classes and examples but those that were undone
    Column("last_state", Integer, nullable=False),  # counts those that were undone, too, as long as they can be redone
    Column("created", Float, nullable=False),
    Column("updated", Float, nullable=False),
)

NEVER = 2**31 - 1  # as the state in which a row is removed

classes = Table(  # a row per name that a class had
    "classes",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("added", Integer, primary_key=True),  # the first state with this row
    Column("removed", Integer, nullable=False, default=NEVER),  # the first state after `added` without it
    Column("task_id", ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("position", Integer, nullable=False),
)

examples = Table(
    "examples",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("added", Integer, nullable=False),
    Column("removed", Integer, nullable=False, default=NEVER),
    Column("task_id", ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    Column("class_id", String(32), nullable=False),
    Column("position", Integer, nullable=False),  # among those that were added together
    Column("sha256", String(64), nullable=False),
    Column("features", LargeBinary, nullable=False),  # float32, as the network gave them
    Column("thumbnail", LargeBinary, nullable=False),  # a small JPEG
    sa.Index("examples_of_task", "task_id", "added", "position"),
)


class Database:
    """A database with these tables; several processes, and with PostgreSQL machines, may have it open."""

    def __init__(self, address: str) -> None:
        """Open the database, with new tables if it is empty; raise UserError if that fails or it has other tables."""
        sqlite = address.startswith("sqlite")
        pool: dict[str, Any] = {"pool_pre_ping": True, "pool_size": 8, "max_overflow": 8}
        pool["isolation_level"] = "READ COMMITTED"
        self.engine = _sqlite(address) if sqlite else sa.create_engine(address, **pool)
        self._reading = self.engine if sqlite else self.engine.execution_options(isolation_level="REPEATABLE READ")
        self._writing = self.engine.execution_options(**{_WRITES: True})
        # One process at a time opens an SQLite file: switching to WAL does not wait for others, it fails.
        alone = FileLock(f"{address.removeprefix('sqlite:///')}.lock") if sqlite else nullcontext()
        try:
            with alone, self.write() as connection:
                _create_tables(connection)
        except OperationalError as error:
            reason = str(error.orig).strip().splitlines()[0]
            self.close()
            raise UserError(f"The store cannot be opened: {reason}.", parameter="store") from None
        except UserError:
            self.close()
            raise

    def read(self) -> AbstractContextManager[Connection]:
        """Inside, all reads see one state of the database."""
        return self._reading.begin()

    def write(self) -> AbstractContextManager[Connection]:
        """Inside, changes are made together; they are on disk when it ends, or none is."""
        return self._writing.begin()

    def close(self) -> None:
        self.engine.dispose()


def _create_tables(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    metadata.create_all(connection)
    version = connection.execute(sa.select(schema_version.c.version)).scalar()
    if version is None:
        connection.execute(schema_version.insert().values(version=VERSION))
    elif version != VERSION:
        advice = "use the tapnet that made it, or another store"
        raise UserError(f"The store has version {version}, this tapnet takes {VERSION}: {advice}.", parameter="store")


def _sqlite(address: str) -> sa.Engine:
    engine = sa.create_engine(address, connect_args={"timeout": 30, "check_same_thread": False})

    @sa.event.listens_for(engine, "connect")
    def set_up(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions begin below, not where the driver thinks best
        for pragma in ("busy_timeout=30000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine
