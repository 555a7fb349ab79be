"""A server that is killed again and again while somebody teaches it, for test_killed.py."""

import threading
import time

import httpx
from web_server import drawing, files, free_port, serving


def kill_and_look(store, kills, seconds=0.35):
    """Kill a server `kills` times in the middle of additions; return what was acknowledged and what is there."""
    port, acknowledged, seed = free_port(), set(), 0
    with serving(store, port=port) as (address, _):
        task = httpx.post(f"{address}/v1/tasks", json={"name": "kept"}).json()["id"]
        added = httpx.post(f"{address}/v1/tasks/{task}/classes", json={"name": "circle"}).json()
        target = f"/v1/tasks/{task}/classes/{added['classes'][0]['id']}/examples"
    for _ in range(kills):
        with serving(store, port=port) as (address, process):
            stop = threading.Timer(seconds, process.kill)
            stop.start()
            seed = add_until_it_stops(address + target, acknowledged, seed)
            process.wait()
            stop.cancel()
    with serving(store, port=port) as (address, _):
        found = httpx.get(f"{address}/v1/tasks/{task}").json()
        ready = httpx.get(f"{address}/v1/ready").status_code
    return acknowledged, {each["id"] for each in found["classes"][0]["examples"]}, ready


def add_until_it_stops(target, acknowledged, seed):
    with httpx.Client(timeout=10) as client:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            seed += 1
            try:
                answer = client.post(target, files=files(drawing("circle", seed)))
            except httpx.TransportError:
                break
            if answer.status_code == 201:
                acknowledged.update(answer.json()["added"])
    return seed
