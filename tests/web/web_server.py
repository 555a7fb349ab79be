"""What the web tests share: drawings to send, `tapnet serve` in a process of its own, and a browser."""

import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import uvicorn
from PIL import Image, ImageDraw

from tapnet.web.app import create_app
from tapnet.web.settings import Settings

BASE = "http://127.0.0.1:8000"
CHROMIUM_FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
]


def short_folder():
    """A temporary folder with a short path: that of a socket in it may have about a hundred characters."""
    place = Path("/tmp")
    return tempfile.TemporaryDirectory(dir=place if place.is_dir() else None, ignore_cleanup_errors=True)


def png(image):
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def drawing(shape, seed):
    """A circle or a cross as somebody might draw it, as a PNG file."""
    generator = np.random.default_rng(seed)
    image = Image.new("L", (120, 120), 255)
    pen = ImageDraw.Draw(image)
    left, top, right, bottom = (int(v) for v in generator.integers(8, 24, 4))
    box = left, top, 120 - right, 120 - bottom
    if shape == "circle":
        pen.ellipse(box, outline=0, width=5)
    else:
        pen.line(box, fill=0, width=5)
        pen.line((box[0], box[3], box[2], box[1]), fill=0, width=5)
    return png(image)


def files(*contents):
    return [("images", (f"{number}.png", content, "image/png")) for number, content in enumerate(contents)]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def serving(store, *flags):
    """`tapnet serve` in a process of its own; yields its address and the process."""
    port = free_port()
    command = [sys.executable, "-m", "tapnet", "serve", "--no-open", "--store", str(store), "--port", str(port), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_up(address, process)
        yield address, process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@contextmanager
def serving_here(**settings):
    """The web server in a thread of this process, which starts sooner; yields its address."""
    settings = Settings(port=free_port(), **settings)
    server = uvicorn.Server(uvicorn.Config(create_app(settings), port=settings.port, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{settings.port}"
    server.should_exit = True
    thread.join(20)


def wait_until_up(address, process, seconds=180):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise AssertionError(f"The server ended: {process.stdout.read().decode()}")
        try:
            if httpx.get(f"{address}/v1/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("The server did not answer in time.")


def find_chromium():
    """Return the path of a Chromium; install one if there is none. Raise RuntimeError with what to do if that fails."""
    if path := os.environ.get("TAPNET_CHROMIUM") or _installed_chromium():
        return path
    if not os.geteuid() and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in ("apt-get update", "apt-get install --yes --no-install-recommends chromium"):
            subprocess.run(command.split(), capture_output=True, check=False, env=environment)
        if path := _installed_chromium():
            return path
    from playwright.sync_api import sync_playwright

    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], capture_output=True, check=False)
    with sync_playwright() as driver:
        if Path(driver.chromium.executable_path).exists():
            return driver.chromium.executable_path
    raise RuntimeError(
        "The tests of the page need Chromium, and none was found or could be installed: run `apt-get install chromium` "
        "as root, or `python -m playwright install chromium`."
    )


def _installed_chromium():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
