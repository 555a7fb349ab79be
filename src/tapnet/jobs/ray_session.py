"""A Ray cluster to work on: the one at an address, one that is connected already, or this machine's cores."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tapnet.errors import UserError
from tapnet.text import one_line

_QUIET = {  # what a user of `tapnet` did not ask for
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
_CONNECT_SECONDS = 10.0


def import_ray() -> Any:
    """Return Ray; raise UserError if it is not installed."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ModuleNotFoundError as error:
        raise UserError(f"The engine ray needs {error.name}: pip install 'tapnet[ray]'.", parameter="engine") from None
    return ray


@contextmanager
def ray_session(address: str | None = None) -> Iterator[Any]:
    """Inside, Ray is connected to the cluster at `address`: host:port, "auto" (this machine's) or "local" (its cores).

    Without an address it is RAY_ADDRESS, else the cluster of this machine, else its cores, as for every Ray program.
    Raise UserError if there is no such cluster.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    named = address or os.environ.get("RAY_ADDRESS")
    _check_address(named or "auto")
    try:
        with _silent_stderr():
            ray.init(address=address, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:  # a bare one, where its processes take too long to start
        here = named in (None, "local")
        problem = "Ray cannot be started on this machine" if here else f"There is no Ray cluster at {named}"
        hint = "" if here else " If it asks for a token, set RAY_AUTH_MODE=token here, too."
        raise UserError(f"{problem}: {one_line(error).rstrip('.')}.{hint}", parameter="address") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raise UserError unless something listens there: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if address in ("auto", "local"):
        return
    if "://" in address or not (host and port.isdigit()):
        raise UserError(
            f"Expected auto, local or host:port, got {address}. From outside the cluster, use `ray job submit`.",
            parameter="address",
        )
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"There is no Ray cluster at {address}: {error}.", parameter="address") from None


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Inside, nothing reaches the terminal: Ray's own processes write there past Python. Errors come as exceptions."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def plain_reason(error: BaseException) -> str:
    """Return what a task on the cluster raised, without Ray's frames around it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(getattr(error, "cause", None) or error)
