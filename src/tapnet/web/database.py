"""Connections to SQLite or PostgreSQL, with transactions that mean the same in both."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from filelock import FileLock
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError

from tapnet.errors import UserError
from tapnet.web.schema import migrate

_WRITES = "tapnet_writes"


class Database:
    """A database of the newest schema; several processes, and with PostgreSQL machines, may have it open."""

    def __init__(self, address: str) -> None:
        self.engine = _sqlite(address) if address.startswith("sqlite") else _postgresql(address)
        one_state = {"isolation_level": "REPEATABLE READ"} if self.engine.dialect.name == "postgresql" else {}
        self._reading = self.engine.execution_options(**one_state)
        self._writing = self.engine.execution_options(**{_WRITES: True})
        try:
            with _alone(address), self.write() as connection:
                migrate(connection)
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


def _alone(address: str) -> AbstractContextManager[Any]:
    """Inside, no other process opens the same SQLite file: switching to WAL does not wait for others, it fails."""
    return FileLock(f"{address.removeprefix('sqlite:///')}.lock") if address.startswith("sqlite") else nullcontext()


def _postgresql(address: str) -> Engine:
    return create_engine(address, pool_pre_ping=True, pool_size=8, max_overflow=8, isolation_level="READ COMMITTED")


def _sqlite(address: str) -> Engine:
    engine = create_engine(address, connect_args={"timeout": 30, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions begin below, not where the driver thinks best
        for pragma in ("busy_timeout=30000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine
