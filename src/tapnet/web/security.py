"""What every request passes before anything else: host, origin, token, rate and size; and what every answer carries."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections import OrderedDict
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tapnet.web.problems import Problem, problem_response
from tapnet.web.settings import Settings

COOKIE = "tapnet_session"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Referrer-Policy": "same-origin",  # without one, the login form would come from nowhere
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_ENCODED = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
_SAFE = ("GET", "HEAD", "OPTIONS")
_OPEN = ("/login", "/v1/health", "/static/login.js", "/static/style.css", "/static/icon.svg")  # without a token
_CLIENTS = 10_000  # whose rates are remembered
_BODIES = 16  # of the largest size, in memory at a time


def session_of(token: str) -> str:
    """Return what the cookie of somebody who knows the token holds: not the token itself."""
    return hmac.new(token.encode(), b"tapnet session", hashlib.sha256).hexdigest()


def is_token(given: str, settings: Settings) -> bool:
    """Return whether this is the token of the server, in a time that does not depend on it."""
    return settings.token is not None and hmac.compare_digest(given.encode("utf-8", "replace"), settings.token.encode())


class Gate:
    """Checks a request before the application sees it."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings, self._rates = app, settings, Rates(settings.limits.rate)
        self._bodies = Room(_BODIES * settings.limits.upload_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers, send = Headers(scope=scope), _with_headers(scope, send)
        parts: list[bytes] = []  # of the body, which counts until the answer is sent
        try:
            self._check(scope, headers)
            if scope["method"] not in _SAFE:
                await self._read(receive, parts)
                receive = _replay(b"".join(parts), receive)
            return await self.app(scope, receive, send)
        except Problem as refusal:
            extra = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
            if refusal.status in (408, 413, 503):
                extra["Connection"] = "close"  # what is left of the body is not read
            if refusal.status == 401 and scope["path"] == "/":
                response = problem_response(303, "Log in first.", headers={"Location": "/login"})
            else:
                response = problem_response(refusal.status, refusal.detail, refusal.retry_after, extra)
            return await response(scope, receive, send)
        finally:
            self._bodies.taken -= sum(map(len, parts))

    def _check(self, scope: Scope, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self.settings.accepts_host(host):
            raise Problem(421, f"This server does not answer for the host {host!r}; --allow-host adds a name.")
        if scope["method"] not in _SAFE:
            _check_origin(headers, host)
        if scope["path"] != "/v1/health":  # before the token, so that guesses of it are limited, too
            client = (scope.get("client") or ("",))[0]
            if wait := self._rates.wait(client):
                raise Problem(429, "Too many requests from this address: wait a moment.", max(1, round(wait)))
        if scope["path"] not in _OPEN:
            self._check_token(headers)
        declared = headers.get("content-length", "0")
        if not declared.isdecimal():
            raise Problem(400, f"Expected a length, got Content-Length: {declared}.")
        self._check_size(int(declared))

    def _check_size(self, size: int) -> None:
        most = self.settings.limits.upload_bytes
        if size > most:
            raise Problem(413, f"Expected at most {most:,} bytes in one request.")

    async def _read(self, receive: Receive, parts: list[bytes]) -> None:
        """Read a body: not more bytes than allowed, not slower, and not more than there is room for."""
        seconds, size, more = self.settings.limits.body_seconds, 0, True
        try:
            async with asyncio.timeout(seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Problem(400, "The request ended before its body did.")
                    part, more = message.get("body", b""), message.get("more_body", False)
                    self._bodies.take(len(part))
                    parts.append(part)
                    size += len(part)
                    self._check_size(size)
        except TimeoutError:
            raise Problem(408, f"The request took longer than {seconds:g} seconds to arrive.") from None

    def _check_token(self, headers: Headers) -> None:
        if self.settings.token is None:
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and is_token(given.strip(), self.settings):
            return
        session = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        if hmac.compare_digest(session.encode(), session_of(self.settings.token).encode()):
            return
        raise Problem(401, "Expected the server's token: `Authorization: Bearer TOKEN`, or log in at /login.")


class Rates:
    """A bucket of tokens per client: so many requests per second, and twice as many at once."""

    def __init__(self, rate: float) -> None:
        self.rate, self._buckets = rate, OrderedDict[str, tuple[float, float]]()

    def wait(self, client: str, now: float | None = None) -> float:
        """Count a request; return 0 if it may pass, else the seconds until one may."""
        now = time.monotonic() if now is None else now
        left, last = self._buckets.pop(client, (2 * self.rate, now))
        left = min(2 * self.rate, left + (now - last) * self.rate)
        passes = left >= 1
        self._buckets[client] = (left - passes, now)
        while len(self._buckets) > _CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if passes else (1 - left) / self.rate


@dataclass
class Room:
    """Bytes of the bodies of all requests that are in memory."""

    most: int
    taken: int = 0

    def take(self, size: int) -> None:
        if self.taken + size > self.most:
            raise Problem(503, "The server is busy with other uploads: try again.", retry_after=1)
        self.taken += size


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return what gives the application a body that was read, then whatever comes."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replayed() -> Message:
        return next(messages, None) or await receive()

    return replayed


def _check_origin(headers: Headers, host: str) -> None:
    """Refuse what a page of another site makes a browser send."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and _netloc(origin) != host.lower():
        raise Problem(403, f"Requests from pages of {origin} are refused.")
    if site not in (None, "same-origin", "none"):
        raise Problem(403, "Requests from pages of other sites are refused.")


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # such as "http://["
        return ""


def _with_headers(scope: Scope, send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), *_ENCODED]
            if all(name != b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store" if scope["path"].startswith("/v1") else b"no-cache"))
            message["headers"] = headers
        await send(message)

    return wrapped
