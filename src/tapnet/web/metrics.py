"""Counters for Prometheus: requests, their durations, and how busy the network is."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.types import Scope

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

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count an answer by the pattern of its path, not the path: ids would make a metric each."""
        route = str(getattr(scope.get("route"), "path", "other"))
        self.requests.labels(scope["method"], route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return the exposition format."""
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)
