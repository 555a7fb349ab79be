"""Checks of every request before anything else (host, origin, token, size), and the headers of every answer."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import Counter
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tapnet.web import metrics
from tapnet.web.problems import Problem
from tapnet.web.settings import Settings

COOKIE = "tapnet_session"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
    (b"referrer-policy", b"same-origin"),  # without one, the login form would come from nowhere
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
]
_OPEN = ("/login", "/v1/health", "/static/login.js", "/static/style.css", "/static/icon.svg")  # without a token
_UPLOADS = ("/predict", "/explain", "/examples", "/v1/tasks/file")  # ends of paths that take images or a task
_SMALL_BODY = 4096  # bytes, of all other requests
_BODIES = 16  # of the largest size, in memory at a time
_HEADER_BYTES = 65_536
_GUESSES = 20  # wrong tokens of one address, in a minute


class TokenCheck:
    """Compares what clients give with the server's token, and stops those that guess."""

    def __init__(self, token: str) -> None:
        self.session = hmac.new(token.encode(), b"tapnet session", hashlib.sha256).hexdigest()  # what the cookie holds
        self._accepted = token.encode(), self.session.encode()
        self._minute, self._wrong = 0, Counter[str]()

    def accepts(self, given: str, client: str) -> bool:
        """Return whether this is the token or its cookie, in a time that does not depend on it."""
        if (minute := int(time.monotonic()) // 60) != self._minute:
            self._minute, self._wrong = minute, Counter()
        if self._wrong[client] >= _GUESSES:
            raise Problem(429, "Too many wrong tokens from this address: wait a minute.", retry_after=60)
        right = any(hmac.compare_digest(given.encode("utf-8", "replace"), secret) for secret in self._accepted)
        self._wrong[client] += not right
        return right


class Gate:
    """Checks a request before the application sees it and while its body comes, and counts its answer."""

    def __init__(self, app: ASGIApp, settings: Settings, token: TokenCheck | None) -> None:
        self.app, self.settings, self.token = app, settings, token
        self._body_bytes = 0  # in memory, of all requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status, size, complete, path = time.perf_counter(), 500, 0, False, scope["path"]
        most = self.settings.limits.upload_bytes if path.endswith(_UPLOADS) else _SMALL_BODY

        async def receiving() -> Message:
            nonlocal size, complete
            message = await receive()
            if message["type"] == "http.disconnect" and not complete:
                raise Problem(400, "The request ended before its body did.")
            complete, part = not message.get("more_body", False), message.get("body", b"")
            if self._body_bytes + len(part) > _BODIES * self.settings.limits.upload_bytes:
                raise Problem(503, "The server is busy with other uploads: try again.", retry_after=1)
            size, self._body_bytes = size + len(part), self._body_bytes + len(part)
            _check_size(size, most)
            return message

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = headers = [*message.get("headers", ()), *HEADERS]
                if all(name != b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store" if path.startswith("/v1") else b"no-cache"))
                if status in (413, 503):
                    headers.append((b"connection", b"close"))  # what is left of the body is not read
            await send(message)

        try:
            self._check(scope, Headers(scope=scope), most)
            await self.app(scope, receiving, sending)
        except Problem as problem:
            await problem.response()(scope, receive, sending)
        finally:
            self._body_bytes -= size
            route = getattr(scope.get("route"), "path", "other")  # not the path: ids would make a metric each
            metrics.REQUESTS.labels(scope["method"], route, str(status)).inc()
            metrics.SECONDS.labels(route).observe(time.perf_counter() - began)

    def _check(self, scope: Scope, headers: Headers, most: int) -> None:
        """Raise a problem if the request may not pass."""
        host, path = headers.get("host", ""), scope["path"]
        if not self.settings.accepts_host(host):
            raise Problem(421, f"This server does not answer for the host {host!r}; --allow-host adds a name.")
        if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            _check_origin(headers, host)
        if self.token is not None and path not in _OPEN:
            kind, _, given = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer":
                given = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
            if not given or not self.token.accepts(given.strip(), client_of(scope)):
                if path == "/":
                    raise Problem(303, "Log in first.", headers={"Location": "/login"})
                words = "Expected the server's token: `Authorization: Bearer TOKEN`, or log in at /login."
                raise Problem(401, words, headers={"WWW-Authenticate": "Bearer"})
        declared = headers.get("content-length", "0")
        if not declared.isdecimal():
            raise Problem(400, f"Expected a length, got Content-Length: {declared}.")
        _check_size(int(declared), most)


class BoundedHeaders(HttpToolsProtocol):
    """HTTP/1.1 with a limit on what comes before, between and behind the parts of a body: uvicorn has none."""

    _size = 0

    def data_received(self, data: bytes) -> None:
        self._size += len(data)
        super().data_received(data)
        if self._size > _HEADER_BYTES and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n")
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        self._size = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._size = 0
        super().on_message_complete()


def client_of(scope: Scope) -> str:
    """Return the address of the client."""
    return (scope.get("client") or ("",))[0]


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise Problem(413, f"Expected at most {most:,} bytes in this request.")


def _check_origin(headers: Headers, host: str) -> None:
    """Refuse what a page of another site makes a browser send."""
    origin = headers.get("origin")
    try:
        foreign = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
    except ValueError:  # such as "http://["
        foreign = True
    if foreign or headers.get("sec-fetch-site") not in (None, "same-origin", "none"):
        raise Problem(403, f"Requests from pages of {origin or 'other sites'} are refused.")
