"""Many clients at once: batches, a bounded queue, nothing lost; and the end of a server."""

import asyncio
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from web_server import drawing, files, serving

from tapnet.inference import load_network
from tapnet.inference.networks import EmbeddingModel
from tapnet.web.batching import BatchedModel, Batcher
from tapnet.web.database import Database
from tapnet.web.engine import Engine
from tapnet.web.problems import Problem
from tapnet.web.settings import Limits, Settings
from tapnet.web.store import Store


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with two worker processes, and the ready example in it."""
    flags = "--workers", "2", "--queue", "16", "--body-seconds", "2", "--rate", "100000"
    with serving(tmp_path_factory.mktemp("store"), *flags) as (address, process):
        task = httpx.post(f"{address}/v1/tasks", json={"example": True}, timeout=60).json()
        yield address, task, process


def load(address, task, clients, seconds):
    """Return the statuses that mixed clients got, and the examples that were acknowledged."""
    statuses, acknowledged, lock, end = [], set(), threading.Lock(), time.monotonic() + seconds
    base = f"{address}/v1/tasks/{task['id']}"
    class_id = task["classes"][0]["id"]

    def run(number):
        with httpx.Client(timeout=60) as client:
            turn = 0
            while time.monotonic() < end:
                turn += 1
                sent = files(drawing("circle", 1000 * number + turn))
                adds = turn % 4 == 0
                answer = client.post(f"{base}/classes/{class_id}/examples" if adds else f"{base}/predict", files=sent)
                with lock:
                    statuses.append(answer.status_code)
                    if adds and answer.status_code == 201:
                        acknowledged.update(answer.json()["added"])

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(run, range(clients)))
    return statuses, acknowledged


def check_load(address, task, clients, seconds):
    statuses, acknowledged = load(address, task, clients, seconds)
    assert set(statuses) <= {200, 201, 429, 503}
    assert 200 in statuses
    found = httpx.get(f"{address}/v1/tasks/{task['id']}").json()
    assert acknowledged <= {each["id"] for each in found["classes"][0]["examples"]}


def test_mixed_clients_get_answers_and_lose_nothing(server):
    check_load(server[0], server[1], clients=16, seconds=3)


@pytest.mark.slow
def test_sixty_four_clients_for_half_a_minute_lose_nothing_and_leave_memory_flat(tmp_path):
    import psutil

    with serving(tmp_path / "store", "--rate", "100000", "--max-examples", "100000") as (address, process):
        task = httpx.post(f"{address}/v1/tasks", json={"example": True}, timeout=60).json()
        check_load(address, task, 64, 10)
        before = psutil.Process(process.pid).memory_info().rss
        check_load(address, task, 64, 30)
        assert psutil.Process(process.pid).memory_info().rss < 1.5 * before


def test_workers_share_tasks_and_metrics(server):
    address, task, _ = server
    for _ in range(6):  # new connections: whichever worker answers
        assert httpx.get(f"{address}/v1/tasks/{task['id']}").status_code == 200
    assert "tapnet_requests_total" in httpx.get(f"{address}/v1/metrics").text


def test_slow_client_is_sent_away_while_others_are_answered(server):
    address = server[0].removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=20) as slow:
        slow.sendall(b"POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        assert httpx.get(f"{server[0]}/v1/health").status_code == 200
        assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_shutdown_finishes_what_was_accepted(tmp_path):
    with serving(tmp_path / "store") as (address, process):
        task = httpx.post(f"{address}/v1/tasks", json={"example": True}, timeout=60).json()
        sent = files(*(drawing("circle", seed) for seed in range(80)))
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(httpx.post, f"{address}/v1/tasks/{task['id']}/predict", files=sent, timeout=60)
            while not future.done() and "tapnet_waiting_requests 1.0" not in httpx.get(f"{address}/v1/metrics").text:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            answer = future.result()
        assert len(answer.json()["predictions"]) == 80
        process.wait(20)


def test_queue_is_bounded(tmp_path):
    settings = Settings(store=str(tmp_path), threads=1, limits=Limits(queue=2))
    database = Database(settings.database)
    engine = Engine(settings, Store(database, settings.limits))
    free = threading.Event()

    async def fill():
        first = [asyncio.ensure_future(engine.run(free.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Problem) as refused:
            await engine.run(free.wait)
        free.set()
        await asyncio.gather(*first)
        return refused.value

    refused = asyncio.run(fill())
    assert (refused.status, refused.retry_after) == (503, 1)
    engine.close()
    database.close()


def test_requests_that_wait_pass_the_network_as_one_batch(monkeypatch):
    real, busy, free = EmbeddingModel.embed, threading.Event(), threading.Event()

    def gated(model, pixels):
        busy.set()
        free.wait(120)
        return real(model, pixels)

    images = np.random.default_rng(0).integers(0, 256, (24, 28, 28, 1)).astype(np.uint8)
    alone = load_network("drawings").embed(images)
    monkeypatch.setattr(EmbeddingModel, "embed", gated)
    batcher = Batcher()
    model = BatchedModel.of(load_network("drawings"), batcher)
    with ThreadPoolExecutor(12) as pool:
        waiting = [pool.submit(model.embed, [images[0], images[1]])]
        assert busy.wait(60)  # the first of them is with the network
        waiting += [pool.submit(model.embed, [images[2 * n], images[2 * n + 1]]) for n in range(1, 12)]
        end = time.monotonic() + 60
        while len(batcher.waiting[model.sha256]) < 11 and time.monotonic() < end:
            time.sleep(0.01)
        free.set()
        together = [each.result() for each in waiting]
    batcher.close()
    np.testing.assert_allclose(np.concatenate(together), alone, rtol=1e-3, atol=1e-4)
    assert (batcher.images, batcher.batches) == (24, 2)
