"""`tapnet serve`: a web page to teach a classifier, and the HTTP service behind it."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import webbrowser
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tapnet.cli.output import OUT
from tapnet.errors import UserError
from tapnet.text import install_hint

if TYPE_CHECKING:
    from tapnet.web.settings import Settings

_EXAMPLES = """examples:
  tapnet serve                                            opens http://127.0.0.1:8000
  tapnet serve --store my_tasks --port 9000
  tapnet serve --host 0.0.0.0 --token "$(openssl rand -hex 16)"
  tapnet serve --store postgresql://user@db/tapnet --workers 4
"""
_LIMITS = {  # fields of `Limits`
    "upload_bytes": ("--max-upload-bytes", "most bytes of one request with images or a task file"),
    "pixels": ("--max-pixels", "most pixels of one image"),
    "images": ("--max-images", "most images of one request"),
    "tasks": ("--max-tasks", "most tasks in the store"),
    "classes": ("--max-classes", "most classes of one task"),
    "examples": ("--max-examples", "most examples of one task"),
    "connections": ("--max-connections", "most connections at a time, in each worker"),
    "queue": ("--queue", "requests that may wait for the network"),
}


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    from tapnet.web.settings import Limits

    limits = Limits()
    parser.epilog, add = _EXAMPLES, parser.add_argument
    add("--store", default="tapnet-store", help="folder of the tasks, or postgresql://… (default: tapnet-store)")
    add("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1); others need --token")
    add("--port", type=int, default=8000, help="0 for any that is free (default: 8000)")
    add("--token", default=os.environ.get("TAPNET_TOKEN"), help="what clients must send (default: $TAPNET_TOKEN)")
    add("--allow-host", action="append", default=[], metavar="NAME", help="a name of this server besides its address")
    words = "a proxy whose X-Forwarded-For and X-Forwarded-Proto are believed"
    add("--trusted-proxy", action="append", default=[], metavar="ADDRESS", help=words)
    add("--workers", type=int, default=1, help="server processes (default: 1)")
    add("--threads", type=int, default=8, help="requests worked on at a time (default: 8)")
    add("--network", action="append", default=[], help="a network besides the bundled ones")
    add("--device", default="cpu", help="cpu, cuda, mps or auto (default: cpu)")
    add("--no-open", action="store_true", help="do not open the page in a browser")
    for name, (flag, words) in _LIMITS.items():
        default = getattr(limits, name)
        add(flag, dest=name, type=type(default), default=default, metavar="N", help=f"{words} (default: {default})")


def run_serve(args: argparse.Namespace) -> None:
    from tapnet.web.settings import Limits, Settings

    if args.workers < 1:
        raise UserError(f"Expected at least 1 worker, got {args.workers}.", parameter="workers")
    settings = Settings(
        store=args.store,
        host=args.host,
        port=args.port,
        token=args.token,
        allow_hosts=tuple(name.lower() for name in args.allow_host),
        networks=tuple(args.network),
        device=args.device,
        threads=args.threads,
        limits=Limits(**{name: getattr(args, name) for name in _LIMITS}),
    )
    try:
        import uvicorn

        from tapnet.web.app import create_app
        from tapnet.web.security import BoundedHeaders
    except ModuleNotFoundError as error:
        raise UserError(f"Serving needs {error.name}: {install_hint('web')}.") from None
    settings = replace(settings, port=_check_startable(settings))
    options: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "http": BoundedHeaders,
        "proxy_headers": bool(args.trusted_proxy),
        "forwarded_allow_ips": args.trusted_proxy,
        "limit_concurrency": settings.limits.connections,
        "log_level": "warning",
        "server_header": False,
        "timeout_keep_alive": 15,
        "timeout_graceful_shutdown": 30,
    }
    address = _shown_address(settings)
    OUT.print(f"Serving on {address}, tasks in {_without_password(settings.store)}. Press Ctrl-C to stop.")
    sys.stdout.flush()
    if not args.no_open:
        threading.Timer(1.5, webbrowser.open, [address]).start()
    if args.workers == 1:
        uvicorn.run(create_app(settings), **options)
        return
    import tempfile

    settings.to_environment()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        uvicorn.run("tapnet.web.app:from_environment", factory=True, workers=args.workers, **options)


def _check_startable(settings: Settings) -> int:
    """Return the port, a free one in place of 0; raise UserError if the server could not start.

    Before anything is printed, and once for all workers.
    """
    from tapnet.inference import load_network
    from tapnet.web.database import Database

    for network in ("drawings", *settings.networks):
        load_network(network, settings.device)
    Database(settings.database).close()
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as listener:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            reason = f"Cannot listen on {settings.host}:{settings.port}: {(error.strerror or str(error)).lower()}."
            raise UserError(f"{reason} Choose another port or host.", parameter="port") from None
        return int(listener.getsockname()[1])


def _shown_address(settings: Settings) -> str:
    """Return the address of the page as a browser on this machine takes it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def _without_password(store: str) -> str:
    head, at, tail = store.rpartition("@")
    return f"{head.split('://')[0]}://…@{tail}" if at and "://" in head else store
