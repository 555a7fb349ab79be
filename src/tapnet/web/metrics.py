"""Counters for Prometheus: requests, their durations, and how busy the network is."""

from __future__ import annotations

import os
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # a folder in which worker processes add up their counters


class Metrics:
    """What one server counts; with several worker processes, what all of them count together."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        names = ["method", "route", "status"]
        self.requests = Counter("tapnet_requests", "Requests answered.", names, registry=self.registry)
        self.seconds = Histogram("tapnet_request_seconds", "Seconds to answer.", ["route"], registry=self.registry)
        self.images = Counter("tapnet_images", "Images that passed a network.", registry=self.registry)
        self.waiting = Gauge(
            "tapnet_waiting_requests",
            "Requests that wait for the network, or are with it.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )

    def text(self) -> bytes:
        """Return the exposition format."""
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)


class CountRequests:
    """Counts every answer, those of the checks before the application included."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status = time.perf_counter(), 500

        async def counting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, counting)
        finally:
            route = _route(scope)
            self.metrics.requests.labels(scope["method"], route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - began)


def _route(scope: Scope) -> str:
    """Return the pattern of the path, not the path: ids would make a metric each."""
    return str(getattr(scope.get("route"), "path", "other"))
