"""A server that is killed again and again while somebody teaches it: python killed_server.py STORE KILLS.

Prints as JSON which examples were acknowledged, and which are there in the end. The servers are forked from a process
that has loaded the network already, because that takes most of the time.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress

import httpx
import uvicorn
from web_server import drawing, files, free_port

from tapnet.inference import load_network
from tapnet.web.app import create_app
from tapnet.web.settings import Limits, Settings

ALIVE = 0.4  # seconds of additions before a kill, and at least one


def start(store, port):
    """Return the process id of a server that answers."""
    process = os.fork()
    if not process:
        settings = Settings(store=store, port=port, limits=Limits(examples=100_000))  # more than a hundred lives add
        uvicorn.run(create_app(settings), port=port, log_level="critical")
        os._exit(0)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/v1/ready", timeout=5).status_code == 200:
                return process
        except httpx.TransportError:
            time.sleep(0.02)
    raise SystemExit("The server did not answer in time.")


def kill(process):
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def add_and_kill(process, target, acknowledged, seed):
    """Add examples by one connection and begin one more that is not waited for, then kill the server."""
    end, before = time.monotonic() + ALIVE, len(acknowledged)
    with httpx.Client(timeout=60) as client:
        while time.monotonic() < end or len(acknowledged) == before:
            seed += 1
            answer = client.post(target, files=files(drawing("circle", seed))).raise_for_status()
            acknowledged.update(answer.json()["added"])
        seed += 1
        with suppress(httpx.TimeoutException):  # in the middle of this one
            client.post(target, files=files(*(drawing("circle", seed + n) for n in range(9))), timeout=0.03)
        kill(process)
    return seed + 9


def main(store, kills):
    load_network("drawings")
    port, acknowledged, seed = free_port(), set(), 0
    address = f"http://127.0.0.1:{port}/v1/tasks"
    process = start(store, port)
    task = httpx.post(address, json={"name": "kept"}).json()["id"]
    added = httpx.post(f"{address}/{task}/classes", json={"name": "circle"}).json()
    target = f"{address}/{task}/classes/{added['classes'][0]['id']}/examples"
    for _ in range(kills):
        seed = add_and_kill(process, target, acknowledged, seed)
        process = start(store, port)
    found = httpx.get(f"{address}/{task}").json()
    kill(process)
    there = [each["id"] for each in found["classes"][0]["examples"]]
    print(json.dumps({"acknowledged": sorted(acknowledged), "there": there}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
