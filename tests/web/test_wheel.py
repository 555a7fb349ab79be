"""The wheel alone serves the page: every file of it is packed."""

import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest
from web_server import serving

ROOT = Path(__file__).parents[2]


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
        made = httpx.post(f"{address}/v1/tasks", json={"example": True}, timeout=60)
        assert made.status_code == 201
