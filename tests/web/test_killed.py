"""What was acknowledged survives kill -9."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).with_name("killed_server.py"))


def check(store, kills):
    command = [sys.executable, SCRIPT, str(store), str(kills)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["acknowledged"]) >= kills
    assert set(found["acknowledged"]) <= set(found["there"])


def test_acknowledged_examples_survive_five_kills(tmp_path):
    check(tmp_path / "store", 5)


@pytest.mark.slow
def test_acknowledged_examples_survive_a_hundred_kills(tmp_path):
    check(tmp_path / "store", 100)
