"""How much of the bare network's throughput the service has on loopback, and what waiting costs under load.

Both sides run the network on one thread. Images per CPU second are compared, because clients and server share this
machine; by the clock the ratio also depends on how many of its cores are free, as images are read beside the network.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from pairs import Row, Work, compared
from PIL import Image

from tapnet.data import load_dataset
from tapnet.inference import load_network
from tapnet.inference.images import Example, read_images

SECONDS = 4.0
BOUNDARY = "drawings"


@dataclass(frozen=True)
class Load:
    """What the clients send: drawings of this side, so many in each request."""

    side: int
    per_request: int
    clients: int

    @property
    def note(self) -> str:
        return f"{self.per_request} of {self.side}×{self.side} pixels per request, {self.clients} clients"


@dataclass(frozen=True)
class Request:
    """What a client sends again and again."""

    method: str
    path: str
    body: bytes | None = None


@dataclass(frozen=True)
class Rate:
    """Images per CPU second and per second of the clock."""

    cpu: float
    wall: float


BATCHES = Load(side=28, per_request=64, clients=8)  # an engineer's script: as large as the network takes them
SINGLE = Load(side=224, per_request=1, clients=16)  # the page: a drawing at a time


def rows(pairs: int = 3) -> list[Row]:
    """Throughput of a server with many clients / of this process, which has none; and waiting / a single request."""
    torch.set_num_threads(1)
    with _server() as (port, task, process):
        return [
            *_throughput(BATCHES, "0.8", pairs, port, task, process),
            *_throughput(SINGLE, "", pairs, port, task, process),
            _empty_requests(pairs, port, process),
        ]


def _throughput(load: Load, target: str, pairs: int, port: int, task: str, process: psutil.Process) -> list[Row]:
    drawings = _drawings(load.side, 64)
    request = Request("POST", f"/v1/tasks/{task}/predict", _body(drawings[: load.per_request]))
    measured = [
        (_network(drawings), _reading(drawings), *_under_load(load, port, request, process)) for _ in range(pairs)
    ]
    network, reading, served, latencies = (list(column) for column in zip(*measured, strict=True))
    waits = np.concatenate(latencies)
    alone = float(np.median(_latencies(port, request, 1.0)))
    p50, p99 = (float(np.percentile(waits, share)) / alone for share in (50, 99))
    clock = "the same by the clock"
    return [
        _row("service: images / bare network", served, network, target, load.note),
        _row("service: images / bare network", served, network, "", clock, wall=True),
        _row("service: images / reading and embedding them", served, reading, "", load.note),
        Row("service under load: p50 / single request", p50, "", p50 * alone, alone, load.note),
        Row("service under load: p99 / single request", p99, "", p99 * alone, alone, load.note),
    ]


def _empty_requests(pairs: int, port: int, process: psutil.Process) -> Row:
    """What a request costs before it has an image: beyond 0.25, single images cannot reach 0.8 of the network."""
    drawings = _drawings(SINGLE.side, 64)
    request = Request("GET", "/v1/health")
    measured = [(_under_load(SINGLE, port, request, process)[0], _network(drawings)) for _ in range(pairs)]
    empty, image = (float(np.median([1 / row[side].cpu for row in measured])) for side in (0, 1))
    return Row(
        "service: an empty request / an image through the network", empty / image, "", empty, image, "GET /v1/health"
    )


def _row(name: str, ours: list[Rate], theirs: list[Rate], target: str, note: str, wall: bool = False) -> Row:
    first, second = (np.array([rate.wall if wall else rate.cpu for rate in side]) for side in (ours, theirs))
    return Row(name, float(np.median(first / second)), target, 1 / np.median(first), 1 / np.median(second), note)


def _drawings(side: int, count: int) -> list[bytes]:
    """Return drawings of the bundled set as PNG files of this side, ink dark on white."""
    pixels = load_dataset("quickdraw", "test").gather(np.arange(count))
    return [_png(Image.fromarray(255 - drawing.squeeze(-1)).resize((side, side))) for drawing in pixels]


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _network(drawings: list[bytes]) -> Rate:
    """Return the rate of the network alone, in batches of 64."""
    network, pixels = load_network("drawings"), _pixels(drawings)
    return _rate(lambda: network.embed(pixels), len(drawings))


def _reading(drawings: list[bytes]) -> Rate:
    """Return the rate of one process that only decodes and embeds."""
    network = load_network("drawings")
    return _rate(lambda: network.embed(_pixels(drawings)), len(drawings))


def _pixels(drawings: list[bytes]) -> list[NDArray[np.uint8]]:
    read = read_images(drawings, load_network("drawings").image_preprocessing)
    return [example.pixels for _, example in read if isinstance(example, Example)]


def _rate(work: Callable[[], object], images: int) -> Rate:
    work()
    cpu, began, count = time.process_time(), time.perf_counter(), 0
    while time.perf_counter() < began + SECONDS:
        work()
        count += images
    return Rate(count / (time.process_time() - cpu), count / (time.perf_counter() - began))


def _under_load(load: Load, port: int, request: Request, process: psutil.Process) -> tuple[Rate, list[float]]:
    """Return the rate of the server that all clients got together, and the seconds of each request."""
    cpu, began = sum(process.cpu_times()[:2]), time.perf_counter()
    with ThreadPoolExecutor(load.clients) as pool:
        runs = list(pool.map(lambda _: _latencies(port, request, SECONDS), range(load.clients)))
    latencies = [latency for run in runs for latency in run]
    count = load.per_request * len(latencies)
    taken = sum(process.cpu_times()[:2]) - cpu
    return Rate(count / taken, count / (time.perf_counter() - began)), latencies


def _body(drawings: list[bytes]) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'.encode()
    return b"".join(head + drawing + b"\r\n" for drawing in drawings) + f"--{BOUNDARY}--\r\n".encode()


def _latencies(port: int, request: Request, seconds: float) -> list[float]:
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"} if request.body else {}
    connection, taken, end = http.client.HTTPConnection("127.0.0.1", port), [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        connection.request(request.method, request.path, request.body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            taken.append(time.perf_counter() - began)
    connection.close()
    return taken


@contextmanager
def _server() -> Iterator[tuple[int, str, psutil.Process]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as store:
        flags = ["--store", store, "--port", str(port), "--no-open"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen([sys.executable, "-m", "tapnet", "serve", *flags], env=environment)
        try:
            yield port, _ready_task(f"http://127.0.0.1:{port}/v1"), psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


def _ready_task(address: str) -> str:
    for _ in range(3000):
        try:
            urllib.request.urlopen(f"{address}/health").read()
            break
        except OSError:
            time.sleep(0.1)
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/tasks", b'{"example": true}', headers)
    return str(json.load(urllib.request.urlopen(request))["id"])


def startup_rows(pairs: int = 7) -> list[Row]:
    """How fast the command line answers, beside an import of PyTorch."""
    result = []
    for option in ("--help", "--version"):
        a, b, ratio = compared(_python("-m", "tapnet", option), _python("-c", "import torch"), pairs)
        result.append(Row(f"start-up: tapnet {option} / import torch", ratio, "below 0.3", a, b))
    return result


def _python(*arguments: str) -> Work:
    return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
