"""Which browser the tests drive: the system's Chromium, else one that is installed now, where that is possible."""

import os
import shutil
import subprocess
import sys

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
HELP = (
    "The tests of the page need Chromium, and none was found or could be installed: run `apt-get install chromium` as "
    "root, or `python -m playwright install chromium`."
)


def find():
    """Return the path of a Chromium; install one if there is none. Raise RuntimeError with what to do if that fails."""
    return _there() or _from_debian() or _from_playwright() or _fail()


def _there():
    given = os.environ.get("TAPNET_CHROMIUM")
    return given or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def _from_debian():
    if os.geteuid() or not shutil.which("apt-get"):
        return None
    for command in (["apt-get", "update"], ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"]):
        subprocess.run(
            command, capture_output=True, check=False, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        )
    return shutil.which("chromium")


def _from_playwright():
    from playwright.sync_api import sync_playwright

    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], capture_output=True, check=False)
    with sync_playwright() as driver:
        path = driver.chromium.executable_path
    return path if os.path.exists(path) else None  # noqa: PTH110


def _fail():
    raise RuntimeError(HELP)
