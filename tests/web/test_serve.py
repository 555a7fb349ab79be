"""`tapnet serve`: what it says when it starts or cannot, many clients at once, and the end of a server."""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
import uvicorn
from web_server import drawing, files, serving

from tapnet.cli import main, serve
from tapnet.web.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Starts a server that is not to start, and returns the sentence."""
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: pytest.fail("started"))

    def serve(*flags):
        assert main(["serve", "--no-open", "--store", str(tmp_path / "store"), *flags]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        return err

    return serve


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Returns the options with which the web server would be started."""
    options = {}
    monkeypatch.setattr(uvicorn, "run", lambda *_, **given: options.update(given))
    monkeypatch.setattr(os, "environ", os.environ.copy())  # workers get their settings by it

    def start(*flags):
        assert main(["serve", "--no-open", "--store", str(tmp_path / "store"), "--port", "0", *flags]) == 0
        return options

    return start


def test_help_shows_every_default(monkeypatch):
    monkeypatch.delenv("TAPNET_TOKEN", raising=False)
    parser = argparse.ArgumentParser()
    serve.add_serve_arguments(parser)
    without = {action.option_strings[-1] for action in parser._actions if "(default: " not in str(action.help)}
    assert without == {"--help", "--allow-host", "--network", "--no-open", "--trusted-proxy"}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_serve_on_a_port_in_use_names_it(refused, workers):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        said = refused("--port", port, "--workers", workers)
    assert f"Cannot listen on 127.0.0.1:{port}: address already in use." in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--store", __file__], "is a file, expected a folder"),
        (["--device", "cuda:99"], "not on this machine"),
        (["--network", "nosuch"], "nosuch"),
        (["--host", "0.0.0.0"], "(--token)"),
        (["--host", "no.such.host.invalid", "--token", "12345678"], "Cannot listen on no.such.host.invalid"),
    ],
)
def test_serve_that_cannot_start_says_why(refused, flags, words, monkeypatch):
    monkeypatch.delenv("TAPNET_TOKEN", raising=False)
    assert words in refused("--workers", "2", *flags)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_serve_on_any_free_port_prints_the_one_it_listens_on(started, capsys, workers):
    options = started("--workers", workers)
    printed = re.search(r"http://127\.0\.0\.1:(\d+)", capsys.readouterr().out)
    assert int(printed[1]) == options["port"] != 0


def test_serve_believes_only_the_proxies_that_it_was_told(started):
    assert not started()["proxy_headers"]
    options = started("--trusted-proxy", "10.0.0.1", "--trusted-proxy", "10.0.0.2")
    assert (options["proxy_headers"], options["forwarded_allow_ips"]) == (True, ["10.0.0.1", "10.0.0.2"])


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "http://127.0.0.1:80"), ("::", "http://[::1]:80"), ("localhost", "http://localhost:80")],
)
def test_serve_shows_an_address_that_a_browser_takes(host, address):
    assert serve._shown_address(Settings(host=host, port=80, token="12345678")) == address


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a server with two worker processes, and of the ready example in it."""
    with serving(tmp_path_factory.mktemp("store"), "--workers", "2", "--queue", "16") as (address, _):
        yield address, ready_example(address)


def ready_example(address):
    task = httpx.post(f"{address}/v1/tasks", json={"example": True}, timeout=60).json()["id"]
    return f"{address}/v1/tasks/{task}"


def check_load(task, clients, seconds):
    """Mixed clients get documented statuses only, and what was acknowledged is there."""
    statuses, acknowledged, end = [], set(), time.monotonic() + seconds
    class_id = httpx.get(task).json()["classes"][0]["id"]

    def run(number):
        with httpx.Client(timeout=60) as client:
            turn = 0
            while time.monotonic() < end:
                turn += 1
                sent, adds = files(drawing("circle", 1000 * number + turn)), turn % 4 == 0
                answer = client.post(f"{task}/classes/{class_id}/examples" if adds else f"{task}/predict", files=sent)
                statuses.append(answer.status_code)
                if answer.status_code == 201:
                    acknowledged.update(answer.json()["added"])

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(run, range(clients)))
    assert 200 in statuses
    assert set(statuses) <= {200, 201, 503}
    assert acknowledged <= {example["id"] for example in httpx.get(task).json()["classes"][0]["examples"]}


def test_mixed_clients_get_answers_and_lose_nothing(server):
    check_load(server[1], clients=16, seconds=3)


@pytest.mark.slow
def test_sixty_four_clients_for_half_a_minute_lose_nothing_and_leave_memory_flat(tmp_path):
    with serving(tmp_path / "store", "--max-examples", "100000") as (address, process):
        task = ready_example(address)
        check_load(task, 64, 10)
        before = psutil.Process(process.pid).memory_info().rss
        check_load(task, 64, 30)
        assert psutil.Process(process.pid).memory_info().rss < 1.5 * before


def test_workers_share_tasks_and_metrics(server):
    address, task = server
    assert [httpx.get(task).status_code for _ in range(6)] == [200] * 6  # new connections: whichever worker answers
    assert "tapnet_requests_total" in httpx.get(f"{address}/v1/metrics").text


@pytest.mark.parametrize("beginning", [b"X: ", b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: "])
def test_headers_are_limited_before_and_behind_a_body(server, beginning):
    host, port = server[0].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(b"POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\n" + beginning)
        with pytest.raises(OSError, match=r"reset|[Bb]roken"):
            client.sendall(b"a" * 10_000_000)
    assert httpx.get(f"{server[0]}/v1/health").status_code == 200


def test_headers_of_usual_size_and_bodies_of_any_number_of_parts_pass(server):
    assert httpx.get(server[1], headers={"x": "a" * 30_000}).status_code == 200
    parts = (bytes(100) for _ in range(5000))
    assert httpx.post(f"{server[0]}/v1/tasks/file", content=parts).status_code == 422


def test_shutdown_finishes_what_was_accepted(tmp_path):
    with serving(tmp_path / "store") as (address, process):
        task = ready_example(address)
        sent = files(*(drawing("circle", seed) for seed in range(80)))
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(httpx.post, f"{task}/predict", files=sent, timeout=60)
            while not future.done() and "tapnet_waiting_requests 1.0" not in httpx.get(f"{address}/v1/metrics").text:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            answer = future.result()
        assert len(answer.json()["predictions"]) == 80
        process.wait(20)


@pytest.mark.slow
def test_wheel_serves_every_file_of_the_page(tmp_path, monkeypatch):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("tapnet-*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    monkeypatch.chdir(tmp_path)
    static = ROOT / "src" / "tapnet" / "web" / "static"
    with serving(tmp_path / "store") as (address, _):
        assert httpx.get(address).content == (static / "index.html").read_bytes()
        for path in static.iterdir():
            assert httpx.get(f"{address}/static/{path.name}").content == path.read_bytes()
        assert httpx.get(ready_example(address)).status_code == 200
