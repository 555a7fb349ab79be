"""The settings of a server: where it keeps tasks, who may ask, and how much."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from tapnet.errors import UserError

ENVIRONMENT = "TAPNET_SERVE"  # by which worker processes get the settings


@dataclass(frozen=True)
class Limits:
    """How much one client may ask for; each is a flag of `tapnet serve`."""

    upload_bytes: int = 20_000_000  # of one request with images or a task file
    pixels: int = 40_000_000  # of one image
    images: int = 100  # of one request
    tasks: int = 1000
    classes: int = 100  # of one task
    examples: int = 2000  # of one task
    queue: int = 64  # requests for the network that may wait
    connections: int = 500  # at a time

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise UserError(f"Expected a limit of {name} above 0, got {value}.")


@dataclass(frozen=True)
class Settings:
    """Everything a server needs to know; `store` is a folder, or the address of a PostgreSQL database."""

    store: str = "tapnet-store"
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    allow_hosts: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()  # besides the bundled ones
    device: str = "cpu"
    threads: int = 8  # requests that are worked on at a time
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"Expected a port from 0 to 65535, got {self.port}.", parameter="port")
        if self.threads < 1:
            raise UserError(f"Expected at least 1 thread, got {self.threads}.", parameter="threads")
        if not self.is_local and not self.token:
            message = f"Listening on {self.host} lets other machines in: give a token that they have to know."
            raise UserError(message, parameter="token")
        if self.token is not None and len(self.token) < 8:
            raise UserError(
                f"Expected a token of 8 characters or more, got {len(self.token)}: `openssl rand -hex 16` makes one.",
                parameter="token",
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        return self.host == "localhost" or (_is_address(self.host) and ipaddress.ip_address(self.host).is_loopback)

    def accepts_host(self, header: str) -> bool:
        """Return whether a Host header names this server.

        Another site's name that was made to resolve to this machine does not; beyond this machine any address does,
        because no site's name is an address.
        """
        name = (header if header.endswith("]") else header.rsplit(":", 1)[0]).lower()
        if name in ("127.0.0.1", "localhost", "[::1]", self.host, *self.allow_hosts):
            return True
        return not self.is_local and _is_address(name.strip("[]"))

    def to_environment(self) -> None:
        """Leave the settings where worker processes find them."""
        os.environ[ENVIRONMENT] = TypeAdapter(Settings).dump_json(self).decode()

    @staticmethod
    def from_environment() -> Settings:
        """Return the settings that `to_environment` left."""
        return TypeAdapter(Settings).validate_json(os.environ[ENVIRONMENT])

    @property
    def database(self) -> str:
        """The address of the database; a folder is made if there is none."""
        scheme, separator, rest = self.store.partition("://")
        if separator:
            if scheme not in ("postgresql", "postgresql+psycopg"):
                raise UserError(f"Expected a folder or postgresql://…, got {scheme}://….", parameter="store")
            return f"postgresql+psycopg://{rest}"
        folder = Path(self.store)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UserError(f"{folder} is a file, expected a folder for the tasks.", parameter="store") from None
        return f"sqlite:///{folder.resolve() / 'tasks.sqlite'}"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
