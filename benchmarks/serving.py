"""How much of the bare network's throughput the service has on loopback, and what waiting costs under load."""

from __future__ import annotations

import http.client
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

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from pairs import Row

from tapnet.inference import load_network
from tapnet.inference.images import read_images
from tapnet.web.example import random_drawing

CLIENTS, PER_REQUEST, SECONDS = 16, 16, 4.0
BOUNDARY = "drawings"


def rows(pairs: int = 3) -> list[Row]:
    """Images per CPU second of a server with many clients / of this process, which has no clients.

    CPU seconds, because the clients share the machine with the server.
    """
    drawings = [random_drawing() for _ in range(64)]
    torch.set_num_threads(1)
    with _server() as (port, task, process):
        measured = [
            (_network(drawings), _reading(drawings), *_load(port, task, drawings, process)) for _ in range(pairs)
        ]
        alone = float(np.median(_latencies(port, task, drawings, 1.0)))
    network, reading, served = (np.array([row[index] for row in measured]) for index in range(3))
    waits = np.concatenate([row[3] for row in measured])
    p50, p99 = (float(np.percentile(waits, share)) / alone for share in (50, 99))
    note = f"{PER_REQUEST} drawings per request, {CLIENTS} clients"
    return [
        _row("service: images / reading and embedding them", served, reading, "0.8", note),
        _row("service: images / embedding prepared ones", served, network, "", "reading takes most of the time"),
        Row("service under load: p50 / single request", p50, "", p50 * alone, alone, note),
        Row("service under load: p99 / single request", p99, "", p99 * alone, alone, note),
    ]


def _row(name: str, ours: NDArray[np.float64], theirs: NDArray[np.float64], target: str, note: str) -> Row:
    ratio = float(np.median(ours / theirs))
    return Row(name, ratio, target, 1 / float(np.median(ours)), 1 / float(np.median(theirs)), note)


def _network(drawings: list[bytes]) -> float:
    """Return the images per CPU second of the network alone, in batches of 64."""
    network = load_network("drawings")
    pixels = _pixels(drawings)
    return _rate(lambda: network.embed(pixels), len(drawings))


def _reading(drawings: list[bytes]) -> float:
    """Return the images per CPU second of one process that only decodes and embeds."""
    network = load_network("drawings")
    return _rate(lambda: network.embed(_pixels(drawings)), len(drawings))


def _pixels(drawings: list[bytes]) -> list[NDArray[np.uint8]]:
    read = read_images(drawings, load_network("drawings").image_preprocessing)
    return [example.pixels for _, example in read]  # type: ignore[union-attr]


def _rate(work: Callable[[], object], images: int) -> float:
    work()
    began, end, count = time.process_time(), time.perf_counter() + SECONDS, 0
    while time.perf_counter() < end:
        work()
        count += images
    return count / (time.process_time() - began)


def _load(port: int, task: str, drawings: list[bytes], process: psutil.Process) -> tuple[float, list[float]]:
    """Return the images per CPU second of the server that all clients got together, and the seconds of each request."""
    began = sum(process.cpu_times()[:2])
    with ThreadPoolExecutor(CLIENTS) as pool:
        runs = list(pool.map(lambda _: _latencies(port, task, drawings, SECONDS), range(CLIENTS)))
    latencies = [each for run in runs for each in run]
    return PER_REQUEST * len(latencies) / (sum(process.cpu_times()[:2]) - began), latencies


def _latencies(port: int, task: str, drawings: list[bytes], seconds: float) -> list[float]:
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'.encode() + each + b"\r\n"
        for each in drawings[:PER_REQUEST]
    ]
    body = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    connection, taken, end = http.client.HTTPConnection("127.0.0.1", port), [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        connection.request("POST", f"/v1/tasks/{task}/predict", body, headers)
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
        flags = ["--store", store, "--port", str(port), "--no-open", "--rate", "1000000"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen([sys.executable, "-m", "tapnet", "serve", *flags], env=environment)
        try:
            yield port, _ready_task(f"http://127.0.0.1:{port}/v1"), psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


def _ready_task(address: str) -> str:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{address}/health").read()
            break
        except OSError:
            time.sleep(0.1)
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/tasks", b'{"example": true}', headers)
    return str(json.load(urllib.request.urlopen(request))["id"])
