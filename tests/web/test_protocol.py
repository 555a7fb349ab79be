"""Clients that keep a request waiting are sent away; those that wait for an answer are not."""

import asyncio
import select
import socket
import threading
import time
from contextlib import suppress
from functools import partial

import pytest
import uvicorn

from tapnet.web.protocol import PunctualProtocol

SECONDS = 0.4
HEAD = b"GET /quick HTTP/1.1\r\nHost: 127.0.0.1\r\n"


async def application(scope, _receive, send):
    """Answers without reading the body; /slow takes longer than a request may."""
    if scope["path"] == "/slow":
        await asyncio.sleep(3 * SECONDS)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(scope="module")
def port():
    protocol = partial(PunctualProtocol, seconds=SECONDS)
    server = uvicorn.Server(uvicorn.Config(application, port=0, http=protocol, lifespan="off", log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def received(port, first, trickle=b""):
    """What the server sends until it closes the connection; `trickle` is sent again and again meanwhile."""
    found, end = b"", time.monotonic() + 60
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(first)
        while time.monotonic() < end:
            if select.select([client], [], [], SECONDS / 8)[0]:
                with suppress(ConnectionResetError):
                    if more := client.recv(1000):
                        found += more
                        continue
                return found
            with suppress(OSError):
                client.sendall(trickle)
    raise AssertionError(f"The connection is still open after {found!r}.")


def test_silent_connection_is_closed(port):
    assert received(port, b"") == b""


def test_headers_that_do_not_end_are_refused(port):
    assert received(port, HEAD).startswith(b"HTTP/1.1 408")


def test_headers_that_trickle_are_refused(port):
    assert received(port, HEAD + b"X: ", trickle=b"a").startswith(b"HTTP/1.1 408")


def test_body_that_trickles_behind_its_answer_ends_the_connection(port):
    found = received(port, HEAD + b"Content-Length: 100000\r\n\r\n", trickle=b"a")
    assert found.startswith(b"HTTP/1.1 200")
    assert b"408" not in found


def test_empty_lines_do_not_keep_a_connection_open(port):
    assert received(port, HEAD + b"\r\n", trickle=b"\r\n").startswith(b"HTTP/1.1 200")


def test_answer_may_take_longer_than_a_request(port):
    slow = HEAD.replace(b"quick", b"slow") + b"Connection: close\r\n\r\n"
    assert received(port, slow).startswith(b"HTTP/1.1 200")
