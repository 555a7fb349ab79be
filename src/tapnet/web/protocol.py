"""Connections that keep a request waiting are closed: uvicorn itself waits for headers as long as it takes."""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_GRACE = 1.0  # by which a slow body is refused by the application first, with a sentence


class PunctualProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a limit on the time from the first byte of a request, or the connection, to its last byte."""

    def __init__(self, *args: Any, seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seconds = seconds
        self._deadline: TimerHandle | None = None
        self._begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect(self._seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:  # whatever it is: empty lines between requests do not begin one
            self._expect(self._seconds)
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun = True
        if self._deadline is None:
            self._expect(self._seconds)

    def on_headers_complete(self) -> None:
        self._expect(self._seconds + _GRACE)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._begun = False
        self._expect_nothing()
        super().on_message_complete()

    def _expect(self, seconds: float) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(seconds, self._late)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if not self._begun and self.cycle is not None and not self.cycle.response_complete:
            return  # a complete request is being answered, and what came since did not begin another
        if self._begun and (self.cycle is None or self.cycle.scope is not self.scope):
            self.transport.write(_LATE)  # its headers are not complete, so nobody answers it
        self.transport.close()
