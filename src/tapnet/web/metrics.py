"""Counters for Prometheus: requests, their durations, and how busy the network is."""

from __future__ import annotations

import os

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # a folder in which worker processes add up their counters

REQUESTS = Counter("tapnet_requests", "Requests answered.", ["method", "route", "status"])
SECONDS = Histogram("tapnet_request_seconds", "Seconds to answer.", ["route"])
IMAGES = Counter("tapnet_images", "Images that passed a network.")
WAITING = Gauge(
    "tapnet_waiting_requests", "Requests that wait for the network, or are with it.", multiprocess_mode="livesum"
)


def as_text() -> bytes:
    """Return the exposition format; with several worker processes, what all of them counted together."""
    if SHARED not in os.environ:
        return generate_latest(REGISTRY)
    together = CollectorRegistry()
    MultiProcessCollector(together)  # type: ignore[no-untyped-call]
    return generate_latest(together)
