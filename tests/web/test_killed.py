"""What was acknowledged survives kill -9: a server is killed again and again while somebody teaches it.

The servers are forked from a process that has loaded the network already, because that takes most of the time; it is
this file, run as `python test_killed.py STORE KILLS`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import httpx
import pytest
import uvicorn
from web_server import drawing, files, free_port

from tapnet.inference import load_network
from tapnet.web.app import create_app
from tapnet.web.settings import Limits, Settings

ALIVE = 0.4  # seconds of additions before a kill, and at least one


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_acknowledged_examples_survive_kills(tmp_path, kills):
    command = [sys.executable, __file__, str(tmp_path / "store"), str(kills)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    acknowledged, there = json.loads(done.stdout)
    assert len(acknowledged) >= kills
    assert set(acknowledged) <= set(there)


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
        with suppress(httpx.TimeoutException):  # in the middle of this one
            client.post(target, files=files(*(drawing("circle", seed + n) for n in range(1, 10))), timeout=0.03)
        kill(process)
    return seed + 9


def main(store, kills):
    """Print as JSON which examples were acknowledged, and which are there in the end."""
    load_network("drawings")
    port, acknowledged, seed = free_port(), set(), 0
    process = start(store, port)
    task = f"http://127.0.0.1:{port}/v1/tasks"
    task = f"{task}/{httpx.post(task, json={'name': 'kept'}).json()['id']}"
    class_id = httpx.post(f"{task}/classes", json={"name": "circle"}).json()["classes"][0]["id"]
    for _ in range(kills):
        seed = add_and_kill(process, f"{task}/classes/{class_id}/examples", acknowledged, seed)
        process = start(store, port)
    there = [example["id"] for example in httpx.get(task).json()["classes"][0]["examples"]]
    kill(process)
    print(json.dumps([sorted(acknowledged), there]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
